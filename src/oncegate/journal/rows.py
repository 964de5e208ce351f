"""Rows of the journal: the fields of a row, and how an outcome becomes a row.

A row has an id: `microseconds since 1970 << 11 | low bits`. So an id is a time and a cursor. The journal gives each row
an id above all earlier ids, so a reader that asks for rows above the last id misses no row. The time of the event's
decision is `at`. If several rows have the same time, or a row is written late, its id is later than `at`.
"""

from collections.abc import Collection, Iterable
from typing import Final, Literal
from zlib import crc32

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, astuple

from oncegate.events import Event
from oncegate.gate.job import shortened
from oncegate.gate.outcome import Outcome
from oncegate.journal.leaves import LONGEST_NAME, Shape
from oncegate.times import microseconds_of

ID_BITS: Final = 11
LONGEST_REASON: Final = 500  # characters
_LONGEST_TEXT: Final = 256
OPERATOR: Final = "operator"  # the status of a row about an action of an operator
GAP: Final = "gap"  # the status of a row about a time in which events may have been missed
_NO_TEXT: Final = "\N{REPLACEMENT CHARACTER}"

# Place, namespace, source, type, status and kind. Rows are counted and filtered by label. A missing value is "".
Label = tuple[str, str, str, str, str, str]


class Fields(Struct, frozen=True, array_like=True, gc=False):
    """The fields of a row that are not part of its label, in the order in which journals store them. Add new fields at
    the end: journals hold rows of earlier versions.

    `at` is the time of the decision in microseconds since 1970. `lag` is the time from the event's own time to the
    delivery or attempt, and `took` is how long the handler ran; both are in microseconds. `original` is the delivery id
    of the event that decided the outcome, and `original_at` is the time at which it was completed or first seen. `kept`
    is the key of the dead letter. A row with a `count` above 1 stands for that many copies, which arrived from `since`
    to `at`. If it identifies no event, it stands for that many different events: see `storms`.

    `digests` has the first 8 bytes of the key under each of `leaves.STRATEGIES`. `shape` identifies the list of leaf
    paths of the body, and `leaves` has a keyed hash of 4 bytes for each of these paths. `same` means that the body is
    that of an earlier row of the same key, which has these details. That row has the same `worker` and `body`: a hash
    of the document that only this worker can make; 0 for a row without details. `named_type` is the type, if there were
    too many types to make labels of them. `stale` means that a newer state of the entity was known.
    """

    key: bytes = b""
    event_id: str | None = None
    entity: str | None = None
    delivery_id: str | None = None
    kept: bytes = b""
    at: int = 0
    strategy: str = ""
    part: str | None = None
    state: str | None = None
    attempt: int = 0
    lag: int | None = None
    took: int | None = None
    reason: str = ""
    original: str | None = None
    original_at: int | None = None
    worker: str = ""
    count: int = 1
    since: int | None = None
    shape: bytes = b""
    leaves: bytes = b""
    digests: bytes = b""
    same: bool = False
    named_type: str | None = None
    stale: bool = False
    body: int = 0


class Row(Fields, frozen=True, array_like=False):
    """A row of the journal, as a reader gets it. See `Fields` for the fields that are not explained here."""

    id: int = 0
    place: str = ""
    namespace: str = ""
    source: str = ""
    type: str | None = None
    status: str = ""
    kind: str | None = None

    @property
    def key_text(self) -> str | None:
        """The key as it is written everywhere else: 32 hexadecimal digits."""
        return self.key.hex() or None

    @property
    def counted(self) -> str:
        """What a row with a count stands for, such as `37 copies`. A row that identifies no event stands for different
        events: `37 events`."""
        is_of_one = self.key or self.event_id or self.entity or self.delivery_id or self.kept
        return f"{self.count:,} {'copies' if is_of_one else 'events'}"

    @property
    def start(self) -> int:
        """The time of the first copy, for a row that stands for several copies; otherwise `at`."""
        return self.at if self.since is None else self.since

    @property
    def occurred_at(self) -> int | None:
        """The event's own time in microseconds since 1970. The lag of a row of several copies is that of the first."""
        return None if self.lag is None else self.start - (self.took or 0) - self.lag


class _Terms(Struct, array_like=True, gc=False):
    """The first fields of a row: the terms by which the row can be found."""

    key: bytes
    event_id: str | None
    entity: str | None
    delivery_id: str | None
    kept: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Fields).decode
