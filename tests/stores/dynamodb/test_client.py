"""Requests to DynamoDB: retries, timeouts, and errors as store errors."""

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from oncegate import open_store
from oncegate.claims import Complete
from oncegate.errors import StoreError, StoreRefused, StoreUnavailable
from oncegate.stores.dynamodb import DynamoStore
from oncegate.stores.dynamodb.client import DynamoClient
from oncegate.stores.dynamodb.settings import DynamoSettings
from oncegate.testing import ManualClock
from oncegate.testing.requests import (
    NAMESPACE,
    RETENTION,
    claim_of,
    complete,
    granted,
    stored,
)
from tests.stores.dynamo_server import REGION, DynamoServer, Wire, reply
from tests.stores.servers import free_port


@pytest.fixture
def store(dynamo_server: DynamoServer, table: str) -> Iterator[DynamoStore]:
    with closing(open_store(dynamo_server.url(table, timeout="1s"), clock=ManualClock())) as opened:
        assert isinstance(opened, DynamoStore)
        yield opened


TRANSIENT = [
    (400, "ProvisionedThroughputExceededException"),
    (400, "ThrottlingException"),
    (400, "RequestLimitExceeded"),
    (400, "TransactionConflictException"),
    (500, "InternalServerError"),
    (503, "ServiceUnavailable"),
]

NOT_RETRIED = [
    ("AccessDeniedException", "does not allow dynamodb:PutItem (who are you); docs/stores/dynamodb.md lists"),
    ("UnrecognizedClientException", "does not accept these AWS credentials"),
    ("ExpiredTokenException", "does not accept these AWS credentials"),
    ("InvalidSignatureException", "does not accept these AWS credentials"),
]


class TestRetries:
    """Transient errors are retried with a pause, until the timeout."""

    @pytest.mark.parametrize(("status", "code"), TRANSIENT)
    def test_a_short_outage(self, store: DynamoStore, wire: Wire, status: int, code: str) -> None:
        """A request that fails three times with a transient error is sent a fourth time."""
        answers = iter([reply(status, code)] * 3)
        wire.before = lambda _action: next(answers, None)
        assert granted(store).attempts == 1
        assert wire.sent == ["PutItem"] * 4

    def test_a_long_outage(self, store: DynamoStore, wire: Wire) -> None:
        """After the timeout of the URL the store is unavailable, and the message has the error of DynamoDB."""
        wire.before = lambda _action: reply(400, "ThrottlingException", "slow down")
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"throttled or failed the request \(Throttling.+: slow down\)"):
            granted(store)
        assert 0.4 < time.monotonic() - start < 2
        assert 4 <= len(wire.sent) <= 12

    def test_a_batch(self, store: DynamoStore, wire: Wire) -> None:
        """A batch of many keys fails as fast as a batch of few: after a failure no further key is started."""
        wire.before = lambda _action: reply(400, "ThrottlingException")
        start = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.claim([claim_of(key=number.to_bytes(16)) for number in range(500)])
        assert time.monotonic() - start < 4


class TestErrors:
    """An error that a retry does not fix is one sentence that says what to do."""

    @pytest.mark.parametrize(("code", "message"), NOT_RETRIED)
    def test_permissions(self, store: DynamoStore, wire: Wire, code: str, message: str) -> None:
        """Missing permissions and invalid credentials fail at the first try, with one sentence."""
        wire.before = lambda _action: reply(400, code, "who are you")
        with pytest.raises(StoreRefused, match=re.escape(message)):
            granted(store)
        assert wire.sent == ["PutItem"]

    def test_unknown_errors(self, store: DynamoStore, wire: Wire) -> None:
        """An unknown error of DynamoDB becomes a StoreError."""
        wire.before = lambda _action: reply(400, "NewKindOfException", "odd")
        with pytest.raises(StoreError, match=re.escape("refused dynamodb:PutItem (NewKindOfException: odd)")):
            granted(store)

    def test_too_large(self, store: DynamoStore) -> None:
        """A result that is too large for an item is refused, and the claim stays unchanged."""
        record = granted(store)
        with pytest.raises(StoreRefused, match="larger than the 400 kB that DynamoDB allows; return a smaller result"):
            complete(store, record, os.urandom(500_000))
        assert stored(store) == record

    def test_a_closed_port(self) -> None:
        """If the endpoint refuses the connection, the store is unavailable and the message says what to check."""
        url = f"dynamodb://Table?region={REGION}&timeout=500ms&endpoint=http://127.0.0.1:{free_port()}"
        with pytest.raises(StoreUnavailable, match=r"cannot be reached .*; check region, endpoint and network"):
            open_store(url)

    def test_a_silent_server(self, dynamo_server: DynamoServer) -> None:
        """Requests to a server that accepts the connection and never answers are retried until the timeout."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            place = f"http://127.0.0.1:{silent.getsockname()[1]}"
            start = time.monotonic()
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                open_store(f"dynamodb://Table?region={REGION}&timeout=2s&endpoint={place}")
            assert 1.5 < time.monotonic() - start < 2.8

    @pytest.mark.parametrize("status", [200, 404])
    def test_not_dynamodb(self, dynamo_server: DynamoServer, status: int) -> None:
        """Another server at the endpoint is recognized as not DynamoDB."""

        class Page(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "6")
                self.end_headers()
                self.wfile.write(b"<html>")

            def log_message(self, *_arguments: Any) -> None:
                """Log nothing."""

        with HTTPServer(("127.0.0.1", 0), Page) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                with pytest.raises(StoreRefused, match="does not answer as DynamoDB does; check the endpoint"):
                    open_store(dynamo_server.url("Table", port=server.server_port))
            finally:
                server.shutdown()
                thread.join()


class TestThreads:
    """The keys of a batch are processed in parallel."""

    def test_parallel_requests(self, store: DynamoStore, wire: Wire) -> None:
        """Ten new events need ten requests to claim and ten to complete, and each ten are sent in parallel."""
        barrier = threading.Barrier(10)

        def wait_for_all(_action: str) -> None:
            barrier.wait(10)

        wire.before = wait_for_all
        claims = [claim_of(key=bytes([number]) * 16) for number in range(10)]
        records = [verdict.record for verdict in store.claim(claims)]
        completions = [
            Complete(NAMESPACE, claim.key, record.owner, record.fence, RETENTION)
            for claim, record in zip(claims, records, strict=True)
        ]
        assert store.settle(completions) == [True] * 10
        assert wire.sent == ["PutItem"] * 20

    def test_the_limit_of_parallel_requests(self, dynamo_server: DynamoServer, table: str) -> None:
        """A batch of many keys sends at most `parallel` requests at a time."""
        with closing(open_store(dynamo_server.url(table, parallel="3"))) as opened:
            assert isinstance(opened, DynamoStore)
            slots = threading.Semaphore(3)
            wire = Wire(opened)

            def enter(_action: str) -> None:
                assert slots.acquire(blocking=False)

            wire.before = enter
            opened._client.botocore_client().meta.events.register(
                "after-call.dynamodb", lambda **_rest: slots.release()
            )
            assert len(opened.claim([claim_of(key=bytes([number]) * 16) for number in range(40)])) == 40


def test_retry_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses double up to a second, and stop before a retry that would exceed the timeout."""
    monkeypatch.setattr("oncegate.backoff.jittered", lambda pause: pause)
    now = 0.0
    monkeypatch.setattr("oncegate.stores.dynamodb.client.time.monotonic", lambda: now)
    pauses = []
    for pause in DynamoClient(DynamoSettings("Table", timeout=4.5)).retry_pauses():
        pauses.append(pause)
        now += pause
    assert pauses == [0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
