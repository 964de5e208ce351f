"""What a server must be before it is trusted with claims, asked when it is first met."""

import warnings
from collections.abc import Sequence
from typing import Any, Final

from oncegate.errors import NoStore, StoreRefused
from oncegate.stores.redis.connection import Command, CommandFailed, RedisServer, ask, explained
from oncegate.stores.redis.settings import RedisSettings

_OLDEST: Final = (6, 2)
_VERSION: Final = 2
LAYOUT_TAG: Final = b"layout"


class MayEvict(StoreRefused):
    """Records may be evicted, by a policy that nobody has allowed."""

    brief = "it may evict records (maxmemory-policy)"


def check(server: RedisServer, settings: RedisSettings) -> None:
    info = _info(server, "everything")
    _check_version(info, server.name)
    _check_kind(info, server.name, settings)
    _check_eviction(info, server.name, allowed=settings.evicting)
    if not appends(info):
        _warn(
            f"Redis at {server.name} keeps no append-only file: what was claimed and completed since its last snapshot "
            "is forgotten when it stops, and runs again if it is delivered again; set appendonly yes"
        )


def check_again(server: RedisServer, settings: RedisSettings) -> None:
    """What may have changed while the server ran."""
    if not settings.evicting:
        _check_eviction(_info(server, "memory"), server.name)


def _info(server: RedisServer, section: str) -> dict[str, str]:
    (reply,) = ask(server, [("INFO", section)])
    if isinstance(reply, CommandFailed):
        raise explained(reply.error, server.name)
    return parsed(reply)


def _warn(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=3)


def parsed(reply: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value.strip() for name, sign, value in lines if sign}


def _check_version(info: dict[str, str], place: str) -> None:
    version = info.get("redis_version", "0")
    major, minor = ([int(part) for part in version.split(".") if part.isdecimal()] + [0, 0])[:2]
    if (major, minor) < _OLDEST:
        raise StoreRefused(f"Redis {version} at {place} is too old; 6.2 or newer is needed")


def _check_kind(info: dict[str, str], place: str, settings: RedisSettings) -> None:
    if not settings.cluster and info.get("cluster_enabled") == "1":
        raise StoreRefused(f"Redis at {place} is a node of a cluster; write redis+cluster:// instead of redis://")
    if info.get("role") == "slave" and not settings.cluster:
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        raise StoreRefused(f"Redis at {place} is a read-only replica; name its primary instead: {primary}")


def evicting(info: dict[str, str]) -> str | None:
    """The policy by which records may be evicted: all but one do so, the volatile ones too, since records have an
    expiry. Without a limit nothing is evicted yet; but a limit is set while the server runs, when nobody looks."""
    policy = info.get("maxmemory_policy", "noeviction")
    return policy if policy != "noeviction" else None


def appends(info: dict[str, str]) -> bool:
    """Whether it keeps an append-only file."""
    return info.get("aof_enabled") == "1"


def _check_eviction(info: dict[str, str], place: str, *, allowed: bool = False) -> None:
    policy = evicting(info)
    if policy is None:
        return
    may = f"Redis at {place} may evict records to make room (maxmemory-policy {policy}), and an evicted event would "
    if not allowed:
        raise MayEvict(
            f"{may}run again; set maxmemory-policy noeviction. ElastiCache has volatile-lru by default: set noeviction"
            " in a parameter group of your own and give that to the cache. A server that may forget events all the same"
            " is used with ?evicting=allowed"
        )
    _warn(f"{may}run again, an evicted dead letter be lost; it is allowed to here (evicting=allowed)")


def check_layout(server: RedisServer, settings: RedisSettings, *, create: bool) -> None:
    """All who share a prefix must share the layout of its keys: a claim looked for in another bucket is not found."""
    key = settings.prefix.encode() + b"{" + LAYOUT_TAG + b"}"
    buckets = settings.buckets if settings.cluster else 1
    note = f"{_VERSION} {buckets}"
    reply = _told(server, [("SET", key, note, "NX")] if create else [], ("GET", key))
    if reply is None:
        raise NoStore(f"there is no store {settings.prefix} at {settings.place}; name the right one (?prefix=)")
    try:
        version, made_with = map(int, reply.split())
    except ValueError:
        raise StoreRefused(
            f"the key {key.decode()} at {settings.place} is not Oncegate's; choose another ?prefix="
        ) from None
    if version > _VERSION:
        raise StoreRefused(
            f"the store {settings.prefix} at {settings.place} was written by a newer Oncegate (layout {version}, this "
            f"one knows {_VERSION}); upgrade"
        )
    if made_with != buckets:
        raise StoreRefused(
            f"the store {settings.prefix} at {settings.place} was made with {made_with} buckets, not {buckets}; "
            f"write ?buckets={made_with}, or choose another ?prefix="
        )
    if create and version < _VERSION:  # its records are read as they are
        _told(server, [], ("SET", key, note))


def _told(server: RedisServer, before: Sequence[Command], command: Command) -> Any:
    """The reply to a command, with others asked before it; StoreError if one of them failed."""
    replies = ask(server, [*before, command])
    for each in replies:
        if isinstance(each, CommandFailed):
            raise explained(each.error, server.name)
    return replies[-1]