_decode_terms: Final = msgspec.msgpack.Decoder(_Terms).decode


def packed(fields: Fields) -> bytes:
    try:
        return _encode(fields)
    except UnicodeEncodeError:  # half of a surrogate pair, which only a program can make
        return _encode([_text(value) if isinstance(value, str) else value for value in astuple(fields)])


def unpacked(row_id: int, label: Label, data: bytes) -> Row:
    fields = _decode(data)
    place, namespace, source, label_type, status, kind = label
    return Row(
        **asdict(fields),
        id=row_id,
        place=place,
        namespace=namespace,
        source=source,
        type=fields.named_type or label_type or None,
        status=status,
        kind=kind or None,
    )


def _text(text: str) -> str:
    return text.encode(errors="replace").decode()


def label_of(place: str, namespace: str, outcome: Outcome, *, named_type: str | None) -> Label:
    """Returns the label of an outcome. No part of the label has a NUL or half of a surrogate pair, because some
    databases refuse such text."""
    source, named = short_label_text(outcome.event.source), short_label_text(named_type or "")
    return label_text(place), label_text(namespace), source, named, outcome.status, outcome.kind or ""


def operator_label(place: str, namespace: str, kind: str) -> Label:
    """Returns the label of a row about an action of an operator. The type of an event is not part of it, so that many
    types do not make many labels."""
    return place, label_text(namespace), "", "", OPERATOR, kind


def label_text(text: str) -> str:
    return _text(text).replace("\0", _NO_TEXT)


def short_label_text(text: str) -> str:
    return shortened(label_text(text)) or ""


# ── from an outcome to the fields of a row ────────────────────────────────────────────────────────────────

_PLAIN_REASONS: dict[tuple[str, int], str] = {}
_MOST_REASONS: Final = 100
_PLAIN: Final = ("processed", "accepted")


def fields_of(outcome: Outcome, at: int, worker: str) -> Fields:
    """Returns the fields of a row for this outcome, without its details."""
    event, key, original = outcome.event, outcome.key, outcome.original
    kept, took = outcome.kept, outcome.took
    lag = None if event.occurred_at is None else at - (took or 0) - microseconds_of(event.occurred_at)
    return Fields(
        b"" if key is None else key.digest,
        _bounded(event.id),
        _bounded(event.entity),
        _delivery_id(event),
        b"" if kept is None else kept.digest,
        at,
        "" if key is None else key.strategy,
        _bounded(event.part),
        _bounded(event.state),
        0 if outcome.status == "accepted" else event.attempt,  # a store may grant an event with its admission
        lag,
        took,
        reason_of(outcome),
        None if original is None else original.about.delivery_id,
        None if original is None else original.completed_at or original.first_seen,
        worker,
        stale=event.stale,
    )


