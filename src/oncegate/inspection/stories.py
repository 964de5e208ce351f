"""Tell the story of one event from the journal and the store.

The record in the store decides what is true now. The journal is history: rows may be missing, because the recorder
dropped them, or because they were deleted after `journal_max_age`.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate import keys
from oncegate.carriers import delivery
from oncegate.claims import DEAD, IN_PROGRESS
from oncegate.clocks import Clock, wall
from oncegate.durations import spoken
from oncegate.errors import MissingKey
from oncegate.events import Event, Key
from oncegate.gate.outcome import ABSENT, differing_values
from oncegate.inspection.explanations import Explainers, Explanation, KnownHistory
from oncegate.journal.base import (
    ALL_ROWS,
    MINUTE,
    MOST_READS,
    Journal,
    Page,
    RowFilter,
    all_rows,
    differing_paths,
    row_with_details,
)
from oncegate.journal.leaves import DIGEST_SIZE, STRATEGIES, LeafHasher, body_of, differing, digests_of
from oncegate.journal.rows import OPERATOR, Row
from oncegate.journal.storms import SEPARATE, is_copy
from oncegate.sources import understood
from oncegate.stores.base import Entry
from oncegate.timelines import Timeline, place
from oncegate.times import EPOCH, microseconds_of

Decided: TypeAlias = Literal["new", "duplicate", "conflict", "no key", "not known"]

_STATE_CHANGE: Final = keys.state_change()
_LAST_ID: Final = 2**63 - 1
_MOST_ROWS: Final = 1_000  # rows of one story or search
_MOST_COMPARED: Final = 500  # rows of an entity or an event id that are compared for the other strategies
_MOST_VALUES: Final = 100
_LONGEST_VALUE: Final = 1_000  # characters
_LATE: Final = 60_000_000  # microseconds by which the first row may be later than the record
_EARLY: Final = 1_000_000  # microseconds by which a copy may be earlier than the handler of the first delivery
_UNWRITTEN: Final = 5_000_000  # microseconds; the recorder writes a row within a second, if it is not busy
# The decisions about the first delivery of an event. Other first rows show that earlier rows are missing.
_FIRST: Final = frozenset({"accepted", "processed", "failed", "buried", "invalid", "unguarded", "skipped"})
MISSING: Final = "rows are missing: they are not written yet, were dropped, or were deleted"
_UNCOUNTED: Final = "more copies in the same minute may be missing: they are counted when the minute ends"
_COUNT_LOST: Final = (
    "more copies may be missing: after 5 copies in a minute, the others are counted when the minute ends, and not if"
    " the process was killed before that"
)
_NO_PAYLOAD: Final = "no payload is stored: the setting journal_payloads is off, or the payload was deleted"
_NO_DETAILS: Final = (
    "a row has no hashes of its body: the body is too large, the event is part of a storm, or the recorder was too busy"
)
_OTHER_KEY: Final = (
    "the settings make another key from the payload: the key strategy has changed, or the event was a replay"
)
_JOINED: Final = "it is the key of another emission of the same state change, and the payload of that one is not stored"
_NO_RECORD: Final = "The store has no record of {name}{why}. The last decision, {ago} ago: {reason}"
# The decisions that prove that there was a record. Other decisions prove it only with an attempt or an original.
_RECORDED: Final = frozenset({"accepted", "processed", "conflict", "buried"})
_EXPIRED: Final = "the record has expired, or an operator reset or dropped it"
_DELETIONS: Final = {"reset": "reset its key", "drop": "dropped the dead letter"}


class StoryLine(Struct, frozen=True):
    """A row of the story. `gap` is the time from the start of the row before it to the start of this row, in
    microseconds; None for the first row.
    `is_arrival` means that a delivery arrived. `is_attempt` means that the event was claimed to be run. A row of a
    gate without an inbox is both."""

    row: Row
    gap: int | None
    is_arrival: bool
    is_attempt: bool


class ValueDifference(Struct, frozen=True):
    """The values at one path as JSON text: in the original, and in the compared delivery. None if a body has no value
    at this path. The path is empty for a body that is not an object."""

    path: str
    original: str | None
    value: str | None


class Difference(Struct, frozen=True):
    """How a delivery differs from the original. `paths` is None if the paths are not known. `values` is None if one of
    the payloads is not stored. `reason` says why something is missing."""

    paths: tuple[str, ...] | None
    values: tuple[ValueDifference, ...] | None = None
    reason: str | None = None


class KeyParts(Struct, frozen=True):
    """The key of an event, its strategy, and the parts that the key was made of. `reason` says why `parts` is None."""

    key: str
    strategy: str
    parts: tuple[Any, ...] | None = None
    reason: str | None = None


class StrategyDecision(Struct, frozen=True):
    """What a gate with another key strategy would have decided. `row` is the earlier row with the same key."""

    strategy: str
    decision: Decided
    row: Row | None = None

    @property
    def text(self) -> str:
        if self.row is None:
            return {"new": "new event", "no key": "no key for this event"}.get(self.decision, self.decision)
        return f"{self.decision} {'with' if self.decision == 'conflict' else 'of'} {name_of(self.row)}"


class Story(Struct, frozen=True):
    """What is known about one event.

    `sentence` is the decision. `lines` are the rows of its key, oldest first; with `is_cut`, older rows are left out.
    `deliveries` is the number of deliveries that the journal has recorded. If `is_complete` is False, there may have
    been more deliveries, and `missing` says why. `focus` is the row that the story is about, and `original` is the row
    of the first delivery. `compared` is the number of earlier rows that `strategies` were compared with. `explanation`
    has the record. `replay` is the row of the operator's replay that made this event from another one.
    """

    sentence: str
    namespace: str
    lines: tuple[StoryLine, ...]
    focus: Row
    key: KeyParts | None = None
    explanation: Explanation | None = None
    deliveries: int = 1
    missing: str = ""
    is_cut: bool = False
    original: Row | None = None
    difference: Difference | None = None
    strategies: tuple[StrategyDecision, ...] = ()
    compared: int = 0
    replay: Row | None = None

    @property
    def is_complete(self) -> bool:
        return not self.missing

    @property
    def deliveries_text(self) -> str:
        if self.replay is not None and not self.deliveries:
            return "0 deliveries, 1 replay"
        count = "1 delivery" if self.deliveries == 1 else f"{self.deliveries:,} deliveries"
        return count if self.is_complete else f"at least {count}"

    @property
    def is_copy(self) -> bool:
        """Whether `focus` is a later delivery of the event, and not the first delivery or an attempt of it."""
        return self.difference is not None


def name_of(row: Row) -> str:
    return row.event_id or row.delivery_id or "an event without an id"


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Returns rows in the order of their times, oldest first. The order of their ids is another one: the row that
    stands for the copies of a storm is written after the storm."""
    return sorted(rows, key=_order)


