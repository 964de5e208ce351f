"""Unavailability: a stored event whose handler calls something unavailable is retried for long, without using up
attempts."""

import asyncio
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import botocore.session
import httpx
import httpx2
import pytest
import requests
from botocore.config import Config

from oncegate import Event, Gate
from oncegate.durations import microseconds
from oncegate.errors import Bury, HandlerTimeout, RetryLater
from oncegate.gate.handlers import is_unavailable
from oncegate.gate.observers import Notice
from oncegate.sinks import forward
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.gate.conftest import until
from tests.ingress.test_inbox import call, working


def raised_from(cause: BaseException) -> Exception:
    error = ValueError("as a client says it")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "unavailable"),
    [
        (ConnectionRefusedError(), True),
        (BrokenPipeError(), True),
        (TimeoutError(), True),
        (RetryLater("busy"), True),
        (raised_from(raised_from(ConnectionResetError())), True),
        (ValueError("boom"), False),
        (OSError(28, "no space"), False),
        (Bury("never"), False),
        (HandlerTimeout("too long"), False),
        (raised_from(HandlerTimeout("too long")), False),
    ],
)
def test_is_unavailable(error: BaseException, unavailable: bool) -> None:
    """Failed connections, timeouts, RetryLater and exceptions raised from them count; a handler timeout does not."""
    assert is_unavailable(error) is unavailable


def by_urllib(url: str) -> Any:
    return urllib.request.urlopen(url, timeout=0.3)  # noqa: S310  # a server of the test


def by_requests(url: str) -> Any:
    with requests.Session() as session:
        session.get(url, timeout=0.3).raise_for_status()


def by_httpx(url: str) -> Any:
    httpx.get(url, timeout=0.3, trust_env=False).raise_for_status()


def by_httpx2(url: str) -> Any:
    httpx2.get(url, timeout=0.3, trust_env=False).raise_for_status()


def by_botocore(url: str) -> Any:
    once = Config(retries={"total_max_attempts": 1}, connect_timeout=0.3, read_timeout=0.3)
    account = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    session = botocore.session.get_session()
    session.create_client("sqs", "eu-central-1", endpoint_url=url, config=once, **account).list_queues()


class Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(int(self.path.rpartition("/")[2]))
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Keep the output of the tests clean."""


def caught(call: Callable[[str], Any], url: str) -> Exception:
    with pytest.raises(Exception) as found:  # noqa: PT011  # which it is, is the client's to say
        call(url)
    if isinstance(found.value, urllib.error.HTTPError):
        found.value.close()
    return found.value


@pytest.mark.parametrize("call", [by_urllib, by_requests, by_httpx, by_httpx2, by_botocore])
def test_client_without_an_answer(call: Callable[[str], Any]) -> None:
    """A refused connection and a timeout are unavailability, with every HTTP client."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert is_unavailable(caught(call, url))
    assert is_unavailable(caught(call, url))


@pytest.mark.parametrize("call", [by_urllib, by_requests, by_httpx, by_httpx2])
def test_client_with_an_error(call: Callable[[str], Any]) -> None:
    """429 and 5xx are unavailability, other errors are not."""
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        found = {code: is_unavailable(caught(call, f"{url}/{code}")) for code in (400, 404, 429, 500, 503)}
        server.shutdown()
        thread.join()
    assert found == {400: False, 404: False, 429: True, 500: True, 503: True}


class Failing:
    def __init__(self, error: Exception) -> None:
        self.error = error
        self.attempts: list[int] = []

    def __call__(self, event: Event) -> None:
        self.attempts.append(event.attempt)
        raise self.error


def gate_with_an_event(clock: ManualClock, **options: Any) -> Gate:
    gate = Gate(MemoryStore(clock=clock), boot=clock, **options)
    gate.admit([{"id": "evt-1"}])
    return gate


def record(gate: Gate) -> Any:
    (entry,) = gate.store.browse()
    return entry.record


