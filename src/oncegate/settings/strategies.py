"""Key strategies by name, written as in Python: `auto`, `fields("data.case.id")`, `first(event_id, content)`.

The text is parsed and never evaluated: names of strategies, calls of them, and literals are all that it can hold.
"""

import ast
from collections.abc import Callable
from typing import Any, Final, TypeGuard

from oncegate import keys
from oncegate.errors import SettingError
from oncegate.settings.functions import load_function, names_function
from oncegate.text import unknown

_Strategy = Callable[..., Any]

# Which of the names in `keys` stand for a strategy by themselves, and which make one when called.
_READY: Final = ("auto", "event_id", "webhook_id", "content")
_MAKERS: Final = ("content", "fields", "first", "once_per", "state_change")
_OFFERED: Final = {name: getattr(keys, name) for name in dict.fromkeys(_READY + _MAKERS) if hasattr(keys, name)}


def strategy_of(written: str, where: str) -> _Strategy:
    """The strategy that is named; a function of the user's own is imported. `where` is for errors."""
    return load_function(written, where) if names_function(written) else parsed(written)


def parsed(written: str) -> _Strategy:
    """A strategy that `keys` offers, or SettingError."""
    try:
        return _strategy(ast.parse(written.strip(), mode="eval").body)
    except SettingError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SettingError(f"key={written!r} cannot be read; write it like auto or {_EXAMPLE}") from error


def uses_webhook_id(written: str) -> bool:
    """Whether a strategy is `webhook_id`, or has it among those that it tries."""
    if names_function(written):
        return False
    try:
        nodes = ast.walk(ast.parse(written.strip(), mode="eval"))
        return any(_is_name(node) and _name(node) == "webhook_id" for node in nodes)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # `parsed` says what is wrong with it


def _is_name(node: ast.AST) -> TypeGuard[ast.Name | ast.Attribute]:
    return isinstance(node, ast.Name | ast.Attribute)


_EXAMPLE: Final = 'fields("data.case.id"), or module:function'


def _strategy(node: ast.expr) -> _Strategy:
    if isinstance(node, ast.Call):
        return _made(node)
    name = _name(node)
    offered = _offered(name)
    if name not in _READY:
        raise SettingError(f"key={name} needs its arguments: {name}(…); by themselves stand {', '.join(_READY)}")
    return offered


def _made(call: ast.Call) -> _Strategy:
    name = _name(call.func)
    maker, said = _offered(name), ast.unparse(call)
    if name not in _MAKERS:
        raise SettingError(f"key={said}: {name} takes no arguments; write key={name}")
    if name in _READY and (call.args or not call.keywords):
        raise SettingError(f"key={said}: what {name} takes is named, such as {name}(exclude=[…])")
    args = [_argument(node) for node in call.args]
    named = {keyword.arg: _argument(keyword.value) for keyword in call.keywords if keyword.arg is not None}
    if len(named) < len(call.keywords):
        raise SettingError(f"key={said}: arguments are written out, without **")
    try:
        made: _Strategy = maker(*args, **named)
    except (SettingError, TypeError, ValueError, AttributeError) as error:
        raise SettingError(f"key={said}: {error}") from error
    return made


def _name(node: ast.expr) -> str:
    """The name of a strategy, with or without `keys.` before it."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "keys":
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    raise SettingError(f"key={ast.unparse(node)} is no strategy; write it like auto or {_EXAMPLE}")


def _offered(name: str) -> _Strategy:
    if name not in _OFFERED:
        raise SettingError(f"{unknown(name, _OFFERED, 'key strategy')} (text is written in quotes)")
    found: _Strategy = _OFFERED[name]
    return found


def _argument(node: ast.expr) -> Any:
    """A strategy, or a literal."""
    if isinstance(node, ast.Call | ast.Name | ast.Attribute):
        return _strategy(node)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise SettingError(f"key: {ast.unparse(node)} is neither a strategy nor a literal value") from error