def _order(row: Row) -> tuple[int, int]:
    return row.start, row.id


class Stories:
    """Tells stories from a journal and from the store of `explainers`."""

    def __init__(self, explainers: Explainers, journal: Journal, clock: Clock = wall) -> None:
        self._explainers = explainers
        self._journal = journal
        self._clock = clock

    def of_key(self, namespace: str, key: bytes, row_id: int | None = None, *, is_first: bool = False) -> Story | None:
        """Returns the story of a key: of the row with this id, or else of the latest delivery; with `is_first`, of the
        first delivery. Returns None if the journal has no row with this key. The key may be that of a dead letter: the
        rows are then those of the event that it holds, and the sentence is about the dead letter."""
        rows = self._rows(namespace, key)
        if not rows:
            return None
        focus = next((row for row in rows if row.id == row_id), None)
        if focus is None:
            focus = _latest(rows)
            first = [row for row in in_order(rows) if is_first and row.status in _FIRST and row.key == key == focus.key]
            focus = first[0] if first else focus
        return self._story(focus, rows, key) if focus.key == key else self.of_row(focus, key)

    def of_row(self, focus: Row, decided_by: bytes | None = None) -> Story:
        """Returns the story of the event that this row is about. `decided_by` is the key of the record that decides,
        even if the store does not have this record any more. By default, it is the key of the dead letter of this row,
        or else the key of the row."""
        if focus.key_text is None:
            return Story(
                self._sentence_without_key(focus), focus.namespace, (StoryLine(focus, None, True, False),), focus
            )
        return self._story(focus, self._rows(focus.namespace, focus.key), decided_by)

    def of_event(self, namespace: str, key: Key, event: Event) -> Story | None:
        """Returns the story of a key for an event that the journal may not have, such as one from a file. `focus` is
        about this event and has no status. The difference and the strategies are those of this event, too."""
        story = self.of_key(namespace, key.digest)
        if story is None:
            return None
        now = self._clock()
        occurred = None if event.occurred_at is None else microseconds_of(event.occurred_at)
        focus = Row(
            id=_LAST_ID,
            at=now,
            lag=None if occurred is None else now - occurred,
            key=key.digest,
            strategy=key.strategy,
            namespace=namespace,
            source=event.source,
            type=event.type,
            entity=event.entity,
            event_id=event.id,
            part=event.part,
            state=event.state,
            digests=digests_of(event, key),
            shape=b"-",  # it has the details itself
        )
        candidates = self._candidates(focus, [line.row for line in story.lines])
        entry, original = self._record(namespace, key.digest), story.original
        return replace(
            story,
            focus=focus,
            key=KeyParts(str(key), key.strategy, key.parts) if key.change is None else story.key,
            difference=None if original is None else self._difference(original, focus, entry, event),
            strategies=tuple(self._strategies(focus, candidates)),
            compared=sum(bool(row.digests) for row in candidates),
        )

    def _rows(self, namespace: str, key: bytes) -> Page:
        return all_rows(self._journal, RowFilter(namespace=namespace, key=key, operators=True), _MOST_ROWS)

    def _story(self, focus: Row, found: Page, decided_by: bytes | None) -> Story:
        """Returns the story of a row with a key. `found` are the rows of this key."""
        rows = in_order(row for row in found if focus.key in (row.key, row.kept)) or [focus]
        entry = self._record(focus.namespace, focus.key)
        key, decisive = self._decisive(focus, rows, decided_by, entry)
        known = _history(focus, rows, entry) if key == focus.key else None
        explanation = None if decisive is None else self._explainers.record(decisive, known)
        about = rows
        if key != focus.key:
            about = in_order(self._rows(focus.namespace, key))
            rows = in_order([*rows, *(row for row in about if row.status == OPERATOR and row.key == key)])
        lines = tuple(_lines(rows, focus.key))
        original = next((line.row for line in lines if line.is_arrival and _is_first(line.row, focus.key)), None)
        replay = next((row for row in rows if row.status == OPERATOR and row.kept == focus.key), None)
        is_complete = found.next is None and _is_complete(lines, original or replay, entry, self._clock())
        missing = "" if is_complete else MISSING
        # An attempt of a stored event, or an action of an operator, is no delivery: it is about the first delivery.
        is_delivery = original is None or any(line.row.id == focus.id and line.is_arrival for line in lines)
        delivered = focus if is_delivery else original or focus
        candidates = self._candidates(delivered, rows)
        return Story(
            f"{self._sentence(focus, key, about, explanation)}{_several_runs(key, about)}",
            focus.namespace,
            lines,
            focus,
            self._key_parts(focus, explanation, entry, original),
            explanation,
            sum(line.row.count for line in lines if line.is_arrival),
            missing or _uncounted_copies(rows, self._clock()),
            found.next is not None,
            original,
            None if original is None or original.id == delivered.id else self._difference(original, delivered, entry),
            tuple(self._strategies(delivered, candidates)),
            sum(bool(row.digests) for row in candidates),
            replay,
        )

    # ── sentences ─────────────────────────────────────────────────────────────────────────────────────────

    def _decisive(
        self, focus: Row, rows: Sequence[Row], decided_by: bytes | None, entry: Entry | None
    ) -> tuple[bytes, Entry | None]:
        """Returns the key that the sentence is about, and its record. `entry` is the record of the key of `focus`. If
        the event failed after it was marked as done, its dead letter decides."""
        if decided_by is not None and decided_by != focus.key:
            return decided_by, self._record(focus.namespace, decided_by)
        of_focus = [] if decided_by else [focus.kept]
        for key in dict.fromkeys([*of_focus, *_failed_after_mark(rows, focus.key)]):
            if (kept := self._record(focus.namespace, key)) is not None:
                return key, kept
        return focus.key, entry

    def _record(self, namespace: str, key: bytes) -> Entry | None:
        found = self._explainers.store.browse(namespace, key=key) if key else []
        return found[0] if found else None

    def _sentence(self, focus: Row, key: bytes, rows: Sequence[Row], explanation: Explanation | None) -> str:
        """Returns the decision about a key. `rows` are the rows of this key, oldest first."""
        if explanation is not None:
            return explanation.sentence
        last = next((row for row in reversed(rows) if row.status != OPERATOR), focus)
        deletion = next((row for row in reversed(rows) if row.status == OPERATOR and row.kind in _DELETIONS), None)
        why = ""
        if deletion is not None and deletion.at >= last.at:
            done = _DELETIONS[deletion.kind or ""]
            why = f" any more: the operator {deletion.worker} {done} {spoken(self._clock() - deletion.at)} ago"
        elif deletion is not None or any(_had_record(row, key) for row in rows):
            why = f" any more: {_EXPIRED}"
        ago = spoken(self._clock() - last.at)
        name = name_of(focus) if key == focus.key else f"the dead letter {key.hex()} of {name_of(focus)}"
        return _NO_RECORD.format(name=name, why=why, ago=ago, reason=last.reason)

    def _sentence_without_key(self, row: Row) -> str:
        if row.kept:
            kept = self._record(row.namespace, row.kept)
            explanation = None if kept is None else self._explainers.record(kept)
            return self._sentence(row, row.kept, in_order(self._rows(row.namespace, row.kept)), explanation)
        return f"{row.reason.removesuffix('.')}, {spoken(self._clock() - row.at)} ago."

    # ── payloads ──────────────────────────────────────────────────────────────────────────────────────────

    def payload(self, row: Row) -> bytes | None:
        """Returns the payload of a row: from the journal, or from the dead letter of this row. Returns None if no
        payload is stored."""
        payload = self._journal.payload(row.id)
        if payload is None and (details := row_with_details(self._journal, row)) is not None:
            payload = self._journal.payload(details.id)
        if payload is None and row.kept and (kept := self._record(row.namespace, row.kept)) is not None:
            payload = kept.record.payload
        return payload

    def _event(self, row: Row, stored: bytes | None = None) -> Event | None:
        """Returns the event of a row; None if no payload is stored. `stored` is the payload in the record of the event,
        for the row of the first delivery."""
        payload = self.payload(row)
        if payload is None and stored is None:
            return None
        _, hints = self._explainers.reader(row.namespace)
        event = understood(delivery((stored or b"") if payload is None else payload), hints)
        return event if event.problem is None and event.frame is None else None

    def _difference(self, original: Row, focus: Row, entry: Entry | None, given: Event | None = None) -> Difference:
        """Returns how `focus` differs from the original. `given` is the event of `focus` if the journal has no row of
        it."""
        stored = None if entry is None else entry.record.payload
        one, other = self._event(original, stored), given or self._event(focus)
        if one is not None and other is not None:
            values = tuple(
                ValueDifference(path, _json(first), _json(second))
                for path, first, second in islice(differing_values(one.body, other.body), _MOST_VALUES)
            )
            return Difference(tuple(each.path for each in values), values)
        paths = differing_paths(self._journal, original, focus) if given is None else self._paths(original, given)
        if paths is None:
            return Difference(None, None, _NO_DETAILS)
        return Difference(tuple(paths), None, _NO_PAYLOAD if paths else None)

    def _paths(self, original: Row, event: Event) -> list[str] | None:
        """Returns the paths at which an event differs from a row, from the leaf hashes of the row; None if the row has
        none."""
        row = row_with_details(self._journal, original)
        shape = () if row is None else self._journal.shape(row.shape)
        if row is None or not shape:
            return None
        try:
            return differing((shape, row.leaves), LeafHasher(self._journal.secret()).leaves(body_of(event)))
        except (TypeError, ValueError, RecursionError):
            return None

    def _key_parts(
        self, focus: Row, explanation: Explanation | None, entry: Entry | None, original: Row | None
    ) -> KeyParts:
        text = focus.key.hex()
        if explanation is not None and explanation.key is not None:
            return KeyParts(text, focus.strategy, explanation.key.parts)
        event, reason = self._event(focus), _NO_PAYLOAD
        make, _ = self._explainers.reader(focus.namespace)
        # The original has the same key. For a later emission of a state change, only the original has its parts.
        stored = None if entry is None else entry.record.payload
        for each in (event, None if original is None else self._event(original, stored)):
            if each is None:
                continue
            try:
                key = make(each)
            except MissingKey as error:
                reason = str(error)
                continue
            except Exception as error:  # noqa: BLE001  # the key function is the user's
                reason = f"the key function raised {type(error).__name__}"
                continue
            if key.digest == focus.key:
                return KeyParts(text, focus.strategy, key.parts)
            reason = _OTHER_KEY if key.change is None else _JOINED
        return KeyParts(text, focus.strategy, None, reason)

    # ── other strategies ──────────────────────────────────────────────────────────────────────────────────

    def _candidates(self, focus: Row, rows: Sequence[Row]) -> list[Row]:
        """Returns the earlier rows that another strategy may join with this row, oldest first: the rows with the same
        key, event id or entity. The journal has no index by the keys of the other strategies."""
        found = {row.id: row for row in rows}
        for term in {focus.event_id, focus.entity} - {None, ""}:
            where = RowFilter(namespace=focus.namespace, term=term)
            page = self._journal.rows(where, before=focus.id, limit=_MOST_COMPARED)
            found |= {row.id: row for row in page}
        return in_order(row for row in found.values() if _order(row) < _order(focus))

    def _strategies(self, focus: Row, candidates: Sequence[Row]) -> Iterator[StrategyDecision]:
        yield from self._by_digests(focus, candidates)
        yield _by_state_change(focus, candidates)

    def _by_digests(self, focus: Row, candidates: Sequence[Row]) -> Iterator[StrategyDecision]:
        details = row_with_details(self._journal, focus)
        if details is None or not details.digests:
            yield from (StrategyDecision(name, "not known") for name in STRATEGIES)
            return
        *_, by_content = STRATEGIES
        for name in STRATEGIES:
            own = _digest(details, name)
            if not any(own):
                yield StrategyDecision(name, "no key")
                continue
            first = next((row for row in candidates if _digest(row, name) == own), None)
            if first is None:
                yield StrategyDecision(name, "new")
                continue
            same = _digest(first, by_content) == _digest(details, by_content)
            yield StrategyDecision(name, "duplicate" if same else "conflict", first)


