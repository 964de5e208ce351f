"""Published events: what one gate publishes, another gate on the same store takes once from the destination."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate, keys, read
from oncegate.errors import RetryLater, SettingError
from oncegate.gate.job import stage
from oncegate.service.admission import InboxAdmission
from oncegate.stores.base import Store
from oncegate.stores.memory import MemoryStore
from tests.service.running import until
from tests.stores.redis_server import RedisServer

PLACE = "sqs://q?region=eu-central-1"
CALL = {"id": "evt-1", "type": "call.ended"}
DETAIL = {
    "topicName": "v2.detail.events.conversation.c-1.customer.end",
    "version": "2",
    "timestamp": "2026-01-02T03:04:05.500Z",
    "eventBody": {"eventTime": 1767323045000, "conversationId": "c-1", "sessionId": "s-1"},
}
ENVELOPE = {
    "version": "0",
    "id": "11111111-2222-3333-4444-555555555555",
    "detail-type": "v2.detail.events.conversation.{id}.customer.end",
    "source": "aws.partner/genesys.com/cloud/org/integration",
    "time": "2026-01-02T03:04:06Z",
    "resources": [],
    "detail": DETAIL,
}


def message(body: Any, key: str | None = None) -> dict[str, Any]:
    """A queue message as Lambda gets it, with the attribute that a publisher adds."""
    attribute = {} if key is None else {"oncegate-key": {"stringValue": key, "dataType": "String"}}
    text = body if isinstance(body, str) else json.dumps(body)
    found = {"messageId": f"m-{hash((text, key))}", "receiptHandle": "r", "body": text, "eventSource": "aws:sqs"}
    return found | {"messageAttributes": attribute}


class Sink:
    """Publishes to a destination like the sinks, into a list."""

    def __init__(self, place: str = PLACE) -> None:
        self.publishes_to = place
        self.sent: list[dict[str, Any]] = []

    def __call__(self, event: Event) -> None:
        self.sent.append(message(event.raw.decode(), str(event.key)))


class Effects(list[str]):
    """The handler of the gate that reads the queue."""

    def __call__(self, event: Event) -> None:
        self.append(str(event.key))


@pytest.fixture
def effects() -> Effects:
    return Effects()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


def url_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of an empty store."""
    if kind != "redis":
        return "memory://" if kind == "memory" else f"sqlite:///{folder}/oncegate.db"
    server: RedisServer = request.getfixturevalue("redis")
    server.client.flushall()
    return server.url


@pytest.fixture(params=["memory", "sqlite", "redis"])
def gate(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gate]:
    with closing(Gate(url_of(request.param, request, tmp_path))) as gate:
        yield gate


def statuses(gate: Gate, payloads: list[Any], handler: Any) -> list[str]:
    return [outcome.status for outcome in gate.run_batch(payloads, handler)]


def test_runs_once_at_the_destination(gate: Gate, effects: Effects) -> None:
    """A published event runs once for the gate that reads the destination, and is a duplicate for the gate that
    publishes, with the cache and without it."""
    sink = Sink()
    published = gate.run(CALL, sink)
    assert statuses(gate, [CALL, *sink.sent, *sink.sent], sink) == ["duplicate"] * 3
    assert "published to sqs://q?region=eu-central-1" in gate.run(CALL, sink).reason
    ran = [gate.run(sink.sent[0], effects) for _ in range(3)]
    assert [outcome.status for outcome in ran] == ["processed", "duplicate", "duplicate"]
    assert ran[0].key == stage(published.key, PLACE)  # type: ignore[arg-type]
    other = Gate(gate.store, remember=None)
    assert statuses(other, [CALL, *sink.sent], effects) == ["duplicate", "duplicate"]
    assert statuses(other, [CALL, *sink.sent], sink) == ["duplicate", "duplicate"]
    assert (len(sink.sent), len(effects)) == (1, 1)


