"""The servers that journals are tested on."""

from tests.stores.conftest import postgres, redis_cluster, redis_server

__all__ = ["postgres", "redis_cluster", "redis_server"]
