"""Taking what waits: look in all buckets, then take what was let go first."""

import heapq
from collections.abc import Iterator, Sequence

from oncegate.claims import Take
from oncegate.stores.base import Entry, Want
from oncegate.stores.redis import scripts
from oncegate.stores.redis.buckets import Buckets
from oncegate.stores.redis.records import place_of, unpack
from oncegate.stores.redis.requests import taking, texts

# When it was let go, and its key.
Candidate = tuple[float, bytes]


def take(buckets: Buckets, wants: Sequence[Want]) -> list[Entry | None]:
    """Somebody else may take what was seen to wait: then look again, until nothing waits for whoever got nothing."""
    entries: list[Entry | None] = [None] * len(wants)
    unmet = list(range(len(wants)))
    while unmet:
        waiting = {name: iter(found) for name, found in _look(buckets, [wants[index] for index in unmet]).items()}
        tries = [(index, candidate) for index in unmet if (candidate := next(waiting[wants[index].namespace], None))]
        for (index, _), entry in zip(tries, _try(buckets, [_aimed(wants[i], c) for i, c in tries]), strict=True):
            entries[index] = entry
        unmet = [index for index, _ in tries if entries[index] is None]
    return entries


def _aimed(want: Want, candidate: Candidate) -> Take:
    return Take(want.namespace, candidate[1], want.owner, want.lease)


def _look(buckets: Buckets, wants: Sequence[Want]) -> dict[str, list[Candidate]]:
    """What can be taken in each namespace, the first to be let go in front. Mostly nothing waits, and then this
    look, which writes nothing, is all."""
    names = list(dict.fromkeys(want.namespace for want in wants))
    request = texts([b"waiting", b"%d" % len(wants), *map(place_of, names)])
    found: dict[str, list[list[Candidate]]] = {name: [] for name in names}
    for _now, *lists in buckets.ask(buckets.everywhere(scripts.LOOK, request)):
        for name, listed in zip(names, lists, strict=True):
            found[name].append(list(_scored(listed)))
    return {name: list(heapq.merge(*parts)) for name, parts in found.items()}


def _scored(listed: list[bytes]) -> Iterator[Candidate]:
    for key, score in zip(listed[::2], listed[1::2], strict=True):
        yield float(score), key


def _try(buckets: Buckets, takes: Sequence[Take]) -> list[Entry | None]:
    entries: list[Entry | None] = [None] * len(takes)
    calls = buckets.split(scripts.TAKE, takes, taking) if takes else []
    for call, (_now, *values) in zip(calls, buckets.ask(calls), strict=True):
        for position, value in zip(call.positions, values, strict=True):
            if value:
                entries[position] = Entry(takes[position].namespace, takes[position].key, unpack(value))
    return entries