WRAPPINGS = [
    DETAIL,
    ENVELOPE,
    ENVELOPE | {"id": "another"},
    message(ENVELOPE),
    message({"Type": "Notification", "MessageId": "n", "TopicArn": "arn:x", "Message": json.dumps(ENVELOPE)}),
]


@pytest.mark.parametrize("straight_first", [False, True])
@pytest.mark.parametrize("turn", range(len(WRAPPINGS)))
def test_five_wrappings(gate: Gate, effects: Effects, turn: int, straight_first: bool) -> None:
    """In whichever wrapping the event arrives first, at the publisher or directly in the queue, there is one effect in
    all."""
    sink, wrappings = Sink(), WRAPPINGS[turn:] + WRAPPINGS[:turn]
    if straight_first:
        assert statuses(gate, wrappings, effects).count("processed") == 1
    published = statuses(gate, wrappings, sink)
    assert published.count("processed") == len(sink.sent) == (not straight_first)
    statuses(gate, wrappings + sink.sent, effects)
    statuses(gate, wrappings, sink)
    assert (len(effects), len(sink.sent)) == (1, not straight_first)


def test_coroutines(gate: Gate, effects: Effects) -> None:
    """Of many concurrent copies one runs at each stage."""
    sink = Sink()

    async def many(handler: Any, payload: Any) -> list[str]:
        return [each.status for each in await asyncio.gather(*(gate.arun(payload, handler) for _ in range(8)))]

    async def main() -> None:
        assert (await many(sink, CALL)).count("processed") == 1
        assert (await many(effects, sink.sent[0])).count("processed") == 1

    asyncio.run(main())
    assert (len(sink.sent), len(effects)) == (1, 1)


def test_several_stages(gate: Gate, effects: Effects) -> None:
    """An event from one destination may be published to another, and so on: once at each."""
    first, second = Sink(), Sink("eventbridge://bus?region=eu-central-1")
    for _ in range(2):
        gate.run(CALL, first)
        statuses(gate, first.sent, second)
        statuses(gate, [*second.sent, *first.sent, CALL], effects)
    assert (len(first.sent), len(second.sent), len(effects)) == (1, 1, 1)


def test_seen(gate: Gate) -> None:
    """`seen` is False once at the destination, too."""
    sink = Sink()
    gate.run(CALL, sink)
    assert [gate.seen(sink.sent[0]) for _ in range(2)] == [False, True]


def test_failure_at_the_destination(gate: Gate, effects: Effects) -> None:
    """An event that fails at the destination runs again there, and is published once."""
    sink = Sink()

    def fails(event: Event) -> None:
        raise ValueError

    gate.run(CALL, sink)
    assert statuses(gate, sink.sent, fails) == ["failed"]
    assert statuses(gate, [CALL], sink) == ["duplicate"]
    assert statuses(gate, sink.sent, effects) == ["processed"]


def test_publisher_will_retry(effects: Effects) -> None:
    """A message whose publisher will send it again is not acknowledged: a queue may drop the second message as a
    copy."""
    gate, sink, unsure = Gate(MemoryStore()), Sink(), [True]

    class Unsure:
        publishes_to = PLACE

        def __call__(self, event: Event) -> None:
            sink(event)
            if unsure:
                unsure.clear()
                raise RetryLater("no answer")

    gate.admit([CALL])
    assert [outcome.status for outcome in gate.run_waiting(Unsure(), limit=1)] == ["failed"]
    handle = gate.lambda_handler(effects)
    batch = {"Records": sink.sent[:1]}
    assert handle(batch, None)["batchItemFailures"] == [{"itemIdentifier": sink.sent[0]["messageId"]}]
    until(lambda: bool(gate.run_waiting(Unsure())))
    assert handle(batch, None) == {"batchItemFailures": []}
    assert len(effects) == 1


def test_mark_first() -> None:
    """An event that is marked as done before it is published could never run at the destination."""
    with pytest.raises(SettingError, match="publish with mode='lease'"):
        Gate(MemoryStore(), mode="mark_first").run(CALL, Sink())


