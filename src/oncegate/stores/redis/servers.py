"""Find the server of each bucket. A single server has one bucket; the primaries of a cluster share several buckets."""

import threading
from binascii import crc_hqx
from collections.abc import Set
from itertools import count
from typing import Any, Final, Protocol

from oncegate.errors import StoreError, StoreUnavailable
from oncegate.stores.redis.checks import LAYOUT_TAG, check_server
from oncegate.stores.redis.connection import RedisServer
from oncegate.stores.redis.errors import CommandFailed, store_error
from oncegate.stores.redis.settings import RedisSettings

_SLOTS: Final = 16_384


class Servers(Protocol):
    key_prefixes: list[bytes]  # the key prefix of each bucket
    key_pattern: bytes  # a pattern that matches all key prefixes

    def connect(self) -> None:
        """Connect for the first time, and check the servers. Call this before any other method."""

    def server_of(self, bucket: int) -> RedisServer:
        """Return the server that had this bucket at the last refresh."""

    def layout_server(self) -> RedisServer:
        """Return the server that has the key with the layout version."""

    def all(self) -> list[RedisServer]:
        """Return every server that has a bucket."""

    def refresh(self, skip: Set[str] = frozenset()) -> None:
        """Read again which server has which bucket. Call this after a failure. The servers with names in `skip` are not
        called."""

    def close(self) -> None: ...


class SingleServer:
    """One server with one bucket."""

    def __init__(self, settings: RedisSettings) -> None:
        self.key_prefixes = [f"{settings.prefix}:".encode()]
        self.key_pattern = self.key_prefixes[0]
        self._settings = settings
        self._server = RedisServer(settings, settings.host, settings.port)

    def connect(self) -> None:
        check_server(self._server, self._settings)

    def server_of(self, bucket: int) -> RedisServer:  # noqa: ARG002  # there is only one bucket
        return self._server

    def layout_server(self) -> RedisServer:
        return self._server

    def all(self) -> list[RedisServer]:
        return [self._server]

    def refresh(self, skip: Set[str] = frozenset()) -> None:
        """Close the idle connections. They may lead to a server that has become a replica, although the host name now
        resolves to the new primary."""
        if not skip:
            self._server.close()

    def close(self) -> None:
        self._server.close()


class Cluster:
    """The primaries of a cluster that have a bucket."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._slots, self.key_prefixes = _spread_buckets(settings)
        self.key_pattern = settings.prefix.encode() + b"{*}"
        self._lock = threading.Lock()
        self._nodes: dict[tuple[str, int], RedisServer] = {}
        self._seed = RedisServer(settings, settings.host, settings.port)
        self._by_bucket: list[RedisServer] = []

    def connect(self) -> None:
        self.refresh()

    def server_of(self, bucket: int) -> RedisServer:
        return self._by_bucket[bucket]

    def layout_server(self) -> RedisServer:
        return self._layout_server

    def all(self) -> list[RedisServer]:
        return list(dict.fromkeys(self._by_bucket))

    def refresh(self, skip: Set[str] = frozenset()) -> None:
        with self._lock:
            slot_ranges = self._slot_ranges(skip)
            primaries = [(first, last, self._node(*node[:2])) for first, last, node, *_ in slot_ranges]
            slots = [*self._slots, _slot_of(LAYOUT_TAG)]
            *self._by_bucket, self._layout_server = [self._owner(slot, primaries) for slot in slots]

    def _slot_ranges(self, skip: Set[str]) -> list[Any]:
        """Return the reply to CLUSTER SLOTS of the first node that answers. Known nodes are tried before the node in
        the URL."""
        failures: list[StoreError] = []
        for address, server in [*self._nodes.items(), (None, self._seed)]:
            if server.name in skip:
                continue
            (reply,) = server.execute([("CLUSTER", "SLOTS")])
            if not isinstance(reply, CommandFailed):
                return reply  # type: ignore[no-any-return]  # the reply of Redis is untyped
            failures.append(store_error(reply.error, server.name))
            if address is not None:  # the next refresh tries this node last
                self._nodes[address] = self._nodes.pop(address)
        if failures:
            raise failures[-1]
        raise StoreUnavailable(f"no node of the cluster of {self._settings.place} answers; check that its nodes run")

    def _owner(self, slot: int, primaries: list[tuple[int, int, RedisServer]]) -> RedisServer:
        for first, last, server in primaries:
            if first <= slot <= last:
                return server
        raise StoreUnavailable(
            f"no node of the cluster of {self._settings.place} serves slot {slot}; check CLUSTER INFO"
        )

    def _node(self, host: bytes | None, port: int) -> RedisServer:
        """Return the server at this address. A server that is not known yet is checked first, also if it replaces a
        failed primary."""
        address = ((host or b"").decode() or self._settings.host, port)
        if address not in self._nodes:
            server = RedisServer(self._settings, *address)
            try:
                check_server(server, self._settings)
            except BaseException:
                server.close()
                raise
            self._nodes[address] = server
        return self._nodes[address]

    def close(self) -> None:
        for server in [*self._nodes.values(), self._seed]:
            server.close()


def _spread_buckets(settings: RedisSettings) -> tuple[list[int], list[bytes]]:
    """Return the slot of each bucket and the key prefix of each bucket. All slots are divided into equal ranges, and
    each range gets one bucket.

    Simply using the hash tags 0, 1, 2, … for the buckets was rejected: with three primaries, one primary would get far
    more buckets than another."""
    found: dict[int, tuple[int, bytes]] = {}
    for number in count():
        tag = b"%x" % number
        slot = _slot_of(tag)
        part = slot * settings.buckets // _SLOTS
        found.setdefault(part, (slot, settings.prefix.encode() + b"{" + tag + b"}"))
        if len(found) == settings.buckets:
            break
    slots, prefixes = zip(*(found[bucket] for bucket in range(settings.buckets)), strict=True)
    return list(slots), list(prefixes)


def _slot_of(tag: bytes) -> int:
    """Return the cluster slot of a key with this hash tag. The cluster specification defines it by CRC-16/XMODEM."""
    return crc_hqx(tag, 0) % _SLOTS
