"""Load the handlers that settings name: a function, as `module:function`, or a URL to forward or publish to."""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from oncegate.cli import exit_codes
from oncegate.cli.output import print_error
from oncegate.errors import SettingError
from oncegate.events import Event
from oncegate.gate.handlers import AsyncHandler, Handler, check_handler
from oncegate.gate.options import MARKED_AND_PUBLISHED
from oncegate.settings import Settings
from oncegate.settings.parsing import load_function
from oncegate.settings.schema import FORWARD, HANDLER_OPTIONS, LOG_ONLY
from oncegate.sinks import forward, publish

_FORWARD: Final = [setting.name for setting in FORWARD]
# Options that do not depend on the URL. They are checked together with a valid URL, in place of the URL of the
# settings.
_INDEPENDENT: Final = (("headers",), ("pins",), ("ca",), ("certificate", "certificate_key"))
_VALID_URL: Final = "https://receiver.invalid"
_PRINT_WITHIN: Final = 1.0  # seconds


def load_handler(name: str, where: str) -> Handler:
    """Import a plain handler. `where` is the place that names the handler, for error messages."""
    return _load(name, where, may_await=False)


def load_any_handler(name: str, where: str) -> Handler | AsyncHandler:
    """Import a handler, plain or async."""
    return _load(name, where, may_await=True)


def _load(name: str, where: str, *, may_await: bool) -> Callable[..., Any]:
    handler = load_function(name, where)
    try:
        check_handler(handler, may_await=may_await)
    except SettingError as error:
        raise SettingError(f"{where} {name}: {error}") from error
    return handler


def chosen_handler(settings: Settings, table: str) -> Handler | AsyncHandler | None:
    """The handler that a table of the settings names; None if the table names no handler. A sink is a handler, too."""
    chosen = [f"{table}.{option}" for option in HANDLER_OPTIONS if settings[f"{table}.{option}"] is not None]
    if not chosen:
        return None
    if len(chosen) > 1:
        places = " and ".join(settings.where(path) for path in chosen)
        raise SettingError(f"{places}: only one of these can be used; set the others to off")
    return _handler(settings, chosen[0])


def _handler(settings: Settings, path: str) -> Handler | AsyncHandler:
    value, where = settings[path], settings.where(path)
    if path.endswith(".handler"):
        return log_only if value == LOG_ONLY else load_any_handler(value, where)
    if path.endswith(".publish") and settings["mode"] == "mark_first":
        raise SettingError(f"{where}: {MARKED_AND_PUBLISHED}")
    try:
        return publish(value) if path.endswith(".publish") else forward(value, **_options(settings, _FORWARD))
    except SettingError as error:
        raise SettingError(next(iter(forward_problems(settings, path)), f"{where}: {error}")) from error


async def log_only(event: Event) -> None:
    """The handler `log`: the only effect of an event is its line in the log."""


def forward_problems(settings: Settings, path: str) -> list[str]:
    """All problems of a forward URL and its options, each with the place of its setting."""
    if not path.endswith(".forward") or settings[path] is None:
        return []
    invalid = {
        names: problem for names in _INDEPENDENT if (problem := _problem_with(_VALID_URL, settings, names)) is not None
    }
    valid = [name for name in _FORWARD if not any(name in names for names in invalid)]
    problems = [f"{settings.where(_first_set(settings, names))}: {problem}" for names, problem in invalid.items()]
    if (problem := _problem_with(settings[path], settings, valid)) is not None:
        problems.insert(0, f"{settings.where(path)}: {problem}")
    return problems


def _options(settings: Settings, names: Sequence[str]) -> Any:
    return {name: settings[f"forward.{name}"] for name in names}


def _first_set(settings: Settings, names: Sequence[str]) -> str:
    return next(path for name in names if settings[path := f"forward.{name}"] is not None)


def _problem_with(url: str, settings: Settings, names: Sequence[str]) -> str | None:
    try:
        forward(url, **_options(settings, names))
    except SettingError as error:
        related = ", ".join(f"forward.{name}" for name in error.settings)
        return f"{error} (see {related})" if related else str(error)
    return None


def abandon(handlers: str, drain: str) -> NoReturn:
    """End the process while handlers still run. A normal exit of Python would wait for the handlers without a limit."""
    text = f"{handlers} did not end within {drain}; the events are redelivered when their leases end"
    # The text is printed in a thread, because a write to a full pipe that nobody reads would block forever.
    thread = threading.Thread(target=_print_last, args=(text,), daemon=True)
    thread.start()
    thread.join(_PRINT_WITHIN)
    os._exit(exit_codes.FAILED)


def _print_last(text: str) -> None:
    print_error(text)
    sys.stdout.flush()