def _history(focus: Row, rows: Sequence[Row], entry: Entry | None) -> KnownHistory:
    """What the rows of a key, oldest first, know about its record. The attempt of a worker that runs now has no row
    yet. After a redrive, the number of attempts in the record starts again."""
    if entry is None:
        return KnownHistory(focus.strategy)
    record, own = entry.record, [row for row in rows if row.key == focus.key]
    attempts = [row.status for row in own if row.attempt > 0]
    before = attempts[:-1] if record.state == DEAD else attempts
    is_redriven = "buried" in before or any(row.kind == "redrive" for row in own)
    is_whole = len(attempts) + (record.state == IN_PROGRESS) == record.attempts
    return KnownHistory(focus.strategy, is_whole and not is_redriven)


def _by_state_change(focus: Row, candidates: Sequence[Row]) -> StrategyDecision:
    """What `state_change`, with its default window, would have decided. Rows have the fields that it needs."""
    timelines: dict[bytes, Timeline] = {}
    first: dict[bytes, Row] = {}
    for row in (*candidates, focus):
        try:
            key = _STATE_CHANGE(_event_of(row))
        except (MissingKey, ValueError, OverflowError):
            continue
        assert key.change is not None  # noqa: S101  # the key of a state change has one
        placed = place(timelines.get(key.change.timeline, Timeline()), key.change, key.digest)
        timelines[key.change.timeline] = placed.timeline
        earlier = first.setdefault(placed.key, row)
        if row is focus:
            joined = None if earlier is focus else earlier
            return StrategyDecision("state_change", "new" if joined is None else "duplicate", joined)
    return StrategyDecision("state_change", "no key")


