"""A service whose store accepts no writes: not ready, with the reason, and duplicates are still recognised."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.running import Service, until
from tests.stores import postgres_server
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisServer

NOT_REMEMBERED = ("--remember", "off")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    yield server
    server.stop()


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with postgres_server.running() as server:
        yield server


def readiness(service: Service) -> tuple[int, str]:
    answer = service.client.get("/readyz")
    return answer.status_code, answer.json().get("detail", "")


def test_redis(tmp_path: Path, redis: RedisServer) -> None:
    """Inline, at maxmemory: known events get 200 and new ones 503, also with an open circuit breaker. A change of the
    eviction policy is detected."""
    options = ("--store", redis.url, "--serve-mode", "inline", *NOT_REMEMBERED)
    with Service(tmp_path, *options) as service:
        assert service.post({"id": "known"}).json()["status"] == "processed"
        assert readiness(service) == (200, "")

        redis.client.config_set("maxmemory", 1)
        assert readiness(service) == (503, "the store cannot be used: it takes no writes; see the log")
        assert {service.post({"id": number}).status_code for number in range(8)} == {503}
        for _ in range(2):
            assert service.post({"id": "known"}).json()["status"] == "duplicate"
        redis.client.config_set("maxmemory", 0)
        assert readiness(service) == (200, "")
        until(lambda: service.post({"id": "new"}).status_code == 200)

        redis.client.config_set("maxmemory-policy", "allkeys-lru")
        reason = "the store cannot be used: it may evict records (maxmemory-policy); see the log"
        assert readiness(service) == readiness(service) == (503, reason)
        redis.client.config_set("maxmemory-policy", "noeviction")
        assert readiness(service) == (200, "")
        log = service.stderr()
    assert "is out of memory; nothing was written" in log
    assert log.count("may evict records to make room (maxmemory-policy allkeys-lru)") == 1
    assert log.count("the store can be used again") == 2


def test_postgres(tmp_path: Path, postgres: PostgresServer) -> None:
    """With the inbox, on a read-only server: stored and processed events get 200, new ones 503."""
    with Service(tmp_path, "--store", postgres.url(), *NOT_REMEMBERED) as service, postgres.connect() as db:
        assert service.post({"id": "known"}).json()["status"] == "accepted"
        until(lambda: service.effects() == ["known"])
        assert readiness(service) == (200, "")
        db.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        db.execute("SELECT pg_reload_conf()")
        until(lambda: readiness(service)[0] == 503)
        assert readiness(service) == (503, "the store cannot be used: it takes no writes; see the log")
        assert {service.post({"id": number}).status_code for number in range(8)} == {503}
        assert service.post({"id": "known"}).json()["status"] == "duplicate"
        db.execute("SET default_transaction_read_only = off")
        db.execute("ALTER SYSTEM RESET default_transaction_read_only")
        db.execute("SELECT pg_reload_conf()")
        until(lambda: readiness(service)[0] == 200)
        until(lambda: service.post({"id": "new"}).status_code == 200)
