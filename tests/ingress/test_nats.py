"""A worker on a stream of a NATS server: effects, attempts, dead letters, evidence and outages."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy

from oncegate import Event, Gate
from oncegate.buses import nats as buses_nats
from oncegate.buses.nats import NatsAddress
from oncegate.errors import QueueError, RetryLater, SettingError
from oncegate.gate import Notice
from oncegate.gate.observers import outcome_of
from oncegate.journal import open_journal
from tests.ingress.guide_commands import publishing
from tests.ingress.nats_server import NatsServer, Stream
from tests.ingress.sqs.queues import Handler, call, working
from tests.stores.servers import until


@pytest.fixture
def stream(nats: NatsServer) -> Stream:
    return nats.stream()


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("nats://h/events", "the URL has no name of a NATS consumer; write 'nats://HOST:PORT/STREAM?consumer=NAME'"),
        ("nats://h?consumer=crm", "the URL has no name of a NATS stream"),
        ("nats://h/a.b?consumer=crm", "'a.b' is not the name of a NATS stream"),
        ("nats:///events?consumer=crm", "has no host"),
        ("nats://h:x/events?consumer=crm", "the host or the port of the NATS URL is not valid"),
        ("nats://h/events?consumer=crm&ca=/ca.pem", "the option ca of a NATS URL is for TLS; write 'nats+tls://"),
        ("nats://h/events?consumer=crm&token_file=/no/such", "names a file that cannot be used: /no/such"),
        ("nats://h/events?consumer=crm&colour=red", "unknown option 'colour' in a NATS URL; use consumer,"),
    ],
)
def test_an_invalid_address(url: str, problem: str) -> None:
    """An invalid URL is rejected when the worker is created, with what to write instead."""
    with pytest.raises(SettingError) as rejected:
        Gate("memory://").worker(url, print)
    assert problem in str(rejected.value)


# ── set-ups that would lose events ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"max_deliver": 3}, "delivers a message only 3 times and then never again"),
        ({"ack_policy": AckPolicy.NONE}, "has the ack policy none; set it to explicit"),
        ({"headers_only": True}, "delivers messages without their bodies; set its headers_only to false"),
        ({"deliver_subject": "there"}, "pushes messages; use a pull consumer"),
    ],
)
def test_a_consumer_that_could_lose_events(stream: Stream, config: dict[str, Any], problem: str) -> None:
    """A consumer that does not deliver until an acknowledgement is refused at the start."""
    stream.add_consumer(**{"ack_policy": AckPolicy.EXPLICIT, **config})
    with pytest.raises(QueueError, match=problem):
        Gate("memory://").worker(stream.source, print).run()


def test_no_such_stream(nats: NatsServer) -> None:
    """A stream that does not exist is an error at the start."""
    with pytest.raises(QueueError, match="the NATS stream none does not exist; create it first"):
        Gate("memory://").worker(f"nats://127.0.0.1:{nats.port}/none?consumer=crm", print).run()


def test_no_server() -> None:
    """A server that does not answer at the start is an error, within seconds."""
    with pytest.raises(QueueError, match=r"cannot be used at 127\.0\.0\.1:1"):
        Gate("memory://").worker("nats://127.0.0.1:1/events?consumer=crm", print).run()


def test_a_short_ack_wait(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    """A consumer whose ack_wait is shorter than the lease is used, with a warning."""
    stream.add_consumer(ack_policy=AckPolicy.EXPLICIT, ack_wait=5)
    gate = Gate("memory://")
    with working(gate.worker(stream.source, Handler())):
        until(lambda: "is shorter than the lease (30 s)" in caplog.text, "the warning")
    gate.close()


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────


def test_copies_run_once(stream: Stream) -> None:
    """Copies of an event run once, and every message is acknowledged."""
    stream.send(*[call(number % 10) for number in range(30)])
    handler, gate = Handler(), Gate("memory://")
    worker = gate.worker(stream.source, handler)
    with working(worker):
        stream.until_empty()
    assert sorted(handler.ran) == list(range(10))
    figures = worker.figures
    assert (figures.received, figures.processed, figures.duplicates, figures.failed) == (30, 10, 20, 0)
    gate.close()


def test_the_evidence_of_a_message(stream: Stream) -> None:
    """The id of the publisher, the number of deliveries and the key of a publishing gate are evidence."""
    found: list[Event] = []
    stream.send({"id": "evt-1"}, Nats_Msg_Id="m-7", oncegate_key="0" * 32)
    stream.send({"id": "evt-2"})
    gate = Gate("memory://")
    with working(gate.worker(stream.source, found.append)):
        stream.until_empty()
    first, second = sorted(found, key=lambda event: event.id or "")
    assert (first.evidence.message_id, first.evidence.receive_count) == ("m-7", 1)
    assert first.evidence.handed_key == "0" * 32
    assert second.evidence.message_id == f"{stream.name}:2"
    assert second.evidence.sent_at is not None
    gate.close()


def test_a_message_that_is_delivered_again(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of deliveries counts also those after a failure. If an acknowledgement is lost, the message is
    delivered again, and its event is a duplicate of the kind redelivery."""
    receives: list[int | None] = []
    kinds: list[str | None] = []
    acknowledge, lost = Msg.ack, iter([True])

    def handler(event: Event) -> None:
        receives.append(event.evidence.receive_count)
        if len(receives) == 1:
            raise RetryLater("again", after=0.1)

    def observe(notice: Notice) -> None:
        if (outcome := outcome_of(notice)) is not None and outcome.status == "duplicate":
            kinds.append(outcome.kind)

    async def lose(message: Msg) -> None:
        if not next(lost, False):
            await acknowledge(message)

    monkeypatch.setattr(Msg, "ack", lose)
    stream.send({"id": "evt-1"})
    gate = Gate("memory://", observers=[observe])
    with working(gate.worker(stream.source, handler, visibility="1s")):
        stream.until_empty()
    assert (receives, kinds) == ([1, 2], ["redelivery"])
    gate.close()