def _event_of(row: Row) -> Event:
    """The event of a row, without its body. Raises ValueError or OverflowError if its time is out of range."""
    at = None if row.occurred_at is None else EPOCH + timedelta(microseconds=row.occurred_at)
    return Event(
        source=row.source, body=None, type=row.type, entity=row.entity, part=row.part, state=row.state, occurred_at=at
    )


def _latest(rows: Sequence[Row]) -> Row:
    """Returns the newest of these rows. A row that stands for several copies has no details, so a row of one delivery
    is preferred. A row of an operator's action comes last."""
    return max(rows, key=lambda row: (row.status != OPERATOR, row.count == 1, row.at, row.id))


def _recency(row: Row) -> tuple[bool, int, int]:
    """Which event is newer: the one with the later delivery or attempt. An action of an operator does not count."""
    return row.status != OPERATOR, row.at, row.id


def _several_runs(key: bytes, rows: Iterable[Row]) -> str:
    """Returns a sentence if the event was run to its end more than once: the record describes only the last run."""
    runs = sum(row.count for row in rows if row.status == "processed" and row.key == key)
    return f" The journal has {runs:,} completed runs of this key." if runs > 1 else ""


def _failed_after_mark(rows: Sequence[Row], key: bytes) -> Iterator[bytes]:
    """Yields the keys of the dead letters of an event that failed after it was marked as done, newest first. A failure
    before a completed run of the same key does not count."""
    for row in reversed(rows):
        if row.key == key and row.status == "processed":
            return
        if row.key == key and row.status == "buried" and row.original_at is None and row.kept:
            yield row.kept


