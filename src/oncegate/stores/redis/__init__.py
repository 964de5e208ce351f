"""The Redis store."""

try:
    import hiredis  # noqa: F401  # imported here, so that a missing package raises MissingExtra
    import redis  # noqa: F401
except ImportError as _error:
    from oncegate.errors import MissingExtra

    raise MissingExtra("the Redis store", "redis") from _error

from oncegate.clocks import Clock
from oncegate.stores.redis.settings import settings_of
from oncegate.stores.redis.store import RedisStore

__all__ = ["RedisStore", "open_redis", "settings_of"]


def open_redis(url: str, *, create: bool, clock: Clock | None) -> RedisStore:
    """Open a store at `redis://host:6379/0`, `rediss://` (with TLS) or `redis+cluster://any-node:6379`. See
    docs/stores/redis.md."""
    return RedisStore(settings_of(url), create=create, clock=clock)