def test_a_cloud_event(stream: Stream) -> None:
    """A CloudEvent in binary mode has its attributes in the headers, in structured mode in the body."""
    found: list[Event] = []
    attributes = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/crm", "ce-type": "case.opened"}
    stream.send({"case": 1}, **attributes, content_type="application/json")
    stream.send({"specversion": "1.0", "id": "2", "source": "/crm", "type": "case.opened", "data": {"case": 2}})
    gate = Gate("memory://")
    with working(gate.worker(stream.source, found.append)):
        stream.until_empty()
    events = sorted(found, key=lambda event: event.id or "")
    assert [(event.source, event.id, event.type) for event in events] == [
        ("cloudevents", "1", "case.opened"),
        ("cloudevents", "2", "case.opened"),
    ]
    gate.close()


def test_a_long_handler_keeps_its_message(stream: Stream) -> None:
    """A handler that takes longer than ack_wait runs once: the message is renewed while it runs."""
    stream.send(call(1, takes=3))
    handler, gate = Handler(), Gate("memory://")
    worker = gate.worker(stream.source, handler, visibility="1s")
    with working(worker):
        stream.until_empty()
    assert handler.ran == [1]
    assert worker.figures.received == 1
    gate.close()


def test_stop_returns_messages(stream: Stream) -> None:
    """A worker that stops returns what it has not run. Another worker gets it at once."""
    stream.send(*[call(number, "c-1", takes=1) for number in range(3)])
    gate, ran = Gate("memory://"), Handler()
    with working(gate.worker(stream.source, ran)):
        until(lambda: bool(ran.ran), "the first event")
    began, rest = time.monotonic(), Handler()
    with working(gate.worker(stream.source, rest)):
        stream.until_empty()
    assert time.monotonic() - began < 15
    assert sorted(ran.ran + rest.ran) == [0, 1, 2]
    gate.close()


# ── faults ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_server_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server that restarts is told once when it is away and once when it is back, and no message is lost."""
    server = NatsServer(tmp_path)
    try:
        stream, handler, gate = server.stream(), Handler(), Gate("memory://")
        with working(gate.worker(stream.source, handler)):
            stream.send(call(1))
            stream.until_empty()
            server.kill()
            until(lambda: "is lost; nothing is received until this ends" in caplog.text, "the beginning")
            server.start()
            server.wait()
            until(lambda: "answers again, after" in caplog.text, "the end")
            stream.send(call(2))
            until(lambda: handler.ran == [1, 2], "the second event")  # the kill may undo the first's acknowledgement
        gate.close()
    finally:
        server.stop()
    assert handler.ran == [1, 2]
    assert caplog.text.count("nothing is received") == caplog.text.count("answers again") == 1


