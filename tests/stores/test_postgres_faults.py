"""The Postgres store when things go wrong: restarts, cuts, locks, forks, and batches that meet."""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial

import pytest

from oncegate import open_store
from oncegate.claims import Complete, Granted, InFlight, Renew
from oncegate.errors import StoreError, StoreUnavailable
from oncegate.stores.base import Store
from oncegate.stores.postgres import store as module
from oncegate.testing.race_contract import race
from oncegate.testing.requests import LEASE, NAMESPACE, RETENTION, claim, claim_of, complete, granted, owner
from tests.stores import postgres_server
from tests.stores.forking import Forks, run
from tests.stores.postgres_server import PostgresServer


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    postgres.empty("faults")
    return f"{postgres.url()}?oncegate_schema=faults"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as store:
        yield store


def do_all(store: Store, barrier: threading.Barrier, order: int) -> set[str]:
    """Claim, renew and complete the same keys as everybody else at the same time, forth or back, some of them twice."""
    failures = set()
    for turn in range(3):
        keys = [(turn * 1_000 + number).to_bytes(16) for number in [*range(400), *range(0, 400, 5)]][::order]
        fences = {entry.key: entry.record.fence for entry in store.browse(limit=10_000)}
        proofs = [(NAMESPACE, key, owner("one"), fences.get(key, 0)) for key in keys]
        for ask in (
            partial(store.claim, [claim_of("one", key=key) for key in keys]),
            partial(store.renew, [Renew(*proof, LEASE) for proof in proofs]),
            partial(store.settle, [Complete(*proof, RETENTION) for proof in proofs]),
        ):
            barrier.wait(60)
            try:
                ask()
            except StoreError as error:
                failures.add(str(error))
    return failures


def meet(store: Store) -> set[str]:
    """The failures of threads that are at the same keys at once. First all that they claim is absent, then not."""
    barrier = threading.Barrier(4)
    racers: list[Callable[[], set[str]]] = [partial(do_all, store, barrier, order) for order in (1, -1, 1, -1)]
    return set().union(*race(racers), *race(racers))


def test_no_deadlock(store: Store) -> None:
    """Threads that claim, renew and settle the same keys in any order wait for each other, but never in a circle."""
    assert meet(store) == set()


def test_the_check_finds_deadlocks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that are not sorted do wait in a circle, until Postgres cuts it."""
    monkeypatch.setattr(module, "rounds", lambda batch: [list(range(len(batch)))])
    assert "deadlock detected" in " ".join(meet(store))


def test_a_terminated_session_is_replaced(store: Store, postgres: PostgresServer) -> None:
    """A session that the server has ended while nobody used it costs no caller an error."""
    granted(store, key=b"1" * 16)
    with postgres.connect() as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'oncegate'")
    time.sleep(0.1)
    granted(store, key=b"2" * 16)


def test_a_lock_held_for_too_long(url: str, postgres: PostgresServer) -> None:
    """Who holds the table locked is waited for as long as was said; then the server is asked to stop, too."""
    with closing(open_store(f"{url}&oncegate_timeout=300ms")) as store:
        # Within a transaction the server shows its sessions as they were at the first look, so another one looks.
        with postgres.connect() as onlooker, postgres.connect() as db, db.transaction():
            db.execute("LOCK TABLE faults.claims")
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match="did not answer in time"):
                granted(store)
            assert time.monotonic() - started < 2
            waiting = "SELECT FROM pg_stat_activity WHERE application_name = 'oncegate' AND state = 'active'"
            while onlooker.execute(waiting).fetchall():  # a cancelled statement takes a moment to end
                assert time.monotonic() - started < 10
        granted(store)


def test_all_connections_busy(url: str, postgres: PostgresServer) -> None:
    """More callers than connections wait their turn, and are told when it does not come."""
    with closing(open_store(f"{url}&oncegate_connections=1&oncegate_timeout=1s")) as store:
        assert [type(verdict) for verdict in race([partial(claim, store, "ann")] * 8)] == [Granted] * 8
        with store._connections.borrowed(), pytest.raises(StoreUnavailable, match="all 1 connections"):  # type: ignore[attr-defined]
            granted(store)


def test_a_restart_under_load() -> None:
    """While the server is away callers are told at once; when it is back, work goes on by itself and nothing that was
    answered is lost."""
    with postgres_server.running() as server, closing(open_store(server.url())) as store:
        stop, done = threading.Event(), []
        failures: list[Exception] = []

        def work(name: str) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                key = f"{name}{number}".encode().rjust(16)
                try:
                    if complete(store, granted(store, name, key=key), key=key):
                        done.append(key)
                except StoreUnavailable as error:
                    failures.append(error)
                    time.sleep(0.01)

        threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        for how in (signal.SIGQUIT, signal.SIGINT):
            time.sleep(0.3)
            server.stop(how)
            time.sleep(0.2)
            before = len(done)
            server.start()
            time.sleep(0.5)
            assert len(done) > before
        stop.set()
        for thread in threads:
            thread.join()
        assert failures
        states = {entry.key: entry.record.state for entry in store.browse(limit=100_000)}
        assert [key for key in done if states.get(key) != "C"] == []


class Cutting:
    """A way to the server that can be cut after a request has gone through and before its answer comes back."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while (data := one.recv(65_536)) and not (answers and self.cut):
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.close()


def test_a_lost_reply(postgres: PostgresServer) -> None:
    """When the answer is lost the caller is told that nothing is known; asked again, it gets the grant it has."""
    postgres.empty("faults")
    with closing(Cutting(postgres.port)) as way:
        url = f"postgresql://postgres@127.0.0.1:{way.port}/postgres?oncegate_schema=faults&sslmode=disable"
        with closing(open_store(url)) as store:
            way.cut = True
            with pytest.raises(StoreUnavailable, match="may have been done or not; asking again does no harm"):
                claim(store, "ann")
            way.cut = False
            assert isinstance(claim(store, "bob"), InFlight)
            record = granted(store, "ann")
            assert record.attempts == 1
            way.cut = True
            with pytest.raises(StoreUnavailable):
                complete(store, record)
            way.cut = False
            assert complete(store, record)


class TestForks(Forks):
    def test_what_the_child_lets_go(self, url: str) -> None:
        """The parent's connections stand when the child has ended and let go of all it had."""
        done = run(
            f"""
            import gc, os, sys
            from oncegate import open_store
            from oncegate.testing.requests import claim
            store = open_store({url!r})
            claim(store, "parent")
            child = os.fork()
            if child == 0:
                claim(store, "child")
                store.close()
                del store
                gc.collect()
                sys.exit()
            os.waitpid(child, 0)
            before = store._connections._idle[0].info.backend_pid
            claim(store, "parent")
            print(before == store._connections._idle[0].info.backend_pid)
            store.close()
            """
        )
        assert done.stdout.split() == ["True"], done
