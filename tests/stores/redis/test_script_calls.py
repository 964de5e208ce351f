"""Script calls: unknown scripts, lost replies, retries and confirmation by replicas."""

import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from redis import exceptions as redis_errors

from oncegate import Gate, open_store
from oncegate.claims import Granted
from oncegate.errors import StoreUnavailable
from oncegate.stores.base import Store
from oncegate.stores.redis.codec import encode_namespace
from oncegate.stores.redis.errors import CommandFailed
from oncegate.stores.redis.script_calls import CLAIM, SETTLE, TAKE, build_script, raise_failure
from oncegate.testing.requests import (
    KEY,
    NAMESPACE,
    bury,
    claim,
    complete,
    granted,
    redrive,
    release,
    renew,
    stored,
    take,
)
from tests.stores.proxy import Proxy
from tests.stores.redis.helpers import never
from tests.stores.redis_server import RedisServer
from tests.stores.servers import free_port


def test_the_digest_is_the_servers(server: RedisServer) -> None:
    """The digest of a script is the one under which the server knows the script."""
    script = build_script(b"return 1", writes=False)
    assert server.client.script_load(script.text) == script.digest
    assert not script.writes


def test_the_first_failure_is_raised() -> None:
    """Of several failures the first is raised, with the name of its server."""
    failures = [CommandFailed(redis_errors.ReadOnlyError(name), name) for name in ("one:1", "two:2")]
    with pytest.raises(StoreUnavailable, match="one:1"):
        raise_failure([b"reply", *failures])
    raise_failure([b"reply"])


def test_unknown_scripts_are_sent(server: RedisServer, store: Store) -> None:
    """A script that the server does not know is sent to it, and the call succeeds."""
    record = granted(store)
    server.client.script_flush()
    assert complete(store, record)
    assert server.client.info("commandstats")["cmdstat_eval"]["calls"] > 0


def test_namespaces_are_listed(server: RedisServer, store: Store) -> None:
    """A namespace is listed once, again on a server that was emptied, and again after a call that was retried."""
    granted(store)
    server.client.delete("oncegate:n")
    granted(store, key=b"2" * 16)
    assert server.client.smembers("oncegate:n") == set()
    server.client.flushall()
    granted(store)
    assert [entry.namespace for entry in store.browse(key=KEY)] == [NAMESPACE]
    server.client.delete("oncegate:n")
    server.client.client_kill_filter(_type="normal", skipme=True)
    granted(store, key=b"3" * 16)
    granted(store, key=b"4" * 16)
    assert server.client.smembers("oncegate:n") == {encode_namespace(NAMESPACE)}


