"""List records and dead letters for operators, in pages that are sorted by address."""

import heapq
import re
from collections.abc import Iterator
from operator import itemgetter
from typing import Final

from oncegate.claims import Address, Record
from oncegate.stores.base import Entry
from oncegate.stores.redis import script_calls
from oncegate.stores.redis.codec import (
    decode_address,
    decode_namespace,
    decode_record,
    encode_address,
    encode_lookup,
    encode_namespace,
    encode_text,
    encode_texts,
)
from oncegate.stores.redis.connection import RedisServer, execute_on_servers
from oncegate.stores.redis.errors import CommandFailed, store_error
from oncegate.stores.redis.script_calls import ScriptCaller
from oncegate.stores.step_store import is_listed

# Namespace and key.
_Location = tuple[str, bytes]
_SCAN_COUNT: Final = "1000"


def dead_letters(caller: ScriptCaller, namespace: str | None, after: Address | None, limit: int) -> list[Entry]:
    query = encode_texts([b"dead", b"%d" % limit, *_lex_range(namespace, after)])
    found: list[tuple[_Location, Record]] = []
    for _now, *pairs in caller.execute(caller.call_every_bucket(script_calls.LOOK, query)):
        for address, value in zip(pairs[::2], pairs[1::2], strict=True):
            found.append((decode_address(address), decode_record(value)))
    return _first_entries(found, limit)


def count_dead_letters(caller: ScriptCaller, namespace: str | None, limit: int) -> int:
    query = encode_texts([b"count dead", b"%d" % limit, *_lex_range(namespace, None)])
    replies = caller.execute(caller.call_every_bucket(script_calls.LOOK, query))
    return min(sum(int(count) for _now, count in replies), limit)


def _lex_range(namespace: str | None, after: Address | None) -> tuple[bytes, bytes]:
    """Return the bounds of a page as arguments of ZRANGEBYLEX."""
    start, stop = b"-", b"+"
    if namespace is not None:
        encoded = encode_namespace(namespace)
        start, stop = b"[" + encoded, b"(" + encoded[:-1] + b"\1"
    if after is not None and (namespace is None or after.namespace >= namespace):
        start = b"(" + encode_address(after)
    return start, stop


def browse_key(
    caller: ScriptCaller, key: bytes, namespace: str | None, after: Address | None, limit: int
) -> list[Entry]:
    """Return the records of one key, in all namespaces or in `namespace`."""
    call = caller.call(caller.bucket_of(key), script_calls.LOOK, encode_texts([b"key", key]))
    ((now, *pairs),) = caller.execute([call])
    records = zip(map(decode_namespace, pairs[::2]), map(decode_record, pairs[1::2]), strict=True)
    found = [((name, key), record) for name, record in records if namespace in (None, name)]
    return _first_entries([pair for pair in found if is_listed(*pair, after, now)], limit)


def browse_all(caller: ScriptCaller, namespace: str | None, after: Address | None, limit: int) -> list[Entry]:
    """Return the first `limit` records after the address `after`. This scans all keys of all servers.

    A sorted index of all records would make this function fast. The index was rejected: every claim would take longer,
    and records would need 1.5 times the memory, but browsing is rare."""
    best: dict[_Location, Record] = {}
    for locations in _scan_locations(caller, namespace):
        last = max(best) if best and len(best) >= limit else None
        wanted = [location for location in locations if _is_between(location, after, last)]
        best.update(_read_records(caller, wanted, after))
        best = dict(heapq.nsmallest(limit, best.items()))
    return _first_entries(list(best.items()), limit)


def scan_all(caller: ScriptCaller, namespace: str | None) -> Iterator[Entry]:
    """Yield all records, in no particular order."""
    for locations in _scan_locations(caller, namespace):
        yield from (Entry(*location, record) for location, record in _read_records(caller, locations, None))


def _is_between(location: _Location, after: Address | None, last: _Location | None) -> bool:
    return (after is None or location > (after.namespace, after.key)) and (last is None or location < last)


def _scan_locations(caller: ScriptCaller, namespace: str | None) -> Iterator[list[_Location]]:
    """Yield the locations of all records in chunks, in no particular order. SCAN may return a key twice, so a location
    may be yielded twice."""
    within = b"" if namespace is None else _escape_pattern(encode_namespace(namespace))
    record_prefixes = {prefix + b"r" for prefix in caller.servers.key_prefixes}
    for keys in _scan_keys(caller.servers.all(), caller.servers.key_pattern + b"r" + within + b"*"):
        addresses = (_address_in(key, record_prefixes) for key in keys)
        yield [decode_address(address) for address in addresses if address is not None]


def _address_in(key: bytes, record_prefixes: set[bytes]) -> bytes | None:
    """Return the address in a Redis key, which is the key without its prefix. Return None if the key is not a record of
    this store."""
    length = key.find(b"}") + 2 if len(record_prefixes) > 1 else len(next(iter(record_prefixes)))
    return key[length:] if key[:length] in record_prefixes and 0 in key[length:] else None


def _scan_keys(servers: list[RedisServer], pattern: bytes) -> Iterator[list[bytes]]:
    """Yield the keys that match a pattern, in chunks. All servers scan at the same time."""
    cursors = dict.fromkeys(servers, b"0")
    while cursors:
        commands = {
            server: [("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)] for server, cursor in cursors.items()
        }
        for server, (reply,) in execute_on_servers(commands).items():
            if isinstance(reply, CommandFailed):
                raise store_error(reply.error, server.name)
            cursors[server], keys = reply
            if cursors[server] == b"0":
                del cursors[server]
            yield keys


def _escape_pattern(text: bytes) -> bytes:
    """Return a pattern for Redis that matches exactly this text."""
    return re.sub(rb"([*?\[\]\\^])", rb"\\\1", text)


def _read_records(
    caller: ScriptCaller, locations: list[_Location], after: Address | None
) -> Iterator[tuple[_Location, Record]]:
    addresses = [Address(*location) for location in locations]
    calls = caller.split(script_calls.LOOK, addresses, encode_lookup, encode_text(b"records"))
    for call, (now, *values) in zip(calls, caller.execute(calls), strict=True):
        for position, value in zip(call.positions, values, strict=True):
            if value and is_listed(locations[position], record := decode_record(value), after, now):
                yield locations[position], record


def _first_entries(found: list[tuple[_Location, Record]], limit: int) -> list[Entry]:
    return [Entry(*location, record) for location, record in heapq.nsmallest(limit, found, key=itemgetter(0))]
