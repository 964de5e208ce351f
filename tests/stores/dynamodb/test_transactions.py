"""Transactions on DynamoDB: one request writes the effect and the completion."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from oncegate import Event, Gate, open_store
from oncegate.claims import ClaimProof, Complete, Renew
from oncegate.errors import StoreRefused, StoreUnavailable
from oncegate.stores.base import EffectFailed
from oncegate.stores.dynamodb import DynamoStore, WriteRefused, Writes
from oncegate.testing import ManualClock
from oncegate.testing.requests import KEY, LEASE, NAMESPACE, RETENTION, granted, owner, stored
from tests.stores.dynamo_server import DynamoServer, Wire, reply
from tests.stores.proxy import Proxy

EFFECTS = "Effects"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def effects(dynamo_server: DynamoServer) -> Iterator["Effects"]:
    dynamo_server.client.create_table(
        TableName=EFFECTS,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "event", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "event", "KeyType": "HASH"}],
    )
    yield Effects(dynamo_server)
    dynamo_server.client.delete_table(TableName=EFFECTS)


class Effects:
    """A table of the user: how often each event took effect."""

    def __init__(self, server: DynamoServer) -> None:
        self._client = server.client

    def counts(self) -> dict[str, int]:
        items = self._client.scan(TableName=EFFECTS)["Items"]
        return {item["event"]["S"]: int(item["times"]["N"]) for item in items}


@pytest.fixture
def store(dynamo_server: DynamoServer, clock: ManualClock, effects: Effects) -> Iterator[DynamoStore]:
    with closing(open_store(dynamo_server.url(dynamo_server.new_table(), timeout="3s"), clock=clock)) as opened:
        assert isinstance(opened, DynamoStore)
        yield opened


def add_one(writes: Writes, name: str | None) -> None:
    """An effect whose count shows how often it was applied."""
    writes.update(
        TableName=EFFECTS,
        Key={"event": {"S": name}},
        UpdateExpression="ADD times :one",
        ExpressionAttributeValues={":one": {"N": "1"}},
    )


def put_new(writes: Writes, name: str | None) -> None:
    """An effect with a condition."""
    writes.put(
        TableName=EFFECTS,
        Item={"event": {"S": name}, "times": {"N": "1"}},
        ConditionExpression="attribute_not_exists(event)",
    )


def count(event: Event, writes: Writes) -> str:
    add_one(writes, event.id)
    return "counted"


class TestTransaction:
    def test_effect_and_completion(self, store: DynamoStore, effects: Effects) -> None:
        """The handler's writes are made once, and duplicates get its result."""
        gate, wire = Gate(store), Wire(store)
        first, second = gate.transaction({"id": "a"}, count), gate.transaction({"id": "a"}, count)
        assert (first.status, first.result) == ("processed", "counted")
        assert (second.status, second.result) == ("duplicate", "counted")
        assert effects.counts() == {"a": 1}
        assert wire.sent[:2] == ["PutItem", "TransactWriteItems"]

    def test_a_failure_writes_nothing_and_counts(self, store: DynamoStore, effects: Effects) -> None:
        """A failing handler leaves no effect; its attempt counts, and the last attempt buries the event."""

        def fail(event: Event, writes: Writes) -> None:
            count(event, writes)
            raise ValueError("boom")

        gate = Gate(store, max_attempts=2)
        assert [gate.transaction({"id": "a"}, fail).status for _ in range(3)] == ["failed", "buried", "buried"]
        assert effects.counts() == {}

    def test_a_condition_of_the_handler(self, store: DynamoStore, effects: Effects) -> None:
        """A condition of the handler that is not met fails the event with its reason, and nothing is written."""

        def count_and_put(event: Event, writes: Writes) -> None:
            count(event, writes)
            put_new(writes, "a")

        gate = Gate(store)
        assert gate.transaction({"id": "a"}, count).status == "processed"
        outcome = gate.transaction({"id": "b"}, count_and_put)
        assert outcome.status == "failed"
        assert outcome.error is not None
        assert outcome.error.startswith("WriteRefused: Put on Effects was refused (ConditionalCheckFailed")
        assert effects.counts() == {"a": 1}

    def test_every_kind_of_write(self, store: DynamoStore, effects: Effects) -> None:
        """A transaction may contain puts, updates, deletes and checks."""

        def write_all(event: Event, writes: Writes) -> None:
            put_new(writes, event.id)
            writes.delete(TableName=EFFECTS, Key={"event": {"S": "old"}})
            writes.check(
                TableName=EFFECTS, Key={"event": {"S": "none"}}, ConditionExpression="attribute_not_exists(event)"
            )
            add_one(writes, "sum")

        gate = Gate(store)
        gate.transaction({"id": "old"}, count)
        assert gate.transaction({"id": "a"}, write_all).status == "processed"
        assert effects.counts() == {"a": 1, "sum": 1}

    @pytest.mark.parametrize(
        ("write", "message"),
        [
            ({"TableName": EFFECTS}, "Parameter validation failed"),
            ({"TableName": "Nowhere", "Item": {"event": {"S": "a"}}}, "resource not found"),
            ({"TableName": EFFECTS, "Item": {"event": {"S": "a"}}, "ConditionExpression": "unless"}, "Validation"),
        ],
    )
    def test_invalid_writes(self, store: DynamoStore, effects: Effects, write: Any, message: str) -> None:
        """An invalid write fails the event as an error of its handler."""
        outcome = Gate(store).transaction({"id": "a"}, lambda _event, writes: writes.put(**write))
        assert outcome.status == "failed"
        assert outcome.error is not None
        assert "WriteRefused" in outcome.error
        assert message in outcome.error

    def test_forbidden_writes(self, store: DynamoStore, effects: Effects) -> None:
        """A handler cannot write to the table of the claims, write too much, or write after it returned."""
        collectors: list[Writes] = []

        def claims(event: Event, writes: Writes) -> None:
            collectors.append(writes)
            writes.delete(TableName=store._client.table, Key={"id": {"S": "x"}})

        def many(event: Event, writes: Writes) -> None:
            for number in range(100):
                writes.put(TableName=EFFECTS, Item={"event": {"S": str(number)}, "times": {"N": "1"}})

        gate = Gate(store)
        assert "holds the claims" in str(gate.transaction({"id": "a"}, claims).error)
        assert "99 writes together with a completion" in str(gate.transaction({"id": "b"}, many).error)
        with pytest.raises(RuntimeError, match="the transaction is over"):
            collectors[0].put(TableName=EFFECTS)
        assert effects.counts() == {}

    def test_the_largest_transaction(self, store: DynamoStore, effects: Effects) -> None:
        """A transaction may contain 99 writes and the completion."""

        def many(event: Event, writes: Writes) -> None:
            for number in range(99):
                writes.put(TableName=EFFECTS, Item={"event": {"S": str(number)}, "times": {"N": "1"}})

        assert Gate(store).transaction({"id": "a"}, many).status == "processed"
        assert len(effects.counts()) == 99


