"""The Redis store against the contract, and what a server, a network and a clock can do to it."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate import open_store
from oncegate.claims import Duplicate, EventSummary, Granted, InFlight
from oncegate.clocks import Clock
from oncegate.errors import StoreRefused, StoreUnavailable
from oncegate.stores.base import Store
from oncegate.stores.redis.codec import address_of, namespace_of, place_of
from oncegate.stores.redis.script_calls import CLAIM, SETTLE, TAKE
from oncegate.testing import ManualClock, SharedStoreContract
from oncegate.testing.requests import (
    KEY,
    LEASE,
    NAMESPACE,
    RETENTION,
    bury,
    claim,
    claim_of,
    complete,
    granted,
    redrive,
    release,
    renew,
    stored,
    take,
)
from tests import FORKS
from tests.stores.forking import Forks, run
from tests.stores.proxy import Proxy
from tests.stores.redis_server import RedisServer
from tests.stores.servers import free_port


class TestRedisStore(SharedStoreContract):
    processes = FORKS
    histories = 60

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.server = redis_server
        redis_server.client.flushall()

    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url(), clock=clock)

    def open_empty(self, clock: Clock) -> Store:
        self.server.client.flushall()
        return self.open(clock)

    def url(self) -> str:
        return self.server.url


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    redis_server.client.flushall()
    return redis_server


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    with closing(open_store(server.url)) as opened:
        yield opened


# ── names and layout ──────────────────────────────────────────────────────────────────────────────────────


@given(st.text(), st.text(), st.binary(max_size=3), st.binary(max_size=3))
def test_places_keep_order_and_come_back(one: str, other: str, key: bytes, other_key: bytes) -> None:
    """Places with keys sort as (namespace, key) does, and tell both again, whatever is in them."""
    first, second = place_of(one) + key, place_of(other) + other_key
    assert (first < second) == ((one, key) < (other, other_key))
    assert address_of(first) == (one, key)
    assert namespace_of(place_of(other)) == other


@pytest.mark.parametrize("name", ["", "a\0b", "\1", "*", "[a]?", "\\", "ü\N{SNOWMAN}", "n" * 1_000])
def test_any_namespace(store: Store, name: str) -> None:
    """Any text is a namespace: its records are found, listed and kept apart from those of others."""
    assert bury(store, granted(store, namespace=name), namespace=name)
    granted(store, namespace="a")
    assert [entry.namespace for entry in store.browse(name)] == [name]
    assert [entry.namespace for entry in store.browse(name, key=KEY)] == [name]
    assert [entry.namespace for entry in store.dead_letters(name)] == [name]
    assert len(store.browse()) == 2


@pytest.mark.parametrize(
    "delivery",
    [
        None,
        "",
        "0f0e0d0c-0b0a-0908-0706-050403020100",
        "0F0E0D0C-0B0A-0908-0706-050403020100",
        "x" * 36,
        "-" * 36,
        "y" * 300,
    ],
)
def test_delivery_ids_come_back_as_they_were(store: Store, delivery: str | None) -> None:
    """A delivery id is kept in fewer bytes if it is a UUID, and comes back the same whatever it is."""
    about = EventSummary("plain", None, None, None, delivery)
    granted(store, about=about)
    record = stored(store)
    assert record is not None
    assert record.about == about


def test_prefixes_share_nothing(server: RedisServer) -> None:
    """Two prefixes on one server are two stores, and every key of a store has its prefix."""
    with closing(open_store(f"{server.url}?prefix=a")) as one, closing(open_store(f"{server.url}?prefix=b")) as other:
        granted(one)
        assert isinstance(claim(other, "bob"), Granted)
        assert bury(one, granted(one, key=b"d" * 16), key=b"d" * 16)
        assert other.dead_letters() == []
        assert len(one.browse()) == 2
        assert {key[:1] for key in server.client.keys("*")} == {b"a", b"b"}


# ── expiry and time ───────────────────────────────────────────────────────────────────────────────────────


def test_redis_drops_what_has_expired(server: RedisServer, store: Store) -> None:
    """After every verb Redis has an expiry for a record: half a minute to a minute after the record's own."""

    def check() -> None:
        record = stored(store)
        assert record is not None
        assert record.expires_at is not None
        left = server.client.pttl(b"oncegate:r" + place_of(NAMESPACE) + KEY) * 1_000
        assert 29_000_000 < left - (record.expires_at - time.time_ns() // 1_000) <= 60_100_000

    record = granted(store)
    check()
    assert renew(store, record, lease=2 * RETENTION)
    check()
    assert release(store, record)
    check()
    second = granted(store, "bob")
    check()
    assert complete(store, second, b"null", retention=20 * RETENTION)
    check()
    claim(store, "cid", slides=100 * RETENTION, retention=30 * RETENTION)
    check()


@pytest.mark.parametrize(("retention", "result"), [(RETENTION, b"null"), (2 * RETENTION, b"null"), (RETENTION, None)])
def test_completed_in_place_or_not(store: Store, retention: int, result: bytes | None) -> None:
    """The short way to complete a record leaves the same record behind as the long one."""
    record = granted(store)
    assert complete(store, record, result, retention=retention)
    after = stored(store)
    assert after is not None
    assert (after.result, after.error, after.payload, after.about) == (result, None, None, record.about)
    assert after.completed_at is not None
    assert after.expires_at == after.completed_at + retention


def test_an_expired_document_or_record_leaves_the_server(server: RedisServer) -> None:
    """What nobody asks for again is dropped by Redis itself."""
    with closing(open_store(server.url)) as store:
        granted(store, retention=LEASE)
        keys = server.client.keys("oncegate:r*")
        assert keys
        server.client.pexpire(keys[0], 1)
        time.sleep(0.05)
        assert server.client.keys("oncegate:r*") == []
        assert store.browse() == []


def test_lists_of_dead_letters_do_not_grow_for_ever(server: RedisServer) -> None:
    """Dead letters that have expired unseen leave the lists when others are buried."""
    clock = ManualClock()
    with closing(open_store(server.url, clock=clock)) as store:
        for number in range(60):
            key = number.to_bytes(16)
            assert bury(store, granted(store, key=key), key=key, retention=RETENTION)
            clock.advance(RETENTION // 10)
        assert server.client.zcard("oncegate:d") == server.client.zcard("oncegate:e") <= 11
        assert len(store.dead_letters()) == 9


def test_a_forgotten_dead_letter_is_new(server: RedisServer) -> None:
    """A dead letter that has expired is claimed as a new event, and is in no list any more."""
    clock = ManualClock()
    with closing(open_store(server.url, clock=clock)) as store:
        assert bury(store, granted(store), retention=RETENTION)
        clock.advance(RETENTION)
        assert granted(store, "bob").attempts == 1
        assert server.client.zcard("oncegate:d") == server.client.zcard("oncegate:e") == 0


def test_a_record_that_was_deleted_by_hand(server: RedisServer, store: Store) -> None:
    """When somebody deletes a waiting record with Redis' own commands, takers are told that there is nothing."""
    assert bury(store, granted(store))
    assert redrive(store)
    server.client.delete(b"oncegate:r" + place_of(NAMESPACE) + KEY)
    assert take(store) is None
    assert server.client.keys("oncegate:w*") == []


def test_time_never_goes_back(server: RedisServer) -> None:
    """Who comes with an earlier time judges by the latest that anybody has judged by."""
    ahead, behind = ManualClock(2_000_000_000_000_000), ManualClock(1_900_000_000_000_000)
    with closing(open_store(server.url, clock=ahead)) as first, closing(open_store(server.url, clock=behind)) as second:
        record = granted(first)
        assert isinstance(claim(second, "bob"), InFlight)
        ahead.advance("30s")
        granted(first, key=b"x" * 16)
        takeover = granted(second, "bob")
        assert takeover.fence == record.fence + 1
        assert takeover.lease_until == ahead.now + LEASE


def test_time_stands_still_while_the_clock_is_behind(server: RedisServer, store: Store) -> None:
    """When the server's clock was set back an hour, time moves by a microsecond a grant, and fences still rise."""
    now = time.time_ns() // 1_000
    high = now + 3_600_000_000
    server.client.set("oncegate:t", high.to_bytes(7) + now.to_bytes(7))
    assert [granted(store, key=b"%016d" % number).fence - high for number in range(3)] == [1, 2, 3]


def test_attempts_stop_at_their_most(server: RedisServer, store: Store) -> None:
    """A record that was tried more often than its two bytes can count stays at the most they can."""
    record = granted(store)
    key = b"oncegate:r" + place_of(NAMESPACE) + KEY
    server.client.setrange(key, 8, b"\xff")
    server.client.setrange(key, 16, b"\xff")
    assert release(store, record)
    assert granted(store, "bob").attempts == 65_535


def test_only_grants_are_written_down(server: RedisServer, store: Store) -> None:
    """A duplicate writes nothing, and a completion only its record: time is noted when something is granted."""
    record = granted(store)
    noted = server.client.get("oncegate:t")
    assert complete(store, record, b"null")
    before = server.client.info("persistence")["rdb_changes_since_last_save"]
    assert isinstance(claim(store, "bob"), Duplicate)
    assert server.client.info("persistence")["rdb_changes_since_last_save"] == before
    assert server.client.get("oncegate:t") == noted
    granted(store, key=b"2" * 16)
    assert server.client.get("oncegate:t") > noted


# ── servers and networks ──────────────────────────────────────────────────────────────────────────────────


def test_a_server_that_forgot_the_scripts(server: RedisServer, store: Store) -> None:
    """Scripts that a server does not know are sent to it, and the call is answered."""
    record = granted(store)
    server.client.script_flush()
    assert complete(store, record)
    assert server.client.info("commandstats")["cmdstat_eval"]["calls"] > 0


def test_an_emptied_server_is_told_of_namespaces(server: RedisServer, store: Store) -> None:
    """A namespace is noted once, again on a server that was emptied, and again after a call that had to be repeated."""
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
    assert server.client.smembers("oncegate:n") == {place_of(NAMESPACE)}


def test_one_call_for_a_batch(server: RedisServer, store: Store) -> None:
    """A batch of a thousand claims is one call of a script."""
    granted(store)
    server.client.config_resetstat()
    store.claim([claim_of(key=number.to_bytes(16)) for number in range(1_000)])
    assert server.client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1


def test_killed_and_started_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A server that is killed takes no claim; started again it has what it had, and the store goes on by itself."""
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
    """What does not come within the timeout is given up, once, and the late answer is nobody's."""
    with closing(open_store(f"{server.url}?timeout=500ms")) as store:
        record = granted(store)
        server.client.client_pause(1_200)
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            granted(store, key=b"2" * 16)
        assert 0.4 < time.monotonic() - start < 0.95
        server.client.ping()  # answered when the pause is over
        assert complete(store, record)


def test_a_replica_says_nothing_is_lost(server: RedisServer, store: Store) -> None:
    """A server that has become a replica may lack the newest claims: it is not believed that they are lost."""
    record = granted(store)
    server.client.replicaof("127.0.0.1", str(free_port()))
    try:
        for settle in (complete, release, renew):
            with pytest.raises(StoreUnavailable, match="read-only replica"):
                settle(store, record, key=b"2" * 16)
    finally:
        server.client.replicaof("no", "one")
    assert complete(store, record)


def test_connections_that_the_server_has_closed(server: RedisServer, store: Store) -> None:
    """A connection that was closed while nobody used it is replaced, whatever is asked for next."""
    record = granted(store)
    server.client.client_kill_filter(_type="normal", skipme=True)
    assert complete(store, record)
    server.client.client_kill_filter(_type="normal", skipme=True)
    second = granted(store, key=b"2" * 16)
    assert bury(store, second, key=b"2" * 16)
    server.client.client_kill_filter(_type="normal", skipme=True)
    assert redrive(store, b"2" * 16)


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


def test_a_lost_answer_is_asked_for_again(proxy: Proxy) -> None:
    """When the network loses the answer to a claim or a settle, asking again gets it, and nothing is done twice."""
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


def test_a_lost_answer_that_cannot_be_asked_for(server: RedisServer, proxy: Proxy) -> None:
    """A take whose answer is lost is not sent again: it would take another event. The first is free after its lease."""
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


def test_connections_are_not_shared_after_an_interrupt(server: RedisServer) -> None:
    """An exception that a signal raises in the middle of a call leaves no answer behind for the next call to read."""
    done = run(
        f"""
        import signal, time
        from oncegate import open_store
        from oncegate.testing.requests import claim_of
        store = open_store("{server.url}")
        class Interrupt(Exception): ...
        def interrupt(*_): raise Interrupt
        signal.signal(signal.SIGALRM, interrupt)
        interrupts, wrong, number, end = 0, 0, 0, time.monotonic() + 2
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                for _ in range(100):  # a library may have swallowed the exception
                    number += 1
                    owner = number.to_bytes(16)
                    (verdict,) = store.claim([claim_of(key=owner, owner=owner)])
                    (again,) = store.claim([claim_of(key=owner, owner=owner)])
                    wrong += again.record.owner != owner
            except Interrupt:
                interrupts += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        print(interrupts > 50, wrong)
        """
    )
    assert done.stdout.split() == ["True", "0"], done


class TestForks(Forks):
    @pytest.fixture
    def url(self, server: RedisServer) -> str:
        return server.url


def test_closed(server: RedisServer) -> None:
    """A closed store says that it is closed."""
    store = open_store(server.url)
    store.close()
    with pytest.raises(StoreRefused, match="was closed"):
        granted(store)
