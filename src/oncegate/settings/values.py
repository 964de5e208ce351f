"""Values: from what was written to what is meant, or a sentence that says why it cannot be."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from oncegate.durations import microseconds
from oncegate.errors import SettingError
from oncegate.gate.options import agree
from oncegate.settings.functions import names_function
from oncegate.settings.known import LOG_ONLY, Kind, Setting
from oncegate.settings.strategies import parsed
from oncegate.stores import scheme_of
from oncegate.text import masked, not_a_choice, quoted

OFF: Final = "off"

_TRUTHS: Final = {"true": True, "false": False}
_NUMBER: Final = re.compile(r"-?\d{1,18}", re.ASCII)
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://.*", re.ASCII | re.DOTALL)
_MOST_PORTS: Final = 65_535
_MANY: Final = 10**12


def from_text(setting: Setting, text: str) -> Any:
    """What a variable or a flag says, as a file would have it; what that cannot be is left for `checked` to refuse."""
    text = text.strip()
    if setting.kind == "truth":
        return _TRUTHS.get(text.lower(), text)
    if setting.kind == "names":
        return [name.strip() for name in text.split(",") if name.strip()]
    if setting.kind in ("count", "port") and _NUMBER.fullmatch(text):
        return int(text)
    return text


def checked(setting: Setting, value: Any) -> Any:
    """The value, if it can be meant; else SettingError. What Python writes as None is written `off`."""
    if setting.optional and value == OFF:
        return None
    try:
        return _CHECKS[setting.kind](setting, value)
    except SettingError as error:
        said = str(error).replace(", or None", f", or {OFF}")
        raise SettingError(said if not setting.optional or OFF in said else f"{said}, or {OFF}") from error


def shown(setting: Setting, value: Any) -> Any:
    """The value as a file would have it, without secrets."""
    if value is None:
        return OFF
    if setting.kind in ("url", "place"):
        return _masked(setting, value)
    return list(value) if setting.kind == "names" else value


def _masked(setting: Setting, value: str) -> str:
    return masked(value, wholly="https" in setting.choices)


def _said(value: Any) -> str:
    """What is wrongly written for a URL, in an error."""
    if isinstance(value, str):
        return quoted(value)
    return repr(value) if isinstance(value, int | float) else type(value).__name__


def as_text(value: Any) -> str:
    """What `shown` gives, as a variable would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list) else str(value)


def _text(setting: Setting, value: Any) -> Any:
    if setting.of_gate:
        return _as_gates_do(setting, value)
    if not isinstance(value, str) or not value.isprintable() or not value:
        raise SettingError(f"{setting.path}={value!r} must be text")
    return value


def _as_gates_do(setting: Setting, value: Any) -> Any:
    """For what depends on no other setting, a gate's own rules."""
    agree({setting.name: value})
    return value


def _count(setting: Setting, value: Any) -> Any:
    if isinstance(value, int) and value > _MANY:
        raise SettingError(f"{setting.path}={value!r} is more than can be meant; write at most {_MANY}")
    if setting.of_gate:
        return _as_gates_do(setting, value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingError(f"{setting.path}={value!r} must be a whole number, 1 or more")
    return value


def _choice(setting: Setting, value: Any) -> Any:
    if value not in setting.choices:
        raise SettingError(not_a_choice(setting.path, value, setting.choices))
    return value


def _duration(setting: Setting, value: Any) -> Any:
    microseconds(value, setting.path)
    return value


def _truth(setting: Setting, value: Any) -> Any:
    if not isinstance(value, bool):
        raise SettingError(f"{setting.path}={value!r} must be true or false")
    return value


def _names(setting: Setting, value: Any) -> Any:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) and name for name in value):
        raise SettingError(f"{setting.path}={value!r} must be a list of names")
    return tuple(value)


def _url(setting: Setting, value: Any) -> Any:
    if not isinstance(value, str) or not _URL.fullmatch(value):
        raise SettingError(f"{setting.path}={_said(value)} is not a URL; write one such as {setting.default}")
    scheme_of(value)
    return value


def _place(setting: Setting, value: Any) -> Any:
    """What else is wrong with it, whoever uses it says."""
    if not isinstance(value, str) or value.partition("://")[0] not in setting.choices or not _URL.fullmatch(value):
        schemes = " or ".join(f"{scheme}://" for scheme in setting.choices)
        raise SettingError(f"{setting.path}={_said(value)} must be a URL that starts with {schemes}")
    return value


def _strategy(setting: Setting, value: Any) -> Any:
    if not isinstance(value, str):
        raise SettingError(f"{setting.path}={value!r} must be text, such as auto")
    if not names_function(value):
        parsed(value)
    return value


def _function(setting: Setting, value: Any) -> Any:
    if not isinstance(value, str) or not (names_function(value) or value == LOG_ONLY):
        raise SettingError(
            f"{setting.path}={value!r} must be written module:function, such as app:on_event, or {LOG_ONLY}"
        )
    return value


def _port(setting: Setting, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_PORTS:
        raise SettingError(f"{setting.path}={value!r} must be a whole number from 0 to {_MOST_PORTS}")
    return value


_CHECKS: Final[Mapping[Kind, Callable[[Setting, Any], Any]]] = {
    "text": _text,
    "choice": _choice,
    "duration": _duration,
    "count": _count,
    "truth": _truth,
    "names": _names,
    "url": _url,
    "place": _place,
    "strategy": _strategy,
    "function": _function,
    "port": _port,
}
