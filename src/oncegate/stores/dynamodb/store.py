"""The DynamoDB store keeps claims in one DynamoDB table. The user runs no server, and any number of machines can use
the table. A write is durable in several availability zones when the store has answered.

Each key of a batch is a separate write (see conditional_writes.py). Parallel threads write different keys. A batch can
therefore fail after some of its writes. The settlements that were written stay settled. Claims that were granted are
released, without counting an attempt.
"""

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from oncegate.claims import (
    IN_PROGRESS,
    Address,
    Claim,
    ClaimProof,
    Complete,
    Granted,
    Operation,
    Release,
    Renew,
    Take,
    Verdict,
)
from oncegate.clocks import Clock
from oncegate.errors import SettingError, StoreError
from oncegate.stores.base import Change, Document, EffectFailed, Entry, TakeRequest
from oncegate.stores.dynamodb import browse
from oncegate.stores.dynamodb.client import DynamoClient, ItemChanged, KeyWorkers
from oncegate.stores.dynamodb.conditional_writes import ABSENT, STAMP_SIZE, ConditionalWriter, stamp_of
from oncegate.stores.dynamodb.items import document_id, document_item, document_of
from oncegate.stores.dynamodb.settings import DynamoSettings
from oncegate.stores.dynamodb.table import prepare
from oncegate.stores.dynamodb.transactions import Transaction, Writes
from oncegate.stores.step_store import StepStore, is_listed

_PROBE_ID = "oncegate probe"
_NEVER_MET = "attribute_exists(id) AND attribute_not_exists(id)"


class DynamoStore(StepStore):
    remote = True

    def __init__(self, settings: DynamoSettings, *, create: bool = True, clock: Clock | None = None) -> None:
        self._client = DynamoClient(settings)
        self._writer = ConditionalWriter(self._client, clock, settings.margin(tested=clock is not None))
        self._workers = KeyWorkers(settings.parallel)
        try:
            # The TTL of DynamoDB uses the real time. It would delete the records of a test that uses another clock.
            prepare(self._client, create=create, time_to_live=clock is None)
        except BaseException:
            self.close()
            raise

    # ── claims ────────────────────────────────────────────────────────────────────────────────────────────

    def _apply(self, operations: Sequence[Operation]) -> list[Any]:
        return self._workers.map(self._writer.apply, operations)

    def claim(self, requests: Sequence[Claim]) -> list[Verdict]:
        answers: list[Any] = [None] * len(requests)
        try:
            self._workers.fill(answers, self._writer.apply, requests)
        except StoreError:
            self._release_granted(requests, answers)
            raise
        return answers

    def _release_granted(self, requests: Sequence[Claim], answers: Sequence[Verdict | None]) -> None:
        """Release the granted claims of a failed batch, because no handler will run for them. Without the release,
        throttling would use up the attempts of events whose handler never ran. If a release fails, the claim becomes
        free when its lease ends."""
        granted = [
            Release(request.namespace, request.key, request.owner, answer.record.fence, unstarted=True)
            for request, answer in zip(requests, answers, strict=True)
            if isinstance(answer, Granted) and answer.record.state == IN_PROGRESS
        ]
        with suppress(StoreError):
            self._apply(granted)

    def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
        return [self._take(want) for want in wants]

    def _take(self, want: TakeRequest) -> Entry | None:
        for address in browse.waiting_addresses(self._client, want.namespace, self._writer.now()):
            answer = self._writer.apply(Take(*address, want.owner, want.lease))
            if isinstance(answer, Granted):
                return Entry(*address, answer.record)
        return None

    def transact(self, held: ClaimProof, effect: Callable[[Writes], Complete], connection: Any = None) -> bool:
        """See `oncegate.stores.base.Transactional`. There is no lock while the effect runs. If the lease ends and
        another owner takes over the claim, the transaction writes nothing."""
        if connection is not None:
            raise SettingError("the DynamoDB store takes no connection=; the handler gets a Writes object instead")
        address = (held.namespace, held.key)
        transaction = Transaction(self._client, self._writer, address)
        if not transaction.is_held(Renew(*address, held.owner, held.fence, 1)):
            return False
        writes = Writes(self._client.table)
        try:
            complete = effect(writes)
        except BaseException as error:
            raise EffectFailed(error) from error
        finally:
            writes.close()
        return transaction.commit(complete, writes.collected)

    def load(self, addresses: Sequence[Address]) -> list[Document]:
        ids = [document_id((address.namespace, address.key)) for address in addresses]
        found = browse.read_items(self._client, list(dict.fromkeys(ids)))
        past = self._writer.past()
        return [document_of(found.get(id_), past) for id_ in ids]

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        return self._workers.map(self._swap, changes)

    def _swap(self, change: Change) -> bool:
        now, stamp = self._writer.now(), os.urandom(STAMP_SIZE)
        item = document_item(change, stamp, now, self._writer.margin)
        condition, version = ABSENT, {}
        if change.version:
            condition, version = "version = :version AND expires > :past", {":version": {"N": str(change.version)}}
        try:
            self._client.call_table(
                "put_item",
                Item=item,
                ConditionExpression=condition,
                ExpressionAttributeValues={":past": {"N": str(now - self._writer.margin)}, **version},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ItemChanged as changed:
            return stamp_of(changed.item) == stamp
        return True

    def probe(self, within: int) -> None:  # noqa: ARG002  # the timeout of the client bounds the answer
        """See `oncegate.stores.base.CanProbe`. The probe is a write with a condition that is never met, so it writes
        nothing. DynamoDB checks the permission and the capacity for the write before the condition."""
        with suppress(ItemChanged):
            self._client.call_table("put_item", Item={"id": {"S": _PROBE_ID}}, ConditionExpression=_NEVER_MET)

    # ── operators ─────────────────────────────────────────────────────────────────────────────────────────

    def dead_letters(
        self, namespace: str | None = None, *, after: Address | None = None, limit: int = 100
    ) -> list[Entry]:
        found = browse.dead_letters(self._client, namespace, after, limit)
        return list(islice(self._select_listed(found, after), limit))

    def count_dead_letters(self, namespace: str | None, limit: int) -> int:
        """See `oncegate.stores.base.CountsDeadLetters`. The index does not have the expiry, so an expired dead letter
        counts until DynamoDB has deleted it. To read the expiry, DynamoDB would charge for the whole record."""
        return browse.count_dead_letters(self._client, namespace, limit)

    def browse(
        self,
        namespace: str | None = None,
        *,
        key: bytes | None = None,
        after: Address | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        """With a namespace and a key, this is one read. Otherwise each call reads the whole table."""
        if namespace is not None and key is not None:
            record = self._writer.read((namespace, key)).record
            found: Iterable[Entry] = [] if record is None else [Entry(namespace, key, record)]
        else:
            found = browse.scan_records(self._client, namespace, key)
        return heapq.nsmallest(limit, self._select_listed(found, after), key=_order)

    def scan(self, namespace: str | None = None) -> Iterator[Entry]:
        return iter(self._select_listed(browse.scan_records(self._client, namespace, None), None))

    def _select_listed(self, entries: Iterable[Entry], after: Address | None) -> Iterable[Entry]:
        past = self._writer.past()
        return (entry for entry in entries if is_listed(_order(entry), entry.record, after, past))

    def close(self) -> None:
        self._workers.close()
        self._client.close()


def _order(entry: Entry) -> tuple[str, bytes]:
    return entry.namespace, entry.key
