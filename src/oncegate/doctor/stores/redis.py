"""A Redis server: whether it may forget, and its clock."""

import warnings
from contextlib import closing

from oncegate.clocks import wall
from oncegate.doctor.facts import RedisFacts, StoreFacts
from oncegate.doctor.stores.seen import Seen, clock
from oncegate.errors import NoStore
from oncegate.stores import open_store
from oncegate.stores.redis.checks import appends, check_layout, evicting, parsed
from oncegate.stores.redis.connection import CommandFailed, RedisServer, exchange, explained
from oncegate.stores.redis.settings import RedisSettings, settings_of


def look(url: str, shown: str) -> Seen:
    """Of a cluster, the node that is named."""
    settings = settings_of(url)
    with closing(RedisServer(settings, settings.host, settings.port)) as server:
        before = wall()
        replies = exchange({server: [("TIME",), ("INFO", "everything")]})[server]
        for reply in replies:
            if isinstance(reply, CommandFailed):
                raise explained(reply.error, server.name)
        (seconds, rest), info = replies
        ticking = clock(f"Redis at {server.name}", before, int(seconds) * 1_000_000 + int(rest))
        told = parsed(info)
        redis = RedisFacts(host=settings.host, port=settings.port, evicts_by=evicting(told), append_only=appends(told))
        refused = settings.cluster and redis.evicts_by is not None  # for a reason that a rule tells
        store = StoreFacts(url=shown, scheme="redis", absent=None if refused else _absent(url, settings, server))
    return Seen(store=store, redis=redis, clocks=(ticking,))


def _absent(url: str, settings: RedisSettings, server: RedisServer) -> str | None:
    """What there is none of. In a cluster only the store itself knows the node to ask."""
    try:
        if settings.cluster:
            with warnings.catch_warnings(action="ignore"):  # of what the rules tell
                open_store(url, create=False).close()
        else:
            check_layout(server, settings, create=False)
    except NoStore:
        return f"there is no store {settings.prefix} in it yet"
    return None