def _had_record(row: Row, key: bytes) -> bool:
    """Whether a row proves that the store had a record of this key. If the store did not answer, or if the event was
    skipped, there was none."""
    if row.key != key:
        return row.kept == key
    return row.attempt > 0 or row.original_at is not None or row.status in _RECORDED


def _digest(row: Row, strategy: str) -> bytes:
    at = DIGEST_SIZE * list(STRATEGIES).index(strategy)
    return row.digests[at : at + DIGEST_SIZE]


def _is_first(row: Row, key: bytes) -> bool:
    """Whether a row of a delivery can be the first of this key. A dead letter with a separate key starts with the
    delivery that it holds."""
    return row.status in _FIRST or row.kept == key != row.key


def _lines(rows: Sequence[Row], key: bytes) -> Iterator[StoryLine]:
    """Yields the lines for rows of a key, oldest first. Attempts of an event that the store holds are not arrivals: the
    event was accepted into an inbox, was redriven, or was made of another row by a replay or as a dead letter. The
    store may have granted the event with its admission, so the row of the arrival can have an attempt."""
    is_stored = any(row.status == "accepted" or row.kept == key != row.key for row in rows)
    before: int | None = None
    for row in rows:
        is_stored = is_stored or (row.status == OPERATOR and row.kind == "redrive" and row.key == key)
        is_attempt = row.attempt > 0 and row.status != "accepted"
        is_arrival = row.status != OPERATOR and not (is_attempt and is_stored)
        yield StoryLine(row, None if before is None else row.start - before, is_arrival, is_attempt)
        before = row.start


