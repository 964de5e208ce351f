"""Transactions on DynamoDB: the handler's writes and the completion are one request."""

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
    """The user's own table: how often each event took effect."""

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
    """An effect that shows when it is done twice."""
    writes.update(
        TableName=EFFECTS,
        Key={"event": {"S": name}},
        UpdateExpression="ADD times :one",
        ExpressionAttributeValues={":one": {"N": "1"}},
    )


def put_new(writes: Writes, name: str | None) -> None:
    """An effect with a condition of its own."""
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
        """What the handler writes is there once, and its result is given to duplicates."""
        gate, wire = Gate(store), Wire(store)
        first, second = gate.transaction({"id": "a"}, count), gate.transaction({"id": "a"}, count)
        assert (first.status, first.result) == ("processed", "counted")
        assert (second.status, second.result) == ("duplicate", "counted")
        assert effects.counts() == {"a": 1}
        assert wire.sent[:2] == ["PutItem", "TransactWriteItems"]

    def test_a_failure_writes_nothing_and_counts(self, store: DynamoStore, effects: Effects) -> None:
        """A failing handler leaves no effect, its attempt counts, and a poison event ends as a dead letter."""

        def fail(event: Event, writes: Writes) -> None:
            count(event, writes)
            raise ValueError("boom")

        gate = Gate(store, max_attempts=2)
        assert [gate.transaction({"id": "a"}, fail).status for _ in range(3)] == ["failed", "buried", "buried"]
        assert effects.counts() == {}

    def test_a_condition_of_the_handler_s(self, store: DynamoStore, effects: Effects) -> None:
        """A condition of the handler's own that is not met fails the event, with its reason, and nothing is written."""

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
        """Puts, updates, deletes and checks are all part of it."""

        def all_of_them(event: Event, writes: Writes) -> None:
            put_new(writes, event.id)
            writes.delete(TableName=EFFECTS, Key={"event": {"S": "old"}})
            writes.check(
                TableName=EFFECTS, Key={"event": {"S": "none"}}, ConditionExpression="attribute_not_exists(event)"
            )
            add_one(writes, "sum")

        gate = Gate(store)
        gate.transaction({"id": "old"}, count)
        assert gate.transaction({"id": "a"}, all_of_them).status == "processed"
        assert effects.counts() == {"a": 1, "sum": 1}

    @pytest.mark.parametrize(
        ("write", "said"),
        [
            ({"TableName": EFFECTS}, "Parameter validation failed"),
            ({"TableName": "Nowhere", "Item": {"event": {"S": "a"}}}, "resource not found"),
            ({"TableName": EFFECTS, "Item": {"event": {"S": "a"}}, "ConditionExpression": "unless"}, "Validation"),
        ],
    )
    def test_writes_that_cannot_be(self, store: DynamoStore, effects: Effects, write: Any, said: str) -> None:
        """A write that DynamoDB cannot take fails the event as an error of its handler."""
        outcome = Gate(store).transaction({"id": "a"}, lambda _event, writes: writes.put(**write))
        assert outcome.status == "failed"
        assert outcome.error is not None
        assert "WriteRefused" in outcome.error
        assert said in outcome.error

    def test_what_a_handler_may_not_do(self, store: DynamoStore, effects: Effects) -> None:
        """A handler can neither write the claims, nor more than fits, nor after it has returned."""
        kept: list[Writes] = []

        def claims(event: Event, writes: Writes) -> None:
            kept.append(writes)
            writes.delete(TableName=store._calls.table, Key={"id": {"S": "x"}})

        def many(event: Event, writes: Writes) -> None:
            for number in range(100):
                writes.put(TableName=EFFECTS, Item={"event": {"S": str(number)}, "times": {"N": "1"}})

        gate = Gate(store)
        assert "holds the claims" in str(gate.transaction({"id": "a"}, claims).error)
        assert "99 writes together with a completion" in str(gate.transaction({"id": "b"}, many).error)
        with pytest.raises(RuntimeError, match="the transaction is over"):
            kept[0].put(TableName=EFFECTS)
        assert effects.counts() == {}

    def test_as_many_as_there_may_be(self, store: DynamoStore, effects: Effects) -> None:
        """Ninety-nine writes and the completion fit."""

        def many(event: Event, writes: Writes) -> None:
            for number in range(99):
                writes.put(TableName=EFFECTS, Item={"event": {"S": str(number)}, "times": {"N": "1"}})

        assert Gate(store).transaction({"id": "a"}, many).status == "processed"
        assert len(effects.counts()) == 99


