"""Templates of old keys, such as `event:{conversationId}:{timestamp}`. A template makes a key from values, and reads
the values from a key."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from oncegate.errors import SettingError

ValueType: TypeAlias = Literal["", "int", "text"]

_TOKEN: Final = re.compile(r"\{\{|\}\}|\{([^{}:]+)(?::(int|text))?\}|[{}]")
_GLOB: Final = re.compile(r"[*?\[\]\\^]")  # characters with a meaning in a pattern of Redis
_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]{1,38}", re.ASCII)


class _Field(Struct, frozen=True):
    name: str
    type: ValueType = ""


class Template:
    """A text with fields in braces. `{name}` is any value, `{name:int}` a whole number, `{name:text}` a text. `{{` and
    `}}` are braces of the text itself. Raises SettingError if the text is not a template."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._pieces = list(_pieces(text))
        fields = [piece for piece in self._pieces if isinstance(piece, _Field)]
        self.names = tuple(field.name for field in fields)
        if not fields:
            raise SettingError(f"{text!r} has no field in braces; write it like event:dedup:{{id}}")
        if len(set(self.names)) < len(fields):
            raise SettingError(f"{text!r} has the same field twice; name each field once")
        for one, other in zip(self._pieces, self._pieces[1:], strict=False):
            if isinstance(one, _Field) and isinstance(other, _Field):
                raise SettingError(f"{text!r}: put a separator, such as : or #, between {one.name} and {other.name}")
        self._pattern = re.compile(_pattern(self._pieces), re.DOTALL)

    @property
    def is_one_value(self) -> bool:
        """Whether the template is one field without text around it. The value then keeps its type."""
        return len(self._pieces) == 1

    @property
    def glob(self) -> str:
        """A pattern for SCAN of Redis that matches all keys of the template."""
        return "".join("*" if isinstance(piece, _Field) else _GLOB.sub(r"\\\g<0>", piece) for piece in self._pieces)

    def make(self, values: Mapping[str, Any]) -> str | int | float | None:
        """Return the key; None if a value is missing or cannot be part of a key."""
        found = {field.name: typed(values.get(field.name), field.type) for field in self._fields()}
        if any(value is None for value in found.values()):
            return None
        if self.is_one_value:
            return found[self.names[0]]
        return "".join(str(found[each.name]) if isinstance(each, _Field) else each for each in self._pieces)

    def read(self, text: str) -> dict[str, Any] | None:
        """Return the values in a key; None if the key does not have the form of the template."""
        match = self._pattern.fullmatch(text)
        if match is None:
            return None
        values = {
            field.name: typed(found, field.type) for field, found in zip(self._fields(), match.groups(), strict=True)
        }
        return None if None in values.values() else values

    def _fields(self) -> list[_Field]:
        return [piece for piece in self._pieces if isinstance(piece, _Field)]


def _pieces(text: str) -> "list[str | _Field]":
    pieces: list[str | _Field] = []
    literal, at = "", 0
    for token in _TOKEN.finditer(text):
        literal += text[at : token.start()]
        at = token.end()
        if token[0] in ("{{", "}}"):
            literal += token[0][0]
        elif token[1] is None:
            raise SettingError(f"{text!r} has a single brace; write {{name}} for a field, and {{{{ for a brace")
        else:
            pieces += [literal] if literal else []
            pieces.append(_Field(token[1].strip(), token[2] or ""))  # type: ignore[arg-type]  # the pattern allows only these
            literal = ""
    literal += text[at:]
    return [*pieces, literal] if literal else pieces


def _pattern(pieces: "list[str | _Field]") -> str:
    """A value may contain the separator, as a time contains colons. Only the last field may do so: the fields before it
    end at the first separator. They are atomic groups: if the rest of a key does not fit, no later separator is tried.
    A later separator cannot fit either, and trying all of them would take a time that is polynomial in the length."""
    last = max(index for index, piece in enumerate(pieces) if isinstance(piece, _Field))
    pattern, is_open = "", False
    for index, piece in enumerate(pieces):
        if isinstance(piece, str):
            pattern += re.escape(piece) + (")" if is_open else "")
            is_open = False
        else:
            is_open = index != last
            pattern += "(?>(.+?)" if is_open else "(.+)"
    return pattern


def typed(value: Any, type_: ValueType = "") -> str | int | float | None:
    """Return a value of an event or a row as a part of a key, with the type of its field. None if it cannot be part of
    a key: it is absent, not a text or number, not valid Unicode, or not of that type."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        return None
    if type_ == "int":
        text = str(value)
        return int(text) if _WHOLE_NUMBER.fullmatch(text) else None
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return None
    return str(value) if type_ == "text" else value
