"""Which server has which bucket: one server for all, or the primaries of a cluster."""

import threading
from collections.abc import Iterator, Set
from typing import Any, Final, Protocol

from redis.crc import key_slot

from oncegate.errors import StoreError, StoreUnavailable
from oncegate.stores.redis.checks import LAYOUT_TAG, check
from oncegate.stores.redis.connection import CommandFailed, RedisServer, ask, explained
from oncegate.stores.redis.settings import RedisSettings

_SLOTS: Final = 16_384


class Servers(Protocol):
    # What the keys of each bucket begin with, and a pattern for all of them.
    bases: list[bytes]
    pattern: bytes

    def meet(self) -> None:
        """Connect for the first time, and check what is there. Nothing else works before."""

    def having(self, bucket: int) -> RedisServer:
        """The server that has a bucket, as far as is known."""

    def home(self) -> RedisServer:
        """The server that has the note on the layout."""

    def all(self) -> list[RedisServer]:
        """Every server that has buckets."""

    def look_again(self, hung: Set[str] = frozenset()) -> None:
        """Something has changed: find out who has what now, but not from those that hang."""

    def close(self) -> None: ...


class Single:
    """One server, one bucket."""

    def __init__(self, settings: RedisSettings) -> None:
        self.bases = [f"{settings.prefix}:".encode()]
        self.pattern = self.bases[0]
        self._settings = settings
        self._server = RedisServer(settings, settings.host, settings.port)

    def meet(self) -> None:
        check(self._server, self._settings)

    def having(self, bucket: int) -> RedisServer:  # noqa: ARG002  # there is one
        return self._server

    def home(self) -> RedisServer:
        return self._server

    def all(self) -> list[RedisServer]:
        return [self._server]

    def look_again(self, hung: Set[str] = frozenset()) -> None:
        """Connections to what has become a replica may be kept by the network; the name may lead to its successor."""
        if not hung:
            self._server.close()

    def close(self) -> None:
        self._server.close()


class Cluster:
    """The primaries of a cluster. Only those that have a bucket matter."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._slots, self.bases = _spread(settings)
        self.pattern = settings.prefix.encode() + b"{*}"
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], RedisServer] = {}
        self._seed = RedisServer(settings, settings.host, settings.port)
        self._by_bucket: list[RedisServer] = []

    def meet(self) -> None:
        self.look_again()

    def having(self, bucket: int) -> RedisServer:
        return self._by_bucket[bucket]

    def home(self) -> RedisServer:
        return self._home

    def all(self) -> list[RedisServer]:
        return list(dict.fromkeys(self._by_bucket))

    def look_again(self, hung: Set[str] = frozenset()) -> None:
        with self._lock:
            *self._by_bucket, self._home = self._located(self._layout(hung))

    def _layout(self, hung: Set[str]) -> list[Any]:
        """The slot ranges as the first server tells that answers: the known ones, then the one that was named."""
        failures: list[StoreError] = []
        for address, server in [*self._known.items(), (None, self._seed)]:
            if server.name in hung:
                continue
            (reply,) = ask(server, [("CLUSTER", "SLOTS")])
            if not isinstance(reply, CommandFailed):
                return reply  # type: ignore[no-any-return]  # as Redis sends it
            failures.append(explained(reply.error, server.name))
            if address is not None:  # the next one to look asks it last
                self._known[address] = self._known.pop(address)
        raise failures[-1] if failures else StoreUnavailable(f"no node of {self._settings.place} is left to ask")

    def _located(self, ranges: list[Any]) -> list[RedisServer]:
        primaries = [(first, last, self._server(*node[:2])) for first, last, node, *_ in ranges]
        return [self._owner(slot, primaries) for slot in [*self._slots, key_slot(LAYOUT_TAG)]]

    def _owner(self, slot: int, primaries: list[tuple[int, int, RedisServer]]) -> RedisServer:
        for first, last, server in primaries:
            if first <= slot <= last:
                return server
        raise StoreUnavailable(f"the cluster of {self._settings.place} has nobody for slot {slot}; check CLUSTER INFO")

    def _server(self, host: bytes | None, port: int) -> RedisServer:
        """Each node is checked when it is first met as a primary, so also when it has taken over."""
        address = ((host or b"").decode() or self._settings.host, port)
        if address not in self._known:
            server = RedisServer(self._settings, *address)
            try:
                check(server, self._settings)
            except BaseException:
                server.close()
                raise
            self._known[address] = server
        return self._known[address]

    def close(self) -> None:
        for server in [*self._known.values(), self._seed]:
            server.close()


def _spread(settings: RedisSettings) -> tuple[list[int], list[bytes]]:
    """Slots and beginnings of keys for the buckets, one in each equal stretch of the slots.

    Tags chosen by number alone would leave one primary of three with far more buckets than another."""
    found: dict[int, tuple[int, bytes]] = {}
    for tag in _tags():
        slot = key_slot(tag)
        stretch = slot * settings.buckets // _SLOTS
        found.setdefault(stretch, (slot, settings.prefix.encode() + b"{" + tag + b"}"))
        if len(found) == settings.buckets:
            break
    slots, bases = zip(*(found[bucket] for bucket in range(settings.buckets)), strict=True)
    return list(slots), list(bases)


def _tags() -> Iterator[bytes]:
    number = 0
    while True:
        yield b"%x" % number
        number += 1