def _bounded(text: str | None) -> str | None:
    """Returns a text that is not too long for a row. Raises TypeError for a value of another type: a program can make
    an event with such a value, and no reader could decode the row."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"a field of an event is not a string but {type(text).__name__}")
    return text if len(text) <= _LONGEST_TEXT else shortened(text)


def _delivery_id(event: Event) -> str | None:
    """Returns the id by which the sender or the transport knows the delivery. The id of a Standard Webhook is the same
    for all its retries. A request id is new for each of them."""
    return shortened(event.evidence.message_id or event.webhook_id or event.evidence.request_id)


def reason_of(outcome: Outcome) -> str:
    """Returns the sentence that explains the outcome, without the text of an exception."""
    if outcome.error is None and outcome.status in _PLAIN:
        name = (outcome.status, outcome.event.attempt)
        if (known := _PLAIN_REASONS.get(name)) is None:
            known = outcome.discreet
            if len(_PLAIN_REASONS) < _MOST_REASONS:
                _PLAIN_REASONS[name] = known
        return known
    reason = outcome.discreet
    return reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}…"


# ── finding rows by a term ────────────────────────────────────────────────────────────────────────────────
#
# A term is an event id, an entity, a delivery id, or a key in hexadecimal digits. An index of terms holds 4 bytes for
# each term. Rows that the index finds are compared with the term, so a collision costs time only.


def term_hashes(rows: Iterable[bytes]) -> set[int]:
    """Returns the hashes of all terms of packed rows."""
    hashes: set[int] = set()
    for data in rows:
        terms = _decode_terms(data)
        hashes.add(crc32(terms.key))
        if terms.event_id:
            hashes.add(crc32(terms.event_id.encode()))
        if terms.entity:
            hashes.add(crc32(terms.entity.encode()))
        if terms.delivery_id:
            hashes.add(crc32(terms.delivery_id.encode()))
        if terms.kept:
            hashes.add(crc32(terms.kept))
    return hashes


class Term:
    """A term to find: in all fields that are terms, or only in one kind of field. `hashes` are the hashes under which
    the term may be in an index."""

    def __init__(self, text: str, only: Literal["entity", "key"] | None = None) -> None:
        self._text = shortened(text) or ""
        self._encoded = self._text.encode(errors="surrogatepass")
        self._only = only
        self._key = None if only == "entity" else bytes.fromhex(text) if only == "key" else _key_of(text)
        self.hashes = [] if only == "key" else [crc32(_text(self._text).encode())]
        if self._key is not None:
            self.hashes.append(crc32(self._key))

    def is_in(self, data: bytes) -> bool:
        """Whether a packed row has this term. Most rows do not have its bytes, and are not decoded."""
        if self._encoded not in data and (self._key is None or self._key not in data):
            return False
        terms = _decode_terms(data)
        if self._only == "entity":
            return self._text == terms.entity
        if self._key is not None and self._key in (terms.key, terms.kept):
            return True
        return self._only is None and self._text in (terms.event_id, terms.entity, terms.delivery_id)


class RowErasure:
    """Which rows to erase: the rows of an entity, the rows without an entity that have one of these keys, and the rows
    with these ids. With a namespace, only its rows are erased, and the rows with these ids. Rows that have one of the
    keys in `spared` are not erased."""

    def __init__(
        self,
        entity: str,
        keys: Collection[bytes] = frozenset(),
        *,
        namespace: str | None = None,
        ids: Collection[int] = frozenset(),
    ) -> None:
        self.spared: Collection[bytes] = frozenset()
        self._entity = _text(shortened(entity) or "")
        self._keys = frozenset(keys)
        self._namespace = namespace
        self._ids = frozenset(ids)
        self._hashes = frozenset({crc32(self._entity.encode()), *map(crc32, self._keys)})

    def may_be_among(self, hashes: Iterable[int], first: int, last: int) -> bool:
        """Whether a block of rows with these hashes and ids may have rows to erase."""
        return not self._hashes.isdisjoint(hashes) or any(first <= row_id <= last for row_id in self._ids)

    def includes(self, row_id: int, label: Label, data: bytes) -> bool:
        """Whether this packed row is to be erased."""
        terms = _decode_terms(data)
        if self.spared and (terms.key in self.spared or terms.kept in self.spared):
            return False
        if row_id in self._ids:
            return True
        if self._namespace not in (None, label[1]):
            return False
        if terms.entity is not None:
            return terms.entity == self._entity
        return terms.key in self._keys or terms.kept in self._keys

    def names(self, shape: Shape) -> bool:
        """Whether a path of this shape has the entity as the name of a member."""
        return any(self._entity[:LONGEST_NAME] in path for path in shape)


def shapes_of(rows: Iterable[bytes]) -> set[bytes]:
    """Returns the ids of the shapes of packed rows."""
    return {shape for data in rows if (shape := _decode(data).shape)}


def _key_of(text: str) -> bytes | None:
    try:
        return bytes.fromhex(text) if len(text) == 32 else None
    except ValueError:
        return None


def group_of(outcome: Outcome) -> bytes:
    """Returns what copies of one event have in common: the key, or for events without a key the error and a hash of the
    document that only this process can make."""
    if outcome.key is not None:
        return outcome.key.digest
    return error_of(outcome) + hash(outcome.event.raw).to_bytes(8, signed=True)


def error_of(outcome: Outcome) -> bytes:
    """Returns what different events without a key have in common, if they have the same error."""
    return _text(outcome.raised or outcome.error or outcome.status)[:100].encode()


def anonymous(outcome: Outcome) -> Outcome:
    """Returns an outcome for a row that stands for different events without a key: without what identifies one of
    them."""
    return Outcome(
        outcome.status,
        Event(source=outcome.event.source, body=None),
        kind=outcome.kind,
        error=outcome.error,
        raised=outcome.raised,
    )