def test_retry_for(clock: ManualClock) -> None:
    """The event is retried for `retry_for`, with pauses that grow from `backoff` to `backoff_limit`; then it is a dead
    letter whose reason has the time."""
    gate, handler = gate_with_an_event(clock, backoff_limit="1m"), Failing(ConnectionRefusedError("down"))
    begun, pauses = clock.now, []
    while not (outcomes := gate.run_waiting(handler)) or outcomes[0].status == "failed":
        if outcomes:
            assert (record(gate).attempts, record(gate).unavailable_since) == (0, begun)
            past, pause = clock.now - begun, record(gate).lease_until - clock.now
            bound = min(max(past, 1_000_000), 60_000_000)
            assert bound / 2 <= pause <= bound or past + pause == microseconds("1h")
            pauses.append(pause)
        clock.advance("500ms")
    assert set(handler.attempts) == {1}
    assert len(pauses) > 60
    assert microseconds("1h") <= clock.now - begun < microseconds("1h") + 2_000_000
    over = "; retried for 1 h, and retry_for is 1 h"
    assert (record(gate).state, record(gate).error) == ("D", f"ConnectionRefusedError: down{over}")
    assert outcomes[0].discreet.endswith(f"ConnectionRefusedError{over}.")


def test_other_failures_are_counted(clock: ManualClock) -> None:
    """Other failures use up attempts between times of unavailability, and end the current one."""
    gate = gate_with_an_event(clock, max_attempts=2)
    errors: list[Exception] = [TimeoutError(), ValueError(), RetryLater("busy"), RetryLater("busy"), ValueError()]
    seen = []
    for error in errors:
        (outcome,) = gate.run_waiting(Failing(error))
        seen.append((outcome.status, record(gate).attempts, record(gate).unavailable_since is not None))
        clock.advance("10m")
    failed = [("failed", 0, True), ("failed", 1, False), ("failed", 1, True), ("failed", 1, True)]
    assert seen == [*failed, ("buried", 2, True)]


def test_off(clock: ManualClock) -> None:
    """With retry_for=None unavailability counts like any failure."""
    gate, handler = gate_with_an_event(clock, max_attempts=2, retry_for=None), Failing(ConnectionError())
    gate.run_waiting(handler)
    clock.advance("1m")
    (outcome,) = gate.run_waiting(handler)
    assert (outcome.status, handler.attempts) == ("buried", [1, 2])


def test_retry_later_with_a_time(clock: ManualClock) -> None:
    """RetryLater with a time delays the next attempt until then."""
    gate = gate_with_an_event(clock)
    (outcome,) = gate.run_waiting(Failing(RetryLater("busy", after=600)))
    assert record(gate).lease_until - clock.now == 600_000_000
    assert "for another 1 h at most, retries use up no attempt" in outcome.reason
    assert "in 10 m at the earliest" in outcome.reason


def test_event_that_is_not_stored(clock: ManualClock) -> None:
    """If the sender delivers again, every failure is an attempt."""
    gate = Gate(MemoryStore(clock=clock), max_attempts=2)
    outcomes = [gate.run({"id": 1}, Failing(ConnectionError())) for _ in range(2)]
    assert [outcome.status for outcome in outcomes] == ["failed", "buried"]


def test_receiver_started_late() -> None:
    """Events that are forwarded to an address where nothing listens are not lost if the receiver starts after the time
    of five attempts; the log names the event that its entity waits for."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    got: list[str] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(str(self.headers["Idempotency-Key"]))
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_said: Any) -> None: ...

    notices: list[Notice] = []
    gate = Gate("memory://", backoff="10ms", backoff_limit="20ms", max_attempts=2, observers=[notices.append])
    gate.admit([call(1, second=1), call(2, second=2)])

    async def then(_worker: Any) -> None:
        await until(lambda: gate.counts.get("event.failed", 0) >= 5)
        server = HTTPServer(("127.0.0.1", port), Receiver)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            await until(lambda: gate.counts.get("event.processed") == 2)
        finally:
            await asyncio.to_thread(server.shutdown)
            server.server_close()

    working(gate, forward(f"http://127.0.0.1:{port}/events", allow_private=True), then)
    assert len(got) == 2
    failed = [notice.outcome for notice in notices if notice.name == "event.failed" and notice.outcome is not None]
    assert {outcome.event.id for outcome in failed} == {"evt-1"}
    assert all("later events of its entity wait for it" in outcome.discreet for outcome in failed)
