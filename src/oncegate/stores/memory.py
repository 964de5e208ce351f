"""The memory store: the model under a lock. For tests, for one process, and for what may be lost with it."""

import heapq
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

from msgspec import msgpack

from oncegate import forks
from oncegate.claims import (
    COMPLETED,
    DEAD,
    IN_PROGRESS,
    Address,
    Operation,
    Record,
    Take,
    step,
)
from oncegate.clocks import Clock, store_clock
from oncegate.errors import SettingError
from oncegate.stores.base import Change, Document, Entry, TakeRequest
from oncegate.stores.entity_order import Line, batch_positions, keep_first_leases, step_at_position
from oncegate.stores.step_store import InboxStepStore, is_listed

_TICK = 1_000_000
_NO_TICK = -1
_SWEEP = 64

_pack_into = msgpack.Encoder().encode_into
_unpack = msgpack.Decoder(Record).decode


class MemoryStore(InboxStepStore):
    """Records in a dict per namespace. A completed record, which is nearly every one, is kept packed in one
    bytes object: a third of the room that the object with its parts would take."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = store_clock(clock)
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock)
        self._records: dict[str, dict[bytes, Record | bytes]] = {}
        self._documents: dict[str, dict[bytes, tuple[Document, int]]] = {}
        self._waiting: dict[tuple[str, bytes], str | None] = {}  # with their entities, and how many each entity has
        self._lines: Counter[Line] = Counter()
        self._expiry = _Expiry()
        self._buffer = bytearray()

    def _apply(self, operations: Sequence[Operation], *, admits: bool = False) -> list[Any]:
        answers = []
        with self._lock:
            now = self._clock()
            self._sweep(now, len(operations))
            places: Iterable[int] = repeat(0)
            if admits:
                operations, places = keep_first_leases(operations, self._busy), batch_positions(operations)
            namespace, records = None, {}
            for operation, place in zip(operations, places, strict=False):
                if operation.namespace is not namespace:  # the same object in nearly every batch
                    namespace = operation.namespace
                    records = self._records.setdefault(namespace, {})
                stored = records.get(operation.key)
                before = _unpack(stored) if isinstance(stored, bytes) else stored
                judged = step_at_position(before, operation, now, place) if place else step(before, operation, now)
                after, answer = judged
                answers.append(answer)
                if after is not before:
                    self._put(operation, records, before, after)
        return answers

    def _put(
        self, where: Address, records: dict[bytes, Record | bytes], before: Record | None, after: Record | None
    ) -> None:
        key = where.key
        if after is None:
            del records[key]
        else:
            if after.state == COMPLETED:
                # By way of one buffer: bytes that the encoder makes itself keep some of the room it reserved for them.
                _pack_into(after, self._buffer)
                records[key] = bytes(self._buffer)
            else:
                records[key] = after
            if (before is None or before.expires_at is None) and after.expires_at is not None:
                self._expiry.add(after.expires_at, records, key)
        if self._waiting or (after is not None and after.payload is not None):
            self._wait((where.namespace, key), after)

    def _wait(self, where: tuple[str, bytes], record: Record | None) -> None:
        """What has just been let go waits behind what was before."""
        if where in self._waiting:
            self._lines[where[0], self._waiting.pop(where)] -= 1
        if record is not None and record.payload is not None and record.state != DEAD:
            self._waiting[where] = entity = record.about.entity
            self._lines[where[0], entity] += 1

    def _sweep(self, now: int, work: int) -> None:
        """Drop what is due, a bounded bit at a time: a little more than the work that can add to it."""
        for entries, key in self._expiry.due(now, work + _SWEEP):
            expires_at = _expires_at(entries.get(key))
            if expires_at is not None and expires_at > now:
                self._expiry.add(expires_at, entries, key)
            elif expires_at is not None:
                del entries[key]

    def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
        with self._lock:
            now = self._clock()
            in_order = {want.namespace for want in wants if want.in_order}
            waiting = {name: self._waiting_in(name, name in in_order, now) for name in {w.namespace for w in wants}}
            return [self._take(want, waiting[want.namespace], now) for want in wants]

    def kept(self, namespace: str) -> int:
        with self._lock:
            return sum(where[0] == namespace for where in self._waiting)

    def _busy(self, lines: Collection[Line]) -> set[Line]:
        return {line for line in lines if self._lines[line]}

    def _waiting_in(self, namespace: str, in_order: bool, now: int) -> Iterator[Entry]:
        waiting = [Entry(*where, self._waits(where)) for where in self._waiting if where[0] == namespace]
        return iter(_in_order(waiting, now) if in_order else waiting)

    def _take(self, want: TakeRequest, waiting: Iterator[Entry], now: int) -> Entry | None:
        for entry in waiting:
            where = (entry.namespace, entry.key)
            record, granted = step(entry.record, Take(*where, want.owner, want.lease), now)
            if record is not None and granted:
                self._records[where[0]][where[1]] = record
                return Entry(*where, record)
        return None

    def _waits(self, where: tuple[str, bytes]) -> Record:
        record = _thaw(self._records[where[0]][where[1]])
        assert record is not None  # noqa: S101  # what waits is there
        return record

    def load(self, addresses: Sequence[Address]) -> list[Document]:
        with self._lock:
            now = self._clock()
            return [self._document(address, now) for address in addresses]

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        with self._lock:
            now = self._clock()
            self._sweep(now, len(changes))
            return [self._swap(change, now) for change in changes]

    def _swap(self, change: Change, now: int) -> bool:
        current = self._document(change, now).version
        if current != change.version:
            return False
        documents = self._documents.setdefault(change.namespace, {})
        if change.key not in documents:
            self._expiry.add(now + change.retention, documents, change.key)
        fresh = Document(current + 1 if current else now, change.body)
        documents[change.key] = (fresh, now + change.retention)
        return True

    def _document(self, address: Address, now: int) -> Document:
        document, expires_at = self._documents.get(address.namespace, {}).get(address.key, (Document(), 0))
        return document if now < expires_at else Document()

    def dead_letters(
        self, namespace: str | None = None, *, after: Address | None = None, limit: int = 100
    ) -> list[Entry]:
        with self._lock:
            found = (entry for entry in self._entries(namespace, after) if entry.record.state == DEAD)
            return heapq.nsmallest(limit, found, key=_order)

    def browse(
        self,
        namespace: str | None = None,
        *,
        key: bytes | None = None,
        after: Address | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        with self._lock:
            return heapq.nsmallest(limit, self._entries(namespace, after, key), key=_order)

    def _entries(self, namespace: str | None, after: Address | None, key: bytes | None = None) -> Iterator[Entry]:
        now = self._clock()
        for name, records in self._records.items():
            if namespace not in (None, name):
                continue
            for found in list(records) if key is None else [key]:
                record = _thaw(records.get(found))
                if record is not None and is_listed((name, found), record, after, now):
                    yield Entry(name, found, record)

    def close(self) -> None:
        """Nothing to let go of."""


def open_memory(url: str, *, create: bool, clock: Clock | None) -> MemoryStore:
    if not create:
        raise SettingError("memory:// lives within one process; name the store of another with its own URL")
    check_memory(url)
    return MemoryStore(clock=clock)


def check_memory(url: str) -> None:
    if url != "memory://":
        raise SettingError("the memory store takes no address or options: write memory://")


def _thaw(stored: Record | bytes | None) -> Record | None:
    return _unpack(stored) if type(stored) is bytes else stored  # type: ignore[return-value]


def _expires_at(stored: Record | bytes | tuple[Document, int] | None) -> int | None:
    if isinstance(stored, tuple):
        return stored[1]
    record = _thaw(stored)
    return None if record is None else record.expires_at


def _in_order(waiting: Sequence[Entry], now: int) -> Iterable[Entry]:
    """Those that nobody of their entity is before, and whose entity nobody is at."""
    lines: dict[str, list[Entry]] = {}
    for entry in waiting:
        if entry.record.about.entity is not None:
            lines.setdefault(entry.record.about.entity, []).append(entry)
    heads = {entity: min(line, key=_happened) for entity, line in lines.items() if not _is_busy(line, now)}
    for entry in waiting:
        if entry.record.about.entity is None or heads.get(entry.record.about.entity) is entry:
            yield entry


def _is_busy(line: Iterable[Entry], now: int) -> bool:
    return any(entry.record.state == IN_PROGRESS and now < entry.record.lease_until for entry in line)


def _happened(entry: Entry) -> tuple[int, int, bytes]:
    record = entry.record
    occurred_at = record.first_seen if record.about.occurred_at is None else record.about.occurred_at
    return occurred_at, record.first_seen, entry.key


def _order(entry: Entry) -> tuple[str, bytes]:
    return entry.namespace, entry.key


class _Expiry:
    """Which keys to look at when: lists of keys by the second in which they fall due.

    An entry stays where it was put while its record's end moves on; when its second comes it is looked at and
    put where it belongs by then. So renewing or completing costs nothing here, and a key takes one pointer.
    """

    def __init__(self) -> None:
        self._ticks: dict[int, list[tuple[dict[bytes, Any], list[bytes]]]] = {}
        self._order: list[int] = []
        self._tick = _NO_TICK  # where the last key was put: nearly always the next one belongs there too
        self._entries: dict[bytes, Any] = {}
        self._keys: list[bytes] = []

    def add(self, expires_at: int, entries: dict[bytes, Any], key: bytes) -> None:
        tick = expires_at // _TICK + 1
        if tick != self._tick or entries is not self._entries:
            self._tick, self._entries, self._keys = tick, entries, self._group(tick, entries)
        self._keys.append(key)

    def _group(self, tick: int, entries: dict[bytes, Any]) -> list[bytes]:
        groups = self._ticks.get(tick)
        if groups is None:
            groups = self._ticks[tick] = []
            heapq.heappush(self._order, tick)
        for group, keys in groups:
            if group is entries:
                return keys
        groups.append((entries, keys := []))
        return keys

    def due(self, now: int, limit: int) -> Iterator[tuple[dict[bytes, Any], bytes]]:
        """Take up to `limit` keys whose second is over."""
        if self._tick * _TICK <= now:
            self._tick = _NO_TICK
        while limit > 0 and self._order and self._order[0] * _TICK <= now:
            groups = self._ticks[self._order[0]]
            if not groups:
                del self._ticks[heapq.heappop(self._order)]
                continue
            entries, keys = groups[-1]
            taken = [keys.pop() for _ in range(min(limit, len(keys)))]
            if not keys:
                groups.pop()
            limit -= len(taken)
            for key in taken:
                yield entries, key
