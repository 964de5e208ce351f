"""Headers as web frameworks have them: a mapping or pairs, of text or bytes, with one value or several."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

from oncegate.signatures.verdict import Refused

Headers: TypeAlias = Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None


def picked(headers: Headers, names: Collection[str]) -> dict[str, str] | Refused:
    """The values of these headers, each of which must be there exactly once, as printable ASCII. Of two, a proxy may
    have looked at the other one; so that there are two is refused, even if they are the same."""
    found: dict[str, list[Any]] = {name: [] for name in names}
    for key, value in _pairs(headers):
        values = found.get(_text(key).lower())
        if values is not None:
            values.extend(value if isinstance(value, list | tuple) else [value])
    for name, values in found.items():
        if problem := _problem(values):
            return Refused(401, f"the header {name} {problem}")
    return {name: _text(values[0]) for name, values in found.items()}


def _pairs(headers: Headers) -> Iterable[tuple[Any, Any]]:
    """By what it can do: several frameworks' headers are no Mapping, and iterate over names."""
    if headers is None:
        return ()
    return headers.items() if hasattr(headers, "items") else headers


def _problem(values: list[Any]) -> str | None:
    if not values:
        return "is missing"
    if len(values) > 1:
        return f"is there {len(values)} times; send it once"
    text = _text(values[0])
    if not text:
        return "is empty"
    return None if text.isascii() and text.isprintable() else "holds more than printable ASCII characters"


def _text(value: Any) -> str:
    """HTTP's own reading of bytes; what is neither bytes nor text is as good as empty."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""
