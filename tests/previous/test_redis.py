"""Old keys in Redis."""

import time
from contextlib import closing
from typing import Any

import pytest
import redis

from oncegate.clocks import wall
from oncegate.errors import StoreRefused, StoreUnavailable
from oncegate.previous.base import BadRow, OldMark, OldRow, PlaceUrl
from oncegate.previous.redis import RedisPlace
from tests.stores.redis_server import RedisCluster, RedisServer
from tests.stores.servers import free_port


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    redis_server.client.flushall()
    return redis_server


def opened(url: str, match: str | None = None) -> RedisPlace:
    return RedisPlace(PlaceUrl(url, key=("event:{id}",), match=match))


def check(url: str, client: Any) -> None:
    client.set("event:1", "1", px=60_000)
    client.hset("event:2", "a", "b")
    client.set("other:3", "1")
    with closing(opened(url, "event:*")) as place:
        one, two, three = place.find([("event:1",), ("event:2",), ("event:3",)])
        assert 0 < ((one and one.expires_at) or 0) - wall() <= 60_000_000
        assert (two, three) == (OldMark(), None)
        rows = {row.columns["key"]: row.expires_at for row in place.rows() if isinstance(row, OldRow)}
    assert rows.keys() == {"event:1", "event:2"}
    assert rows["event:2"] is None


def test_a_server(server: RedisServer) -> None:
    """Keys of any type are marks; the time to live is that of the key."""
    check(server.url, server.client)


def test_a_cluster(redis_cluster: RedisCluster) -> None:
    """The keys of a cluster are on different servers."""
    redis_cluster.flush()
    with closing(redis.RedisCluster("127.0.0.1", redis_cluster.primaries()[0].port)) as client:
        check(redis_cluster.url, client)


def test_a_database(server: RedisServer) -> None:
    """The database of the URL is read."""
    server.client.set("event:1", "1")
    with closing(opened(f"{server.url}/1", "*")) as place:
        assert (place.find([("event:1",)]), list(place.rows())) == ([None], [])


def test_strange_keys(server: RedisServer) -> None:
    """A binary key is a bad row with its position. A huge key is read, and its position is short."""
    server.client.set(b"event:\xff\xfe", "1")
    server.client.set("event:" + "x" * 1_000_000, "1")
    with closing(opened(server.url, "event:*")) as place:
        binary, huge = sorted(place.rows(), key=lambda row: type(row).__name__)
    assert binary == BadRow(r"key b'event:\xff\xfe'", "the key is not UTF-8 text")
    assert isinstance(huge, OldRow)
    assert (len(huge.columns["key"]), len(huge.position)) == (1_000_006, 206)


def test_many_keys(server: RedisServer) -> None:
    """All keys are read, although keys expire during the scan."""
    pipeline = server.client.pipeline()
    for number in range(3_000):
        pipeline.set(f"event:{number}", "1", px=60_000 if number % 10 else 30)
    pipeline.execute()
    time.sleep(0.05)
    with closing(opened(server.url, "event:*")) as place:
        assert len({row.position for row in place.rows()}) == 2_700


def test_what_cannot_be_read(server: RedisServer, redis_cluster: RedisCluster) -> None:
    """A server that does not answer is unavailable; a wrong password or a node of a cluster is refused."""
    with closing(opened(f"redis://127.0.0.1:{free_port()}")) as place, pytest.raises(StoreUnavailable, match="reached"):
        place.find([("event:1",)])
    with closing(opened(server.url.replace("//", "//u:hunter2@"), "*")) as place:
        with pytest.raises(StoreRefused, match="user name or password") as caught:
            list(place.rows())
        assert "hunter2" not in str(caught.value)
    node = opened(redis_cluster.url.replace("redis+cluster", "redis"))
    with closing(node), pytest.raises(StoreRefused, match=r"write redis\+cluster://"):
        node.find([(f"event:{number}",) for number in range(20)])
