"""Handlers named by people, as `module:function`."""

from oncegate.errors import SettingError
from oncegate.gate.handlers import Handler, check_handler
from oncegate.settings.functions import load_function


def load_handler(name: str, where: str, *, may_await: bool = False) -> Handler:
    """Import a handler; `where` it was named is for errors."""
    handler: Handler = load_function(name, where)
    try:
        check_handler(handler, may_await=may_await)
    except SettingError as error:
        raise SettingError(f"{where} {name}: {error}") from error
    return handler