def test_a_connection_that_the_server_ends(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the server ends the connection with an error, such as a login that has expired, the client does not connect
    again. So the worker ends with the reason."""
    expiring: list[asyncio.Task[None]] = []

    async def connect(address: NatsAddress, **callbacks: Any) -> Client:
        client = await buses_nats.connect(address, **callbacks)
        asyncio.get_running_loop().call_later(0.2, expire, client)
        return client

    def expire(client: Client) -> None:
        expiring.append(asyncio.create_task(client._process_err("'User Authentication Expired'")))

    monkeypatch.setattr("oncegate.ingress.nats.connect", connect)
    with closing(Gate("memory://")) as gate, pytest.raises(QueueError) as ended:
        gate.worker(stream.source, Handler()).run()
    assert "has ended the connection (User Authentication Expired); check the user" in str(ended.value)


def test_nothing_is_kept_for_a_server_that_is_away(tmp_path: Path) -> None:
    """While the server is away, the worker requests no messages, which would all arrive at once later. It does not
    count a message as renewed: another worker may get it, so no event of it starts."""
    server = NatsServer(tmp_path)
    try:
        stream, handler, gate = server.stream(), Handler(), Gate("memory://")
        stream.send([call(1, "c-1", takes=4), call(2, "c-1")])
        worker = gate.worker(stream.source, handler, visibility="1s", wait="1s")
        with working(worker):
            until(lambda: handler.ran == [1], "the first event")
            server.kill()
            until(lambda: worker.figures.processed >= 1, "the end of its handler")
            time.sleep(2)
            assert handler.ran == [1]
            server.restart("-DV")
            until(lambda: "CONSUMER.MSG.NEXT" in server.log, "a request")
            time.sleep(0.3)
            assert server.log.count("[PUB $JS.API.CONSUMER.MSG.NEXT") <= 2
            stream.until_empty()
        assert handler.ran == [1, 2]
        gate.close()
    finally:
        server.stop()


def test_a_deleted_consumer_ends_the_worker(stream: Stream) -> None:
    """A worker whose consumer was deleted ends with an error, and does not wait for ever."""

    async def delete(_event: Event) -> None:
        await asyncio.to_thread(stream.call, lambda js: js.delete_consumer(stream.name, "crm"))

    stream.send(call(1))
    with pytest.raises(QueueError, match="was deleted"):
        Gate("memory://").worker(stream.source, delete).run()


def test_the_command(stream: Stream, tmp_path: Path) -> None:
    """`oncegate work` runs the messages of the source that a variable names, logs each outcome, and drains on SIGTERM.
    The password of the source is in no output."""
    (tmp_path / "app.py").write_text("def handle(event): pass\n")
    stream.send({"id": "evt-1"}, {"id": "evt-1"})
    command = [sys.executable, "-m", "oncegate", "work", "--handler", "app:handle"]
    environ = os.environ | {"ONCEGATE_WORK_SOURCE": stream.source.replace("://", "://ann:hunter2@")}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        stream.until_empty()
    finally:
        process.terminate()
        out, err = process.communicate(timeout=40)
    assert process.returncode == 0, err
    assert sorted(json.loads(line)["status"] for line in out.splitlines()) == ["duplicate", "processed"]
    assert "starts a worker of nats://ann:***@" in err
    assert "hunter2" not in out + err


GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "nats.md").read_text()


def test_the_journal_of_an_invalid_message(stream: Stream, tmp_path: Path) -> None:
    """The row of an invalid message names its dead letter, so that it is one event for people."""
    (tmp_path / "app.py").write_text("def handle(event): pass\n")
    stream.send(b"not json")
    command = [sys.executable, "-m", "oncegate", "work", stream.source, "--handler", "app:handle", "--log", "off"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        stream.until_empty()
    finally:
        process.terminate()
        process.communicate(timeout=40)
    with closing(open_journal(f"sqlite:///{tmp_path}/oncegate.journal.db", create=False)) as journal:
        (row,) = journal.rows()
    assert (row.status, bool(row.kept), row.place) == ("invalid", True, stream.source.partition("?")[0])


def test_the_guide(nats: NatsServer, tmp_path: Path) -> None:
    """The program of the guide creates a stream, and its command and its handler run the messages of the stream."""
    handler, program = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    (setup,) = re.findall(r"^    python (.*)$", GUIDE, re.MULTILINE)
    (command,) = re.findall(r"^    (oncegate work .*)$", GUIDE, re.MULTILINE)
    (tmp_path / "app.py").write_text(handler)
    assert '"nats://127.0.0.1:4222"' in program
    (tmp_path / setup).write_text(program.replace("127.0.0.1:4222", f"127.0.0.1:{nats.port}"))
    done = subprocess.run([sys.executable, setup], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    stream = Stream(nats, "events")  # fails if the program has created another stream of this name
    stream.send({"id": "evt-1"})
    assert "'nats://127.0.0.1:4222/events?consumer=crm'" in command
    words = shlex.split(command.replace("nats://127.0.0.1:4222/events?consumer=crm", stream.source))
    process = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        stream.until_empty()
    finally:
        process.terminate()
        out, err = process.communicate(timeout=40)
    assert (process.returncode, json.loads(out)["status"]) == (0, "processed"), err


def test_the_guide_publishes(stream: Stream, tmp_path: Path) -> None:
    """The command of the guide sends a webhook to the stream."""
    places = {"127.0.0.1:4222/events": stream.base.removeprefix("nats://"), "events.calls": f"{stream.name}.calls"}
    with publishing(GUIDE, tmp_path, places):
        until(lambda: stream.left() == 2, "the message")  # there is no consumer
