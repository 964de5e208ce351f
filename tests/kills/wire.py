"""The wire: lets a worker pass a point when the bytes of a request are out and nothing of the answer was read."""

from collections.abc import Callable, Generator
from typing import Any, Final

import psycopg
from psycopg.waiting import Wait
from redis.connection import AbstractConnection

from oncegate.stores.redis.connection import RedisConnection
from tests.kills.points import Trap, asking


def watch_sending(scheme: str, trap: Trap) -> None:
    """From now on everything that this process sends to its store passes "sent", and "claim sent" and so on what is
    the first that a verb sends."""
    _WATCHES[scheme](lambda: _sent(trap))


def _sent(trap: Trap) -> None:
    verb, asking.verb = asking.verb, None
    if verb is not None:
        trap(f"{verb} sent")
    trap("sent")


def _watch_redis(sent: Callable[[], None]) -> None:
    """What the store says, and what redis-py says to make a connection."""
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

    setattr(psycopg.Connection, "wait", watched)  # noqa: B010  # mypy takes a method for fixed


def _stepping(steps: Generator[Any, Any, Any], sent: Callable[[], None]) -> Generator[Any, Any, Any]:
    """psycopg's steps of one statement: when it first waits only for something to read, all of it was sent."""
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