def _is_complete(lines: Sequence[StoryLine], original: Row | None, entry: Entry | None, now: int) -> bool:
    """Whether no sign shows that rows are missing. Rows that were dropped leave no sign in some cases. `original` is
    the row of the first delivery, or of the replay that made the event."""
    first = next((line.row for line in lines if line.is_arrival), original)
    if original is None or first is None:
        return False
    # A row is written when the handler has ended, so the row of a copy that arrived meanwhile is earlier.
    began = original.at - (original.took or 0)
    if first.id != original.id and first.start < began - _EARLY:
        return False
    if entry is None:
        return True
    record, attempts = entry.record, sum(line.is_attempt for line in lines)
    # The latest attempt of a stored event has no row yet. It is no delivery, so no delivery is missing.
    is_new = record.state == IN_PROGRESS or now - (record.completed_at or 0) < _UNWRITTEN
    if is_new and original.status == "accepted":
        attempts += 1
    return record.first_seen >= began - _LATE and record.attempts <= attempts


def _uncounted_copies(rows: Iterable[Row], now: int) -> str:
    """Returns why copies may be missing that a recorder has counted but not written; "" if there is no such sign. A
    recorder writes the first five copies of an event in a minute. It writes further copies as one row when the minute
    ends, or never if its process is killed."""
    times: dict[tuple[str, str], list[int]] = {}  # of the copies since the last row of several copies, by recorder
    uncounted: dict[tuple[str, str], int] = {}  # the time of the last of these copies
    for row in rows:
        recorder = (row.place, row.worker)
        if row.count > 1:
            times.pop(recorder, None)
            uncounted.pop(recorder, None)
        elif row.status != OPERATOR and is_copy(row.status, row.took):
            known = times.setdefault(recorder, [])
            known.append(row.at)
            if len(known) >= SEPARATE and row.at - known[-SEPARATE] < MINUTE:
                uncounted[recorder] = row.at
    if not uncounted:
        return ""
    return _UNCOUNTED if now - max(uncounted.values()) < MINUTE + _UNWRITTEN else _COUNT_LOST