def hold(store: DynamoStore, **changed: Any) -> ClaimProof:
    record = granted(store, **changed)
    return ClaimProof(NAMESPACE, KEY, record.owner, record.fence)


def completing(held: ClaimProof, meanwhile: Callable[[], object] = lambda: None) -> Callable[[Writes], Complete]:
    """An effect that counts, and while which something may happen."""

    def effect(writes: Writes) -> Complete:
        meanwhile()
        add_one(writes, "a")
        return Complete(held.namespace, held.key, held.owner, held.fence, RETENTION)

    return effect


def never(_writes: Writes) -> Complete:
    pytest.fail("this effect must not begin")


class TestCommit:
    """What becomes of a commit that is cancelled, repeated or late."""

    def test_lost_reply(self, dynamo_server: DynamoServer, effects: Effects, clock: ManualClock) -> None:
        """A commit whose reply was lost is sent again, and took effect once."""
        with closing(Proxy(dynamo_server.port)) as proxy:
            url = dynamo_server.url(dynamo_server.new_table(), port=proxy.port)
            with closing(open_store(url, clock=clock)) as store:
                proxy.lose = b".TransactWriteItems"
                assert Gate(store).transaction({"id": "a"}, count).status == "processed"
                assert proxy.lost == 1
        assert effects.counts() == {"a": 1}

    def test_lost_reply_and_a_forgotten_token(self, store: DynamoStore, effects: Effects) -> None:
        """Even if DynamoDB has forgotten the first request, the second recognises its own write and makes no other."""
        wire, held, client = Wire(store), hold(store), store._calls.client()
        first: list[Any] = []

        def carry_out(params: dict[str, Any], model: Any, **_rest: Any) -> dict[str, Any]:
            if model.name == "TransactWriteItems" and not first:
                first.append(params)
                client.transact_write_items(TransactItems=params["TransactItems"])  # under a token of its own
            return params

        client.meta.events.register("provide-client-params.dynamodb", carry_out)
        assert store.transact(held, completing(held))
        assert wire.sent.count("TransactWriteItems") == 2
        assert effects.counts() == {"a": 1}

    def test_taken_over(self, store: DynamoStore, effects: Effects, clock: ManualClock) -> None:
        """An owner whose claim was taken over while it worked writes nothing, and its successor's claim stands."""
        held = hold(store)

        def take_over() -> None:
            clock.advance(LEASE)
            granted(store, "bob")

        assert store.transact(held, completing(held, take_over)) is False
        assert effects.counts() == {}
        assert stored(store).owner == owner("bob")  # type: ignore[union-attr]

    def test_taken_over_before(self, store: DynamoStore, effects: Effects, clock: ManualClock) -> None:
        """An owner that has lost its claim does not even start."""
        held = hold(store)
        clock.advance(LEASE)
        granted(store, "bob")
        assert store.transact(held, never) is False

    def test_completed_before(self, store: DynamoStore, effects: Effects) -> None:
        """A transaction that is tried again after it was committed does not write its effect again."""
        held = hold(store)
        assert store.transact(held, completing(held))
        assert store.transact(held, never) is False
        assert effects.counts() == {"a": 1}

    def test_completed_meanwhile(self, store: DynamoStore, effects: Effects) -> None:
        """A claim that is completed by other means while the handler runs takes none of its writes."""
        held = hold(store)
        done = Complete(held.namespace, held.key, held.owner, held.fence, RETENTION, b'"first"')
        assert store.transact(held, completing(held, lambda: store.settle([done]))) is False
        assert effects.counts() == {}
        assert stored(store).result == b'"first"'  # type: ignore[union-attr]

    def test_renewed_meanwhile(self, store: DynamoStore, effects: Effects) -> None:
        """A claim that is still the owner's but was written since is completed at the second try."""
        held, wire = hold(store), Wire(store)
        renewing = Renew(NAMESPACE, KEY, held.owner, held.fence, LEASE)
        assert store.transact(held, completing(held, lambda: store.renew([renewing])))
        assert wire.sent.count("TransactWriteItems") == 2
        assert effects.counts() == {"a": 1}

    @pytest.mark.parametrize("code", ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"])
    def test_cancelled_for_a_moment(self, store: DynamoStore, effects: Effects, code: str) -> None:
        """A conflict with another transaction, or a throttled part, is tried again."""
        wire, held = Wire(store), hold(store)
        cancelled = reply(400, "TransactionCanceledException", CancellationReasons=[{"Code": "None"}, {"Code": code}])
        answers = iter([cancelled] * 2)
        wire.before = lambda action: next(answers, None) if action == "TransactWriteItems" else None
        assert store.transact(held, completing(held))
        assert effects.counts() == {"a": 1}

    def test_cancelled_for_long(self, store: DynamoStore, effects: Effects) -> None:
        """A conflict that lasts makes the store unavailable; nothing is written and the claim is still held."""
        wire, held = Wire(store), hold(store)
        reasons = [{"Code": "TransactionConflict"}, {"Code": "None"}]
        wire.before = lambda action: (
            reply(400, "TransactionCanceledException", CancellationReasons=reasons)
            if action.startswith("Trans")
            else None
        )
        with pytest.raises(StoreUnavailable, match="others kept writing"):
            store.transact(held, completing(held))
        assert effects.counts() == {}
        wire.before = lambda _action: None
        assert store.transact(held, completing(held))

    def test_a_completion_that_cannot_be_written(self, store: DynamoStore, effects: Effects) -> None:
        """When it is the completion that DynamoDB does not take, nothing is tried again, and it is told as such."""
        wire, held = Wire(store), hold(store)
        reasons = [{"Code": "ValidationError", "Message": "too large"}, {"Code": "None"}]
        cancelled = reply(400, "TransactionCanceledException", CancellationReasons=reasons)
        wire.before = lambda action: cancelled if action == "TransactWriteItems" else None
        with pytest.raises(StoreRefused, match=re.escape("refused a completion (ValidationError: too large)")):
            store.transact(held, completing(held))
        assert wire.sent == ["PutItem", "TransactWriteItems"]

    def test_reasons(self, store: DynamoStore, effects: Effects) -> None:
        """The reasons of DynamoDB are there for whoever asks what was refused."""
        held = hold(store)

        def refused(writes: Writes) -> Complete:
            writes.check(TableName=EFFECTS, Key={"event": {"S": "x"}}, ConditionExpression="attribute_exists(event)")
            return completing(held)(writes)

        with pytest.raises(EffectFailed) as failure:
            store.transact(held, refused)
        assert isinstance(failure.value.cause, WriteRefused)
        assert [reason["Code"] for reason in failure.value.cause.reasons] == ["ConditionalCheckFailed", "None"]

    def test_expired_meanwhile(self, store: DynamoStore, effects: Effects, clock: ManualClock) -> None:
        """A record that expires while the handler runs takes its effect with it."""
        held = hold(store, retention=LEASE)
        assert store.transact(held, completing(held, lambda: clock.advance(LEASE))) is False
        assert effects.counts() == {}
