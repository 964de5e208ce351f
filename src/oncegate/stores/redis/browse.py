"""What people look at: pages of records and of dead letters in the order of their addresses."""

import heapq
import re
from collections.abc import Iterator
from operator import itemgetter
from typing import Final

from oncegate.claims import Address, Record
from oncegate.stores.base import Entry
from oncegate.stores.redis import script_calls
from oncegate.stores.redis.codec import address_of, namespace_of, place_of, unpack
from oncegate.stores.redis.connection import CommandFailed, RedisServer, exchange, explained
from oncegate.stores.redis.requests import reading, text, texts
from oncegate.stores.redis.script_calls import Buckets
from oncegate.stores.step_store import is_listed

Where = tuple[str, bytes]

_SCANNED: Final = "1000"


def dead_letters(buckets: Buckets, namespace: str | None, after: Address | None, limit: int) -> list[Entry]:
    request = texts([b"dead", b"%d" % limit, *_bounds(namespace, after)])
    found: list[tuple[Where, Record]] = []
    for _now, *pairs in buckets.ask(buckets.everywhere(script_calls.LOOK, request)):
        found += [(address_of(where), unpack(value)) for where, value in zip(pairs[::2], pairs[1::2], strict=True)]
    return _page(found, limit)


def _bounds(namespace: str | None, after: Address | None) -> tuple[bytes, bytes]:
    """A stretch of the list, in the notation of ZRANGEBYLEX."""
    start, stop = b"-", b"+"
    if namespace is not None:
        place = place_of(namespace)
        start, stop = b"[" + place, b"(" + place[:-1] + b"\1"
    if after is not None and (namespace is None or after.namespace >= namespace):
        start = b"(" + place_of(after.namespace) + after.key
    return start, stop


def browse_key(buckets: Buckets, key: bytes, namespace: str | None, after: Address | None, limit: int) -> list[Entry]:
    ((now, *pairs),) = buckets.ask([buckets.call(buckets.of(key), script_calls.LOOK, texts([b"key", key]))])
    records = zip(map(namespace_of, pairs[::2]), map(unpack, pairs[1::2]), strict=True)
    found = [((name, key), record) for name, record in records if namespace in (None, name)]
    return _page([each for each in found if is_listed(*each, after, now)], limit)


def browse_all(buckets: Buckets, namespace: str | None, after: Address | None, limit: int) -> list[Entry]:
    """A walk over all keys of all servers that keeps the first `limit` addresses past `after`.

    A list of all records, in order, would make a page cheap and every claim dearer, in time and by half in memory;
    people browse seldom."""
    best: dict[Where, Record] = {}
    for addresses in _scan_pages(buckets, namespace):
        last = max(best) if best and len(best) >= limit else None
        wanted = [where for where in addresses if _in_page(where, after, last)]
        best.update(_records(buckets, wanted, after))
        best = dict(heapq.nsmallest(limit, best.items()))
    return _page(list(best.items()), limit)


def scan_all(buckets: Buckets, namespace: str | None) -> Iterator[Entry]:
    """All records, in no order."""
    for addresses in _scan_pages(buckets, namespace):
        yield from (Entry(*where, record) for where, record in _records(buckets, addresses, None))


def _in_page(where: Where, after: Address | None, last: Where | None) -> bool:
    return (after is None or where > (after.namespace, after.key)) and (last is None or where < last)


def _scan_pages(buckets: Buckets, namespace: str | None) -> Iterator[list[Where]]:
    """The addresses of all records, a handful at a time, in no order; some may come twice."""
    place = b"" if namespace is None else _quoted(place_of(namespace))
    bases = {base + b"r" for base in buckets.servers.bases}
    for keys in _scan(buckets.servers.all(), buckets.servers.pattern + b"r" + place + b"*"):
        parts = (_parted(key, bases) for key in keys)
        yield [address_of(where) for where in parts if where is not None]


def _parted(key: bytes, bases: set[bytes]) -> bytes | None:
    """A key without the beginning that its bucket gives it; None if it is no record of ours."""
    length = key.find(b"}") + 2 if len(bases) > 1 else len(next(iter(bases)))
    return key[length:] if key[:length] in bases and 0 in key[length:] else None


def _scan(servers: list[RedisServer], pattern: bytes) -> Iterator[list[bytes]]:
    """Keys that fit a pattern, from all servers at once."""
    cursors = dict.fromkeys(servers, b"0")
    while cursors:
        asked = {server: [("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED)] for server, cursor in cursors.items()}
        for server, (reply,) in exchange(asked).items():
            if isinstance(reply, CommandFailed):
                raise explained(reply.error, server.name)
            cursors[server], keys = reply
            if cursors[server] == b"0":
                del cursors[server]
            yield keys


def _quoted(text: bytes) -> bytes:
    """As it is, to Redis' patterns."""
    return re.sub(rb"([*?\[\]\\^])", rb"\\\1", text)


def _records(buckets: Buckets, wanted: list[Where], after: Address | None) -> Iterator[tuple[Where, Record]]:
    addresses = [Address(*where) for where in wanted]
    calls = buckets.split(script_calls.LOOK, addresses, reading, text(b"records")) if addresses else []
    for call, (now, *values) in zip(calls, buckets.ask(calls), strict=True):
        for position, value in zip(call.positions, values, strict=True):
            if value and is_listed(wanted[position], record := unpack(value), after, now):
                yield wanted[position], record


def _page(found: list[tuple[Where, Record]], limit: int) -> list[Entry]:
    return [Entry(*where, record) for where, record in heapq.nsmallest(limit, found, key=itemgetter(0))]
