"""The DynamoDB store: no server to run, any number of machines, durable in several places when it answers.

Every item is judged by itself (see judging.py), different keys of a batch side by side on a few threads. A batch is
therefore not one write: if it fails midway, what was settled by then stays settled, and claims that were granted are
given back with their attempt.
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
from oncegate.stores.dynamodb.conditional_writes import STAMP_SIZE, ConditionalWriter, stamp_of
from oncegate.stores.dynamodb.items import document_id, document_item, document_of
from oncegate.stores.dynamodb.settings import DynamoSettings
from oncegate.stores.dynamodb.table import prepare
from oncegate.stores.dynamodb.transactions import Transaction, Writes
from oncegate.stores.step_store import StepStore, is_listed

_PROBE = "oncegate probe"
_NEVER = "attribute_exists(id) AND attribute_not_exists(id)"


class DynamoStore(StepStore):
    remote = True

    def __init__(self, settings: DynamoSettings, *, create: bool = True, clock: Clock | None = None) -> None:
        self._calls = DynamoClient(settings)
        self._judge = ConditionalWriter(self._calls, clock, settings.margin(tested=clock is not None))
        self._pool = KeyWorkers(settings.parallel)
        try:
            # DynamoDB sweeps by the real time, which is none to a test that has a clock of its own.
            prepare(self._calls, create=create, sweeping=clock is None)
        except BaseException:
            self.close()
            raise

    # ── the verbs ─────────────────────────────────────────────────────────────────────────────────────────

    def _apply(self, operations: Sequence[Operation]) -> list[Any]:
        return self._pool.each(self._judge.answer, operations)

    def claim(self, requests: Sequence[Claim]) -> list[Verdict]:
        answers: list[Any] = [None] * len(requests)
        try:
            self._pool.fill(answers, self._judge.answer, requests)
        except StoreError:
            self._give_back(requests, answers)
            raise
        return answers

    def _give_back(self, requests: Sequence[Claim], answers: Sequence[Verdict | None]) -> None:
        """Release what nobody will run, or throttling would use up the attempts of events that never ran. What cannot
        be given back either comes free when its lease ends."""
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
        for where in browse.waiting(self._calls, want.namespace, self._judge.now()):
            granted = self._judge.answer(Take(*where, want.owner, want.lease))
            if isinstance(granted, Granted):
                return Entry(*where, granted.record)
        return None

    def transact(self, held: ClaimProof, effect: Callable[[Writes], Complete], connection: Any = None) -> bool:
        """See `oncegate.stores.base.Transactional`. Nothing is locked while the effect runs: if the lease ends
        meanwhile and another takes the claim over, nothing is written."""
        if connection is not None:
            raise SettingError("DynamoDB has no connection to share; the handler is given what collects its writes")
        where = (held.namespace, held.key)
        transaction = Transaction(self._calls, self._judge, where)
        if not transaction.holds(Renew(*where, held.owner, held.fence, 1)):
            return False
        writes = Writes(self._calls.table)
        try:
            complete = effect(writes)
        except BaseException as error:
            raise EffectFailed(error) from error
        finally:
            writes.close()
        return transaction.commit(complete, writes.collected)

    def load(self, addresses: Sequence[Address]) -> list[Document]:
        ids = [document_id((address.namespace, address.key)) for address in addresses]
        found = browse.items_of(self._calls, list(dict.fromkeys(ids)))
        past = self._judge.past()
        return [document_of(found.get(id_), past) for id_ in ids]

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        return self._pool.each(self._swap, changes)

    def _swap(self, change: Change) -> bool:
        now, stamp = self._judge.now(), os.urandom(STAMP_SIZE)
        item = document_item(change, stamp, now, self._judge.margin)
        condition, version = "attribute_not_exists(id) OR expires <= :past", {}
        if change.version:
            condition, version = "version = :version AND expires > :past", {":version": {"N": str(change.version)}}
        try:
            self._calls.ask(
                "put_item",
                Item=item,
                ConditionExpression=condition,
                ExpressionAttributeValues={":past": {"N": str(now - self._judge.margin)}, **version},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ItemChanged as changed:
            return stamp_of(changed.item) == stamp
        return True

    def probe(self, within: int) -> None:  # noqa: ARG002  # an answer takes no longer than the timeout
        """See `oncegate.stores.base.Probed`. The condition cannot be met, so nothing is written; but a table that may
        not be written, or has no capacity left for it, says so before it looks at the condition."""
        with suppress(ItemChanged):
            self._calls.ask("put_item", Item={"id": {"S": _PROBE}}, ConditionExpression=_NEVER)

    # ── for people ────────────────────────────────────────────────────────────────────────────────────────

    def dead_letters(
        self, namespace: str | None = None, *, after: Address | None = None, limit: int = 100
    ) -> list[Entry]:
        found = browse.dead(self._calls, namespace, after, limit)
        return list(islice(self._shown(found, after), limit))

    def browse(
        self,
        namespace: str | None = None,
        *,
        key: bytes | None = None,
        after: Address | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        """With a namespace and a key one read; otherwise the whole table is read for every page."""
        if namespace is not None and key is not None:
            record = self._judge.look((namespace, key)).record
            found: Iterable[Entry] = [] if record is None else [Entry(namespace, key, record)]
        else:
            found = browse.every(self._calls, namespace, key)
        return heapq.nsmallest(limit, self._shown(found, after), key=_order)

    def scan(self, namespace: str | None = None) -> Iterator[Entry]:
        return iter(self._shown(browse.every(self._calls, namespace, None), None))

    def _shown(self, entries: Iterable[Entry], after: Address | None) -> Iterable[Entry]:
        past = self._judge.past()
        return (entry for entry in entries if is_listed(_order(entry), entry.record, after, past))

    def close(self) -> None:
        self._pool.close()
        self._calls.close()


def _order(entry: Entry) -> tuple[str, bytes]:
    return entry.namespace, entry.key
