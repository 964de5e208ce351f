"""The memory store calls `oncegate.claims.step` under a lock.

Use it in tests, and for records that may be lost when the process ends.
"""

import heapq
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any

from msgspec import msgpack

from oncegate import forks
from oncegate.claims import (
    COMPLETED,
    DEAD,
    IN_PROGRESS,
    Address,
    Admission,
    Admit,
    Operation,
    Record,
    Take,
    step,
)
from oncegate.clocks import Clock, store_clock
from oncegate.errors import SettingError, StoreRefused
from oncegate.stores.base import Change, Document, Entry, TakeRequest
from oncegate.stores.entity_order import Entity, batch_positions, keep_first_leases, step_at_position
from oncegate.stores.step_store import StepStore, is_listed

_SECOND = 1_000_000
_NO_SECOND = -1
_MIN_SWEEP = 64

_pack_into = msgpack.Encoder().encode_into
_unpack = msgpack.Decoder(Record).decode


class MemoryStore(StepStore):
    """A store that keeps its records in one dict per namespace.

    Nearly all records are completed. A completed record is stored as one packed bytes object. This halves the memory
    per key (about 300 bytes instead of 590) and costs a fifth of the speed."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = store_clock(clock)
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock)
        self._records: dict[str, dict[bytes, Record | bytes]] = {}
        self._documents: dict[str, dict[bytes, tuple[Document, int]]] = {}
        # The address of each record with an unprocessed payload, and the entity of the record.
        self._waiting: dict[tuple[str, bytes], str | None] = {}
        self._waiting_per_entity: Counter[Entity] = Counter()  # how many addresses in `_waiting` each entity has
        self._expiry = _Expiry()
        self._buffer = bytearray()
        self._closed = False

    def _apply(self, operations: Sequence[Operation], *, admits: bool = False) -> list[Any]:
        answers = []
        with self._lock:
            now = self._now()
            self._sweep(now, len(operations))
            positions: Iterable[int] = repeat(0)
            if admits:
                positions = batch_positions(operations)
                operations = keep_first_leases(operations, self._find_busy)
            namespace, records = None, {}
            for operation, position in zip(operations, positions, strict=False):
                if operation.namespace is not namespace:  # usually all operations of a batch share one str object
                    namespace = operation.namespace
                    records = self._records.setdefault(namespace, {})
                stored = records.get(operation.key)
                before = _unpack(stored) if isinstance(stored, bytes) else stored
                if position:
                    after, answer = step_at_position(before, operation, now, position)
                else:
                    after, answer = step(before, operation, now)
                answers.append(answer)
                if after is not before:
                    self._put(operation, records, before, after)
        return answers

    def admit(self, requests: Sequence[Admit]) -> list[Admission]:
        return self._apply(requests, admits=True)

    def together(self, operations: Sequence[Operation]) -> list[Any]:
        return self._apply(operations, admits=True)

    def _put(
        self, where: Address, records: dict[bytes, Record | bytes], before: Record | None, after: Record | None
    ) -> None:
        key = where.key
        if after is None:
            del records[key]
        else:
            if after.state == COMPLETED:
                # Pack into one shared buffer and copy it: bytes from `encode` would keep the memory that the encoder
                # reserved and did not use.
                _pack_into(after, self._buffer)
                records[key] = bytes(self._buffer)
            else:
                records[key] = after
            if (before is None or before.expires_at is None) and after.expires_at is not None:
                self._expiry.add(after.expires_at, records, key)
        if self._waiting or (after is not None and after.payload is not None):
            self._update_waiting((where.namespace, key), after)

    def _update_waiting(self, where: tuple[str, bytes], record: Record | None) -> None:
        """Update the list of waiting events after a change of this record: add the record, move the record to the end,
        or remove it."""
        if where in self._waiting:
            self._waiting_per_entity[where[0], self._waiting.pop(where)] -= 1
        if record is not None and record.payload is not None and record.state != DEAD:
            self._waiting[where] = entity = record.about.entity
            self._waiting_per_entity[where[0], entity] += 1

    def _sweep(self, now: int, operations: int) -> None:
        """Delete expired entries. Up to `operations` + `_MIN_SWEEP` keys are checked, which is more than the operations
        can add."""
        for entries, key in self._expiry.due(now, operations + _MIN_SWEEP):
            expires_at = _expires_at(entries.get(key))
            if expires_at is not None and expires_at > now:
                self._expiry.add(expires_at, entries, key)
            elif expires_at is not None:
                del entries[key]

    def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
        with self._lock:
            now = self._now()
            in_order = {want.namespace for want in wants if want.in_order}
            waiting = {
                name: self._waiting_entries(name, name in in_order, now) for name in {w.namespace for w in wants}
            }
            return [self._take(want, waiting[want.namespace], now) for want in wants]

    def kept(self, namespace: str, limit: int | None = None) -> int:
        with self._lock:
            self._check_open()
            return sum(1 for _ in islice((where for where in self._waiting if where[0] == namespace), limit))

    def _find_busy(self, entities: Collection[Entity]) -> set[Entity]:
        return {entity for entity in entities if self._waiting_per_entity[entity]}

    def _waiting_entries(self, namespace: str, in_order: bool, now: int) -> Iterator[Entry]:
        waiting = [Entry(*where, self._waiting_record(where)) for where in self._waiting if where[0] == namespace]
        return iter(_first_of_each_entity(waiting, now) if in_order else waiting)

    def _take(self, want: TakeRequest, waiting: Iterator[Entry], now: int) -> Entry | None:
        for entry in waiting:
            where = (entry.namespace, entry.key)
            record, granted = step(entry.record, Take(*where, want.owner, want.lease), now)
            if record is not None and granted:
                self._records[where[0]][where[1]] = record
                return Entry(*where, record)
        return None

    def _waiting_record(self, where: tuple[str, bytes]) -> Record:
        record = _as_record(self._records[where[0]][where[1]])
        assert record is not None  # noqa: S101  # `_waiting` holds addresses of existing records only
        return record

    def load(self, addresses: Sequence[Address]) -> list[Document]:
        with self._lock:
            now = self._now()
            return [self._document(address, now) for address in addresses]

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        with self._lock:
            now = self._now()
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
            return heapq.nsmallest(limit, found, key=_address_of)

    def count_dead_letters(self, namespace: str | None, limit: int) -> int:
        """See `oncegate.stores.base.CountsDeadLetters`. Packed records are completed, so they are not unpacked."""
        with self._lock:
            now = self._clock()
            names = self._records if namespace is None else [namespace]
            unpacked = (
                ((name, b""), each)
                for name in names
                for each in self._records.get(name, {}).values()
                if isinstance(each, Record)
            )
            found = (each for where, each in unpacked if each.state == DEAD and is_listed(where, each, None, now))
            return sum(1 for _ in islice(found, limit))

    def browse(
        self,
        namespace: str | None = None,
        *,
        key: bytes | None = None,
        after: Address | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        with self._lock:
            return heapq.nsmallest(limit, self._entries(namespace, after, key), key=_address_of)

    def _entries(self, namespace: str | None, after: Address | None, key: bytes | None = None) -> Iterator[Entry]:
        now = self._now()
        for name, records in self._records.items():
            if namespace not in (None, name):
                continue
            for found in list(records) if key is None else [key]:
                record = _as_record(records.get(found))
                if record is not None and is_listed((name, found), record, after, now):
                    yield Entry(name, found, record)

    def _now(self) -> int:
        self._check_open()
        return self._clock()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreRefused("the store in memory was closed; open another store")

    def close(self) -> None:
        """Refuse further calls, as every other store does."""
        self._closed = True


def open_memory(url: str, *, create: bool, clock: Clock | None) -> MemoryStore:
    if not create:
        raise SettingError(
            "memory:// lives within one process; use a store that other processes can open, such as sqlite:///oncegate.db"
        )
    check_memory(url)
    return MemoryStore(clock=clock)


def check_memory(url: str) -> None:
    if url != "memory://":
        raise SettingError("the memory store takes no address or options: write memory://")


def _as_record(stored: Record | bytes | None) -> Record | None:
    return _unpack(stored) if type(stored) is bytes else stored  # type: ignore[return-value]


def _expires_at(stored: Record | bytes | tuple[Document, int] | None) -> int | None:
    if isinstance(stored, tuple):
        return stored[1]
    record = _as_record(stored)
    return None if record is None else record.expires_at


def _first_of_each_entity(waiting: Sequence[Entry], now: int) -> Iterable[Entry]:
    """Yield the events without an entity. For each entity that has no event in progress, also yield its first event."""
    by_entity: dict[str, list[Entry]] = {}
    for entry in waiting:
        if entry.record.about.entity is not None:
            by_entity.setdefault(entry.record.about.entity, []).append(entry)
    firsts = {
        entity: min(entries, key=_order_in_entity)
        for entity, entries in by_entity.items()
        if not _is_running(entries, now)
    }
    for entry in waiting:
        if entry.record.about.entity is None or firsts.get(entry.record.about.entity) is entry:
            yield entry


def _is_running(entries: Iterable[Entry], now: int) -> bool:
    return any(entry.record.state == IN_PROGRESS and now < entry.record.lease_until for entry in entries)


def _order_in_entity(entry: Entry) -> tuple[int, int, bytes]:
    record = entry.record
    occurred_at = record.first_seen if record.about.occurred_at is None else record.about.occurred_at
    return occurred_at, record.first_seen, entry.key


def _address_of(entry: Entry) -> tuple[str, bytes]:
    return entry.namespace, entry.key


class _Expiry:
    """The keys of all entries that expire, grouped by the second in which the entry expires.

    A key stays in its group when the expiry of its entry moves. When the second of the group has passed, the caller
    checks the entry and adds the key again if the entry has not expired. So a renewal or a completion does not change
    the groups, and each key needs the memory of one pointer.
    """

    def __init__(self) -> None:
        self._groups: dict[int, list[tuple[dict[bytes, Any], list[bytes]]]] = {}
        self._seconds: list[int] = []  # a heap of the seconds in `_groups`
        # The group of the last added key. The next key usually belongs to the same group.
        self._last_second = _NO_SECOND
        self._last_entries: dict[bytes, Any] = {}
        self._last_keys: list[bytes] = []

    def add(self, expires_at: int, entries: dict[bytes, Any], key: bytes) -> None:
        second = expires_at // _SECOND + 1
        if second != self._last_second or entries is not self._last_entries:
            self._last_second, self._last_entries = second, entries
            self._last_keys = self._keys_of(second, entries)
        self._last_keys.append(key)

    def _keys_of(self, second: int, entries: dict[bytes, Any]) -> list[bytes]:
        groups = self._groups.get(second)
        if groups is None:
            groups = self._groups[second] = []
            heapq.heappush(self._seconds, second)
        for group, keys in groups:
            if group is entries:
                return keys
        groups.append((entries, keys := []))
        return keys

    def due(self, now: int, limit: int) -> Iterator[tuple[dict[bytes, Any], bytes]]:
        """Remove and yield up to `limit` keys from groups whose second has passed, each with its dict of entries."""
        if self._last_second * _SECOND <= now:
            self._last_second = _NO_SECOND
        while limit > 0 and self._seconds and self._seconds[0] * _SECOND <= now:
            groups = self._groups[self._seconds[0]]
            if not groups:
                del self._groups[heapq.heappop(self._seconds)]
                continue
            entries, keys = groups[-1]
            taken = [keys.pop() for _ in range(min(limit, len(keys)))]
            if not keys:
                groups.pop()
            limit -= len(taken)
            for key in taken:
                yield entries, key
