"""Servers whose clock is set back and corrected: no lease ends before its time, and no record is lost."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import cast

import pytest
from msgspec import Struct

from oncegate.claims import Granted, InFlight
from oncegate.stores import open_store
from oncegate.stores.base import Store
from oncegate.testing.requests import LEASE, RETENTION, SECOND, claim, complete, granted, release, renew, reset
from tests.stores import postgres_server
from tests.stores.redis_server import RedisServer
from tests.stores.servers import until
from tests.stores.stepped import SteppedClock

HOUR = 3_600
_numbers = count()


class Stepped(Struct):
    """A server, and the clock that it goes by."""

    fresh_url: Callable[[], str]
    clock: SteppedClock
    shown: Callable[[], float]

    def set(self, seconds: int) -> None:
        """Set the server's clock to so many seconds off the right time, and wait until the server goes by it."""
        self.clock.set(seconds)
        until(lambda: abs(self.shown() - time.time() - seconds) < 5, f"a clock that is off by {seconds} s")


@contextmanager
def stepped_redis(folder: Path) -> Iterator[Stepped]:
    clock = SteppedClock(folder / "clock")
    server = RedisServer(folder / "server", environment=clock.environment)
    try:
        yield Stepped(lambda: f"{server.url}?prefix=t{next(_numbers)}", clock, lambda: float(server.client.time()[0]))
    finally:
        server.stop()


@contextmanager
def stepped_postgres(_folder: Path) -> Iterator[Stepped]:
    clocks: list[SteppedClock] = []

    def clock_in(folder: Path) -> SteppedClock:
        clocks.append(SteppedClock(folder))
        return clocks[-1]

    with postgres_server.running(clock=clock_in) as server, server.connect() as db:

        def shown() -> float:
            ((seconds,),) = db.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchall()
            return float(seconds)

        yield Stepped(lambda: f"{server.url()}?oncegate_schema=t{next(_numbers)}", clocks[0], shown)


SERVERS = {"redis": stepped_redis, "postgres": stepped_postgres}


@pytest.fixture(scope="module", params=sorted(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stepped]:
    with SERVERS[cast(str, request.param)](tmp_path_factory.mktemp("stepped")) as stepped:
        yield stepped


@pytest.fixture
def store(server: Stepped) -> Iterator[Store]:
    server.set(0)
    with closing(open_store(server.fresh_url())) as store:
        yield store


@pytest.mark.parametrize(
    "steps", [(-HOUR, 0), (-HOUR, -HOUR // 2), (-HOUR, -HOUR // 2, 0), (-HOUR, -2 * HOUR, -HOUR, 0)], ids=str
)
def test_a_correction_ends_no_lease(server: Stepped, store: Store, steps: tuple[int, ...]) -> None:
    """A lease of 30 seconds is alive after any correction that takes less, and its holder can renew and complete."""
    held = granted(store)
    for number, seconds in enumerate(steps):
        server.set(seconds)
        granted(store, key=b"%016d" % number)  # what is granted is noted, and so is the time
        assert isinstance(claim(store, "bob"), InFlight), seconds
        assert renew(store, held)
        left = claim(store, "bob")
        assert LEASE - 5 * SECOND < left.record.lease_until - left.at <= LEASE
    assert complete(store, held)


def test_what_was_written_by_a_clock_set_back_outlives_the_correction(server: Stepped, store: Store) -> None:
    """A record whose retention is shorter than the step is kept for its retention, counted by the store's time."""
    granted(store, key=b"1" * 16)
    server.set(-2 * HOUR)
    new, taken_over = granted(store), granted(store, key=b"2" * 16)
    assert release(store, taken_over, key=b"2" * 16)
    granted(store, "bob", key=b"2" * 16)
    server.set(0)
    assert isinstance(claim(store, "bob"), InFlight)
    assert isinstance(claim(store, "cid", key=b"2" * 16), InFlight)
    assert complete(store, new)
    assert new.expires_at is not None
    assert RETENTION - 5 * SECOND < new.expires_at - time.time_ns() // 1_000 <= RETENTION


def test_fences_rise_while_time_stands_still(server: Stepped, store: Store) -> None:
    """Grants one after another have rising fences also where nothing is left of the one before."""
    granted(store, key=b"1" * 16)
    server.set(-HOUR)
    first = granted(store)
    assert reset(store)
    assert granted(store, "bob").fence > first.fence


def test_time_goes_on_when_the_clock_has_caught_up(server: Stepped, store: Store) -> None:
    """A lease that was granted while the clock was behind ends once the clock shows its end."""
    granted(store, key=b"1" * 16)
    server.set(-HOUR)
    record = granted(store)
    server.set(LEASE // SECOND + 10)
    takeover = claim(store, "bob")
    assert isinstance(takeover, Granted)
    assert takeover.record.fence == record.fence + 1