class TestInbox:
    def test_known_handler(self, effects: Effects) -> None:
        """An inbox with a handler stores the event under the key of the next stage, and runs it once."""
        store = MemoryStore()
        gate, sink = Gate(store), Sink()
        gate.run(CALL, sink)
        assert self.taken(store, sink.sent[0], effects) == ["accepted", "duplicate"]
        assert [each.status for each in gate.run_waiting(effects)] == ["processed"]
        assert self.taken(store, sink.sent[0], effects) == ["duplicate", "duplicate"]
        assert self.taken(store, CALL, sink) == ["duplicate", "duplicate"]
        assert len(effects) == 1

    def test_unknown_handler(self) -> None:
        """If another process runs the stored events, that process may be the publisher: a copy is a duplicate, and is
        not published again."""
        store = MemoryStore()
        gate, sink = Gate(store), Sink()
        gate.admit([CALL])
        gate.run_waiting(sink)
        assert [outcome.status for outcome in gate.admit([CALL])] == ["duplicate"]
        assert self.taken(store, CALL, None) == ["duplicate", "duplicate"]
        assert asyncio.run(gate.aadmit(CALL))[0].status == "duplicate"
        assert (gate.run_waiting(sink), len(sink.sent)) == ([], 1)

    def taken(self, store: Store, payload: Any, handler: Any) -> list[str]:
        """The statuses of two requests to a service."""
        with ThreadPoolExecutor(1) as threads:
            kept = InboxAdmission(Gate(store), handler, threads, max_running=1, drain="1s")

            async def take() -> list[str]:
                return [(await kept.admit(read(payload)))[0].status for _ in range(2)]

            return asyncio.run(take())


# ── the key that is carried along ─────────────────────────────────────────────────────────────────────────


def put(envelope: dict[str, Any], key: str) -> dict[str, Any]:
    """What a bus makes of an event that is published to it."""
    again = {"id": "new", "source": "oncegate", "detail-type": "event", "resources": [f"oncegate:{key}"]}
    return again | {"detail": envelope.get("detail", envelope)}


OTHERS = {"id": "e-1", "source": "crm", "detail-type": "case", "resources": [], "detail": {"case": 7}}
LOST = [
    pytest.param({"case": 7}, lambda key: put({"case": 7}, key), id="plain, over a bus"),
    pytest.param(CALL, lambda key: put(CALL, key), id="plain with an id, over a bus"),
    pytest.param(OTHERS, lambda key: put(OTHERS, key), id="an envelope, over another bus"),
    pytest.param(OTHERS, lambda key: {"case": 7, "oncegate-key": key}, id="InputPath"),
]


@pytest.mark.parametrize(("payload", "form"), LOST)
class TestCarriedKey:
    def test_found_by_the_carried_key(self, gate: Gate, effects: Effects, payload: Any, form: Any) -> None:
        """If the published event has lost what its key is made of, the carried key finds the record. The event runs
        once, and a copy that came directly to the queue is a duplicate."""
        sink = Sink("eventbridge://bus?region=eu-central-1")
        published = form(str(gate.run(payload, sink).key))
        handler = gate.lambda_handler(effects)
        for _ in range(2):
            for body in (published, payload):
                assert handler({"Records": [message(body)]}, None) == {"batchItemFailures": []}
        assert len(effects) == 1
        assert gate.run(payload, sink).status == "duplicate"

    def test_not_over_http(self, gate: Gate, effects: Effects, payload: Any, form: Any) -> None:
        """A carried key in an HTTP request is not believed: the request is an event of its own."""
        published = form(str(gate.run(payload, Sink()).key))
        own = [each.status for each in gate.run_batch([published], effects)]
        assert (own, effects) == (["processed"], [str(keys.auto(read(published)[0]))])
        request = {"httpMethod": "POST", "requestContext": {}, "body": json.dumps(published)}
        answer = gate.lambda_handler(effects)(request, None)
        assert json.loads(answer["body"])["status"] == "duplicate"
        assert len(effects) == 1

    def test_another_namespace(self, gate: Gate, effects: Effects, payload: Any, form: Any) -> None:
        """In a namespace without a record of the carried key, the event has the key of the strategy there."""
        published = form(str(gate.run(payload, Sink()).key))
        other = Gate(gate.store, namespace="other", key=keys.content)
        other.lambda_handler(effects)({"Records": [message(published)]}, None)
        assert effects == [str(keys.content(read(published)[0]))]


