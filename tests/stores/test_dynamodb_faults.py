"""The DynamoDB store when networks, limits and rights are not as it wants them."""

import base64
import itertools
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
from msgspec.structs import replace

from oncegate import Event, Gate, keys, open_store
from oncegate.claims import COMPLETED, RELEASED, Address, Claim, Complete, Duplicate, Granted, Redrive
from oncegate.errors import StoreError, StoreRefused, StoreUnavailable
from oncegate.ingress.http_answers import answer_of
from oncegate.stores.base import Change, Store
from oncegate.stores.dynamodb import DynamoStore
from oncegate.testing import ManualClock
from oncegate.testing.requests import (
    KEY,
    NAMESPACE,
    RETENTION,
    bury,
    claim,
    claim_of,
    complete,
    granted,
    redrive,
    release,
    reset,
    stored,
    take,
)
from tests.stores.dynamo_server import REGION, DynamoServer, Wire, reply
from tests.stores.proxy import Proxy
from tests.stores.servers import free_port


@pytest.fixture
def store(dynamo_server: DynamoServer, table: str) -> Iterator[DynamoStore]:
    with closing(open_store(dynamo_server.url(table, timeout="1s"), clock=ManualClock())) as opened:
        assert isinstance(opened, DynamoStore)
        yield opened


@pytest.fixture
def wire(store: DynamoStore) -> Wire:
    return Wire(store)


PASSING = [
    (400, "ProvisionedThroughputExceededException"),
    (400, "ThrottlingException"),
    (400, "RequestLimitExceeded"),
    (400, "TransactionConflictException"),
    (500, "InternalServerError"),
    (503, "ServiceUnavailable"),
]


class TestLimits:
    """DynamoDB says no for a moment, or breaks: it is asked again after a pause, and not for ever."""

    @pytest.mark.parametrize(("status", "code"), PASSING)
    def test_for_a_moment(self, store: DynamoStore, wire: Wire, status: int, code: str) -> None:
        """What is refused three times is asked a fourth."""
        answers = iter([reply(status, code)] * 3)
        wire.before = lambda _action: next(answers, None)
        assert granted(store).attempts == 1
        assert wire.sent == ["PutItem"] * 4

    def test_for_long(self, store: DynamoStore, wire: Wire) -> None:
        """After the time that the URL allows for all tries the store is unavailable, and says why."""
        wire.before = lambda _action: reply(400, "ThrottlingException", "slow down")
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"throttled or failed the request \(Throttling.+: slow down\)"):
            granted(store)
        assert 0.4 < time.monotonic() - start < 2
        assert 4 <= len(wire.sent) <= 12

    def test_a_batch(self, store: DynamoStore, wire: Wire) -> None:
        """A batch of many keys on a table that refuses all takes no longer than one of few: no more are begun."""
        wire.before = lambda _action: reply(400, "ThrottlingException")
        start = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.claim([claim_of(key=number.to_bytes(16)) for number in range(500)])
        assert time.monotonic() - start < 4

    def test_a_part_of_the_answer(self, store: DynamoStore, wire: Wire) -> None:
        """Documents that DynamoDB left out of an answer are asked for again."""
        assert store.swap([Change(NAMESPACE, KEY, 0, b"one", RETENTION)]) == [True]
        (key,) = [{"id": item["id"]} for item in store._calls.client().scan(TableName=store._calls.table)["Items"]]
        left_out = reply(200, "", Responses={}, UnprocessedKeys={store._calls.table: {"Keys": [key]}})
        answers = iter([left_out] * 2)
        wire.before = lambda _action: next(answers, None)
        (document,) = store.load([Address(NAMESPACE, KEY)])
        assert document.body == b"one"
        assert wire.sent.count("BatchGetItem") == 3

    def test_never_the_whole_answer(self, store: DynamoStore, wire: Wire) -> None:
        """If a part is always left out, the store is unavailable."""
        left_out = {store._calls.table: {"Keys": [{"id": {"S": "x"}}]}}
        wire.before = lambda _action: reply(200, "", Responses={}, UnprocessedKeys=left_out)
        with pytest.raises(StoreUnavailable, match="did not answer for all keys in time"):
            store.load([Address(NAMESPACE, KEY)])

    def test_a_record_that_keeps_changing(self, store: DynamoStore, wire: Wire, dynamo_server: DynamoServer) -> None:
        """A record that changes whenever it is about to be written is given up after a bounded number of tries."""
        record = granted(store)

        def change(action: str) -> None:
            if action == "PutItem":
                item = dynamo_server.client.scan(TableName=store._calls.table)["Items"][0]
                item["stamp"] = {"B": os.urandom(12)}
                dynamo_server.client.put_item(TableName=store._calls.table, Item=item)

        wire.before = change
        with pytest.raises(StoreUnavailable, match="kept changing while it was judged"):
            complete(store, record)
        assert len(wire.sent) < 100


