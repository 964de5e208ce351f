"""The journal: one row for each decision about a delivery and for each attempt. `open_journal` opens the journal of a
URL."""

import os
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from oncegate.errors import SettingError
from oncegate.journal.base import (
    LEAST_SIZE,
    MAX_AGE,
    MAX_SIZE,
    Journal,
    JournalBounds,
    RowFilter,
    Total,
    differing_paths,
)
from oncegate.journal.budget import SHARE, SHARE_IN_PROGRAM
from oncegate.journal.gaps import GapKind, GapLog
from oncegate.journal.operators import (
    MOST_EVENT_ROWS,
    OPERATOR_ACTIONS,
    ChangedEvent,
    OperatorKind,
    OperatorLog,
)
from oncegate.journal.recorder import Recorder
from oncegate.journal.rows import GAP, OPERATOR, Row, RowErasure
from oncegate.text import quoted

AUTO: Final = "auto"

__all__ = [
    "AUTO",
    "GAP",
    "MOST_EVENT_ROWS",
    "OPERATOR",
    "OPERATOR_ACTIONS",
    "SHARE",
    "SHARE_IN_PROGRAM",
    "ChangedEvent",
    "GapKind",
    "GapLog",
    "Journal",
    "JournalBounds",
    "OperatorKind",
    "OperatorLog",
    "Recorder",
    "Row",
    "RowErasure",
    "RowFilter",
    "Total",
    "check_journal",
    "check_journal_scheme",
    "differing_paths",
    "journal_url",
    "open_journal",
    "open_recorder",
]


class _JournalDriver(Struct, frozen=True):
    """The entry points of a journal: `opener` returns a function that opens a URL, and `check` raises SettingError for
    an invalid URL."""

    opener: Callable[[str, int, bool], Callable[[], Journal]]
    check: Callable[[str], object]


def _sqlite() -> _JournalDriver:
    from oncegate.journal.sqlite import SqliteJournal
    from oncegate.stores.sqlite.settings import read_url

    def opener(url: str, max_size: int, create: bool) -> Callable[[], Journal]:
        path = read_url(url).path
        if create:  # a writer opens the file later, and again: the program may change its folder before that
            path = os.path.abspath(path)
        return partial(SqliteJournal, path, max_size=max_size, create=create)

    return _JournalDriver(opener, read_url)


def _redis() -> _JournalDriver:
    from oncegate.stores.redis import settings_of  # first, because it reports a missing extra

    def opener(url: str, _max_size: int, create: bool) -> Callable[[], Journal]:
        from oncegate.journal.redis import RedisJournal

        return partial(RedisJournal, settings_of(url), create=create)

    return _JournalDriver(opener, settings_of)


def _postgres() -> _JournalDriver:
    from oncegate.stores.postgres import read_url  # first, because it reports a missing extra

    def opener(url: str, _max_size: int, create: bool) -> Callable[[], Journal]:
        from oncegate.journal.postgres import PostgresJournal

        return partial(PostgresJournal, read_url(url), create=create)

    return _JournalDriver(opener, read_url)


_DRIVERS: Final[dict[str, Callable[[], _JournalDriver]]] = {
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
    "redis": _redis,
    "rediss": _redis,
    "redis+cluster": _redis,
    "rediss+cluster": _redis,
}


def open_journal(url: str, *, max_size: int = MAX_SIZE, create: bool = True) -> Journal:
    """Open the journal of a URL. With `create=False`, the journal is opened for reading, and NoStore is raised if there
    is no journal."""
    return _DRIVERS[check_journal_scheme(url)]().opener(url, max_size, create)()


def open_recorder(
    url: str,
    *,
    max_age: int = MAX_AGE,
    max_size: int = MAX_SIZE,
    payload_age: int | None = None,
    share: float = SHARE_IN_PROGRAM,
) -> Recorder:
    """Returns a recorder that writes to the journal of a URL. Times are in microseconds, `max_size` is in bytes. With
    `payload_age`, payloads are stored for that time. While the process is busy, the recorder uses at most `share` of
    the processor time of the other threads. Pass `recorder.of("name")` to a gate as an observer."""
    check_journal(url)
    if max_size < LEAST_SIZE:
        raise SettingError(f"journal_max_size={max_size} is too small; the minimum is {LEAST_SIZE} bytes")
    bounds = JournalBounds(max_age, max_size, payload_age)
    opener = _DRIVERS[check_journal_scheme(url)]().opener(url, max_size, True)
    return Recorder(opener, bounds, share=share)


def check_journal(url: str) -> None:
    """Raise SettingError if the URL of a journal is invalid. The journal is not opened."""
    _DRIVERS[check_journal_scheme(url)]().check(url)


def journal_url(journal: str | None, store: str) -> str | None:
    """Returns the URL of the journal for the setting `journal` and the URL of the store; None if there is no journal.
    With `auto`, the journal is beside the store. A store in memory or on DynamoDB has no journal beside it."""
    if journal != AUTO:
        return journal
    scheme = store.partition("://")[0]
    if scheme not in _DRIVERS:
        return None
    if scheme == "sqlite":
        from oncegate.stores.sqlite.settings import beside, read_url

        # `oncegate.db-journal` would be wrong: SQLite itself uses this name.
        # A byte that is not UTF-8 is a surrogate in the path. It has no percent-encoding that `read_url` could decode.
        path = "".join(
            c if "\ud800" <= c <= "\udfff" else quote(c) for c in beside(read_url(store).path, ".journal.db")
        )
        return f"sqlite:///{path}"
    return store


def check_journal_scheme(url: str) -> str:
    """Returns the scheme of the URL of a journal. Raises SettingError if no journal has this scheme."""
    scheme, separator, _ = url.partition("://")
    if scheme not in _DRIVERS or not separator:
        known = ", ".join(_DRIVERS)
        named = f"unknown journal scheme {scheme!r}" if separator else f"{quoted(url)} is not a journal URL"
        raise SettingError(f"{named}; use {AUTO}, off, or a URL with one of: {known}")
    return scheme
