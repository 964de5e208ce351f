"""Checks of a server when it is opened."""

import warnings
from contextlib import closing

import pytest

from oncegate import Gate, open_store
from oncegate.errors import StoreRefused, StoreUnavailable
from oncegate.stores.redis.checks import _check_version, parse_info
from oncegate.testing.requests import bury, claim_of, granted, reset
from tests.stores.redis.helpers import assert_refused, configured, never
from tests.stores.redis_server import RedisServer


class TestEviction:
    """A server that may evict records is assert_refused, because an evicted event would run again."""

    @pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-ttl", "volatile-lfu"])
    def test_may_evict(self, redis_server: RedisServer, policy: str) -> None:
        """Every policy but noeviction is assert_refused, also the volatile ones, and also without maxmemory."""
        for limit in ("1gb", "0"):
            with configured(redis_server, maxmemory=limit, maxmemory_policy=policy):
                assert_refused(redis_server.url, f"may evict records to make room (maxmemory-policy {policy})")

    def test_what_to_do(self, redis_server: RedisServer) -> None:
        """The message names the default of ElastiCache, where to change it, and the option that allows eviction."""
        with configured(redis_server, maxmemory_policy="volatile-lru"):
            assert_refused(
                redis_server.url,
                "ElastiCache has volatile-lru by default: set noeviction in a custom parameter group",
            )
            assert_refused(redis_server.url, "To use a server that may evict records, add ?evicting=allowed")

    def test_allowed(self, redis_server: RedisServer) -> None:
        """With evicting=allowed the store opens with a warning."""
        with configured(redis_server, maxmemory_policy="volatile-lru"), pytest.warns(RuntimeWarning, match="may evict"):
            open_store(f"{redis_server.url}?evicting=allowed").close()

    def test_may_not(self, redis_server: RedisServer) -> None:
        """With noeviction the store opens, with any maxmemory."""
        with configured(redis_server, maxmemory="1gb", maxmemory_policy="noeviction"):
            open_store(redis_server.url).close()

    def test_full(self, redis_server: RedisServer) -> None:
        """A full server that evicts nothing rejects the whole batch."""
        redis_server.client.flushall()
        with closing(open_store(redis_server.url)) as store:
            full, rejected = (
                configured(redis_server, maxmemory="1mb"),
                pytest.raises(StoreUnavailable, match="out of memory"),
            )
            with full, rejected:
                store.claim([claim_of(key=number.to_bytes(16)) for number in range(100)])
            assert store.browse() == []

    def test_full_for_a_while(self, redis_server: RedisServer) -> None:
        """After a full server rejected a new event, duplicates are still recognised, and dead letters can be
        deleted."""
        redis_server.client.flushall()
        with closing(open_store(redis_server.url)) as store, closing(Gate(store, remember=None)) as gate:
            assert gate.run({"id": "done"}, lambda event: None).status == "processed"
            assert bury(store, granted(store))
            with configured(redis_server, maxmemory="1mb"):
                assert gate.run({"id": "new"}, never).status == "failed"
                assert gate.run({"id": "done"}, never).status == "duplicate"
                assert reset(store, only_dead=True)


def test_without_an_append_only_file(redis_server: RedisServer) -> None:
    """A server without an append-only file is used, with a warning that says what can be lost."""
    with configured(redis_server, appendonly="no"), pytest.warns(RuntimeWarning, match="keeps no append-only file"):
        open_store(redis_server.url).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_store(redis_server.url).close()


def test_a_replica(redis_server: RedisServer, replica: RedisServer) -> None:
    """A replica is assert_refused, and the message names its primary."""
    assert_refused(replica.url, f"is a read-only replica; use its primary instead: 127.0.0.1:{redis_server.port}")


@pytest.mark.parametrize("version", ["6.0.16", "5.0.7", "6.1.240"])
def test_too_old(version: str) -> None:
    """Redis before 6.2 is assert_refused. Only the check is tested, because no such server is at hand."""
    with pytest.raises(StoreRefused, match="is too old"):
        _check_version({"redis_version": version}, "here")
    _check_version({"redis_version": "6.2.0"}, "here")
    _check_version({"redis_version": "7.2.4"}, "here")


def test_info_is_parsed() -> None:
    """Headings and empty lines of INFO are skipped, and bytes that are not UTF-8 do no harm."""
    reply = b"# Server\r\nredis_version:7.2.4\r\n\r\nname:\xff:x\r\n"
    assert parse_info(reply) == {"redis_version": "7.2.4", "name": "\N{REPLACEMENT CHARACTER}:x"}


class TestLayout:
    @pytest.fixture(autouse=True)
    def _empty(self, redis_server: RedisServer) -> None:
        redis_server.client.flushall()

    def test_missing_store(self, redis_server: RedisServer) -> None:
        """With create=False a missing store raises an error, and nothing is written."""
        with pytest.raises(StoreRefused, match="there is no store elsewhere at"):
            open_store(f"{redis_server.url}?prefix=elsewhere", create=False)
        assert redis_server.client.dbsize() == 0
        open_store(redis_server.url).close()
        open_store(redis_server.url, create=False).close()

    def test_newer(self, redis_server: RedisServer) -> None:
        """A store with a newer layout is assert_refused."""
        redis_server.client.set("oncegate{layout}", "3 1")
        assert_refused(redis_server.url, "was written by a newer Oncegate (layout 3")

    def test_older(self, redis_server: RedisServer) -> None:
        """The layout version of an older store is raised with create=True, and only then."""
        redis_server.client.set("oncegate{layout}", "1 1")
        open_store(redis_server.url, create=False).close()
        assert redis_server.client.get("oncegate{layout}") == b"1 1"
        open_store(redis_server.url).close()
        assert redis_server.client.get("oncegate{layout}") == b"2 1"

    def test_key_of_another_program(self, redis_server: RedisServer) -> None:
        """A layout key that another program wrote is assert_refused."""
        redis_server.client.set("oncegate{layout}", "landscape")
        assert_refused(redis_server.url, "the key oncegate{layout} at")

    def test_other_buckets(self, redis_server: RedisServer) -> None:
        """A store of a cluster is not opened as a store of a single server."""
        redis_server.client.set("oncegate{layout}", "2 16")
        assert_refused(redis_server.url, "was made with 16 buckets, not 1")
