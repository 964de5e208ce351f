"""Apply operations to records with conditional writes.

`oncegate.claims.step` applies each operation to an expected record. For a claim, the writer expects that there is no
record. For a settlement, it expects the record that this process wrote. The write has the condition that the table
holds the expected record. If the condition is not met, DynamoDB returns the current item, and the operation is applied
to that item instead. The claim of a new event or of a duplicate therefore costs one request, a takeover costs two, and
the settlement of a claim of this process costs one.
"""

import os
import threading
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from oncegate import forks
from oncegate.claims import IN_PROGRESS, Answer, Claim, Forget, Operation, Record, Take, step
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
    """A record and the stamp of its last write. `was_read` is true if the record was read from the table, and false if
    it is only expected."""

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
        # The claims in progress that this process wrote. Another process may have changed such a claim in the table:
        # the condition of the next write then fails.
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
        """Return the claim in progress that this process wrote. If there is none, read the record from the table."""
        return self._claims.get(address) or self.read(address)

    def read(self, address: AddressPair) -> SeenItem:
        response = self._client.call_table("get_item", Key={"id": {"S": record_id(address)}}, ConsistentRead=True)
        return seen_in(response.get("Item"))

    def remember(self, address: AddressPair, seen: SeenItem) -> None:
        """If the record is a claim in progress, remember it for `expected`. Otherwise forget the remembered claim."""
        if len(self._claims) > _MAX_CLAIMS:
            self._claims.clear()
        if seen.record is not None and seen.record.state == IN_PROGRESS:
            self._claims[address] = seen
        else:
            self._claims.pop(address, None)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:  # noqa: ARG002  # the condition of each write checks the claim
        self._lock.release()

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────

    def now(self) -> int:
        with self._lock:
            return self._clock()

    def past(self) -> int:
        """Return the time of this clock minus the margin, in microseconds. Every clock that differs by at most the
        margin has passed this time."""
        return self.now() - self.margin

    def with_margin(self, record: Record | None, operation: Operation, now: int) -> Record | None:
        """Return the record with later times, because clocks may differ by up to the margin.

        The record then expires only when it has expired on every clock. If the operation does not come from the owner
        of the claim, the lease also ends only when it has ended on every clock."""
        if record is None:
            return None
        if record.expires_at is not None and record.expires_at <= now:
            if record.expires_at + self.margin <= now:
                return None
            record = replace(record, expires_at=record.expires_at + self.margin)
        by_other = isinstance(operation, Forget) or (
            isinstance(operation, Claim | Take) and record.owner != operation.owner
        )
        if by_other and record.state == IN_PROGRESS and self.margin:
            record = replace(record, lease_until=record.lease_until + self.margin)
        return record

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, address: AddressPair, seen: SeenItem, after: Record | None, now: int) -> SeenItem | None:
        """Replace the seen record by `after`, or delete it if `after` is None. Returns None if the write was applied.
        If the record in the table is not the seen record, returns the record in the table."""
        if after is None:
            found = self._delete(address, seen, now)
            self._claims.pop(address, None)
            return found
        stamp = os.urandom(STAMP_SIZE)
        item = item_of(address, after, stamp, self.margin)
        try:
            self._client.call_table("put_item", Item=item, **self.if_unchanged(seen, now))
        except ItemChanged as changed:
            if stamp_of(changed.item) != stamp:  # if the stamps are equal, an earlier try was applied
                return self._changed_record(address, changed.item)
        self.remember(address, SeenItem(after, stamp, was_read=False))
        return None

    def _changed_record(self, address: AddressPair, item: Item | None) -> SeenItem:
        """Return the current record after a failed condition, and forget the remembered claim if it is not the current
        record. If it is the current record, another delivery of the event came to this process, and the claim is still
        valid."""
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
        """Return the parameters that make a write conditional: the write is applied only if the record in the table is
        still the seen record."""
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