def test_only_the_carried_key(gate: Gate, effects: Effects) -> None:
    """An event without the parts of its key is identified by the carried key."""
    by_id = Gate(gate.store, key=keys.event_id)
    published = by_id.run(OTHERS, Sink())
    handler = by_id.lambda_handler(effects)
    bare = message({"case": 7}, str(published.key))
    assert [handler({"Records": [bare]}, None) for _ in range(2)] == [{"batchItemFailures": []}] * 2
    assert len(effects) == 1
    assert by_id.run(bare, effects).status == "invalid"


def test_a_key_function_that_raises(gate: Gate, effects: Effects) -> None:
    """If the key function raises, the event is also identified by the carried key. It does not run without a claim."""

    def key(_event: Event) -> str:
        raise ValueError("no such field")

    published = gate.run(OTHERS, Sink())
    handler = Gate(gate.store, key=key, on_missing_key="unguarded").lambda_handler(effects)
    for _ in range(2):
        assert handler({"Records": [message({"case": 7}, str(published.key))]}, None) == {"batchItemFailures": []}
    assert len(effects) == 1


# ── a crash between the two ───────────────────────────────────────────────────────────────────────────────

DYING = """
import os, sys
from oncegate import Gate

class Sink:
    publishes_to = "sqs://q?region=eu-central-1"

    def __call__(self, event):
        with open("sent", "a") as queue:
            queue.write(f"{event.key}\\n")
        os.kill(os.getpid(), 9)

Gate(sys.argv[1], lease="300ms").run({"id": "evt-1", "type": "call.ended"}, Sink())
"""


@pytest.mark.parametrize(("kind", "published_again"), [("sqlite", False), ("sqlite", True), ("redis", True)])
def test_killed_after_sending(
    request: pytest.FixtureRequest, tmp_path: Path, effects: Effects, kind: str, published_again: bool
) -> None:
    """A publisher dies between sending and completing: the message is in flight until its lease ends, and then takes
    effect once, whether it is published again or not."""
    url = url_of(kind, request, tmp_path)
    subprocess.run([sys.executable, "-c", DYING, url], cwd=tmp_path, check=False, timeout=30)
    (key,) = (tmp_path / "sent").read_text().split()
    sink, sent = Sink(), [message(CALL, key)]
    with closing(Gate(url)) as gate:
        while (first := gate.run(CALL, sink if published_again else effects)).status == "in_flight":
            time.sleep(0.05)
        assert first.status == "processed"
        statuses(gate, [*sent, *sink.sent, CALL, *sent], effects)
        assert gate.run(CALL, sink).status == "duplicate"
    assert (len(effects), len(sink.sent)) == (1, published_again)


@pytest.mark.parametrize("straight_first", [False, True])
def test_emissions_of_one_change(gate: Gate, effects: Effects, straight_first: bool) -> None:
    """Emissions of one change, with other ids and content, are one event at both ends."""
    emissions = [
        {"id": name, "type": "call.ended", "conversationId": "c-1", "timestamp": f"2026-02-03T04:05:06.{name}00Z"}
        for name in "123"
    ]
    by_change, sink = Gate(gate.store, key=keys.state_change("500ms")), Sink()
    if straight_first:
        statuses(by_change, emissions[:1], effects)
    for payload in emissions:
        by_change.run(payload, sink)
    statuses(by_change, [*reversed(emissions), *sink.sent], effects)
    for payload in (*emissions, *sink.sent):
        assert by_change.run(payload, effects).status == "duplicate"
    assert (len(effects), len(sink.sent)) == (1, not straight_first)
