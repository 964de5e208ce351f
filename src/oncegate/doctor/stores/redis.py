"""A Redis server: whether it may forget, and its clock."""

from contextlib import closing

from oncegate.clocks import wall
from oncegate.doctor.facts import Redis, Store
from oncegate.doctor.stores.seen import Seen, clock
from oncegate.stores.redis.checks import appends, evicting, parsed
from oncegate.stores.redis.settings import settings_of
from oncegate.stores.redis.wire import Failed, Server, exchange, explained


def look(url: str, shown: str) -> Seen:
    """Of a cluster, the node that is named."""
    settings = settings_of(url)
    with closing(Server(settings, settings.host, settings.port)) as server:
        before = wall()
        replies = exchange({server: [("TIME",), ("INFO", "everything")]})[server]
        for reply in replies:
            if isinstance(reply, Failed):
                raise explained(reply.error, server.name)
        (seconds, rest), info = replies
        ticking = clock(f"Redis at {server.name}", before, int(seconds) * 1_000_000 + int(rest))
    told = parsed(info)
    redis = Redis(host=settings.host, port=settings.port, evicts_by=evicting(told), append_only=appends(told))
    return Seen(store=Store(url=shown, scheme="redis"), redis=redis, clocks=(ticking,))