def _json(value: Any) -> str | None:
    if value is ABSENT:
        return None
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


# ── search ────────────────────────────────────────────────────────────────────────────────────────────────


class EventMatch(Struct, frozen=True):
    """An event that a search has found: its key, its newest row that matches, and the number of such rows. A row that
    stands for several copies is `latest` only if no other row matches. `key` is empty for a delivery without a key;
    each such delivery is a match of its own. `kept` are the keys of the dead letters and replays in these rows."""

    namespace: str
    key: bytes
    latest: Row
    rows: int = 1
    kept: frozenset[bytes] = frozenset()


class EventMatches(Struct, frozen=True):
    """The events that were found, newest first. With `next`, older rows were not searched; it is a cursor for
    `before`."""

    events: list[EventMatch]
    next: int | None = None


def find_events(
    journal: Journal,
    term: str,
    where: RowFilter = ALL_ROWS,
    *,
    before: int | None = None,
    most: int = _MOST_ROWS,
    reads: int = MOST_READS,
) -> EventMatches:
    """Returns the events with this event id, entity, delivery id or key in the newest `most` rows that match, with at
    most `reads` reads of the journal."""
    rows = all_rows(journal, replace(where, term=term), most, before=before, reads=reads)
    found: dict[tuple[str, bytes, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.namespace, row.key, 0 if row.key else row.id), []).append(row)
    newest_first = sorted(found.items(), key=lambda item: max(map(_recency, item[1])), reverse=True)
    events = [
        EventMatch(namespace, key, _latest(each), len(each), frozenset(row.kept for row in each if row.kept))
        for (namespace, key, _), each in newest_first
    ]
    return EventMatches(events, rows.next)
