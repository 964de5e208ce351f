"""Publishing to a stream of a NATS server."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StreamConfig

from oncegate import Event, Gate
from oncegate.errors import Bury, RetryLater, SettingError
from oncegate.sinks import publish
from oncegate.sinks.nats import read_destination
from tests.ingress.nats_server import NatsServer, Stream
from tests.ingress.sqs.queues import Handler, call, working
from tests.sinks.conftest import To, succeeds_in_child
from tests.stores.servers import until

EVENT = Event(source="plain", body={"id": "1"}, raw=b'{"id": "1"}')


@pytest.fixture
def stream(nats: NatsServer) -> Stream:
    return nats.stream()


def stored(stream: Stream) -> list[Any]:
    """The messages of a stream."""

    async def every(js: JetStreamContext) -> list[Any]:
        last = (await js.stream_info(stream.name)).state.last_seq
        return [await js.get_msg(stream.name, number) for number in range(1, last + 1)]

    return stream.call(every)


def test_sent_once(stream: Stream, to: To) -> None:
    """The message is the JSON of the event. Its headers have the key, the source, the type and the attempt. A copy of
    the event sends no message."""
    body = b'{ "id": "evt-1", "type": "call.ended" }'
    outcomes = Gate("memory://").run_batch([body, body], to(stream.target))
    assert [outcome.status for outcome in outcomes] == ["processed", "duplicate"]
    (message,) = stored(stream)
    assert message.data == body
    assert message.headers == {
        "oncegate-key": str(outcomes[0].key),
        "oncegate-source": "plain",
        "oncegate-type": "call.ended",
        "oncegate-attempt": "1",
        "Nats-Msg-Id": str(outcomes[0].key),
        "Nats-Expected-Stream": stream.name,
    }


def test_sent_twice_is_stored_once(stream: Stream, to: To) -> None:
    """A second attempt, after a crash before the completion, is the same message for JetStream."""
    handler = to(stream.target)
    outcome = Gate("memory://").run({"id": "evt-1"}, handler)
    handler(outcome.event)
    assert len(stored(stream)) == 1


def test_hostile_text(stream: Stream, to: To) -> None:
    """A line break in the type adds no header."""
    hostile = {"id": "evt-1", "type": "a\r\nNats-Msg-Id: x\r\n\r\nü%"}
    outcome = Gate("memory://").run(hostile, to(stream.target))
    (message,) = stored(stream)
    assert message.headers["oncegate-type"] == "a%0D%0ANats-Msg-Id: x%0D%0A%0D%0A%C3%BC%25"
    assert message.headers["Nats-Msg-Id"] == str(outcome.key)


def test_publish_and_work_on_one_store(stream: Stream, tmp_path: Path) -> None:
    """A gate that publishes and a worker of the stream share a store. Each event has one effect, whether its copies
    arrive at the publisher or in the stream."""
    sink: Any = publish(stream.target)
    handler = Handler()
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db")) as gate, closing(sink):
        with working(gate.worker(stream.source, handler)):
            outcomes = gate.run_batch([call(1), call(2), call(1)], sink)
            assert [outcome.status for outcome in outcomes] == ["processed", "processed", "duplicate"]
            stream.send(call(2), call(3))
            stream.until_empty()
            until(lambda: len(handler.ran) == 3, "three effects")
            assert gate.run(call(3), sink).status == "duplicate"
        assert sorted(handler.ran) == [1, 2, 3]


def test_no_such_subject(stream: Stream, to: To) -> None:
    """A subject that belongs to no stream is a failure, and the message says what to do. The event is not buried."""
    with pytest.raises(RetryLater, match="no stream has this subject; create the stream, or correct the URL"):
        to(f"{stream.base}?subject=nobody.has.it")(EVENT)


def test_another_stream(nats: NatsServer, stream: Stream, to: To) -> None:
    """A subject of another stream is a failure: the worker of the named stream would never get the event."""
    other = nats.stream()
    with pytest.raises(RetryLater, match="the subject belongs to another stream; correct the URL"):
        to(f"{stream.base}?subject={other.name}.calls")(EVENT)
    assert stored(other) == []


def test_too_large(stream: Stream, to: To) -> None:
    """An event that is too large for the server or the stream is buried at once."""
    handler = to(stream.target)
    with pytest.raises(Bury, match="rejects this event"):
        handler(Event(source="plain", body=None, raw=b"1" * 1_100_000))
    stream.call(lambda js: js.update_stream(name=stream.name, subjects=[f"{stream.name}.>"], max_msg_size=100))
    with pytest.raises(Bury, match=r"rejects this event \(message size exceeds maximum allowed\)"):
        handler(Event(source="plain", body=None, raw=b"1" * 1_000))


def test_a_full_stream(stream: Stream, to: To) -> None:
    """A stream that discards new messages has stored nothing: the event is retried."""
    config = StreamConfig(stream.name, subjects=[f"{stream.name}.>"], max_msgs=1, discard=DiscardPolicy.NEW)
    stream.call(lambda js: js.update_stream(config))
    handler, gate = to(stream.target), Gate("memory://")
    assert gate.run(call(1), handler).status == "processed"
    outcome = gate.run(call(2), handler)
    assert outcome.status == "failed"
    assert "maximum messages exceeded" in outcome.reason


def test_the_server_is_away(tmp_path: Path, to: To) -> None:
    """While the server is away, an event fails and is not kept by the client. Afterwards it is sent once."""
    server = NatsServer(tmp_path)
    try:
        stream, gate = server.stream(), Gate("memory://", max_attempts=10_000)
        handler = to(stream.target)
        assert gate.run(call(1), handler).status == "processed"
        server.kill()
        until(lambda: "(the connection is lost)" in gate.run(call(2), handler).reason, "the loss")
        server.start()
        server.wait()
        until(lambda: gate.run(call(2), handler).status == "processed", "the server")
        assert len(stored(stream)) == 2
    finally:
        server.stop()


def test_no_server(to: To) -> None:
    """A server that was never there is a failure of the event, told within the timeout."""
    with pytest.raises(RetryLater, match="did not confirm the message"):
        to("nats://127.0.0.1:1/events?subject=calls&timeout=1s")(EVENT)


def test_a_file_that_is_missing_for_a_while(stream: Stream, to: To, tmp_path: Path) -> None:
    """A token file that is missing when the publisher connects is an outage. No attempt is used up."""
    (tmp_path / "token").write_text("t0ken")
    handler = to(f"{stream.target}&token_file={tmp_path}/token")
    (tmp_path / "token").rename(tmp_path / "away")
    with pytest.raises(RetryLater, match="names a file that cannot be used"):
        handler(EVENT)
    (tmp_path / "away").rename(tmp_path / "token")
    handler(EVENT)
    assert len(stored(stream)) == 1


def test_after_a_fork(stream: Stream, to: To) -> None:
    """A forked child uses a connection of its own."""
    handler = to(stream.target)
    handler(EVENT)
    assert succeeds_in_child(lambda: handler(EVENT))
    handler(EVENT)
    assert len(stored(stream)) == 3


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("nats://h/events", "the URL has no subject to publish to; write 'nats://HOST"),
        ("nats://h/events?subject=calls.*", r"'calls.\*' is not a NATS subject"),
        ("nats://h?subject=calls", "the URL has no name of a NATS stream"),
        ("nats://h/events?subject=calls&consumer=crm", "unknown option 'consumer' in a NATS URL; use subject, timeout"),
        ("nats://h/events?subject=calls&timeout=no", "timeout"),
        ("nats://h/events?subject=calls&token_file=/no/such", "names a file that cannot be used"),
    ],
)
def test_an_invalid_destination(url: str, problem: str) -> None:
    """An invalid URL is rejected when the handler is created."""
    with pytest.raises(SettingError, match=problem):
        publish(url)


def test_one_spelling_of_a_destination() -> None:
    """A destination has one spelling in records, without secrets."""
    place = read_destination("nats://ann:secret@h:5/events?subject=calls.ended&timeout=2s")
    assert place.canonical == "nats://events?subject=calls.ended"
    assert "secret" not in place.spoken
