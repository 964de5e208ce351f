"""HTML elements for reports. Text is always escaped: only other elements are inserted as they are."""

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

Content: TypeAlias = "str | int | Markup | Iterable[Content] | None"
_EMPTY = frozenset({"br", "meta", "rect", "line", "polyline", "circle"})


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def element(name: str, /, *content: Content, **attributes: str | int | float | bool | None) -> Markup:
    """An element. The attribute `class_` is written `class`, and `_` in the name of an attribute is written `-`. An
    attribute that is None or False is left out, and True has no value."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _EMPTY:
        return Markup(f"<{name}{written}{'/' if name in ('rect', 'line', 'polyline', 'circle') else ''}>")
    return Markup(f"<{name}{written}>{text_of(content)}</{name}>")


def text_of(content: Content) -> Markup:
    """The content as HTML."""
    if isinstance(content, Markup):
        return content
    if content is None:
        return Markup("")
    if isinstance(content, str | int):
        return Markup(escape(str(content)))
    return Markup("".join(text_of(each) for each in content))
