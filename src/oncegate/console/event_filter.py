"""The filters of the Events screen and of the live tail, as parameters of a URL."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct

from oncegate.clocks import wall
from oncegate.durations import microseconds
from oncegate.errors import SettingError
from oncegate.gate.outcome import STATUSES
from oncegate.journal import GAP, OPERATOR, RowFilter
from oncegate.journal.base import MINUTE
from oncegate.times import microseconds_of, moment

_LATEST: Final = 2**52  # microseconds since 1970; the id of a later row would have more than 63 bits

NO_VALUE: Final = "(none)"  # the parameter for events without a type, or without a kind

_HIGHEST_ID: Final = 2**63 - 1
_LONGEST_ID: Final = 19  # digits


class EventFilter(Struct, frozen=True):
    """The filters of a URL. `where` has the filters that the journal applies. `problem` says which parameter is
    invalid; an invalid parameter is ignored."""

    where: RowFilter
    problem: str | None = None

    @property
    def has_term(self) -> bool:
        """Whether rows are searched for a text. The counters of the journal cannot count such rows."""
        return self.where.term is not None or self.where.entity is not None


def read_filter(query: Mapping[str, str], now: int | None = None) -> EventFilter:
    """Returns the filters of a URL. A duration such as `1h` is a time before `now` (microseconds since 1970). A
    duration of whole minutes is extended to whole minutes of the clock, because the counters of the journal count
    minutes."""
    given = {name: value.strip() for name, value in query.items() if value.strip()}
    now = wall() if now is None else now
    times: dict[str, int | None] = {}
    problem = None
    for name in ("since", "until"):
        try:
            times[name] = _time(name, given[name], now) if name in given else None
        except SettingError as error:
            times[name], problem = None, str(error)
    status = given.get("status")
    known = (*STATUSES, OPERATOR, GAP)
    if status is not None and status not in known:
        problem = f"status={status!r} is not a status; use one of: {', '.join(known)}"
        status = None
    where = RowFilter(
        place=given.get("route"),
        type=_part(given.get("type")),
        status=status,
        kind=_part(given.get("kind")),
        since=times["since"],
        until=times["until"],
        term=given.get("q"),
        entity=given.get("entity"),
    )
    return EventFilter(where, problem)


def _part(text: str | None) -> str | None:
    """Returns the part of a label for a parameter. A missing type or kind is "" in a label."""
    return "" if text == NO_VALUE else text


def _time(name: str, text: str, now: int) -> int:
    """Returns a time in microseconds since 1970. Raises SettingError."""
    try:
        duration = microseconds(text)
        at = max(0, now - duration)
        if duration % MINUTE:
            return at
        return (at if name == "since" else at + MINUTE - 1) // MINUTE * MINUTE
    except SettingError:
        found = moment(text) or _date(text)
    if found is None or not 0 <= microseconds_of(found) < _LATEST:
        raise SettingError(f"{name}={text!r} is not a time; write 15m, 24h or 7d, or a time in UTC: 2026-01-31 09:30")
    return microseconds_of(found)


def _date(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if len(text) == 10 else None
    except ValueError:
        return None


def row_id(text: str | None) -> int | None:
    """Returns the id of a row that is written in a URL or a header; None if the text is not such an id."""
    if not text or not (text.isascii() and text.isdecimal()) or len(text) > _LONGEST_ID:
        return None
    return min(int(text), _HIGHEST_ID)
