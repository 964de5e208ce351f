"""Contract tests of races between threads and between processes. A barrier starts all threads or processes of a race
together."""

import multiprocessing
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.synchronize import Barrier as ProcessBarrier
from typing import TYPE_CHECKING, Any

from oncegate.claims import COMPLETED, Address, Granted, InFlight
from oncegate.stores import open_store
from oncegate.stores.base import Change, Store
from oncegate.testing.clock import ManualClock
from oncegate.testing.requests import (
    LEASE,
    RETENTION,
    address,
    bury,
    claim,
    claim_of,
    complete,
    forget,
    granted,
    owner,
    redrive,
    stored,
    take,
)

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

_RACERS = 8


def race(racers: list[Callable[[], Any]]) -> list[Any]:
    """Run all actions at once, each in a thread. Returns the answers in order."""
    barrier = threading.Barrier(len(racers))
    answers: list[Any] = [None] * len(racers)

    def runner(index: int, racer: Callable[[], Any]) -> None:
        barrier.wait()
        answers[index] = racer()

    threads = [threading.Thread(target=runner, args=(index, racer)) for index, racer in enumerate(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


class RaceContract:
    rounds = 20

    def test_one_claimer_wins(self, store: Store) -> None:
        """If several threads claim one key at once, exactly one claim is granted. The other claims are in flight."""
        for round_number in range(self.rounds):
            key = round_number.to_bytes(16)
            verdicts = race([partial(claim, store, f"racer-{n}", key=key) for n in range(_RACERS)])
            assert sorted(type(verdict).__name__ for verdict in verdicts) == ["Granted"] + ["InFlight"] * (_RACERS - 1)

    def test_one_takeover_wins(self, store: Store, clock: ManualClock) -> None:
        """If several threads claim a key with an expired lease, exactly one claim is granted, and the fence rises by
        one."""
        for round_number in range(self.rounds):
            key = round_number.to_bytes(16)
            first = granted(store, key=key)
            clock.advance(LEASE)
            verdicts = race([partial(claim, store, f"racer-{n}", key=key) for n in range(_RACERS)])
            grants = [verdict for verdict in verdicts if isinstance(verdict, Granted)]
            assert [grant.record.fence for grant in grants] == [first.fence + 1]

    def test_owner_and_successor(self, store: Store, clock: ManualClock) -> None:
        """If an owner completes an event while another owner claims it, either the completion or the claim succeeds,
        never both."""
        for round_number in range(self.rounds):
            key = round_number.to_bytes(16)
            first = granted(store, key=key)
            clock.advance(LEASE)
            completed, verdict = race(
                [
                    partial(complete, store, first, key=key),
                    partial(claim, store, "bob", key=key),
                ]
            )
            assert completed is not isinstance(verdict, Granted)

    def test_one_dispatcher_takes(self, store: Store) -> None:
        """If several dispatchers take at once, each waiting event goes to exactly one dispatcher."""
        keys = [number.to_bytes(16) for number in range(5)]
        for key in keys:
            assert bury(store, granted(store, key=key), key=key)
            assert redrive(store, key)
        entries = race([partial(take, store, f"racer-{n}") for n in range(_RACERS)])
        taken = [entry.key for entry in entries if entry is not None]
        assert sorted(taken) == keys

    def test_forget_and_takeover(self, store: Store) -> None:
        """If an operator erases a waiting event while a dispatcher takes it, either the erasure or the take succeeds,
        never both. The event of the dispatcher keeps its payload."""
        for round_number in range(self.rounds):
            key = round_number.to_bytes(16)
            assert bury(store, granted(store, key=key), key=key)
            assert redrive(store, key)
            erased, entry = race([partial(forget, store, key, waiting=True), partial(take, store)])
            record = stored(store, key)
            assert record is not None
            if entry is not None:
                assert (erased, record.payload) == (False, entry.record.payload)
                assert complete(store, entry.record, key=key)
            else:
                assert (erased, record.state, record.payload) == (True, COMPLETED, None)

    def test_forget_and_complete(self, store: Store, clock: ManualClock) -> None:
        """If an operator erases a record while its worker completes it after the lease, the completion succeeds, and
        the record is completed."""
        for round_number in range(self.rounds):
            key = round_number.to_bytes(16)
            first = granted(store, key=key)
            clock.advance(LEASE)
            _, completed = race([partial(forget, store, key), partial(complete, store, first, key=key)])
            record = stored(store, key)
            assert record is not None
            assert (completed, record.state) == (True, COMPLETED)

    def test_one_swap_wins(self, store: Store) -> None:
        """If several threads swap from one version, exactly one swap succeeds, and its body is stored."""
        for round_number in range(self.rounds):
            where = address(f"doc-{round_number}")
            answers = race([partial(_swap, store, where, n) for n in range(_RACERS)])
            assert answers.count(True) == 1
            (document,) = store.load([where])
            assert document.body == str(answers.index(True)).encode()

    def test_batches_in_opposite_order(self, store: Store) -> None:
        """Two batches with the same keys in opposite order do not deadlock, and no key is granted to both."""
        for round_number in range(self.rounds):
            keys = [(round_number * 100 + number).to_bytes(16) for number in range(50)]
            forth = [claim_of("forth", key=key) for key in keys]
            back = [claim_of("back", key=key) for key in reversed(keys)]
            first, second = race([partial(store.claim, forth), partial(store.claim, back)])
            for one, other in zip(first, reversed(second), strict=True):
                assert {type(one), type(other)} == {Granted, InFlight}


def _swap(store: Store, where: Address, number: int) -> bool:
    (answer,) = store.swap([Change(where.namespace, where.key, 0, str(number).encode(), RETENTION)])
    return answer


class ProcessRaceContract:
    """Races between processes on one store, which must have a URL.

    `processes` is the start method. A "forkserver" that has imported `oncegate.testing` is much faster. The processes
    of a forkserver have the environment variables from the time when the forkserver started. So do not use a forkserver
    for a store that reads credentials from variables that tests set.
    """

    processes: "SpawnContext | ForkServerContext" = multiprocessing.get_context("spawn")

    def url(self) -> str:
        raise NotImplementedError

    def test_one_process_is_granted(self, store: Store) -> None:
        """If several processes claim the same keys at once, in batches, each key is granted to exactly one process."""
        keys = [number.to_bytes(16) for number in range(100)]
        winners = self._race(_claim_in_process, keys)
        granted_keys = sorted(key for keys_won in winners for key in keys_won)
        assert granted_keys == keys
        assert all(isinstance(claim(store, "late", key=key), InFlight) for key in keys)

    def test_one_process_swaps(self, store: Store) -> None:
        """If several processes increment a counter in one document, no increment is lost."""
        counts = self._race(_count_in_process, 25)
        (document,) = store.load([address("counter")])
        assert document.body is not None
        assert int(document.body) == sum(counts) == 4 * 25

    def test_other_processes_see_a_completion(self, store: Store) -> None:
        """Other processes see a completion as soon as the store has confirmed the completion."""
        results = self._race(_complete_in_process, [number.to_bytes(16) for number in range(50)])
        assert sum(results) == 50
        for number in range(50):
            record = stored(store, number.to_bytes(16))
            assert record is not None
            assert record.state == "C"

    def _race(self, racer: Callable[..., Any], argument: Any, count: int = 4) -> list[Any]:
        url, barrier, answers = self.url(), self.processes.Barrier(count), self.processes.SimpleQueue()
        racers = [
            self.processes.Process(target=_run_racer, args=(url, racer, argument, number, barrier, answers))
            for number in range(count)
        ]
        for process in racers:
            process.start()
        collected = [answers.get() for _ in racers]
        for process in racers:
            process.join()
        answers.close()
        failures = [answer for answer in collected if isinstance(answer, BaseException)]
        assert not failures, failures
        return collected


def _run_racer(
    url: str, racer: Callable[..., Any], argument: Any, number: int, barrier: ProcessBarrier, answers: Any
) -> None:
    try:
        store = open_store(url)
        barrier.wait(60)
        answer = racer(store, argument, f"process-{number}")
        store.close()
    except BaseException as error:  # noqa: BLE001  # the parent process raises it
        answer = error
    answers.put(answer)


def _claim_in_process(store: Store, keys: list[bytes], name: str) -> list[bytes]:
    won = []
    for start in range(0, len(keys), 10):
        batch = keys[start : start + 10]
        verdicts = store.claim([claim_of(name, key=key) for key in batch])
        won += [key for key, verdict in zip(batch, verdicts, strict=True) if isinstance(verdict, Granted)]
    return won


def _count_in_process(store: Store, times: int, _name: str) -> int:
    where = address("counter")
    done = 0
    while done < times:
        (document,) = store.load([where])
        body = str(int(document.body or b"0") + 1).encode()
        done += store.swap([Change(where.namespace, where.key, document.version, body, RETENTION)])[0]
    return done


def _complete_in_process(store: Store, keys: list[bytes], name: str) -> int:
    completed = 0
    for key in keys:
        verdict = claim(store, name, key=key)
        if isinstance(verdict, Granted):
            assert verdict.record.owner == owner(name)
            completed += complete(store, verdict.record, key=key)
    return completed
