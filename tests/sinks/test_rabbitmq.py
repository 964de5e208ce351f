"""Publishing to a queue and to an exchange of RabbitMQ."""

import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aio_pika.abc import AbstractChannel

from oncegate import Event, Gate
from oncegate.errors import Bury, RetryLater, SettingError
from oncegate.sinks import publish
from oncegate.sinks.rabbitmq import read_destination
from tests.ingress.rabbit_server import LARGEST, Rabbit, RabbitQueue
from tests.ingress.sqs.queues import call
from tests.sinks.conftest import To, succeeds_in_child
from tests.sinks.receiver import CERTIFICATES
from tests.stores.proxy import Proxy

EVENT = Event(source="plain", body={"id": "1"}, raw=b'{"id": "1"}')


@pytest.fixture
def queue(rabbit: Rabbit) -> RabbitQueue:
    return rabbit.queue()


def test_sent_once(queue: RabbitQueue, to: To) -> None:
    """The message is the JSON of the event, and persistent. Its id is the key. Its headers have the key, the source,
    the type and the attempt. A copy of the event sends no message."""
    body = b'{ "id": "evt-1", "type": "call.ended" }'
    outcomes = Gate("memory://").run_batch([body, body], to(queue.target))
    assert [outcome.status for outcome in outcomes] == ["processed", "duplicate"]
    (message,) = queue.received()
    assert (message.body, message.content_type, message.delivery_mode) == (body, "application/json", 2)
    assert message.message_id == str(outcomes[0].key)
    assert message.headers.pop("x-delivery-count") == 0  # the quorum queue adds it
    assert message.headers == {
        "oncegate-key": str(outcomes[0].key),
        "oncegate-source": "plain",
        "oncegate-type": "call.ended",
        "oncegate-attempt": "1",
    }


def test_hostile_text(queue: RabbitQueue, to: To) -> None:
    """Control characters in the type of an event are escaped in the header."""
    Gate("memory://").run({"id": "evt-1", "type": "a\r\nb\0ü%"}, to(queue.target))
    (message,) = queue.received()
    assert message.headers["oncegate-type"] == "a%0D%0Ab%00%C3%BC%25"


def test_an_exchange(rabbit: Rabbit, queue: RabbitQueue, to: To) -> None:
    """A message to an exchange goes to the queues that are bound to it by the routing key. Without such a queue, the
    event fails, and is not lost."""
    exchange = f"calls-{queue.name}"

    async def bind(channel: AbstractChannel) -> None:
        await channel.declare_exchange(exchange, "topic", durable=True)
        await (await channel.get_queue(queue.name)).bind(exchange, "calls.#")

    rabbit.call(bind)
    to(f"amqp://{rabbit.address}/?exchange={exchange}&routing_key=calls.ended")(EVENT)
    assert [message.routing_key for message in queue.received()] == ["calls.ended"]
    with pytest.raises(RetryLater, match="no queue takes the message; create the queue, or correct the URL"):
        to(f"amqp://{rabbit.address}/?exchange={exchange}&routing_key=chats.ended")(EVENT)


def test_no_such_queue(rabbit: Rabbit, to: To) -> None:
    """A message that no queue takes is a failure. The event is not buried, and the publisher goes on."""
    handler = to(f"amqp://{rabbit.address}/nobody-has-it")
    for _ in range(2):
        with pytest.raises(RetryLater, match="no queue takes the message"):
            handler(EVENT)


def test_copies_at_one_time(rabbit: Rabbit, to: To) -> None:
    """Two gates send one event through one publisher at one time. Neither counts as confirmed, because the queue does
    not exist."""
    handler = to(f"amqp://{rabbit.address}/nobody-has-it")
    together = threading.Barrier(4)

    def run(_number: int) -> str:
        gate = Gate("memory://")
        together.wait(10)
        return gate.run(call(1), handler).status

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(run, range(4))) == {"failed"}


def test_no_such_exchange(rabbit: Rabbit, to: To) -> None:
    """An exchange that does not exist is a failure, and the message names it."""
    with pytest.raises(RetryLater, match="no exchange 'none' in vhost '/'"):
        to(f"amqp://{rabbit.address}/?exchange=none")(EVENT)


def test_too_large(queue: RabbitQueue, to: To) -> None:
    """An event that is too large is buried at once. Events that are sent at the same time are retried: RabbitMQ closes
    the channel. The next event gets a new channel."""
    handler = to(queue.target)
    large = Event(source="plain", body=None, raw=b"1" * (LARGEST + 1))

    def send(event: Event) -> type[Exception] | None:
        try:
            handler(event)
        except (Bury, RetryLater) as error:
            return type(error)
        return None

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(send, [EVENT, EVENT, large, EVENT, EVENT, large, EVENT]))
    assert {results[2], results[5]} <= {Bury, RetryLater}
    assert Bury in {results[2], results[5]}
    assert Bury not in results[:2] + results[3:5] + results[6:]
    with pytest.raises(Bury, match=r"rejects this event \(it is too large\)"):
        handler(large)
    handler(EVENT)


