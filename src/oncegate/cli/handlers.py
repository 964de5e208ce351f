"""Handlers named by people, as `module:function`."""

from collections.abc import Callable
from typing import Any

from oncegate.errors import SettingError
from oncegate.gate.handlers import AsyncHandler, Handler, check_handler
from oncegate.settings.functions import load_function


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
