"""Handlers named by people: a function, as `module:function`, or a place that events are handed on to."""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from oncegate.cli import exit_codes
from oncegate.cli.output import say_error
from oncegate.errors import SettingError
from oncegate.events import Event
from oncegate.gate.handlers import AsyncHandler, Handler, check_handler
from oncegate.gate.options import MARKED_AND_PUBLISHED
from oncegate.settings import Settings
from oncegate.settings.parsing import load_function
from oncegate.settings.schema import FORWARD, LOG_ONLY, WAYS
from oncegate.sinks import forward, publish

_FORWARD: Final = [setting.name for setting in FORWARD]
# What of that can be wrong whatever the URL is, and a URL that can be meant to see it with.
_APART: Final = (("headers",), ("pins",), ("ca",), ("certificate", "certificate_key"))
_SAY_WITHIN: Final = 1.0
_ANY: Final = "https://receiver.invalid"


def load_handler(name: str, where: str) -> Handler:
    """Import a handler; `where` it was named is for errors."""
    return _loaded(name, where, may_await=False)


def load_any_handler(name: str, where: str) -> Handler | AsyncHandler:
    """The same for whoever can await it too."""
    return _loaded(name, where, may_await=True)


def _loaded(name: str, where: str, *, may_await: bool) -> Callable[..., Any]:
    handler = load_function(name, where)
    try:
        check_handler(handler, may_await=may_await)
    except SettingError as error:
        raise SettingError(f"{where} {name}: {error}") from error
    return handler


def chosen_handler(settings: Settings, table: str) -> Handler | AsyncHandler | None:
    """What a command's table says is to be done with each event; None if it says nothing."""
    chosen = [f"{table}.{way}" for way in WAYS if settings[f"{table}.{way}"] is not None]
    if not chosen:
        return None
    if len(chosen) > 1:
        places = " and ".join(settings.where(path) for path in chosen)
        raise SettingError(f"{places}: an event goes one way only; keep one of them, and set the others to off")
    return _handler(settings, chosen[0])


def _handler(settings: Settings, path: str) -> Handler | AsyncHandler:
    value, where = settings[path], settings.where(path)
    if path.endswith(".handler"):
        return log_only if value == LOG_ONLY else load_any_handler(value, where)
    if path.endswith(".publish") and settings["mode"] == "mark_first":
        raise SettingError(f"{where}: {MARKED_AND_PUBLISHED}")
    try:
        return publish(value) if path.endswith(".publish") else forward(value, **_wishes(settings, _FORWARD))
    except SettingError as error:
        raise SettingError(next(iter(forward_problems(settings, path)), f"{where}: {error}")) from error


async def log_only(event: Event) -> None:
    """The handler `log`: the line in the log is the event's only effect."""


def forward_problems(settings: Settings, path: str) -> list[str]:
    """All that is wrong with a URL to forward to and with what is said of how, each with the place of its own."""
    if not path.endswith(".forward") or settings[path] is None:
        return []
    found = {problem: _first_set(settings, names) for names in _APART if (problem := _refusal(_ANY, settings, names))}
    if (whole := _refusal(settings[path], settings, _FORWARD)) is not None and whole not in found:
        found = {whole.replace("allow_private", "forward.allow_private"): path} | found
    return [f"{settings.where(at)}: {problem}" for problem, at in found.items()]


def _wishes(settings: Settings, names: Sequence[str]) -> Any:
    return {name: settings[f"forward.{name}"] for name in names}


def _first_set(settings: Settings, names: Sequence[str]) -> str:
    return next(path for name in names if settings[path := f"forward.{name}"] is not None)


def _refusal(url: str, settings: Settings, names: Sequence[str]) -> str | None:
    try:
        forward(url, **_wishes(settings, names))
    except SettingError as error:
        return str(error)
    return None


def abandon(who: str, drain: str) -> NoReturn:
    """End the process while handlers still run: Python would wait for them, however long they take."""
    said = f"{who} did not end within {drain}; what was in hand comes again when its lease is over"
    saying = threading.Thread(target=_say_last, args=(said,), daemon=True)
    saying.start()
    saying.join(_SAY_WITHIN)
    os._exit(exit_codes.FAILED)


def _say_last(text: str) -> None:
    """In a thread, since nobody may read it."""
    say_error(text)
    sys.stdout.flush()
