"""Headers for a sink: the operator's own, and no value that could end one and begin another."""

import re
from collections.abc import Mapping
from pathlib import Path as File
from typing import Final

from oncegate.errors import RetryLater, SettingError
from oncegate.events import Event
from oncegate.sinks.wishes import Path

Headers = list[tuple[bytes, bytes]]

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
# What says where a request ends or goes, and what is said of the event here.
_OURS: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "expect", "host", "idempotency-key"}
    | {"keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"}
)


class OwnHeaders:
    """Headers that the operator has named, such as `Authorization`: given, or in a file with one on each line. A file
    is read anew for each event, so that a secret can be changed without a restart."""

    def __init__(self, given: Mapping[str, str] | Path | None) -> None:
        self._file = None if given is None or isinstance(given, Mapping) else File(given)
        self._fixed = checked(given) if isinstance(given, Mapping) else []
        if self._file is not None:
            self._read(self._file)

    def now(self) -> Headers:
        if self._file is None:
            return self._fixed
        try:
            return self._read(self._file)
        except SettingError as error:
            raise RetryLater(str(error), public=True) from None

    def _read(self, file: File) -> Headers:
        try:
            lines = file.read_text("ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise SettingError(f"the headers in {file} cannot be read: {why}") from None
        written = [line for line in lines if line.strip()]
        if any(":" not in line for line in written):
            raise SettingError(f"each line of {file} must be a header, written Name: value")
        pairs = (line.split(":", 1) for line in written)
        return checked({name.strip(): value.strip() for name, value in pairs}, f" in {file}")


def checked(headers: Mapping[str, str], where: str = "") -> Headers:
    """The headers as they are sent; SettingError, which does not repeat values, for what could not be meant."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise SettingError(f"{name!r}{where} is no name of a header")
        if name.lower() in _OURS or name.lower().startswith("oncegate-"):
            raise SettingError(f"the header {name}{where} is set by Oncegate itself; leave it out")
        if not _VALUE.fullmatch(value):
            raise SettingError(f"the header {name}{where} must be printable ASCII on one line; its value is not shown")
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def about(event: Event) -> Headers:
    """What is told of the event beside its body. What cannot stand in a header, as its sender wrote it, is left out."""
    told = {
        "Idempotency-Key": None if event.key is None else str(event.key),
        "Oncegate-Source": event.source,
        "Oncegate-Type": event.type,
        "Oncegate-Attempt": str(event.attempt),
    }
    return [(name.encode(), value.encode()) for name, value in told.items() if value and _VALUE.fullmatch(value)]