def test_killed_and_started_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Calls to a killed server fail. After a restart the server has its data, and the store works again."""
    server = RedisServer(tmp_path_factory.mktemp("killed"), "--appendfsync", "always")
    try:
        with closing(open_store(server.url)) as store:
            record = granted(store)
            server.kill()
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                complete(store, record)
            server.start()
            server.wait()
            assert complete(store, record)
            assert isinstance(claim(store, "bob", key=b"b" * 16), Granted)
    finally:
        server.stop()


def test_a_server_that_hangs(server: RedisServer) -> None:
    """A call is given up after the timeout, without a retry, and no later call reads the late reply."""
    with closing(open_store(f"{server.url}?timeout=500ms")) as store:
        record = granted(store)
        server.client.client_pause(1_200)
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            granted(store, key=b"2" * 16)
        assert 0.4 < time.monotonic() - start < 0.95
        server.client.ping()  # answered when the pause is over
        assert complete(store, record)


def test_a_replica_does_not_report_lost_leases(server: RedisServer, store: Store) -> None:
    """A server that has become a replica may lack the newest claims, so its reply does not mean that a lease is
    lost."""
    record = granted(store)
    server.client.replicaof("127.0.0.1", str(free_port()))
    try:
        for settle in (complete, release, renew):
            with pytest.raises(StoreUnavailable, match="read-only replica"):
                settle(store, record, key=b"2" * 16)
    finally:
        server.client.replicaof("no", "one")
    assert complete(store, record)


def test_closed_connections_are_replaced(server: RedisServer, store: Store) -> None:
    """An idle connection that the server has closed is replaced, for every kind of call."""
    record = granted(store)
    server.client.client_kill_filter(_type="normal", skipme=True)
    assert complete(store, record)
    server.client.client_kill_filter(_type="normal", skipme=True)
    second = granted(store, key=b"2" * 16)
    assert bury(store, second, key=b"2" * 16)
    server.client.client_kill_filter(_type="normal", skipme=True)
    assert redrive(store, b"2" * 16)


def test_lost_replies_are_retried(proxy: Proxy) -> None:
    """When the reply to a claim or a settlement is lost, the call is retried, and takes effect once."""
    with closing(open_store(f"redis://127.0.0.1:{proxy.port}")) as store:
        granted(store, key=b"0" * 16)  # so that the server knows the script
        proxy.lose = CLAIM.digest.encode()
        record = granted(store)
        assert record.attempts == 1
        assert proxy.lost == 1
        assert renew(store, record)
        proxy.lose = SETTLE.digest.encode()
        assert complete(store, record)
        assert proxy.lost == 2
        after = stored(store)
        assert after is not None
        assert (after.fence, after.attempts) == (record.fence, 1)


def test_a_lost_take_is_not_retried(server: RedisServer, proxy: Proxy) -> None:
    """A take whose reply is lost is not retried: the retry would take another event. The first event is free after its
    lease."""
    server.client.script_load(TAKE.text)
    with closing(open_store(f"redis://127.0.0.1:{proxy.port}")) as store:
        for key in (b"1" * 16, b"2" * 16):
            assert bury(store, granted(store, key=key), key=key)
            assert redrive(store, key)
        proxy.lose = TAKE.digest.encode()
        with pytest.raises(StoreUnavailable, match="has closed the connection"):
            take(store)
        assert take(store) is not None
        assert take(store) is None


class TestReplicas:
    def test_waiting_for_replicas(self, redis_server: RedisServer, replica: RedisServer) -> None:
        """With wait_replicas a write succeeds when that many replicas have it, and fails otherwise."""
        redis_server.client.flushall()
        with closing(open_store(f"{redis_server.url}?wait_replicas=1")) as store:
            record = granted(store)
            assert replica.client.keys("oncegate:r*")
        with closing(open_store(f"{redis_server.url}?wait_replicas=2&wait_timeout=50ms")) as store:
            with pytest.raises(StoreUnavailable, match=r"1 of 2 replicas .* have confirmed"):
                complete(store, record)
            assert [entry.record.state for entry in store.browse()] == ["C"]

    def test_an_unconfirmed_claim_is_no_attempt(self, redis_server: RedisServer, replica: RedisServer) -> None:
        """A claim that replicas do not confirm in time is released, and its attempts do not count, however often that
        happens."""
        redis_server.client.flushall()
        with closing(open_store(f"{redis_server.url}?wait_replicas=2&wait_timeout=50ms")) as store:
            gate = Gate(store, max_attempts=2, breaker=None)
            outcomes = [gate.run({"id": "a"}, never) for _ in range(4)]
            assert {outcome.status for outcome in outcomes} == {"failed"}
            assert "1 of 2 replicas" in (outcomes[-1].error or "")
            assert [(entry.record.state, entry.record.attempts) for entry in store.browse()] == [("R", 0)]


@pytest.mark.filterwarnings("ignore:Redis at .* keeps no append-only file:RuntimeWarning")
def test_a_server_that_has_lost_its_data(tmp_path: Path) -> None:
    """After a server restarted without its data, the store can be opened with create=False again."""
    server = RedisServer(tmp_path, "--appendonly", "no")
    with ExitStack() as until, closing(open_store(server.url)) as store:
        until.callback(server.stop)
        granted(store)
        server.kill()
        with pytest.raises(StoreUnavailable):
            granted(store, "bob")
        server.start()
        server.wait()
        granted(store, "bob")
        with closing(open_store(server.url, create=False)) as looking:
            assert len(looking.browse()) == 1
