"""Reading single fields of a body, with what hostile values get."""

from typing import Any

_LONGEST_ID = 256
_MOST_DIGITS = 20


def identifier(body: dict[str, Any], name: str) -> str | None:
    """An id as text. Absent, null and empty are no id; what could be mistaken for another id is refused."""
    value = body.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{name} must be a string or a whole number")
    if isinstance(value, int) and abs(value) >= 10**_MOST_DIGITS:
        raise ValueError(f"{name} has more than {_MOST_DIGITS} digits; send it as a string")
    found = str(value)
    if len(found) > _LONGEST_ID:
        raise ValueError(f"{name} is longer than {_LONGEST_ID} characters")
    if "\0" in found:
        raise ValueError(f"{name} holds a NUL character")
    return found


def text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