def hold(store: DynamoStore, **changed: Any) -> ClaimProof:
    record = granted(store, **changed)
    return ClaimProof(NAMESPACE, KEY, record.owner, record.fence)


def completing(held: ClaimProof, meanwhile: Callable[[], object] = lambda: None) -> Callable[[Writes], Complete]:
    """An effect that calls `meanwhile` and then counts."""

    def effect(writes: Writes) -> Complete:
        meanwhile()
        add_one(writes, "a")
        return Complete(held.namespace, held.key, held.owner, held.fence, RETENTION)

    return effect


def never(_writes: Writes) -> Complete:
    pytest.fail("the effect must not run")


class TestCommit:
    """Commits that are cancelled, repeated or late."""

    def test_lost_reply(self, dynamo_server: DynamoServer, effects: Effects, clock: ManualClock) -> None:
        """A commit whose reply was lost is sent again, and takes effect once."""
        with closing(Proxy(dynamo_server.port)) as proxy:
            url = dynamo_server.url(dynamo_server.new_table(), port=proxy.port)
            with closing(open_store(url, clock=clock)) as store:
                proxy.lose = b".TransactWriteItems"
                assert Gate(store).transaction({"id": "a"}, count).status == "processed"
                assert proxy.lost == 1
        assert effects.counts() == {"a": 1}

    def test_lost_reply_and_a_forgotten_token(self, store: DynamoStore, effects: Effects) -> None:
        """Even if DynamoDB has forgotten the token, the retry recognizes its own write and makes no other."""
        wire, held, client = Wire(store), hold(store), store._client.botocore_client()
        first: list[Any] = []

        def apply_first(params: dict[str, Any], model: Any, **_rest: Any) -> dict[str, Any]:
            if model.name == "TransactWriteItems" and not first:
                first.append(params)
                client.transact_write_items(TransactItems=params["TransactItems"])  # with another token
            return params

        client.meta.events.register("provide-client-params.dynamodb", apply_first)
        assert store.transact(held, completing(held))
        assert wire.sent.count("TransactWriteItems") == 2
        assert effects.counts() == {"a": 1}

    def test_taken_over(self, store: DynamoStore, effects: Effects, clock: ManualClock) -> None:
        """An owner whose claim was taken over during the effect writes nothing, and the new claim is unchanged."""
        held = hold(store)

        def take_over() -> None:
            clock.advance(LEASE)
            granted(store, "bob")

        assert store.transact(held, completing(held, take_over)) is False
        assert effects.counts() == {}
        assert stored(store).owner == owner("bob")  # type: ignore[union-attr]

    def test_taken_over_before(self, store: DynamoStore, effects: Effects, clock: ManualClock) -> None:
        """The effect of an owner that has lost its claim is not called."""
        held = hold(store)
        clock.advance(LEASE)
        granted(store, "bob")
        assert store.transact(held, never) is False

    def test_completed_before(self, store: DynamoStore, effects: Effects) -> None:
        """A transaction that is retried after its commit does not run the effect again."""
        held = hold(store)
        assert store.transact(held, completing(held))
        assert store.transact(held, never) is False
        assert effects.counts() == {"a": 1}

    def test_completed_meanwhile(self, store: DynamoStore, effects: Effects) -> None:
        """If the claim is completed in another way while the handler runs, its writes are not made."""
        held = hold(store)
        done = Complete(held.namespace, held.key, held.owner, held.fence, RETENTION, b'"first"')
        assert store.transact(held, completing(held, lambda: store.settle([done]))) is False
        assert effects.counts() == {}
        assert stored(store).result == b'"first"'  # type: ignore[union-attr]

    def test_renewed_meanwhile(self, store: DynamoStore, effects: Effects) -> None:
        """A claim that was renewed while the handler ran is completed at the second try."""
        held, wire = hold(store), Wire(store)
        renewing = Renew(NAMESPACE, KEY, held.owner, held.fence, LEASE)
        assert store.transact(held, completing(held, lambda: store.renew([renewing])))
        assert wire.sent.count("TransactWriteItems") == 2
        assert effects.counts() == {"a": 1}

    @pytest.mark.parametrize("code", ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"])
    def test_transient_cancellations(self, store: DynamoStore, effects: Effects, code: str) -> None:
        """A transaction that conflicted with another one or was throttled is retried."""
        wire, held = Wire(store), hold(store)
        cancelled = reply(400, "TransactionCanceledException", CancellationReasons=[{"Code": "None"}, {"Code": code}])
        answers = iter([cancelled] * 2)
        wire.before = lambda action: next(answers, None) if action == "TransactWriteItems" else None
        assert store.transact(held, completing(held))
        assert effects.counts() == {"a": 1}

    def test_lasting_cancellations(self, store: DynamoStore, effects: Effects) -> None:
        """A conflict that lasts makes the store unavailable; nothing is written and the claim is still held."""
        wire, held = Wire(store), hold(store)
        reasons = [{"Code": "TransactionConflict"}, {"Code": "None"}]
        wire.before = lambda action: (
            reply(400, "TransactionCanceledException", CancellationReasons=reasons)
            if action.startswith("Trans")
            else None
        )
        with pytest.raises(StoreUnavailable, match="kept conflicting with other writes; retry"):
            store.transact(held, completing(held))
        assert effects.counts() == {}
        wire.before = lambda _action: None
        assert store.transact(held, completing(held))

    def test_a_refused_completion(self, store: DynamoStore, effects: Effects) -> None:
        """If DynamoDB refuses the completion, the transaction is not retried, and the error has the reason."""
        wire, held = Wire(store), hold(store)
        reasons = [{"Code": "ValidationError", "Message": "too large"}, {"Code": "None"}]
        cancelled = reply(400, "TransactionCanceledException", CancellationReasons=reasons)
        wire.before = lambda action: cancelled if action == "TransactWriteItems" else None
        with pytest.raises(StoreRefused, match=re.escape("refused the completion (ValidationError: too large)")):
            store.transact(held, completing(held))
        assert wire.sent == ["PutItem", "TransactWriteItems"]

    def test_reasons(self, store: DynamoStore, effects: Effects) -> None:
        """WriteRefused has the reasons of DynamoDB."""
        held = hold(store)

        def refused(writes: Writes) -> Complete:
            writes.check(TableName=EFFECTS, Key={"event": {"S": "x"}}, ConditionExpression="attribute_exists(event)")
            return completing(held)(writes)

        with pytest.raises(EffectFailed) as failure:
            store.transact(held, refused)
        assert isinstance(failure.value.cause, WriteRefused)
        assert [reason["Code"] for reason in failure.value.cause.reasons] == ["ConditionalCheckFailed", "None"]

    def test_expired_meanwhile(self, store: DynamoStore, effects: Effects, clock: ManualClock) -> None:
        """If the record expires while the handler runs, its writes are not made."""
        held = hold(store, retention=LEASE)
        assert store.transact(held, completing(held, lambda: clock.advance(LEASE))) is False
        assert effects.counts() == {}
