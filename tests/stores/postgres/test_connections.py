"""Connections of the Postgres store: restarts, lost connections, timeouts, limits and forks."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial

import pytest

from oncegate import open_store
from oncegate.claims import Granted, InFlight
from oncegate.errors import StoreRefused, StoreUnavailable
from oncegate.stores.base import Store
from oncegate.testing.race_contract import race
from oncegate.testing.requests import claim, complete, granted
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


def test_a_terminated_session_is_replaced(store: Store, postgres: PostgresServer) -> None:
    """A session that the server ended while it was idle is replaced without an error."""
    granted(store, key=b"1" * 16)
    with postgres.connect() as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'oncegate'")
    time.sleep(0.1)
    granted(store, key=b"2" * 16)


def test_a_statement_that_times_out(url: str, postgres: PostgresServer) -> None:
    """A statement that waits for a lock fails after the timeout, and the server cancels the statement."""
    with closing(open_store(f"{url}&oncegate_timeout=300ms")) as store:
        # Within a transaction pg_stat_activity does not change after the first read, so another session reads it.
        with postgres.connect() as observer, postgres.connect() as db, db.transaction():
            db.execute("LOCK TABLE faults.claims")
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match="did not answer in time"):
                granted(store)
            assert time.monotonic() - started < 2
            waiting = "SELECT FROM pg_stat_activity WHERE application_name = 'oncegate' AND state = 'active'"
            while observer.execute(waiting).fetchall():  # a cancelled statement takes a moment to end
                assert time.monotonic() - started < 10
        granted(store)


def test_all_connections_busy(url: str, postgres: PostgresServer) -> None:
    """More callers than connections wait for a connection, and fail after the timeout."""
    with closing(open_store(f"{url}&oncegate_connections=1&oncegate_timeout=1s")) as store:
        assert [type(verdict) for verdict in race([partial(claim, store, "ann")] * 8)] == [Granted] * 8
        with store._connections.borrow(), pytest.raises(StoreUnavailable, match="all 1 connections"):  # type: ignore[attr-defined]
            granted(store)


def test_a_restart_under_load() -> None:
    """While the server is down, calls fail at once. After the restart they succeed, and no completion is lost."""
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


class CuttingProxy:
    """A proxy that can cut the connection after it forwarded a request and before it returns the answer."""

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
    """When a reply is lost, the error says that a retry is safe; the retry returns the grant of the first request."""
    postgres.empty("faults")
    with closing(CuttingProxy(postgres.port)) as proxy:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?oncegate_schema=faults&sslmode=disable"
        with closing(open_store(url)) as store:
            proxy.cut = True
            with pytest.raises(StoreUnavailable, match="the request may have been applied; it is safe to retry"):
                claim(store, "ann")
            proxy.cut = False
            assert isinstance(claim(store, "bob"), InFlight)
            record = granted(store, "ann")
            assert record.attempts == 1
            proxy.cut = True
            with pytest.raises(StoreUnavailable):
                complete(store, record)
            proxy.cut = False
            assert complete(store, record)


class TestForks(Forks):
    def test_the_child_does_not_close_the_parents_connections(self, url: str) -> None:
        """The parent's connections stay open after the child closed its store and exited."""
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


class TestUnreachable:
    def test_a_closed_port(self) -> None:
        """A refused connection is reported at once, without the password."""
        url = f"postgresql://postgres:secret@127.0.0.1:{postgres_server.free_port()}/postgres"
        with pytest.raises(StoreUnavailable, match=r"cannot be reached \(Connection refused\)") as refused:
            open_store(url)
        assert "secret" not in str(refused.value)

    def test_a_silent_server(self) -> None:
        """Opening a store at a server that accepts the connection and never answers fails after the connect timeout."""
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                open_store(f"postgresql://127.0.0.1:{silent.getsockname()[1]}/db?connect_timeout=2")
            assert time.monotonic() - started < 4


def test_closed(postgres: PostgresServer) -> None:
    """A call on a closed store says that the store was closed."""
    store = open_store(f"{postgres.url()}?oncegate_schema=closed")
    store.close()
    with pytest.raises(StoreRefused, match="was closed"):
        granted(store)
