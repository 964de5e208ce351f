"""Addresses of queues, and batches of requests with retries."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from oncegate import Gate
from oncegate.errors import QueueUnavailable, SettingError
from oncegate.ingress.sqs.client import BatchSender, FailedEntry, QueueAddress, read_address
from tests.ingress.sqs.conftest import Hook
from tests.ingress.sqs.queues import Handler, Queue, call, working


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("sqs://q?region=eu-west-1", QueueAddress("q", None, "eu-west-1")),
        ("sqs://q.fifo?endpoint=http://127.0.0.1:1", QueueAddress("q.fifo", None, None, "http://127.0.0.1:1")),
        (
            "https://sqs.eu-central-1.amazonaws.com/123456789012/q",
            QueueAddress("q", "https://sqs.eu-central-1.amazonaws.com/123456789012/q", "eu-central-1"),
        ),
        (
            "sqs://https://eu-west-1.queue.amazonaws.com/123456789012/q?region=eu-west-2",
            QueueAddress("q", "https://eu-west-1.queue.amazonaws.com/123456789012/q", "eu-west-2"),
        ),
        (
            "http://127.0.0.1:4566/000000000000/q",
            QueueAddress("q", "http://127.0.0.1:4566/000000000000/q", None, "http://127.0.0.1:4566"),
        ),
    ],
)
def test_addresses(url: str, address: QueueAddress) -> None:
    """An address is a name or a URL. A URL of AWS contains the region; any other URL is also the endpoint."""
    assert read_address(url) == address


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sqs://a queue", "is not the URL of a queue; write 'sqs://NAME"),
        ("sqs://", "is not the URL of a queue"),
        ("q", "is not the URL of a queue"),
        ("sqs://q?colour=red", "unknown option 'colour' in a queue URL; use region or endpoint"),
        ("sqs://q?endpoint=here", "endpoint='here' is not a valid URL"),
        ("https://sqs.eu-central-1.amazonaws.com/1/", "does not end with the name of a queue"),
    ],
)
def test_invalid_addresses(url: str, problem: str) -> None:
    """An invalid address is rejected with the reason."""
    with pytest.raises(SettingError) as rejected:
        read_address(url)
    assert problem in str(rejected.value)


class Endpoint:
    """A `send` that fails as listed for each request, and the results that `done` got."""

    def __init__(self, *failures: dict[int, FailedEntry] | Exception) -> None:
        self.failures = list(failures)
        self.sent: list[list[str]] = []
        self.results: dict[str, str | None] = {}

    async def send(self, entries: Sequence[str]) -> dict[int, FailedEntry]:
        self.sent.append(list(entries))
        failure = self.failures.pop(0) if self.failures else {}
        if isinstance(failure, Exception):
            raise failure
        return failure

    def done(self, entry: str, reason: str | None) -> None:
        assert entry not in self.results
        self.results[entry] = reason

    def run(self, *entries: str) -> None:
        async def main() -> None:
            sender = BatchSender(self.send, self.done)
            for entry in entries:
                sender.put(entry)
            await sender.flush(10)

        asyncio.run(main())


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncegate.ingress.sqs.client._FIRST_PAUSE", 0.001)
    monkeypatch.setattr("oncegate.ingress.sqs.client._LONGEST_PAUSE", 0.001)


def test_batches_of_ten() -> None:
    """Entries are sent in batches of up to ten, and each is done once."""
    endpoint = Endpoint()
    endpoint.run(*(f"e{number}" for number in range(23)))
    assert [len(batch) for batch in endpoint.sent] == [10, 10, 3]
    assert endpoint.results == {f"e{number}": None for number in range(23)}


@pytest.mark.usefixtures("no_pauses")
def test_only_failed_entries_are_sent_again() -> None:
    """An entry that may be retried is sent again; an entry that SQS rejects for good is done with the reason."""
    endpoint = Endpoint({0: FailedEntry("later", may_retry=True), 2: FailedEntry("invalid", may_retry=False)})
    endpoint.run("a", "b", "c")
    assert endpoint.sent == [["a", "b", "c"], ["a"]]
    assert endpoint.results == {"a": None, "b": None, "c": "invalid"}


@pytest.mark.usefixtures("no_pauses")
def test_retries_end() -> None:
    """After six requests that fail as a whole, every entry is done with the reason."""
    endpoint = Endpoint(*(QueueUnavailable("away") for _ in range(6)))
    endpoint.run("a", "b")
    assert endpoint.sent == [["a", "b"]] * 6
    assert endpoint.results == {"a": "away", "b": "away"}


class FailingDeletions:
    """Makes the first entry of the first deletion batches fail, so many times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.requests: list[int] = []

    def __call__(self, events: Any) -> None:
        events.register("provide-client-params.sqs.DeleteMessageBatch", self._before)
        events.register("after-call.sqs.DeleteMessageBatch", self._after)

    def _before(self, params: dict[str, Any], **_rest: Any) -> dict[str, Any]:
        entries = params["Entries"]
        self.requests.append(len(entries))
        if not self.left:
            return params
        # A request needs at least one entry: an invalid one is sent if there is no other.
        return {**params, "Entries": entries[1:] or [{"Id": "0", "ReceiptHandle": "none"}]}

    def _after(self, parsed: dict[str, Any], **_rest: Any) -> None:
        if self.left:
            self.left -= 1
            failed = {"Id": "0", "Code": "InternalError", "Message": "later", "SenderFault": False}
            parsed["Failed"] = [failed]


def test_a_failed_deletion_is_retried(queue: Queue, hook: Hook) -> None:
    """Only the entries of a batch that were not deleted are sent again."""
    failing = FailingDeletions(2)
    hook(failing)
    queue.send(*(call(number) for number in range(10)))
    handler, gate = Handler(), Gate("memory://")
    worker = gate.worker(queue.source, handler, wait="1s", receivers=1)
    with working(worker):
        queue.until_empty()
    assert sorted(handler.ran) == list(range(10))
    assert worker.figures.received == 10
    assert sum(failing.requests) == 12
    gate.close()


def test_a_deletion_that_keeps_failing_is_logged(
    queue: Queue,
    hook: Hook,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message is delivered again, and its event is a duplicate."""
    monkeypatch.setattr("oncegate.ingress.sqs.client._TRIES", 2)
    hook(FailingDeletions(2))
    queue.send(call(1))
    handler, gate = Handler(), Gate("memory://", lease="1s")
    with working(gate.worker(queue.source, handler, wait="1s", visibility="1s")):
        queue.until_empty()
    assert handler.ran == [1]
    assert gate.counts["event.duplicate"] >= 1
    assert [record.message.partition(" (")[2] for record in caplog.records] == [
        "InternalError: later); it will be delivered again as a duplicate"
    ]
    gate.close()
