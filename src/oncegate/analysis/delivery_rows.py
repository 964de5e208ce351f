"""One row for each recorded delivery: the digests that show which deliveries are the same event, its times, and its
key under each candidate.

A row holds no text of the payload. These digests are independent of the candidates that they judge:

- `body`: source, type, entity and canonical content. `is_own` says that the body contains its own event time or its own
  id. Then the same body is certainly the same event, because another event has another time or id.
- `certain`: two rows with this digest are certainly one event: the same body with its own time or id, or the same body
  under the same id of the envelope or of the message.
- `skeleton`: the body without its times. Two emissions of one state change usually differ only in their times.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import md5
from typing import Any, Final

import msgspec
from msgspec import Struct

from oncegate import keys
from oncegate.analysis.candidates import BUILT_IN, KeyDigest, short_digest, strategy_digest
from oncegate.canonical import content_digest
from oncegate.errors import MissingKey
from oncegate.events import Event
from oncegate.times import microseconds_of, moment

# The columns of a row and their types in DuckDB. The columns of the candidates follow.
COLUMNS: Final[Mapping[str, str]] = {
    "position": "BIGINT",  # the order of arrival
    "file": "INTEGER",
    "place": "BIGINT",  # the offset of the document in its file
    "size": "INTEGER",  # of the document
    "item": "INTEGER",  # which event of the document
    "kind": "UBIGINT",  # the source and the type
    "entity": "UBIGINT",
    "occurred_at": "BIGINT",  # microseconds, as all times
    "sent_at": "BIGINT",  # when the sender published it
    "arrived_at": "BIGINT",
    "is_own": "BOOLEAN",
    "is_replay": "BOOLEAN",
    "body": "UBIGINT",
    "content": "UBIGINT",
    "certain": "UBIGINT",
    "id": "UBIGINT",  # of the envelope, or of the message if there is no envelope
    "envelope": "UBIGINT",  # the id of the envelope or of the event
    "document": "UBIGINT",  # md5
    "reported": "UBIGINT",  # the state that the event reports
    "subject": "UBIGINT",  # the id with type, entity, part and state: other content under it is a conflict
    "skeleton": "UBIGINT",
    "timeline": "UBIGINT",
    "state": "UBIGINT",
    "rank": "INTEGER",
    "emission": "UBIGINT",
}
_CHANGE_COLUMNS: Final = ("timeline", "state", "rank", "window")
MOST_FIELDS: Final = 2  # combinations of fields for each type

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TIME_WORDS: Final = frozenset(
    {"time", "date", "timestamp", "stamp", "at", "ts", "when", "created", "updated", "modified", "occurred", "changed"}
)
_DEEPEST: Final = 3
_MOST_TIME_PATHS: Final = 8
_state_change = keys.state_change("500ms")  # the window is not part of the key of an emission


class _Detail(Struct):
    timestamp: Any = None


class _Envelope(Struct):
    time: Any = None
    timestamp: Any = None  # of a detail that arrives without its envelope
    detail: _Detail | None = None


_read_envelope = msgspec.json.Decoder(_Envelope).decode


class RecordedDelivery(Struct, frozen=True, gc=False):
    """A delivery of a recording, and its place. `logged_at` is the time of the log line that holds it."""

    position: int
    file: int
    place: int
    size: int
    item: int
    event: Event
    logged_at: int | None = None


class Rows:
    """Makes rows. `found` has the combinations of fields for each type, `own` the strategies of the user."""

    def __init__(self, found: Mapping[int, Sequence[str]] | None = None, own: Sequence[str] = ()) -> None:
        self.kinds: dict[int, tuple[str, str | None]] = {}
        self._kinds: dict[tuple[str, str | None], int] = {}
        self._times: dict[int, list[tuple[str, ...]]] = {}
        self._built_in = [strategy_digest(name) for name in BUILT_IN]
        names = {name for each in (found or {}).values() for name in each}
        made = {name: strategy_digest(name) for name in names}
        self._fields = {kind: [made[name] for name in each] for kind, each in (found or {}).items()}
        self._own = [strategy_digest(name) for name in dict.fromkeys(own) if name not in BUILT_IN]

    @property
    def columns(self) -> dict[str, str]:
        """All columns of a row, with their types."""
        names = [f"k_{place}" for place in range(len(self._built_in))]
        names += [f"f_{place}" for place in range(MOST_FIELDS)]
        found = {**COLUMNS, **dict.fromkeys(names, "UBIGINT")}
        for place in range(len(self._own)):
            found[f"o_{place}"] = "UBIGINT"
            found |= {f"o_{place}_{name}": "UBIGINT" for name in _CHANGE_COLUMNS[:2]}
            found |= {f"o_{place}_{name}": "BIGINT" for name in _CHANGE_COLUMNS[2:]}
        return found

    def line(self, recorded: RecordedDelivery) -> str:
        """The row of a delivery as a line of CSV. An empty value is null."""
        event = recorded.event
        kind = self.kind(event)
        values = [
            *(recorded.position, recorded.file, recorded.place, recorded.size, recorded.item, kind),
            *self._facts(recorded, kind),
            *(_number(made(event)) for made in self._built_in),
            *self._field_keys(event, kind),
            *(value for made in self._own for value in _with_change(made(event))),
        ]
        return ",".join(["" if value is None else str(value) for value in values])

    def kind(self, event: Event) -> int:
        """The number of the source and the type of an event."""
        pair = (event.source, event.type)
        found = self._kinds.get(pair)
        if found is None:
            found = self._kinds[pair] = _as_int(short_digest(*pair))
            self.kinds[found] = pair
        return found

    def _facts(self, recorded: RecordedDelivery, kind: int) -> Iterator[Any]:
        event, evidence = recorded.event, recorded.event.evidence
        sent_at, published_at = _publication(event)
        content = keys.content_hash(event)
        body = short_digest(kind, event.entity, content.hex())
        name = event.id or evidence.message_id
        is_own = self._is_own(event, kind)
        certain = body if is_own else short_digest(body.hex(), name or recorded.position, name is None)
        yield None if event.entity is None else _as_int(short_digest(event.source, event.entity))
        yield None if event.occurred_at is None else microseconds_of(event.occurred_at)
        yield sent_at
        yield recorded.logged_at or (published_at if evidence.sent_at is None else microseconds_of(evidence.sent_at))
        yield int(is_own)
        yield int(evidence.replay is not None)
        yield _as_int(body)
        yield int.from_bytes(content[:8], "big")
        yield _as_int(certain)
        digest = None if name is None else _as_int(short_digest(name))
        yield digest
        yield None if event.id is None else digest
        yield int.from_bytes(md5(event.raw, usedforsecurity=False).digest()[:8], "big") if event.raw else None
        yield None if event.state is None else _state_number(event.state)
        subject = (kind, event.id, event.entity, event.part, event.state)
        yield None if event.id is None else _as_int(short_digest(*subject))
        yield from _change(event)

    def _field_keys(self, event: Event, kind: int) -> list[int | None]:
        found = [_number(made(event)) for made in self._fields.get(kind, ())]
        return found + [None] * (MOST_FIELDS - len(found))

    def _is_own(self, event: Event, kind: int) -> bool:
        """Whether the body contains its own id, or the time of the event. The paths at which earlier events of the type
        have their time are tried first."""
        if event.own_id and event.source != "cloudevents":
            return True
        if event.occurred_at is None or type(event.body) is not dict:
            return False
        known = self._times.setdefault(kind, [])
        if any(_time_at(event.body, path) == event.occurred_at for path in known):
            return True
        found = next((path for path, time in times_in(event.body) if time == event.occurred_at), None)
        if found is not None and len(known) < _MOST_TIME_PATHS:
            known.append(found)
        return found is not None


# ── parts of a row ────────────────────────────────────────────────────────────────────────────────────────


def _as_int(digest: bytes) -> int:
    return int.from_bytes(digest, "big")


@lru_cache(maxsize=4096)
def _state_number(state: str) -> int:
    return _as_int(short_digest(state))


def _number(key: KeyDigest | None) -> int | None:
    return None if key is None else int.from_bytes(key.digest, "big")


def _with_change(key: KeyDigest | None) -> tuple[int | None, ...]:
    if key is None or key.change is None:
        return (_number(key), None, None, None, None)
    change = key.change
    state = _state_number(change.state)
    return (_number(key), _as_int(change.timeline[:8]), state, change.rank, change.window)


def _publication(event: Event) -> tuple[int | None, int | None]:
    """When the sender published the event (the `timestamp` of the detail), and when its envelope was made."""
    try:
        found = _read_envelope(event.raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None, None
    sent = moment(found.timestamp if found.detail is None else found.detail.timestamp)
    made = moment(found.time)
    return (
        None if sent is None else microseconds_of(sent),
        None if made is None else microseconds_of(made),
    )


def _change(event: Event) -> tuple[int | None, ...]:
    """The skeleton, and the state change that the event reports; None for each if it reports no state change."""
    try:
        key = _state_change(event)
    except MissingKey:
        return (None, None, None, None, None)
    assert key.change is not None  # noqa: S101  # state_change makes no other key
    change = key.change
    skeleton = int.from_bytes(content_digest(without_times(event.body))[:8], "big")
    state = _state_number(change.state)
    return (skeleton, _as_int(change.timeline[:8]), state, change.rank, _as_int(key.digest[:8]))


@lru_cache(maxsize=4096)
def _is_time_name(name: str) -> bool:
    """Whether a word of the name means a time: `eventTime` and `date_created` do, `update` and `sentiment` do not."""
    return any(word.lower() in _TIME_WORDS for word in _WORD.findall(name))


def without_times(value: Any) -> Any:
    """A body without the times in it: members that are named like a time, and whose value is a time. Two emissions of
    one change often differ only in these."""
    if type(value) is dict:
        return {
            name: without_times(each) if type(each) is dict else each
            for name, each in value.items()
            if not (_is_time_name(name) and moment(each) is not None)
        }
    return value


def times_in(body: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The paths in a body at which a time may be, and the time there."""
    for name, value in body.items():
        if type(value) is dict and len(before) < _DEEPEST:
            yield from times_in(value, (*before, name))
        if (time := moment(value)) is not None:
            yield (*before, name), time


def _time_at(body: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        body = body.get(name) if type(body) is dict else None
    return moment(body)