def test_a_full_queue(rabbit: Rabbit, to: To) -> None:
    """A full queue that rejects messages has stored nothing: the event is retried."""
    queue = rabbit.queue("classic", x_max_length=1, x_overflow="reject-publish")
    handler, gate = to(queue.target), Gate("memory://")
    assert gate.run(call(1), handler).status == "processed"
    outcome = gate.run(call(2), handler)
    assert outcome.status == "failed"
    assert "RabbitMQ has rejected the message; the queue may be full" in outcome.reason
    assert queue.left() == 1


def test_the_answer_is_lost(queue: RabbitQueue, to: To) -> None:
    """The connection is lost before the confirmation. The event fails and is sent again, with the same id."""
    with closing(Proxy(queue.rabbit.port)) as proxy:
        gate = Gate("memory://", max_attempts=10)
        handler = to(f"amqp://127.0.0.1:{proxy.port}/{queue.name}")
        assert gate.run(call(1), handler).status == "processed"
        proxy.lose = b"evt-2"
        assert gate.run(call(2), handler).status == "failed"
        outcome = gate.run(call(2), handler)
        assert outcome.status == "processed"
        ids = [message.message_id for message in queue.received()]
        assert ids[1:] == [str(outcome.key)] * 2


def test_no_server(to: To) -> None:
    """A server that was never there is a failure of the event, told within the timeout."""
    with pytest.raises(RetryLater, match="did not confirm the message"):
        to("amqp://127.0.0.1:1/events?timeout=1s")(EVENT)


def test_a_wrong_password(rabbit: Rabbit, to: To) -> None:
    """A login that RabbitMQ refuses is a failure, and the message has no password."""
    with pytest.raises(RetryLater, match="ACCESS_REFUSED") as refused:
        to(f"amqp://guest:s3cret@{rabbit.address}/events")(EVENT)
    assert "s3cret" not in str(refused.value)


def test_a_file_that_is_missing_for_a_while(queue: RabbitQueue, to: To, tmp_path: Path) -> None:
    """A password file that is missing when the publisher connects is an outage. No attempt is used up."""
    (tmp_path / "password").write_text("guest")
    handler = to(f"{queue.target.replace('://', '://guest@')}?password_file={tmp_path}/password")
    (tmp_path / "password").rename(tmp_path / "away")
    with pytest.raises(RetryLater, match="names a file that cannot be used"):
        handler(EVENT)
    (tmp_path / "away").rename(tmp_path / "password")
    handler(EVENT)
    assert queue.left() == 1


def test_after_a_fork(queue: RabbitQueue, to: To) -> None:
    """A forked child uses a connection of its own."""
    handler = to(queue.target)
    handler(EVENT)
    assert succeeds_in_child(lambda: handler(EVENT))
    handler(EVENT)
    assert queue.left() == 3


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("amqp://h", "the URL has no name of a RabbitMQ queue; write 'amqp://HOST:PORT/QUEUE'"),
        ("amqp://h/q?exchange=e", "names a queue or an exchange, not both"),
        ("amqp://h/?routing_key=k", "with a routing key needs an exchange"),
        ("amqp://h/q?dead_letters=queue", "unknown option 'dead_letters' in a RabbitMQ URL; use exchange"),
        ("amqp://h/q?timeout=no", "timeout"),
        ("amqp://ann@h/q?password_file=/no/such", "names a file that cannot be used"),
    ],
)
def test_an_invalid_destination(url: str, problem: str) -> None:
    """An invalid URL is rejected when the handler is created."""
    with pytest.raises(SettingError, match=problem):
        publish(url)


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("amqp://ann:secret@h:5/events?timeout=2s", "amqp:///events"),
        ("amqps://h/a%2Fb?vhost=crm", "amqp:///a%2Fb?vhost=crm"),
        ("amqp://h/?routing_key=calls.ended&exchange=e", "amqp:///?exchange=e&routing_key=calls.ended"),
    ],
)
def test_one_spelling_of_a_destination(url: str, canonical: str) -> None:
    """A destination has one spelling in records, without secrets and without the server."""
    place: Any = read_destination(url)
    assert place.canonical == canonical
    assert "secret" not in place.spoken


def test_tls(queue: RabbitQueue, to: To) -> None:
    """`amqps` verifies the certificate of the server with the authority that the URL names, and not without it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem")
    with closing(Proxy(queue.rabbit.port, context)) as proxy:
        url = f"amqps://127.0.0.1:{proxy.port}/{queue.name}"
        to(f"{url}?ca={CERTIFICATES / 'ca.pem'}")(EVENT)
        with pytest.raises(RetryLater, match="certificate verify failed"):
            to(url)(EVENT)
    assert queue.left() == 1
