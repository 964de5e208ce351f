"""The breaker: an outage becomes quick refusals, and its end is noticed."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from oncegate import Event, Gate
from oncegate.errors import StoreReadOnly, StoreUnavailable
from oncegate.stores.circuit_breaker import IN_A_ROW, CircuitBreaker
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock

MS = 1_000
SLOW = 50 * MS


class Server:
    """What is asked: it answers at once, late, or not at all."""

    def __init__(self, boot: ManualClock) -> None:
        self._boot = boot
        self.takes = 0
        self.fails = False
        self.error: StoreUnavailable = StoreUnavailable("no route")
        self.asked = 0

    def __call__(self, batch: Sequence[Any]) -> list[Any]:
        self.asked += 1
        if self.takes:
            self._boot.advance(self.takes)
        if self.fails:
            raise self.error
        return list(batch)


@pytest.fixture
def boot() -> ManualClock:
    return ManualClock(0)


@pytest.fixture
def server(boot: ManualClock) -> Server:
    return Server(boot)


@pytest.fixture
def changes() -> list[str]:
    return []


@pytest.fixture
def breaker(boot: ManualClock, changes: list[str]) -> CircuitBreaker:
    return CircuitBreaker(SLOW, boot, lambda name, why: changes.append(name))


def call(breaker: CircuitBreaker, server: Callable[[Sequence[Any]], Any], batch: Sequence[Any], **how: bool) -> Any:
    """Call the server through the breaker, as the gate does."""
    with breaker.watch(len(batch), **how):
        return server(batch)


def refused(breaker: CircuitBreaker, server: Server) -> bool:
    """Whether the server was not even asked."""
    asked = server.asked
    try:
        call(breaker, server, [1])
    except StoreUnavailable:
        return server.asked == asked
    return False


def break_it(breaker: CircuitBreaker, server: Server) -> None:
    server.fails = True
    for _ in range(IN_A_ROW):
        assert not refused(breaker, server)


def answer(breaker: CircuitBreaker, server: Server, takes: int, *, times: int) -> None:
    server.takes = takes
    for _ in range(times):
        assert call(breaker, server, [1]) == [1]


class TestOpening:
    def test_by_errors_in_a_row(self, breaker: CircuitBreaker, server: Server, changes: list[str]) -> None:
        """After so many errors in a row the store is not asked any more; the refusal says why, and until when."""
        break_it(breaker, server)
        assert changes == ["breaker.opened"]
        with pytest.raises(StoreUnavailable, match=r"next call in 1 s \(no route\)"):
            call(breaker, server, [1])
        assert server.asked == IN_A_ROW

    def test_not_by_scattered_errors(self, breaker: CircuitBreaker, server: Server) -> None:
        """One answer in time begins the count anew."""
        for number in range(10 * IN_A_ROW):
            server.fails = number % IN_A_ROW != 0
            assert not refused(breaker, server)

    def test_by_slow_answers(self, breaker: CircuitBreaker, server: Server) -> None:
        """Answers later than the bound count as failures, though they are answers; those as late as it do not. The
        refusal says how late, what the limit was, and which setting it comes from."""
        answer(breaker, server, 2 * MS, times=21)
        answer(breaker, server, SLOW, times=2 * IN_A_ROW)
        answer(breaker, server, 2 * MS, times=21)
        answer(breaker, server, 200 * MS, times=IN_A_ROW)
        slow = r"it took 200 ms to answer; the limit is 50 ms\); the setting `breaker`"
        with pytest.raises(StoreUnavailable, match=slow):
            call(breaker, server, [1])

    @pytest.mark.parametrize("first", [0, 1, 4])
    def test_not_by_a_store_that_is_far_away(self, breaker: CircuitBreaker, server: Server, first: int) -> None:
        """A store that answers in 60 ms every time is well, whatever its first few answers took."""
        answer(breaker, server, 2 * MS, times=first)
        answer(breaker, server, 60 * MS, times=200)
        answer(breaker, server, 600 * MS, times=20)
        assert not refused(breaker, server)

    def test_by_what_is_slow_for_a_store_that_is_far_away(self, breaker: CircuitBreaker, server: Server) -> None:
        """The limit is ten times the median of the last answers, where that is more than the setting."""
        answer(breaker, server, 60 * MS, times=20)
        answer(breaker, server, 601 * MS, times=IN_A_ROW)
        with pytest.raises(StoreUnavailable, match="it took 601 ms to answer; the limit is 600 ms"):
            call(breaker, server, [1])

    def test_a_new_pace(self, breaker: CircuitBreaker, server: Server, boot: ManualClock, changes: list[str]) -> None:
        """A store that is slower from some day on is refused for a minute or two, and then used as it is."""
        answer(breaker, server, 2 * MS, times=50)
        answer(breaker, server, 200 * MS, times=IN_A_ROW)
        since = boot.now
        while changes[-1] == "breaker.opened" and boot.now - since < 120_000 * MS:
            boot.advance("1s")
            refused(breaker, server)
        assert changes[-1] == "breaker.closed"
        answer(breaker, server, 200 * MS, times=100)

    def test_endings_go_through(self, breaker: CircuitBreaker, server: Server, changes: list[str]) -> None:
        """What must be recorded is tried even so, and if that is answered the store is back."""
        break_it(breaker, server)
        server.fails = False
        assert call(breaker, server, [1], always=True) == [1]
        assert changes == ["breaker.opened", "breaker.closed"]
        assert not refused(breaker, server)

    def test_large_batches_may_take_longer(self, breaker: CircuitBreaker, server: Server) -> None:
        """A batch has as much time again for every ten things in it."""
        answer(breaker, server, 1, times=21)
        server.takes = 10 * SLOW
        for _ in range(2 * IN_A_ROW):
            call(breaker, server, list(range(100)))
        answer(breaker, server, 1, times=21)
        server.takes = 12 * SLOW
        for _ in range(IN_A_ROW):
            call(breaker, server, list(range(100)))
        assert refused(breaker, server)

    def test_failing_endings_change_nothing(self, breaker: CircuitBreaker, server: Server, boot: ManualClock) -> None:
        """While it is open, endings that fail do not prolong the pause: only a try does."""
        break_it(breaker, server)
        for _ in range(9):
            with pytest.raises(StoreUnavailable):
                call(breaker, server, [1], always=True)
        boot.advance("1s")
        server.fails = False
        assert call(breaker, server, [1]) == [1]


def test_state(breaker: CircuitBreaker, server: Server, boot: ManualClock) -> None:
    """The state is shown to people: closed, open, or half open while the next call is a probe."""
    assert breaker.state == "closed"
    break_it(breaker, server)
    assert breaker.state == "open"
    boot.advance(1_000 * MS)
    assert breaker.state == "half open"
    server.fails = False
    call(breaker, server, [1])
    assert breaker.state == "closed"


class TestReads:
    def test_while_no_writes_are_taken(self, breaker: CircuitBreaker, server: Server, changes: list[str]) -> None:
        """A store that takes no writes can be read while it is left alone, and an answer to that does not close the
        breaker; the refusal of all else tells what it was opened by."""
        server.error = StoreReadOnly("it is full")
        break_it(breaker, server)
        with pytest.raises(StoreReadOnly, match="it is full"):
            call(breaker, server, [1])
        server.fails = False
        assert call(breaker, server, [1], reads=True) == [1]
        assert changes == ["breaker.opened"]
        assert refused(breaker, server)

    def test_while_nothing_is_answered(self, breaker: CircuitBreaker, server: Server) -> None:
        """One that fails altogether is not read either."""
        break_it(breaker, server)
        asked = server.asked
        with pytest.raises(StoreUnavailable) as raised:
            call(breaker, server, [1], reads=True)
        assert (type(raised.value), server.asked) == (StoreUnavailable, asked)


class TestClosing:
    def test_one_call_tries(self, breaker: CircuitBreaker, server: Server, boot: ManualClock) -> None:
        """After the pause one call may try; while it does, others are refused; its answer closes the breaker."""
        break_it(breaker, server)
        boot.advance(999_999)
        assert refused(breaker, server)
        boot.advance(1)
        server.fails = False
        beside: list[bool] = []

        def probing(batch: Sequence[Any]) -> list[Any]:
            beside.append(refused(breaker, server))
            return list(batch)

        assert call(breaker, probing, [1]) == [1]
        assert beside == [True]
        assert not refused(breaker, server)

    def test_pauses_grow(self, breaker: CircuitBreaker, server: Server, boot: ManualClock, changes: list[str]) -> None:
        """Each try that fails doubles the pause, up to half a minute; after an answer it starts small again."""
        break_it(breaker, server)
        for pause in (1, 2, 4, 8, 16, 30, 30):
            boot.advance(pause * 1_000_000 - 1)
            assert refused(breaker, server)
            boot.advance(1)
            assert not refused(breaker, server)
        boot.advance("30s")
        server.fails = False
        call(breaker, server, [1])
        assert changes[-1] == "breaker.closed"
        break_it(breaker, server)
        boot.advance("1s")
        assert not refused(breaker, server)

    def test_an_interrupted_try(self, breaker: CircuitBreaker, server: Server, boot: ManualClock) -> None:
        """A try that ends without an answer leaves the place to the next."""
        break_it(breaker, server)
        boot.advance("1s")

        def interrupted(batch: Sequence[Any]) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            call(breaker, interrupted, [1])
        server.fails = False
        assert call(breaker, server, [1]) == [1]


class TestGenerations:
    def late(self, breaker: CircuitBreaker, then: Callable[[], None], error: Exception | None) -> None:
        """A call that is answered only after something else has happened."""

        def ask(batch: Sequence[Any]) -> None:
            then()
            if error is not None:
                raise error

        with suppress(StoreUnavailable):
            call(breaker, ask, [1])

    def test_a_late_answer_does_not_close(self, breaker: CircuitBreaker, server: Server) -> None:
        """An answer to what was asked before the breaker opened does not close it."""
        self.late(breaker, lambda: break_it(breaker, server), None)
        assert refused(breaker, server)

    def test_a_late_error_does_not_open(self, breaker: CircuitBreaker, server: Server, boot: ManualClock) -> None:
        """Errors of calls from before it was closed again do not count."""

        def over() -> None:
            break_it(breaker, server)
            boot.advance("1s")
            server.fails = False
            call(breaker, server, [1])

        for _ in range(IN_A_ROW):
            self.late(breaker, over, StoreUnavailable("old news"))
        assert not refused(breaker, server)

    def test_many_threads(self, server: Server) -> None:
        """However many ask at once, one tries when the pause is over."""
        boot = ManualClock(0)
        breaker = CircuitBreaker(SLOW, boot)
        break_it(breaker, server)
        boot.advance("1s")
        asked, go_on = [], threading.Event()

        def probe(batch: Sequence[Any]) -> None:
            asked.append(1)
            go_on.wait(5)

        def probe_once() -> None:
            with suppress(StoreUnavailable):
                call(breaker, probe, [1])

        threads = [threading.Thread(target=probe_once) for _ in range(16)]
        for thread in threads:
            thread.start()
        while sum(thread.is_alive() for thread in threads) > 1:
            pass
        go_on.set()
        for thread in threads:
            thread.join()
        assert len(asked) == 1


class Remote(MemoryStore):
    """A store that says it is far away, and fails on demand."""

    remote = True

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.claims = 0

    def claim(self, requests: Any) -> Any:
        self.claims += 1
        if self.down:
            raise StoreUnavailable("no route")
        return super().claim(requests)

    def admit(self, requests: Any) -> Any:
        self.claims += 1
        if self.down:
            raise StoreUnavailable("no route")
        return super().admit(requests)


class TestInAGate:
    def succeed(self, event: Event) -> str:
        return "done"

    def test_refusals_and_memory(self) -> None:
        """With the breaker open new events are refused unasked, and what this process has completed is a duplicate."""
        store = Remote()
        gate = Gate(store)
        gate.run({"id": "known"}, self.succeed)
        store.down = True
        outcomes = [gate.run({"id": number}, self.succeed) for number in range(IN_A_ROW + 5)]
        assert {(outcome.status, outcome.acked) for outcome in outcomes} == {("failed", False)}
        assert store.claims == 1 + IN_A_ROW
        assert "circuit breaker open after failures in a row" in outcomes[-1].reason
        known = gate.run({"id": "known"}, self.succeed)
        assert (known.status, known.result) == ("duplicate", "done")
        assert gate.counts["breaker.opened"] == 1

    def test_admissions(self) -> None:
        """What is to be kept is refused unasked, too."""
        store = Remote()
        gate = Gate(store)
        assert gate.admit([{"id": "known"}])[0].status == "accepted"
        store.down = True
        outcomes = [gate.admit([{"id": number}])[0] for number in range(IN_A_ROW + 5)]
        assert {outcome.status for outcome in outcomes} == {"failed"}
        assert store.claims == 1 + IN_A_ROW

    def test_off(self) -> None:
        """Without a breaker the store is asked every time."""
        store = Remote()
        gate = Gate(store, breaker=None)
        store.down = True
        for number in range(20):
            gate.run({"id": number}, self.succeed)
        assert store.claims == 20

    def test_not_for_stores_at_hand(self) -> None:
        """A store in the same machine needs none: its errors are its own, and slow answers are answers."""
        gate = Gate(MemoryStore())
        assert gate._engine.claimer._store is gate.store
