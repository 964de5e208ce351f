"""Erase one entity, such as a conversation or a person, from the records of a store and from the journal."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

from msgspec import Struct

from oncegate.claims import DEAD, IN_PROGRESS, Address, Forget, Record
from oncegate.clocks import wall
from oncegate.durations import microseconds, times
from oncegate.gate.job import shortened
from oncegate.inspection.operators import settings_of_namespace
from oncegate.journal import MOST_EVENT_ROWS, Journal, OperatorLog, RowErasure, RowFilter
from oncegate.journal.base import OPERATOR_ROWS, every_row
from oncegate.settings import Settings
from oncegate.stores.base import Entry, KeepsDeletedData, Store, scan

MOST_RECORDS: Final = 100_000  # records that one erasure changes; this bounds the memory of a plan
_PAGE: Final = 100
_SHORTEST_NAME: Final = 6  # characters; a shorter text is found in sentences that do not mean it

ShowProgress: TypeAlias = Callable[[str, int], object]


def _no_progress(_what: str, _count: int) -> None:
    """The progress of an erasure that nobody watches."""


class ErasurePlan(Struct):
    """What the erasure of an entity changes. `records` have no payload: completed events, and events that the next
    delivery runs again. `waiting` are events that are stored and have not run. `in_progress` are events whose handler
    runs now; an erasure leaves them. `rows` is the number of rows of the journal; None if there is no journal.
    `is_cut`: the store has more records of the entity than one erasure changes."""

    entity: str
    namespace: str | None
    records: dict[Address, None] = {}
    dead_letters: dict[Address, None] = {}
    waiting: dict[Address, None] = {}
    in_progress: dict[Address, None] = {}
    rows: int | None = None
    erased_rows: RowErasure | None = None
    is_cut: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.records or self.dead_letters or self.waiting or self.in_progress or self.rows)

    def add(self, entry: Entry) -> None:
        record, address = entry.record, Address(entry.namespace, entry.key)
        if self.known >= MOST_RECORDS:
            self.is_cut = True
        elif record.state == IN_PROGRESS and wall() < record.lease_until:
            self.in_progress[address] = None
        elif record.state == DEAD:
            self.dead_letters[address] = None
        elif record.payload is not None:
            self.waiting[address] = None
        else:
            self.records[address] = None

    @property
    def known(self) -> int:
        return len(self.records) + len(self.dead_letters) + len(self.waiting) + len(self.in_progress)

    def erasable(self, *, waiting: bool) -> list[Address]:
        """The addresses of the records that the erasure changes."""
        return [*self.records, *self.dead_letters, *(self.waiting if waiting else ())]


class ErasureResult(Struct):
    """What an erasure changed. `left` is the number of events that still identify the entity. `rows_left` is the number
    of journal rows that are needed to find these events. `is_purged`: the files of an SQLite store and journal hold
    none of the erased data in their logs. `end` is the reason why the erasure ended early, after the first `tried` of
    `total` records; None if it did not end early."""

    records: int = 0
    dead_letters: int = 0
    waiting: int = 0
    rows: int | None = None
    left: int = 0
    rows_left: int = 0
    is_purged: bool = True
    tried: int = 0
    total: int = 0
    end: str | None = None

    @property
    def sentence(self) -> str:
        """What was erased, without the entity. If the erasure ended early, also where and why it ended."""
        parts = [times(self.records, "record"), times(self.dead_letters, "dead letter")]
        if self.waiting:
            parts.append(times(self.waiting, "waiting event"))
        if self.rows is not None:
            parts.append(times(self.rows, "journal row"))
        text = f"Erased {', '.join(parts[:-1])} and {parts[-1]}."
        if self.end is not None:
            text += f" Interrupted after {self.tried} of {times(self.total, 'record')} ({self.end})."
        if self.rows_left:
            left = times(self.rows_left, "journal row")
            text += f" Left {left}, because only the journal shows that the events that are left belong to the entity."
        return text


# ── find what belongs to the entity ───────────────────────────────────────────────────────────────────────


def plan_erasure(
    store: Store,
    journal: Journal | None,
    entity: str,
    namespace: str | None = None,
    progress: ShowProgress = _no_progress,
) -> ErasurePlan:
    """Find the records and rows of an entity. This scans all records: no store has an index by entity. `progress` is
    called with the kind and the number of what was read. A record that does not name the entity is found by its key, if
    the journal knows the key. A dead letter without an entity, such as one that could not be read, and a row of such an
    event are found by the text of their payload."""
    plan, mention = ErasurePlan(entity, namespace), _mention(entity)
    name, known = shortened(entity), set() if journal is None else _journal_keys(journal, entity, namespace, progress)
    keys, delivery_ids = {key for _, key in known}, set[str | None]()
    for count, entry in enumerate(scan(store, namespace), 1):
        progress("records", count)
        about = entry.record.about
        is_known = (entry.namespace, entry.key) in known and not _identifies_nobody(entry.record)
        if about.entity == name or (about.entity is None and (is_known or _is_mentioned(mention, entry.record))):
            plan.add(entry)
            keys.add(entry.key)
            delivery_ids.add(about.delivery_id)
    if journal is not None:
        ids = _naming_actions(journal, {entity, *(each for each in delivery_ids if each is not None)})
        ids |= _mentioning_rows(journal, mention, namespace)
        plan.erased_rows = RowErasure(entity, keys, namespace=namespace, ids=ids)
        plan.rows = journal.erase(plan.erased_rows, dry_run=True)
    return plan


def _identifies_nobody(record: Record) -> bool:
    about = record.about
    is_stripped = about.entity is None and about.delivery_id is None and record.result is None
    return is_stripped and record.payload is None and (record.error is None or record.is_erased)


def _mention(entity: str) -> re.Pattern[bytes]:
    """Returns a pattern that finds the id of the entity in the bytes of a payload. JSON may write other letters than
    those of ASCII as escapes. A short id is found only in quotes: a short text is often part of other data."""
    forms = {entity.encode(errors="surrogatepass"), json.dumps(entity)[1:-1].encode()}
    text = b"|".join(re.escape(form) for form in sorted(forms))
    if len(entity) < _SHORTEST_NAME:
        return re.compile(rb'"(?:' + text + rb')\\*"')
    return re.compile(rb"(?<![\w-])(?:" + text + rb")(?![\w-])")


def _is_mentioned(mention: re.Pattern[bytes], record: Record) -> bool:
    return record.state == DEAD and record.payload is not None and mention.search(record.payload) is not None


def _mentioning_rows(journal: Journal, mention: re.Pattern[bytes], namespace: str | None) -> set[int]:
    """Returns the ids of the rows of events that could not be read, if their payload has the id of the entity."""
    return {
        row.id
        for row in every_row(journal, RowFilter(namespace=namespace, status="invalid"))
        if row.entity is None and mention.search(journal.payload(row.id) or b"")
    }


def _journal_keys(
    journal: Journal, entity: str, namespace: str | None, progress: ShowProgress
) -> set[tuple[str, bytes]]:
    """Returns the namespaces and keys of the events and dead letters that the journal knows for this entity."""
    found: set[tuple[str, bytes]] = set()
    for row in every_row(journal, RowFilter(entity=entity, namespace=namespace, operators=True)):
        found.update((row.namespace, key) for key in (row.key, row.kept) if key)
        progress("keys of the journal", len(found))
        if len(found) >= MOST_RECORDS:
            break
    return found


def _naming_actions(journal: Journal, names: set[str]) -> set[int]:
    """Returns the ids of the rows about actions of operators whose text names the entity or one of its events."""
    long_enough = sorted(re.escape(name) for name in names if len(name) >= _SHORTEST_NAME)
    if not long_enough:
        return set()
    named = re.compile(rf"(?<![\w-])({'|'.join(long_enough)})(?![\w-])")
    return {row.id for row in every_row(journal, OPERATOR_ROWS) if named.search(row.reason)}


# ── erase ─────────────────────────────────────────────────────────────────────────────────────────────────


def erase(
    plan: ErasurePlan,
    store: Store,
    journal: Journal | None,
    settings: Settings,
    result: ErasureResult,
    *,
    waiting: bool = False,
    rewrite: bool = False,
    progress: ShowProgress = _no_progress,
    stop_reason: Callable[[], str | None] = lambda: None,
) -> None:
    """Erase what the plan found. `result` is updated after each batch, so that it is known after an error, too. The
    records come before the journal: if the erasure is interrupted, the next plan finds the rest. Some records do not
    name the entity, and only the journal has their keys. If such a record is left, its rows are left, too. If the plan
    is cut, all rows are left. With `waiting`, waiting events are erased, too, and never run. With `rewrite`, SQLite
    files are rewritten, so that they hold no data that was deleted earlier. `stop_reason` is called after each batch:
    the erasure ends if there is a reason."""
    addresses, refused = plan.erasable(waiting=waiting), []
    result.total = len(addresses)
    for start in range(0, len(addresses), _PAGE):
        batch = addresses[start : start + _PAGE]
        answers = store.forget([_request(address, settings, waiting) for address in batch])
        for address, is_done in zip(batch, answers, strict=True):
            if not is_done:
                refused.append(address)
            elif address in plan.records:
                result.records += 1
            elif address in plan.dead_letters:
                result.dead_letters += 1
            else:
                result.waiting += 1
        result.tried += len(batch)
        progress("erased records", result.tried)
        if (reason := stop_reason()) is not None:
            result.end = reason
            return
    left = [*refused, *plan.in_progress, *(() if waiting else plan.waiting)]
    remaining = list(_remaining(store, plan.entity, left))
    result.left = len(remaining)
    if journal is not None and plan.erased_rows is not None:
        needed = {entry.key for entry in remaining if entry.record.about.entity is None}
        _erase_rows(journal, plan.erased_rows, needed, result, is_cut=plan.is_cut)
    places: list[object] = [store, journal]
    for place in places:
        if isinstance(place, KeepsDeletedData):
            result.is_purged = place.purge(rewrite=rewrite) and result.is_purged


def _erase_rows(
    journal: Journal, rows: RowErasure, needed: Collection[bytes], result: ErasureResult, *, is_cut: bool
) -> None:
    """Erase journal rows, except the rows of the keys that are needed to find records that are left."""
    rows.spared = needed
    result.rows = 0 if is_cut else journal.erase(rows)
    if is_cut or needed:
        rows.spared = frozenset()
        result.rows_left = journal.erase(rows, dry_run=True)


def _request(address: Address, settings: Settings, waiting: bool) -> Forget:
    own = settings_of_namespace(settings, address.namespace) or settings
    return Forget(address.namespace, address.key, microseconds(own["retention"]), waiting)


def _remaining(store: Store, entity: str, addresses: Sequence[Address]) -> Iterator[Entry]:
    """Yields the records among these that still identify the entity. Another process may have deleted or erased
    them."""
    for address in addresses:
        for entry in store.browse(address.namespace, key=address.key):
            if not _identifies_nobody(entry.record) and entry.record.about.entity in (None, shortened(entity)):
                yield entry


@contextmanager
def recorded_erasure(log: OperatorLog, plan: ErasurePlan) -> Iterator[ErasureResult]:
    """Records an erasure in the journal, without the entity. The caller erases with the result that it gets. The row is
    written when the context ends, also after an error. A process that is killed writes no row then, so an erasure of
    many records also has a row when it starts."""
    result, namespace = ErasureResult(), plan.namespace or ""
    if plan.known > MOST_EVENT_ROWS:
        log.add("forget", f"Started to erase up to {times(plan.known, 'record')}.", namespace=namespace)
    try:
        yield result
    except BaseException as error:
        result.end = "cancelled" if isinstance(error, KeyboardInterrupt) else "stopped by an error"
        raise
    finally:
        if not plan.is_empty:
            left = f" {times(result.left, 'event')} could not be erased." if result.left else ""
            log.add("forget", f"{result.sentence}{left}", namespace=namespace)
