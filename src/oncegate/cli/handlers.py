"""Handlers named on the command line, as `module:function`."""

import importlib
import os
import sys
from typing import Any

from oncegate.errors import SettingError
from oncegate.gate.handlers import Handler, check_handler


def load_handler(name: str) -> Handler:
    """Import a handler; modules in the current folder count, as they do for `python -m`."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise SettingError(f"--handler {name!r} must be written module:function, such as app:on_event")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # importing runs the user's code, which can raise anything
        raise SettingError(f"--handler {name}: importing {module_name} failed with {_said(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise SettingError(f"--handler {name}: there is no {part} in {module_name}")
        found = getattr(found, part)
    handler: Handler = found
    check_handler(handler)
    return handler


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
