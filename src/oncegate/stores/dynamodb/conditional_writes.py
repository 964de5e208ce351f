"""Apply operations to records with conditional writes.

Each operation is applied with `oncegate.claims.step` to an expected record: for a claim, no record; for a settlement,
the record as this process wrote it. The write has the condition that the expectation is right. If it is wrong, DynamoDB
returns the current item, and the operation is applied to that item instead. So a new event or a duplicate costs one
request, a takeover two, and settling a claim of this process one.
"""

import os
import threading
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from oncegate import forks
from oncegate.claims import IN_PROGRESS, Answer, Claim, Operation, Record, Take, step
from oncegate.clocks import Clock, store_clock
from oncegate.errors import StoreUnavailable
from oncegate.stores.dynamodb.client import DynamoClient, ItemChanged
from oncegate.stores.dynamodb.items import AddressPair, Item, item_of, record_id, record_of

STAMP_SIZE: Final = 12
ABSENT: Final = "attribute_not_exists(id) OR expires <= :past"
_UNCHANGED: Final = "stamp = :stamp"
_MAX_TRIES: Final = 32
_MAX_CLAIMS: Final = 20_000


class SeenItem(Struct, frozen=True):
    """A record and the stamp of its last write. `was_read`: read from the table, not only expected."""

    record: Record | None = None
    stamp: bytes | None = None
    was_read: bool = True


_EXPECTED_ABSENT: Final = SeenItem(was_read=False)


class ConditionalWriter:
    def __init__(self, client: DynamoClient, clock: Clock | None, margin: int) -> None:
        self._client = client
        self.margin = margin
        self._clock = store_clock(clock)
        self._lock = threading.Lock()
        # Claims in progress as this process wrote them. The condition of a write detects those that changed since.
        self._claims: dict[AddressPair, SeenItem] = {}
        forks.watch(self)

    def apply(self, operation: Operation) -> Answer:
        """Apply one operation and return its answer. Raises StoreUnavailable if the record keeps changing."""
        address = (operation.namespace, operation.key)
        seen = _EXPECTED_ABSENT if isinstance(operation, Claim) else self.expected(address)
        for _ in range(_MAX_TRIES):
            now = self.now()
            before = self.with_margin(seen.record, operation, now)
            after, answer = step(before, operation, now)
            if after is before:
                if seen.was_read:
                    return answer
                seen = self.read(address)
                continue
            found = self._write(address, seen, after, now)
            if found is None:
                return answer
            seen = found
        raise StoreUnavailable(
            f"a record in {self._client.place} changed {_MAX_TRIES} times before it could be written; retry"
        )

    def expected(self, address: AddressPair) -> SeenItem:
        """The claim as this process wrote it; otherwise the record as it is in the table."""
        return self._claims.get(address) or self.read(address)

    def read(self, address: AddressPair) -> SeenItem:
        response = self._client.call_table("get_item", Key={"id": {"S": record_id(address)}}, ConsistentRead=True)
        return seen_in(response.get("Item"))

    def remember(self, address: AddressPair, seen: SeenItem) -> None:
        """Expect this record at the next operation, if it is a claim in progress."""
        if len(self._claims) > _MAX_CLAIMS:
            self._claims.clear()
        if seen.record is not None and seen.record.state == IN_PROGRESS:
            self._claims[address] = seen
        else:
            self._claims.pop(address, None)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:  # noqa: ARG002  # remembered claims are checked by each write
        self._lock.release()

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────

    def now(self) -> int:
        with self._lock:
            return self._clock()

    def past(self) -> int:
        """A time that has passed on every clock that differs by at most the margin."""
        return self.now() - self.margin

    def with_margin(self, record: Record | None, operation: Operation, now: int) -> Record | None:
        """The record with its times moved for clocks that differ by up to the margin.

        The record expires only when it has expired on every clock. For others than the owner, the lease also ends only
        when it has ended on every clock."""
        if record is None:
            return None
        if record.expires_at is not None and record.expires_at <= now:
            if record.expires_at + self.margin <= now:
                return None
            record = replace(record, expires_at=record.expires_at + self.margin)
        by_other = isinstance(operation, Claim | Take) and record.owner != operation.owner
        if by_other and record.state == IN_PROGRESS and self.margin:
            record = replace(record, lease_until=record.lease_until + self.margin)
        return record

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, address: AddressPair, seen: SeenItem, after: Record | None, now: int) -> SeenItem | None:
        """Replace the seen record. Returns None if done, or the current record if it has changed."""
        if after is None:
            found = self._delete(address, seen, now)
            self._claims.pop(address, None)
            return found
        stamp = os.urandom(STAMP_SIZE)
        item = item_of(address, after, stamp, self.margin)
        try:
            self._client.call_table("put_item", Item=item, **self.if_unchanged(seen, now))
        except ItemChanged as changed:
            if stamp_of(changed.item) != stamp:  # if equal, an earlier try of this request was applied
                return self._current(address, changed.item)
        self.remember(address, SeenItem(after, stamp, was_read=False))
        return None

    def _current(self, address: AddressPair, item: Item | None) -> SeenItem:
        """The current record. Forget the remembered claim, unless the record is that claim: then another delivery of
        the event came to this process."""
        found = seen_in(item)
        remembered = self._claims.get(address)
        if remembered is not None and remembered.stamp != found.stamp:
            self._claims.pop(address, None)
        return found

    def _delete(self, address: AddressPair, seen: SeenItem, now: int) -> SeenItem | None:
        key = {"id": {"S": record_id(address)}}
        try:
            self._client.call_table("delete_item", Key=key, **self.if_unchanged(seen, now))
        except ItemChanged as changed:
            if changed.item is not None or not changed.maybe_applied:
                return seen_in(changed.item)
        return None

    def if_unchanged(self, seen: SeenItem, now: int) -> dict[str, Any]:
        """The parameters of a write that is applied only if the record is still the seen one."""
        values: dict[str, dict[str, Any]]
        condition, values = ABSENT, {":past": {"N": str(now - self.margin)}}
        if seen.stamp is not None:
            condition, values = _UNCHANGED, {":stamp": {"B": seen.stamp}}
        return {
            "ConditionExpression": condition,
            "ExpressionAttributeValues": values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }


def seen_in(item: Item | None) -> SeenItem:
    return SeenItem() if item is None else SeenItem(record_of(item), stamp_of(item))


def stamp_of(item: Item | None) -> bytes | None:
    return None if item is None else item["stamp"]["B"]
