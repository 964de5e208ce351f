"""A gate asks the old place: in few requests, not after `until`, and with a circuit breaker."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from oncegate import Gate, read
from oncegate.errors import SettingError, StoreUnavailable
from oncegate.previous.base import BadRow, KeyPart, OldMark, OldRow
from oncegate.previous.lookup import PreviousPlace, open_previous
from oncegate.previous.templates import Template
from oncegate.stores.circuit_breaker import CircuitBreaker
from tests.stores.redis_server import RedisServer
from tests.stores.servers import free_port

HOUR = 3_600_000_000


class Noted:
    """An old place that notes the keys it is asked for."""

    name = "the old place"
    remote = True

    def __init__(self, **marks: OldMark) -> None:
        self.marks = marks
        self.asked: list[list[Any]] = []
        self.fails = False

    def parts(self) -> Sequence[KeyPart]:
        return (KeyPart("id", Template("{id}")),)

    def find(self, keys: Sequence[Sequence[Any]]) -> list[OldMark | None]:
        self.asked.append([key for (key,) in keys])
        if self.fails:
            raise StoreUnavailable("it is away")
        return [self.marks.get(key) for (key,) in keys]

    def key_columns(self) -> Sequence[str]:
        return ()

    def rows(self) -> Iterator[OldRow | BadRow]:
        return iter(())

    def close(self) -> None: ...


def events(*ids: str) -> list[Any]:
    return [event for each in ids for event in read({"id": each})]


def test_the_time_that_is_left() -> None:
    """The answer is the time that is left of a mark; 0 for a mark without an end, None for an expired or absent one."""
    place = Noted(a=OldMark(10 * HOUR), b=OldMark(), c=OldMark(HOUR), d=OldMark(HOUR + 1))
    previous = PreviousPlace(place, lambda: HOUR)
    assert previous.find(events("a", "b", "c", "d", "e")) == [9 * HOUR, 0, None, 1, None]
    assert place.asked == [["a", "b", "c", "d", "e"]]


def test_events_without_the_old_key() -> None:
    """An event without a part of the old key is not asked for. If there are no others, the place is not called."""
    place = Noted(a=OldMark())
    previous = PreviousPlace(place, lambda: HOUR)
    assert previous.find([*events("a"), *read({"x": 1})]) == [0, None]
    assert previous.find(read({"x": 1})) == [None]
    assert place.asked == [["a"]]


def test_until() -> None:
    """From `until` on, the place is not called any more."""
    now = HOUR - 1
    place = Noted(a=OldMark())
    previous = PreviousPlace(place, lambda: now, until=HOUR)
    assert previous.find(events("a")) == [0]
    now = HOUR
    assert previous.find(events("a")) == [None]
    assert len(place.asked) == 1


def test_the_breaker() -> None:
    """After five failures in a row, a place over a network is not called for a while."""
    place = Noted(a=OldMark())
    place.fails = True
    previous = PreviousPlace(place, lambda: HOUR, breaker=CircuitBreaker(50_000, lambda: 0))
    for _ in range(8):
        with pytest.raises(StoreUnavailable):
            previous.find(events("a"))
    assert len(place.asked) == 5


def test_an_unreachable_server() -> None:
    """With a server that does not answer, events fail. The breaker opens, and its notice names the reason."""
    notices: list[Any] = []
    url = f"redis://127.0.0.1:{free_port()}?key=a:{{id}}"
    with closing(Gate("memory://", previous=url, observers=[notices.append])) as gate:
        outcomes = [gate.run({"id": str(number)}, print) for number in range(7)]
    assert {outcome.status for outcome in outcomes} == {"failed"}
    assert "cannot be reached" in outcomes[0].reason
    assert "circuit breaker open" in outcomes[-1].reason
    assert gate.counts["breaker.opened"] == 1


def test_one_request_for_a_batch(redis_server: RedisServer) -> None:
    """A batch of events costs one round trip to Redis."""
    redis_server.client.flushall()
    redis_server.client.set("a:1", "1", ex=60)
    with closing(open_previous(f"{redis_server.url}?key=a:{{id}}", lambda: HOUR)) as previous:
        previous.find(events("warm"))
        before = redis_server.client.info("stats")["total_reads_processed"]
        found = previous.find(events(*map(str, range(100))))
        after = redis_server.client.info("stats")["total_reads_processed"]
    assert [index for index, left in enumerate(found) if left is not None] == [1]
    assert after - before <= 3  # the two INFO commands, and one read of the pipeline


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://h", "previous: the URL of an old place in Redis needs key="),
        ("sqlite:///a.db?table=x", "previous: the URL of an old table needs columns="),
        ("redis://h?key=a", "previous: 'a' has no field in braces"),
        ("memory://", "previous must be a URL that starts with dynamodb, redis"),
    ],
)
def test_an_invalid_url(url: str, problem: str) -> None:
    """An invalid URL is refused when the gate is created, without a connection."""
    with pytest.raises(SettingError, match=problem):
        Gate("memory://", previous=url)


def test_nothing_is_imported_without_the_option() -> None:
    """A gate without the option imports no code for old places."""
    code = "import sys; from oncegate import Gate; Gate('memory://').run({'id': 1}, lambda event: None);"
    code += "print([name for name in sys.modules if 'previous' in name])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
