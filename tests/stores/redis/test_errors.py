"""Errors of the server and the network as store errors."""

import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import exceptions as redis_errors

from oncegate import open_store
from oncegate.errors import StoreError, StoreReadOnly, StoreRefused, StoreUnavailable
from oncegate.stores.base import Change
from oncegate.stores.redis.errors import CommandFailed, failed_reply, store_error
from oncegate.testing.requests import KEY, RETENTION, bury, complete, granted, redrive, reset, take
from tests.stores.redis.helpers import assert_refused
from tests.stores.redis_server import RedisServer
from tests.stores.servers import free_port

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (redis_errors.ResponseError("MISCONF Errors writing to the AOF"), StoreReadOnly, "cannot save its data"),
        (redis_errors.ResponseError("NOREPLICAS Not enough"), StoreReadOnly, "fewer replicas than min-replicas"),
        (redis_errors.ResponseError("BUSY Redis is busy"), StoreUnavailable, "is busy with a script"),
        (redis_errors.MovedError("7 other:1"), StoreRefused, "write redis+cluster://"),
        (redis_errors.ClusterDownError("CLUSTERDOWN"), StoreUnavailable, "does not serve all slots"),
        (redis_errors.BusyLoadingError("LOADING"), StoreUnavailable, "is still loading"),
        (ConnectionResetError("Connection reset by peer"), StoreUnavailable, "use rediss://"),
        (OSError("no route"), StoreUnavailable, "cannot be reached"),
        (ssl.SSLError("bad"), StoreRefused, "certificate is not trusted"),
        (redis_errors.ResponseError("something else"), StoreError, "host:1 failed: something else"),
    ],
)
def test_kinds_of_errors(error: Exception, kind: type[StoreError], message: str) -> None:
    """Each error becomes the store error that says whether a retry can help, with the place in its message."""
    found = store_error(error, "host:1")
    assert type(found) is kind
    assert message in str(found)
    assert "host:1" in str(found)
    assert store_error(found, "elsewhere") is found


def test_what_may_have_been_executed() -> None:
    """A server that replies with an error has not executed the command; after a lost connection that is unknown."""
    assert not failed_reply(redis_errors.ResponseError("no"), "host:1").maybe_executed
    assert not failed_reply(redis_errors.BusyLoadingError("no"), "host:1").maybe_executed
    assert failed_reply(redis_errors.ConnectionError("gone"), "host:1").maybe_executed


@pytest.mark.parametrize(
    ("error", "transient", "timed_out"),
    [
        (redis_errors.ReadOnlyError("r"), True, False),
        (redis_errors.MovedError("7 other:1"), True, False),
        (redis_errors.ConnectionError("gone"), True, False),
        (redis_errors.AuthenticationError("a"), False, False),
        (redis_errors.TimeoutError("t"), False, True),
        (redis_errors.ResponseError("e"), False, False),
    ],
)
def test_transient_failures(error: Exception, transient: bool, timed_out: bool) -> None:
    """A moved slot or a lost connection is transient; a timeout, a wrong password or a rejected command is not."""
    failure = CommandFailed(error, "host:1")
    assert (failure.is_transient, failure.timed_out) == (transient, timed_out)
    assert failure.server_may_have_changed == transient
    assert CommandFailed(error, "host:1", maybe_executed=True).server_may_have_changed


class TestPermissions:
    @pytest.fixture(autouse=True)
    def _users(self, redis_server: RedisServer) -> Iterator[None]:
        page = (ROOT / "docs" / "stores" / "redis.md").read_text()
        (listed,) = re.findall(r"`(~oncegate\* [^`]+)`, or `([^`]+)`", page)
        rules = {"ann": listed[0], "bob": f"~oncegate* {listed[1]}", "eve": "~oncegate* +info +get +set"}
        for name, rule in rules.items():
            redis_server.client.execute_command("ACL", "SETUSER", name, "on", ">secret", *rule.split())
        yield
        redis_server.client.execute_command("ACL", "DELUSER", *rules)

    @pytest.mark.parametrize("name", ["ann", "bob"])
    def test_documented_permissions(self, redis_server: RedisServer, name: str) -> None:
        """A user with the permissions that the documentation lists can do everything that the store does."""
        redis_server.client.flushall()
        with closing(open_store(redis_server.url.replace("//", f"//{name}:secret@"))) as store:
            assert complete(store, granted(store))
            assert bury(store, granted(store, key=b"2" * 16), key=b"2" * 16)
            assert redrive(store, b"2" * 16)
            assert take(store) is not None
            assert len(store.browse()) == 2
            assert len(store.browse(key=KEY)) == 1
            assert store.dead_letters() == []
            assert store.swap([Change("a", b"1", 0, b"body", RETENTION)]) == [True]
            assert reset(store)

    def test_wrong_password(self, redis_server: RedisServer) -> None:
        """A wrong password raises StoreRefused, and the message does not quote it."""
        assert_refused(redis_server.url.replace("//", "//ann:secret2@"), "rejects the user name or password")

    def test_missing_permission(self, redis_server: RedisServer) -> None:
        """The message names the permission that the user lacks."""
        denied = pytest.raises(StoreRefused, match="no permissions to run the 'evalsha' command")
        with closing(open_store(redis_server.url.replace("//", "//eve:secret@"))) as store, denied:
            granted(store)

    def test_other_prefix(self, redis_server: RedisServer) -> None:
        """A user that may use one prefix cannot use another."""
        url = redis_server.url.replace("//", "//ann:secret@") + "?prefix=other"
        assert_refused(url, "denies this user a permission")


class TestUnreachable:
    """A server that does not answer raises an error within the timeout."""

    def test_closed_port(self) -> None:
        """A closed port raises StoreUnavailable: the server may start later."""
        assert_refused(f"redis://127.0.0.1:{free_port()}", "cannot be reached", StoreUnavailable)

    def test_unknown_name(self) -> None:
        """A host name that does not resolve raises StoreUnavailable."""
        assert_refused("redis://no-such-host.invalid", "no-such-host.invalid:6379 cannot be reached", StoreUnavailable)

    def test_silence(self) -> None:
        """A server that accepts the connection and sends nothing is given up after the timeout."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            start = time.monotonic()
            assert_refused(
                f"redis://127.0.0.1:{silent.getsockname()[1]}?timeout=200ms", "did not answer in time", StoreUnavailable
            )
            assert time.monotonic() - start < 1.0

    def test_another_protocol(self) -> None:
        """A server that is not Redis is assert_refused."""

        def answer(listener: socket.socket) -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=answer, args=(listener,))
            thread.start()
            assert_refused(f"redis://127.0.0.1:{listener.getsockname()[1]}", "is not Redis")
            thread.join()

    def test_another_kind_of_server(self, redis_server: RedisServer) -> None:
        """A single server is assert_refused as a cluster."""
        assert_refused(
            redis_server.url.replace("redis://", "redis+cluster://"), "write redis:// instead of redis+cluster://"
        )


def test_no_such_database(redis_server: RedisServer) -> None:
    """A database that the server does not have is assert_refused."""
    assert_refused(f"{redis_server.url}/99", "has no database of this number")
