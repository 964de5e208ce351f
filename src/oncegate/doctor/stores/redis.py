"""A Redis server: whether it may forget, and its clock."""

import warnings
from contextlib import closing

from oncegate.clocks import wall
from oncegate.doctor.facts import RedisFacts, StoreFacts
from oncegate.doctor.stores.seen import Seen, clock
from oncegate.errors import NoStore
from oncegate.stores import open_store
from oncegate.stores.redis.checks import check_layout, eviction_policy, has_append_only_file, parse_info
from oncegate.stores.redis.connection import RedisServer
from oncegate.stores.redis.errors import CommandFailed, store_error
from oncegate.stores.redis.settings import RedisSettings, settings_of


def look(url: str, shown: str) -> Seen:
    """Of a cluster, the node that is named."""
    settings = settings_of(url)
    with closing(RedisServer(settings, settings.host, settings.port)) as server:
        before = wall()
        replies = server.execute([("TIME",), ("INFO", "everything")])
        for reply in replies:
            if isinstance(reply, CommandFailed):
                raise store_error(reply.error, server.name)
        (seconds, rest), info = replies
        ticking = clock(f"Redis at {server.name}", before, int(seconds) * 1_000_000 + int(rest))
        fields = parse_info(info)
        redis = RedisFacts(
            host=settings.host,
            port=settings.port,
            evicts_by=eviction_policy(fields),
            append_only=has_append_only_file(fields),
        )
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