REFUSED = [
    ("AccessDeniedException", "does not allow dynamodb:PutItem (who are you); docs/stores/dynamodb.md lists"),
    ("UnrecognizedClientException", "does not accept these AWS credentials"),
    ("ExpiredTokenException", "does not accept these AWS credentials"),
    ("InvalidSignatureException", "does not accept these AWS credentials"),
]


class TestRefusals:
    @pytest.mark.parametrize(("code", "said"), REFUSED)
    def test_rights(self, store: DynamoStore, wire: Wire, code: str, said: str) -> None:
        """Missing rights and wrong credentials are told in one sentence, at the first try."""
        wire.before = lambda _action: reply(400, code, "who are you")
        with pytest.raises(StoreRefused, match=re.escape(said)):
            granted(store)
        assert wire.sent == ["PutItem"]

    def test_anything_else(self, store: DynamoStore, wire: Wire) -> None:
        """An error that nobody has foreseen is still one of the store's."""
        wire.before = lambda _action: reply(400, "NewKindOfException", "odd")
        with pytest.raises(StoreError, match=re.escape("refused dynamodb:PutItem (NewKindOfException: odd)")):
            granted(store)

    def test_too_large(self, store: DynamoStore) -> None:
        """A result that no item can hold is refused with what to do, and the claim stays as it was."""
        record = granted(store)
        with pytest.raises(StoreRefused, match="larger than the 400 kB that DynamoDB keeps; return a smaller result"):
            complete(store, record, os.urandom(500_000))
        assert stored(store) == record

    def test_too_large_among_others(self, store: DynamoStore) -> None:
        """An event that cannot be kept is one that failed: its neighbours are settled, and the breaker stays closed."""
        gate = Gate(store, max_attempts=1, breaker="10s")
        huge = base64.b64encode(os.urandom(450_000)).decode()

        def handler(event: Event) -> None:
            if "huge" in event.body:
                raise ValueError("boom")

        for turn in range(3):
            batch = [{"id": f"{turn}-a"}, {"id": f"{turn}-b", "huge": huge}, {"id": f"{turn}-c", "type": huge}]
            first, second, third = gate.run_batch(batch, handler)
            assert (first.status, third.status) == ("processed", "processed")
            assert "larger than the 400 kB" in (second.error or "")
        assert gate.counts.get("breaker.opened", 0) == 0

    @pytest.mark.parametrize("body", [b'{"id": 1', b'{"no id": "'], ids=["unreadable", "without a key"])
    def test_too_large_to_be_refused_as_a_whole(self, store: DynamoStore, body: bytes) -> None:
        """A body that is refused, and that no item can hold, is refused for good, with what fits as a dead letter; each
        time, and its neighbours with it. A redriven one never runs, though what fits be an event by itself."""
        gate = Gate(store, key=keys.event_id, max_attempts=1)
        whole = b'{"id": 1}' + b" " * 300_000  # an event by itself, in all that is kept of it
        for large in (body + base64.b64encode(os.urandom(450_000)) + b'"}', whole + os.urandom(450_000)):
            for _ in range(2):
                refused = gate.run_batch([large, b"{"], print)
                assert [outcome.status for outcome in refused] == ["invalid", "invalid"]
                outcomes = gate.keep(refused)
                assert [outcome.status for outcome in outcomes] == ["invalid", "invalid"]
                assert [outcome.cut for outcome in outcomes] == [True, False]
                assert answer_of(outcomes, discreet=True).code == 413
                assert answer_of(outcomes[1:]).code == 400
            kept = outcomes[0].kept
            assert kept is not None
            (entry,) = store.browse("default", key=kept.digest)
            assert entry.record.error is not None
            assert entry.record.error.startswith(f"truncated: only 262144 of its {len(large)} bytes are kept")
            assert entry.record.payload == large[:262144] + b"\n(truncated)"
            assert store.redrive([Redrive("default", kept.digest)]) == [True]
            ran: list[Event] = []
            (again,) = gate.run_waiting(ran.append)
            assert (again.status, ran) == ("buried", [])

    def test_too_long_a_namespace(self, store: DynamoStore) -> None:
        """A dead letter whose namespace the index cannot hold is refused as such."""
        name = "n" * 1_020
        with pytest.raises(StoreRefused, match="shorten the namespace"):
            bury(store, granted(store, namespace=name), namespace=name)

    def test_nobody_there(self) -> None:
        """Where nothing listens the store is unavailable, and the sentence names what to check."""
        url = f"dynamodb://Table?region={REGION}&timeout=500ms&endpoint=http://127.0.0.1:{free_port()}"
        with pytest.raises(StoreUnavailable, match=r"cannot be reached .*; check region, endpoint and network"):
            open_store(url)

    def test_silence(self, dynamo_server: DynamoServer) -> None:
        """What takes the connection and says nothing is asked again, and not waited for longer than the timeout."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            place = f"http://127.0.0.1:{silent.getsockname()[1]}"
            start = time.monotonic()
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                open_store(f"dynamodb://Table?region={REGION}&timeout=2s&endpoint={place}")
            assert 1.5 < time.monotonic() - start < 2.8

    @pytest.mark.parametrize("status", [200, 404])
    def test_not_dynamodb(self, dynamo_server: DynamoServer, status: int) -> None:
        """Some other server at the endpoint is told from DynamoDB."""

        class Page(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "6")
                self.end_headers()
                self.wfile.write(b"<html>")

            def log_message(self, *_arguments: Any) -> None:
                """Nothing to tell."""

        with HTTPServer(("127.0.0.1", 0), Page) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                with pytest.raises(StoreRefused, match="does not answer as DynamoDB does; check the endpoint"):
                    open_store(dynamo_server.url("Table", port=server.server_port))
            finally:
                server.shutdown()
                thread.join()

    def test_closed(self, dynamo_server: DynamoServer, table: str) -> None:
        """A closed store says so."""
        opened = open_store(dynamo_server.url(table))
        opened.close()
        with pytest.raises(StoreRefused, match="was closed"):
            opened.claim([claim_of(), claim_of(key=b"x" * 16)])


class TestLostReplies:
    """A request is carried out and its reply lost. It is sent again, and answered as if nothing had happened."""

    @pytest.fixture
    def proxy(self, dynamo_server: DynamoServer) -> Iterator[Proxy]:
        with closing(Proxy(dynamo_server.port)) as between:
            yield between

    @pytest.fixture
    def shaky(self, dynamo_server: DynamoServer, table: str, proxy: Proxy) -> Iterator[Store]:
        with closing(open_store(dynamo_server.url(table, port=proxy.port), clock=ManualClock())) as opened:
            yield opened

    def test_claim(self, shaky: Store, proxy: Proxy) -> None:
        """A claim is granted to its own owner, at attempt 1."""
        proxy.lose = b".PutItem"
        record = granted(shaky)
        assert (record.attempts, stored(shaky)) == (1, record)
        assert proxy.lost == 1

    def test_takeover(self, shaky: Store, proxy: Proxy) -> None:
        """A takeover counts one attempt and raises the fence by one."""
        first = granted(shaky)
        assert release(shaky, first)
        proxy.lose = b"stamp = :stamp"
        second = granted(shaky, "bob")
        assert (second.attempts, second.fence) == (2, first.fence + 1)
        assert stored(shaky) == second
        assert proxy.lost == 1

    def test_complete(self, shaky: Store, proxy: Proxy) -> None:
        """A completion is true, and written once."""
        record = granted(shaky)
        proxy.lose = b".PutItem"
        assert complete(shaky, record)
        assert proxy.lost == 1
        assert isinstance(claim(shaky, "bob"), Duplicate)

    def test_redrive_and_take(self, shaky: Store, proxy: Proxy) -> None:
        """A redrive was one although its record is no dead letter any more, and what was taken is handed over."""
        assert bury(shaky, granted(shaky))
        proxy.lose = b".PutItem"
        assert redrive(shaky)
        proxy.lose = b".PutItem"
        entry = take(shaky)
        assert entry is not None
        assert entry.record.attempts == 1
        assert proxy.lost == 2

    def test_reset(self, shaky: Store, proxy: Proxy) -> None:
        """A reset has forgotten the record although there is none any more."""
        granted(shaky)
        proxy.lose = b".DeleteItem"
        assert reset(shaky)
        assert proxy.lost == 1
        assert reset(shaky) is False

    def test_swap(self, shaky: Store, proxy: Proxy) -> None:
        """A swap has won although the version is another by now."""
        proxy.lose = b".PutItem"
        assert shaky.swap([Change(NAMESPACE, KEY, 0, b"one", RETENTION)]) == [True]
        assert proxy.lost == 1


def test_forks(store: DynamoStore) -> None:
    """A forked process has connections and threads of its own, and so has its parent still."""
    batch = [claim_of(key=bytes([number]) * 16) for number in range(8)]
    store.claim(batch)
    child = os.fork()
    if child == 0:
        answers = store.claim([claim_of("ann", key=request.key) for request in batch])
        os._exit(0 if all(isinstance(answer, Granted) for answer in answers) else 1)
    store.claim(batch)
    _, status = os.waitpid(child, 0)
    assert status == 0


class TestHalfABatch:
    """A batch is as many writes as it has keys: when one of them fails, the others may have been made."""

    @pytest.fixture
    def batch(self) -> list[Claim]:
        return [claim_of(key=bytes([number]) * 16) for number in range(10)]

    @pytest.fixture
    def refused(self, wire: Wire) -> None:
        """The fifth request is refused."""
        numbers = itertools.count(1)
        wire.before = lambda _action: reply(400, "ValidationException", "no") if next(numbers) == 5 else None

    def test_claims_are_given_back(self, store: DynamoStore, batch: list[Claim], refused: None) -> None:
        """What was granted by then is free at once, and has lost no attempt."""
        with pytest.raises(StoreError, match="ValidationException"):
            store.claim(batch)
        assert {entry.record.state for entry in store.browse()} == {RELEASED}
        again = [claim_of("bob", key=claim.key) for claim in batch]
        assert [(type(verdict), verdict.record.attempts) for verdict in store.claim(again)] == [(Granted, 1)] * 10

    def test_marks_stay(self, store: DynamoStore, batch: list[Claim], refused: None) -> None:
        """What was marked as done by then stays so: it may be lost, and is not doubled."""
        with pytest.raises(StoreError):
            store.claim([replace(claim, marks=True) for claim in batch])
        assert {entry.record.state for entry in store.browse()} == {COMPLETED}

    def test_settlements_stay(self, store: DynamoStore, wire: Wire, batch: list[Claim]) -> None:
        """What was settled by then is settled, and true when it is asked again."""
        records = [verdict.record for verdict in store.claim(batch)]
        completions = [
            Complete(claim.namespace, claim.key, record.owner, record.fence, RETENTION)
            for claim, record in zip(batch, records, strict=True)
        ]
        numbers = itertools.count(1)
        wire.before = lambda _action: reply(400, "ValidationException", "no") if next(numbers) == 5 else None
        with pytest.raises(StoreError):
            store.settle(completions)
        assert store.settle(completions) == [True] * 10
