"""Which server has which bucket: a single server has the only one, the primaries of a cluster share them."""

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
    key_prefixes: list[bytes]  # of each bucket
    key_pattern: bytes  # matches all of these prefixes

    def connect(self) -> None:
        """Connect for the first time, and check the servers. Call this before any other method."""

    def server_of(self, bucket: int) -> RedisServer:
        """The server that has this bucket, as far as is known."""

    def layout_server(self) -> RedisServer:
        """The server that has the key with the layout version."""

    def all(self) -> list[RedisServer]:
        """Every server that has a bucket."""

    def refresh(self, skip: Set[str] = frozenset()) -> None:
        """Read again which server has which bucket, after a failure. The servers named in `skip` are not used."""

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

    def server_of(self, bucket: int) -> RedisServer:  # noqa: ARG002  # there is one
        return self._server

    def layout_server(self) -> RedisServer:
        return self._server

    def all(self) -> list[RedisServer]:
        return [self._server]

    def refresh(self, skip: Set[str] = frozenset()) -> None:
        """Close the idle connections: they may lead to a server that has become a replica, while the host name already
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
        """The reply to CLUSTER SLOTS of the first node that answers: known nodes first, then the node in the URL."""
        failures: list[StoreError] = []
        for address, server in [*self._nodes.items(), (None, self._seed)]:
            if server.name in skip:
                continue
            (reply,) = server.execute([("CLUSTER", "SLOTS")])
            if not isinstance(reply, CommandFailed):
                return reply  # type: ignore[no-any-return]  # as Redis sends it
            failures.append(store_error(reply.error, server.name))
            if address is not None:  # the next refresh asks this node last
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
        """The server at this address. A new node is checked, also when it replaces a failed primary."""
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
    """Slot and key prefix of each bucket. The slot range is cut into equal parts, and each part gets one bucket.

    The hash tags 0, 1, 2, … alone would give one primary of three far more buckets than another."""
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
    """The cluster slot of a key with this hash tag: CRC-16/XMODEM, as the cluster specification says."""
    return crc_hqx(tag, 0) % _SLOTS
