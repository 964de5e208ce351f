"""Terms: how a gate was told to behave, checked and in microseconds."""

from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from oncegate.durations import Duration, microseconds
from oncegate.errors import SettingError

_LONGEST_NAMESPACE = 128


Mode: TypeAlias = Literal["lease", "mark_first"]


class Terms(Struct, frozen=True):
    namespace: str
    retention: int
    lease: int
    max_hold: int
    dead_letter_retention: int
    max_attempts: int | None
    max_result: int
    mode: Mode

    @property
    def marks_first(self) -> bool:
        return self.mode == "mark_first"

    @property
    def one_by_one(self) -> bool:
        """With one attempt each, an event that kills the process would spend those of its whole batch."""
        return self.max_attempts == 1 and not self.marks_first


def agree(
    *,
    namespace: str,
    retention: Duration,
    lease: Duration,
    max_hold: Duration,
    dead_letter_retention: Duration,
    max_attempts: int | None,
    max_result: int,
    mode: Mode,
) -> Terms:
    """Terms that can be kept, or SettingError."""
    terms = Terms(
        _named(namespace),
        microseconds(retention, "retention"),
        microseconds(lease, "lease"),
        microseconds(max_hold, "max_hold"),
        microseconds(dead_letter_retention, "dead_letter_retention"),
        max_attempts,
        max_result,
        mode,
    )
    if mode not in get_args(Mode):
        raise SettingError(f"mode={mode!r} is not a choice; it is one of {', '.join(get_args(Mode))}")
    if terms.retention < terms.lease and not terms.marks_first:
        raise SettingError(
            f"retention={retention!r} is shorter than lease={lease!r}: a key would be forgotten while it is held"
        )
    if max_attempts is not None and (isinstance(max_attempts, bool) or max_attempts < 1):
        raise SettingError(f"max_attempts={max_attempts!r} must be 1 or more, or None to leave it to the platform")
    if max_result < 0:
        raise SettingError(f"max_result={max_result!r} must be a number of bytes, 0 or more")
    return terms


def _named(namespace: str) -> str:
    if not isinstance(namespace, str) or not namespace.isprintable() or not 0 < len(namespace) <= _LONGEST_NAMESPACE:
        raise SettingError(f"namespace={namespace!r} must be printable text of 1 to {_LONGEST_NAMESPACE} characters")
    return namespace
