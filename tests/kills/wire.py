"""Make a worker pass a point when a request was sent and no part of the answer was read."""

from collections.abc import Callable, Generator
from typing import Any, Final

import psycopg
from psycopg.waiting import Wait
from redis.connection import AbstractConnection

from oncegate.stores.redis.connection import RedisConnection
from tests.kills.points import Trap, asking


def watch_sending(scheme: str, trap: Trap) -> None:
    """From now on, every request of this process to its store passes "sent", and the first request of a verb passes
    "claim sent" and so on."""
    _WATCHES[scheme](lambda: _sent(trap))


def _sent(trap: Trap) -> None:
    verb, asking.verb = asking.verb, None
    if verb is not None:
        trap(f"{verb} sent")
    trap("sent")


def _watch_redis(sent: Callable[[], None]) -> None:
    """The requests of the store, and the requests of redis-py to open a connection."""
    for kind, name in ((RedisConnection, "send"), (AbstractConnection, "send_packed_command")):
        setattr(kind, name, _watched(getattr(kind, name), sent))


def _watched(send: Callable[..., None], sent: Callable[[], None]) -> Callable[..., None]:
    def watched(*arguments: Any, **settings: Any) -> None:
        send(*arguments, **settings)
        sent()

    return watched


def _watch_postgres(sent: Callable[[], None]) -> None:
    wait = psycopg.Connection.wait

    def watched(self: Any, steps: Any, *arguments: Any, **settings: Any) -> Any:
        return wait(self, _stepping(steps, sent), *arguments, **settings)

    setattr(psycopg.Connection, "wait", watched)  # noqa: B010  # mypy does not allow assignment to a method


def _stepping(steps: Generator[Any, Any, Any], sent: Callable[[], None]) -> Generator[Any, Any, Any]:
    """The steps of psycopg for one statement: when it first waits only for reading, the whole request was sent."""
    try:
        state, out = next(steps), False
        while True:
            if state == Wait.R and not out:
                out = True
                sent()
            ready = yield state
            state = steps.send(ready)
    except StopIteration as end:
        return end.value


_WATCHES: Final[dict[str, Callable[[Callable[[], None]], None]]] = {
    "redis": _watch_redis,
    "redis+cluster": _watch_redis,
    "postgresql": _watch_postgres,
}
