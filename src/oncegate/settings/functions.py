"""Functions named in settings, as `module:function`."""

import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from oncegate.errors import SettingError

_WRITTEN: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def names_function(text: str) -> bool:
    return _WRITTEN.fullmatch(text) is not None


def load_function(written: str, where: str) -> Callable[..., Any]:
    """Import a function; modules in the current folder count, as they do for `python -m`. `where` is for errors."""
    if not names_function(written):
        raise SettingError(f"{where}: {written!r} must be written module:function, such as app:on_event")
    module, _, attribute = written.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
    except (Exception, SystemExit) as error:  # importing runs the user's code, which can raise anything
        said = f"{type(error).__name__}: {error}"
        raise SettingError(f"{where} {written}: importing {module} failed with {said}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise SettingError(f"{where} {written}: there is no {part} in {module}")
        found = getattr(found, part)
    if not callable(found):
        raise SettingError(f"{where} {written}: {attribute} cannot be called")
    function: Callable[..., Any] = found
    return function
