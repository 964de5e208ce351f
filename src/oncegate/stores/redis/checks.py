"""Check the version, role, eviction policy, persistence and key layout of a server."""

import warnings
from typing import Final

from oncegate.errors import NoStore, StoreRefused
from oncegate.stores.redis.connection import Command, RedisServer, Reply
from oncegate.stores.redis.errors import CommandFailed, store_error
from oncegate.stores.redis.settings import RedisSettings

_OLDEST_VERSION: Final = (6, 2)
_LAYOUT_VERSION: Final = 2
LAYOUT_TAG: Final = b"layout"


class MayEvict(StoreRefused):
    """The server may evict records, and the URL does not allow eviction."""

    brief = "it may evict records (maxmemory-policy)"


def check_server(server: RedisServer, settings: RedisSettings) -> None:
    """Check a server at the first connection. Raises StoreRefused if the store cannot use the server. Warns if the
    server may lose data."""
    info = _read_info(server, "everything")
    _check_version(info, server.name)
    _check_role(info, server.name, settings)
    _check_eviction(info, server.name, allowed=settings.evicting)
    if not has_append_only_file(info):
        _warn(
            f"Redis at {server.name} keeps no append-only file: when the server stops, it forgets the claims and "
            "completions since its last snapshot, and those events run again if redelivered; set appendonly yes"
        )


def check_eviction_again(server: RedisServer, settings: RedisSettings) -> None:
    """Check the eviction policy again, because it can change while the server runs. Raises MayEvict."""
    if not settings.evicting:
        _check_eviction(_read_info(server, "memory"), server.name)


def _read_info(server: RedisServer, section: str) -> dict[str, str]:
    return parse_info(_execute(server, ("INFO", section)))


def parse_info(reply: bytes) -> dict[str, str]:
    """Return the fields in the reply to INFO."""
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value.strip() for name, colon, value in lines if colon}


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _check_version(info: dict[str, str], place: str) -> None:
    version = info.get("redis_version", "0")
    major, minor = ([int(part) for part in version.split(".") if part.isdecimal()] + [0, 0])[:2]
    if (major, minor) < _OLDEST_VERSION:
        raise StoreRefused(f"Redis {version} at {place} is too old; use 6.2 or newer")


def _check_role(info: dict[str, str], place: str, settings: RedisSettings) -> None:
    if settings.cluster:
        return
    if info.get("cluster_enabled") == "1":
        raise StoreRefused(f"Redis at {place} is a node of a cluster; write redis+cluster:// instead of redis://")
    if info.get("role") == "slave":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        raise StoreRefused(f"Redis at {place} is a read-only replica; use its primary instead: {primary}")


def eviction_policy(info: dict[str, str]) -> str | None:
    """Return the maxmemory-policy if it can evict records, otherwise None.

    Every policy except noeviction can evict records. The volatile policies evict only keys with an expiry, but records
    have an expiry. A server without a maxmemory limit does not evict keys, but this limit can be set while the server
    runs. So the limit is not checked."""
    policy = info.get("maxmemory_policy", "noeviction")
    return policy if policy != "noeviction" else None


def has_append_only_file(info: dict[str, str]) -> bool:
    return info.get("aof_enabled") == "1"


def _check_eviction(info: dict[str, str], place: str, *, allowed: bool = False) -> None:
    policy = eviction_policy(info)
    if policy is None:
        return
    may_evict = (
        f"Redis at {place} may evict records to make room (maxmemory-policy {policy}), and an evicted event would "
    )
    if not allowed:
        raise MayEvict(
            f"{may_evict}run again; set maxmemory-policy noeviction. ElastiCache has volatile-lru by default: set"
            " noeviction in a custom parameter group and assign that group to the cache. To use a server that may evict"
            " records, add ?evicting=allowed"
        )
    _warn(f"{may_evict}run again, and an evicted dead letter would be lost; evicting=allowed permits this")


def check_layout(server: RedisServer, settings: RedisSettings, *, create: bool) -> None:
    """Check that the store with this prefix has the expected key layout. With `create`, write the layout version if it
    is missing or older.

    All clients of a prefix must use the same layout. A client with a different number of buckets would look for a claim
    in the wrong bucket."""
    key = settings.prefix.encode() + b"{" + LAYOUT_TAG + b"}"
    buckets = settings.buckets if settings.cluster else 1
    expected = f"{_LAYOUT_VERSION} {buckets}"
    reply = _execute(server, *([("SET", key, expected, "NX")] if create else []), ("GET", key))
    if reply is None:
        raise NoStore(f"there is no store {settings.prefix} at {settings.place}; correct the URL or its ?prefix=")
    try:
        version, actual_buckets = map(int, reply.split())
    except ValueError:
        raise StoreRefused(
            f"the key {key.decode()} at {settings.place} belongs to another program; choose another ?prefix="
        ) from None
    if version > _LAYOUT_VERSION:
        raise StoreRefused(
            f"the store {settings.prefix} at {settings.place} was written by a newer Oncegate (layout {version}; this "
            f"version supports up to {_LAYOUT_VERSION}); upgrade Oncegate"
        )
    if actual_buckets != buckets:
        raise StoreRefused(
            f"the store {settings.prefix} at {settings.place} was made with {actual_buckets} buckets, not {buckets}; "
            f"write ?buckets={actual_buckets}, or choose another ?prefix="
        )
    if create and version < _LAYOUT_VERSION:  # this version reads records of older layouts
        _execute(server, ("SET", key, expected))


def _execute(server: RedisServer, *commands: Command) -> Reply:
    """Execute the commands and return the reply to the last command. Raises StoreError if any command failed."""
    replies = server.execute(commands)
    for reply in replies:
        if isinstance(reply, CommandFailed):
            raise store_error(reply.error, server.name)
    return replies[-1]
