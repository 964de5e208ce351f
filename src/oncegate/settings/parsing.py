"""Parse and check the values of settings. Some values are functions or key strategies."""

import ast
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, TypeGuard

from oncegate import keys
from oncegate.durations import microseconds
from oncegate.errors import SettingError
from oncegate.gate.options import validate
from oncegate.journal import AUTO, check_journal_scheme
from oncegate.previous.base import read_place_url
from oncegate.settings.schema import INBOX, LOG_ONLY, Kind, Setting
from oncegate.stores import scheme_of
from oncegate.text import any_of, masked, not_a_choice, quoted, unknown

# ── functions, written `module:function` ──────────────────────────────────────────────────────────────────

_FUNCTION_NAME: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def names_function(text: str) -> bool:
    return _FUNCTION_NAME.fullmatch(text) is not None


def load_function(written: str, where: str) -> Callable[..., Any]:
    """Import a function. Modules in the current folder are found, as with `python -m`. Each error starts with
    `where`."""
    if not names_function(written):
        raise SettingError(f"{where}: {written!r} must be written module:function, such as app:on_event")
    module, _, attribute = written.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
    except (Exception, SystemExit) as error:  # an import runs the user's code, which can raise anything
        cause = f"{type(error).__name__}: {error}"
        raise SettingError(f"{where} {written}: importing {module} failed with {cause}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise SettingError(f"{where} {written}: there is no {part} in {module}")
        found = getattr(found, part)
    if not callable(found):
        raise SettingError(f"{where} {written}: {attribute} is not callable")
    function: Callable[..., Any] = found
    return function


# ── key strategies, written as in Python: `auto`, `fields("data.case.id")`, `first(event_id, content)` ────────
#
# The text is parsed and never evaluated. It may contain only names of strategies, calls of strategies, and literals.

_Strategy = Callable[..., Any]

# _READY has the names in `keys` that are strategies. _MAKERS has the names that return a strategy when they are called.
# `content` is both.
_READY: Final = ("auto", "event_id", "webhook_id", "content")
_MAKERS: Final = ("content", "fields", "first", "once_per", "state_change")
_IN_KEYS: Final = {name: getattr(keys, name) for name in dict.fromkeys(_READY + _MAKERS) if hasattr(keys, name)}


def strategy_of(written: str, where: str) -> _Strategy:
    """Return the strategy that is written in a setting. A function, written `module:function`, is imported. Each error
    starts with `where`."""
    if names_function(written):
        return load_function(written, where)
    try:
        return parsed(written)
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from error


def parsed(written: str) -> _Strategy:
    """Parse a strategy of `keys` in Python syntax. Raises SettingError if the text is not valid."""
    try:
        return _strategy(ast.parse(written.strip(), mode="eval").body)
    except SettingError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SettingError(f"key={written!r} cannot be parsed; write it like auto or {_EXAMPLE}") from error


def uses_webhook_id(written: str) -> bool:
    """Whether a strategy is `webhook_id` or contains `webhook_id`."""
    if names_function(written):
        return False
    try:
        nodes = ast.walk(ast.parse(written.strip(), mode="eval"))
        return any(_is_name(node) and _name(node) == "webhook_id" for node in nodes)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # not reported here, because `parsed` reports the error


def _is_name(node: ast.AST) -> TypeGuard[ast.Name | ast.Attribute]:
    return isinstance(node, ast.Name | ast.Attribute)


_EXAMPLE: Final = 'fields("data.case.id"), or module:function'


def _strategy(node: ast.expr) -> _Strategy:
    if isinstance(node, ast.Call):
        return _call_maker(node)
    name = _name(node)
    strategy = _find_in_keys(name)
    if name not in _READY:
        raise SettingError(f"key={name} needs its arguments: {name}(…); without arguments use {', '.join(_READY)}")
    return strategy


def _call_maker(call: ast.Call) -> _Strategy:
    name = _name(call.func)
    maker, text = _find_in_keys(name), ast.unparse(call)
    if name not in _MAKERS:
        raise SettingError(f"key={text}: {name} takes no arguments; write key={name}")
    if name in _READY and (call.args or not call.keywords):
        raise SettingError(f"key={text}: {name} takes keyword arguments only, such as {name}(exclude=[…])")
    args = [_argument(node) for node in call.args]
    named = {keyword.arg: _argument(keyword.value) for keyword in call.keywords if keyword.arg is not None}
    if len(named) < len(call.keywords):
        raise SettingError(f"key={text}: ** is not allowed; write each argument by its name")
    try:
        strategy: _Strategy = maker(*args, **named)
    except (SettingError, TypeError, ValueError, AttributeError) as error:
        raise SettingError(f"key={text}: {error}") from error
    return strategy


def _name(node: ast.expr) -> str:
    """The name of a strategy, without the prefix `keys.`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "keys":
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    raise SettingError(f"key={ast.unparse(node)} is not a strategy; write it like auto or {_EXAMPLE}")


def _find_in_keys(name: str) -> _Strategy:
    if name not in _IN_KEYS:
        raise SettingError(f"{unknown(name, _IN_KEYS, 'key strategy')} (write text in quotes)")
    found: _Strategy = _IN_KEYS[name]
    return found


def _argument(node: ast.expr) -> Any:
    """Return an argument of a strategy: another strategy, or a literal value."""
    if isinstance(node, ast.Call | ast.Name | ast.Attribute):
        return _strategy(node)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise SettingError(f"key: {ast.unparse(node)} is neither a strategy nor a literal value") from error


# ── values, by the kind of the setting ────────────────────────────────────────────────────────────────────

OFF: Final = "off"

_TRUTHS: Final = {"true": True, "false": False}
_NUMBER: Final = re.compile(r"-?\d{1,18}", re.ASCII)
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://.*", re.ASCII | re.DOTALL)
_LARGEST_PORT: Final = 65_535
_LARGEST_COUNT: Final = 10**12


def from_text(setting: Setting, text: str) -> Any:
    """Convert the text of a variable or a flag to the type that the value would have in a file. An invalid text is
    returned unchanged, and `checked` rejects it."""
    text = text.strip()
    if setting.kind == "truth":
        return _TRUTHS.get(text.lower(), text)
    if setting.kind == "names":
        return [name.strip() for name in text.split(",") if name.strip()]
    if setting.kind in ("count", "port") and _NUMBER.fullmatch(text):
        return int(text)
    return text


def checked(setting: Setting, value: Any) -> Any:
    """Check a value and return it. For `off`, returns None. Raises SettingError if the value is not valid."""
    if setting.optional and value == OFF:
        return None
    try:
        return _CHECKS[setting.kind](setting, value)
    except SettingError as error:
        if not setting.optional:
            raise
        text = f"{error.text}, or {OFF} {error.or_none or ''}".rstrip()
        raise SettingError(text, settings=error.settings) from error


def shown(setting: Setting, value: Any) -> Any:
    """The value as it is displayed: in the type that it would have in a file, with secrets masked."""
    if value is None:
        return OFF
    if setting.kind in ("url", "place", "source", "journal"):
        return _masked(setting, value)
    return list(value) if setting.kind == "names" else value


def _masked(setting: Setting, value: str) -> str:
    if setting.of_gate:  # the old place of `previous`: its option `key` is a template and not a secret
        with suppress(SettingError):
            return read_place_url(value).shown
    return masked(value, wholly="https" in setting.choices)


def _describe(value: Any) -> str:
    """An invalid value of a URL setting, as it is written in an error message."""
    if isinstance(value, str):
        return quoted(value)
    return repr(value) if isinstance(value, int | float) else type(value).__name__


def as_text(value: Any) -> str:
    """Convert a result of `shown` to the text of a variable."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list) else str(value)


def _text(setting: Setting, value: Any) -> Any:
    if setting.of_gate:
        return _check_with_gate(setting, value)
    if not isinstance(value, str) or not value.isprintable() or not value:
        raise SettingError(f"{setting.path}={value!r} must be text")
    return value


def _check_with_gate(setting: Setting, value: Any) -> Any:
    """Check a value with the rules of the gate. Rules that depend on several settings are checked later."""
    validate({setting.name: value})
    return value


def _count(setting: Setting, value: Any) -> Any:
    if isinstance(value, int) and value > _LARGEST_COUNT:
        raise SettingError(f"{setting.path}={value!r} is too large; the maximum is {_LARGEST_COUNT}")
    if setting.of_gate:
        return _check_with_gate(setting, value)
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
        raise SettingError(
            f"{setting.path}={_describe(value)} is not a URL; write one such as {setting.default} or memory://"
        )
    scheme_of(value)
    return value


def _place(setting: Setting, value: Any) -> Any:
    """Check the scheme of a URL. The code that uses the URL checks its other parts."""
    if not isinstance(value, str) or value.partition("://")[0] not in setting.choices or not _URL.fullmatch(value):
        schemes = any_of([f"{scheme}://" for scheme in setting.choices])
        raise SettingError(f"{setting.path}={_describe(value)} must be a URL that starts with {schemes}")
    return value


def _source(setting: Setting, value: Any) -> Any:
    """Check that the value is a URL or `inbox`. The worker checks the parts of the URL."""
    if value != INBOX and (not isinstance(value, str) or not _URL.fullmatch(value)):
        raise SettingError(
            f"{setting.path}={_describe(value)} is not a source; use {INBOX}, or the URL of a queue such as"
            " 'sqs://NAME?region=eu-central-1', 'kafka://HOST/TOPIC?group=NAME', 'nats://HOST/STREAM?consumer=NAME' or"
            " 'amqp://HOST/QUEUE'"
        )
    return value


def _journal(setting: Setting, value: Any) -> Any:
    if value == AUTO:
        return value
    if not isinstance(value, str) or not _URL.fullmatch(value):
        text = f"{setting.path}={_describe(value)} must be {AUTO}, or a URL such as sqlite:///oncegate.journal.db"
        raise SettingError(text)
    check_journal_scheme(value)
    return value


def _checked_strategy(setting: Setting, value: Any) -> Any:
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
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST_PORT:
        raise SettingError(f"{setting.path}={value!r} must be a whole number from 0 to {_LARGEST_PORT}")
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
    "source": _source,
    "journal": _journal,
    "strategy": _checked_strategy,
    "function": _function,
    "port": _port,
}
