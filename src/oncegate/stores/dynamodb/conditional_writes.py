"""Judging: operations on records, each by `oncegate.claims.step` on what was seen, written if that is still so.

What was seen is a guess at first: that a claimed key is absent, that a claim is as this process left it. The write
has the condition that the guess is right. If it is not, DynamoDB answers with the item as it is, which is then judged
instead. So a new event and a duplicate cost one request, a takeover two, and settling one's own claim one.
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
from oncegate.stores.dynamodb.items import Item, Where, item_of, record_id, record_of

STAMP_SIZE: Final = 12
_ROUNDS: Final = 32
_MOST_HELD: Final = 20_000
_ABSENT: Final = "attribute_not_exists(id) OR expires <= :past"
_UNCHANGED: Final = "stamp = :stamp"


class SeenItem(Struct, frozen=True):
    """A record and the stamp it was written with, as read or, if that is not `sure`, as guessed."""

    record: Record | None = None
    stamp: bytes | None = None
    sure: bool = True


_NOTHING: Final = SeenItem(sure=False)


class ConditionalWriter:
    def __init__(self, calls: DynamoClient, clock: Clock | None, margin: int) -> None:
        self._calls = calls
        self.margin = margin
        self._clock = store_clock(clock)
        self._lock = threading.Lock()
        # Claims in progress as this process wrote them. They may have changed since: the condition notices.
        self._held: dict[Where, SeenItem] = {}
        forks.watch(self)

    def now(self) -> int:
        with self._lock:
            return self._clock()

    def past(self) -> int:
        """The time that is over on every clock within the margin."""
        return self.now() - self.margin

    def answer(self, operation: Operation) -> Answer:
        where = (operation.namespace, operation.key)
        seen = self._guessed(where, operation)
        for _ in range(_ROUNDS):
            now = self.now()
            before = self.present(seen.record, operation, now)
            after, answer = step(before, operation, now)
            if after is before:
                if seen.sure:
                    return answer
                seen = self.look(where)
                continue
            found = self._write(where, seen, after, now)
            if found is None:
                return answer
            seen = found
        raise StoreUnavailable(f"a record in {self._calls.place} kept changing while it was judged; try again")

    def _guessed(self, where: Where, operation: Operation) -> SeenItem:
        """A claim is of a new event until proved otherwise; anything else is of a claim that this process holds."""
        return _NOTHING if isinstance(operation, Claim) else self.held(where)

    def held(self, where: Where) -> SeenItem:
        """A claim as this process left it, or else as it is."""
        return self._held.get(where) or self.look(where)

    def look(self, where: Where) -> SeenItem:
        answer = self._calls.ask("get_item", Key={"id": {"S": record_id(where)}}, ConsistentRead=True)
        return seen_in(answer.get("Item"))

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:  # noqa: ARG002  # what is remembered is checked anyway
        self._lock.release()

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────

    def present(self, record: Record | None, operation: Operation, now: int) -> Record | None:
        """The record as one may judge it whose clock is up to the margin away from that of whoever wrote it: expired
        and, to others than its owner, let go only when every clock within the margin says so."""
        if record is None:
            return None
        if record.expires_at is not None and record.expires_at <= now:
            if record.expires_at + self.margin <= now:
                return None
            record = replace(record, expires_at=record.expires_at + self.margin)
        others = isinstance(operation, Claim | Take) and record.owner != operation.owner
        if others and record.state == IN_PROGRESS and self.margin:
            record = replace(record, lease_until=record.lease_until + self.margin)
        return record

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, where: Where, seen: SeenItem, after: Record | None, now: int) -> SeenItem | None:
        """Write what became of what was seen. None: done. Else the record has changed, to what is answered."""
        if after is None:
            found = self._delete(where, seen, now)
            self._held.pop(where, None)
            return found
        stamp = os.urandom(STAMP_SIZE)
        item = item_of(where, after, stamp, self.margin)
        try:
            self._calls.ask("put_item", Item=item, **self.unless_changed(seen, now))
        except ItemChanged as changed:
            if stamp_of(changed.item) != stamp:  # else an earlier try of this very request had been carried out
                return self._as_found(where, changed.item)
        self.remember(where, SeenItem(after, stamp, sure=False))
        return None

    def _as_found(self, where: Where, item: Item | None) -> SeenItem:
        """What is there instead. It may be a claim that this process holds, asked for by another delivery."""
        found = seen_in(item)
        held = self._held.get(where)
        if held is not None and held.stamp != found.stamp:
            self._held.pop(where, None)
        return found

    def _delete(self, where: Where, seen: SeenItem, now: int) -> SeenItem | None:
        key = {"id": {"S": record_id(where)}}
        try:
            self._calls.ask("delete_item", Key=key, **self.unless_changed(seen, now))
        except ItemChanged as changed:
            if changed.item is not None or not changed.unsure:
                return seen_in(changed.item)
        return None

    def unless_changed(self, seen: SeenItem, now: int) -> dict[str, Any]:
        """The condition that what was seen is still so, as parameters of a write."""
        values: dict[str, dict[str, Any]]
        condition, values = _ABSENT, {":past": {"N": str(now - self.margin)}}
        if seen.stamp is not None:
            condition, values = _UNCHANGED, {":stamp": {"B": seen.stamp}}
        return {
            "ConditionExpression": condition,
            "ExpressionAttributeValues": values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def remember(self, where: Where, seen: SeenItem) -> None:
        if len(self._held) > _MOST_HELD:
            self._held.clear()
        if seen.record is not None and seen.record.state == IN_PROGRESS:
            self._held[where] = seen
        else:
            self._held.pop(where, None)


def seen_in(item: Item | None) -> SeenItem:
    return SeenItem() if item is None else SeenItem(record_of(item), stamp_of(item))


def stamp_of(item: Item | None) -> bytes | None:
    return None if item is None else item["stamp"]["B"]
