"""The deliveries that a journal holds with their payloads, as a recording."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from oncegate.journal import OPERATOR, Journal, Row, RowFilter
from oncegate.journal.base import all_rows, row_with_details, rows_after

_READS: Final = 10_000  # reads of the journal for one key: all of it
_MOST_REMEMBERED: Final = 100_000  # keys


class JournalRecording:
    """Makes documents of the rows of a journal, and counts them. It remembers the keys of the last 100,000 events: the
    row that has the payload, because a copy of the same body has no payload of its own, and whether the event was
    stored, because its attempts are then no deliveries."""

    def __init__(self, journal: Journal, where: RowFilter) -> None:
        self.written = self.missing = self._unreadable = self._copies = 0
        self._journal, self._where = journal, where
        self._payload_rows: dict[tuple[str, ...], int] = {}
        self._stored: dict[tuple[str, ...], bool] = {}
        self._has_inbox: dict[str, bool] = {}

    def rows(self) -> Iterator[Row]:
        """Yields rows, oldest first: those that match, and rows of another status or kind. The row of an acceptance
        shows that the later attempts are no deliveries."""
        where = self._where
        if where.status != OPERATOR:
            where = replace(where, status=None, kind=None)
        return rows_after(self._journal, where, 0)

    def _is_attempt_of_stored(self, row: Row) -> bool:
        """Whether a row is an attempt of an event that was accepted before. If the filter may hide the acceptance, the
        journal is searched for it, but only if it has accepted events."""
        name = (row.namespace, row.key_text or "")
        if row.status == "accepted":
            _remember(self._stored, name, True)
            return False
        if not row.attempt or not row.key:
            return False
        where = self._where
        if name in self._stored or (where.since is None and where.place is None and where.term is None):
            return self._stored.get(name, False)
        accepted = RowFilter(namespace=row.namespace, status="accepted")
        if row.namespace not in self._has_inbox:
            self._has_inbox[row.namespace] = bool(self._journal.rows(accepted, limit=1))
        if not self._has_inbox[row.namespace]:
            return False
        is_stored = bool(all_rows(self._journal, replace(accepted, key=row.key), 1, before=row.id, reads=_READS))
        _remember(self._stored, name, is_stored)
        return is_stored

    def line(self, row: Row) -> bytes | None:
        """Returns the document of a delivery on one line; None if the row does not match, is no delivery, or has no
        document."""
        if self._is_attempt_of_stored(row):
            return None
        body = (row.place, row.namespace, row.key_text or "", row.worker, str(row.body))
        if not row.same:  # also if the row does not match: a later copy of the same body may match
            _remember(self._payload_rows, body, row.id)
        if self._where.status not in (None, row.status) or self._where.kind not in (None, row.kind):
            return None
        if row.count > 1:
            self._copies += row.count
            return None
        payload = self._payload(row, self._payload_rows.get(body))
        if payload is None:
            self.missing += 1
            return None
        try:
            line = msgspec.json.format(payload, indent=-1)
        except (msgspec.MsgspecError, RecursionError):
            self._unreadable += 1
            return None
        self.written += 1
        return line

    def _payload(self, row: Row, first: int | None) -> bytes | None:
        """Returns the payload of a row. `first` is the row that has the payload of a copy. If it is not known, because
        the filter hides it, it is searched."""
        payload = self._journal.payload(row.id)
        if payload is not None or not row.same:
            return payload
        if first is None and (details := row_with_details(self._journal, row)) is not None:
            first = details.id
        return None if first is None else self._journal.payload(first)

    @property
    def sentence(self) -> str:
        counts = {
            "without a payload": self.missing,
            "not JSON": self._unreadable,
            "copies in storms": self._copies,
        }
        left_out = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        written = "1 delivery" if self.written == 1 else f"{self.written:,} deliveries"
        return f"Wrote {written}.{f' Left out: {left_out}.' if left_out else ''}"


def _remember(known: dict[tuple[str, ...], Any], name: tuple[str, ...], value: Any) -> None:
    """Put an item at the end of a dict, and remove the oldest item if there are too many."""
    known.pop(name, None)
    known[name] = value
    if len(known) > _MOST_REMEMBERED:
        del known[next(iter(known))]
