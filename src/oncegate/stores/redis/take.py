"""Taking what waits: look in all buckets, then take what was let go first."""

import heapq
from collections.abc import Iterator, Sequence

from oncegate.claims import Release, Take
from oncegate.errors import StoreError
from oncegate.stores.base import Entry, TakeRequest
from oncegate.stores.redis import script_calls
from oncegate.stores.redis.codec import place_of, unpack
from oncegate.stores.redis.connection import CommandFailed
from oncegate.stores.redis.requests import settling, taking, texts
from oncegate.stores.redis.script_calls import Buckets, check_replies

# When it was let go, and its key.
Candidate = tuple[float, bytes]


def take(buckets: Buckets, wants: Sequence[TakeRequest]) -> list[Entry | None]:
    entries: list[Entry | None] = [None] * len(wants)
    try:
        _fill(entries, buckets, wants)
    except StoreError:
        taken = [entry for entry in entries if entry is not None]
        give_back(buckets, [Release(e.namespace, e.key, e.record.owner, e.record.fence, unstarted=True) for e in taken])
        raise
    return entries


def give_back(buckets: Buckets, releases: Sequence[Release]) -> None:
    """Release what will not be run, as far as that can be done now; the rest comes free when its lease ends."""
    if releases:
        buckets.replies(buckets.split(script_calls.GIVE_BACK, releases, settling))


def _fill(entries: list[Entry | None], buckets: Buckets, wants: Sequence[TakeRequest]) -> None:
    """Somebody else may take what was seen to wait: then look again, until nothing waits for whoever got nothing."""
    unmet = list(range(len(wants)))
    while unmet:
        waiting = {name: iter(found) for name, found in _look(buckets, [wants[index] for index in unmet]).items()}
        tries = [(index, candidate) for index in unmet if (candidate := next(waiting[wants[index].namespace], None))]
        _try(entries, buckets, [index for index, _ in tries], [_aimed(wants[i], c) for i, c in tries])
        unmet = [index for index, _ in tries if entries[index] is None]


def _aimed(want: TakeRequest, candidate: Candidate) -> Take:
    return Take(want.namespace, candidate[1], want.owner, want.lease)


def _look(buckets: Buckets, wants: Sequence[TakeRequest]) -> dict[str, list[Candidate]]:
    """What can be taken in each namespace, the first to be let go in front. Mostly nothing waits, and then this
    look, which writes nothing, is all."""
    names = list(dict.fromkeys(want.namespace for want in wants))
    request = texts([b"waiting", b"%d" % len(wants), *map(place_of, names)])
    found: dict[str, list[list[Candidate]]] = {name: [] for name in names}
    for _now, *lists in buckets.ask(buckets.everywhere(script_calls.LOOK, request)):
        for name, listed in zip(names, lists, strict=True):
            found[name].append(list(_scored(listed)))
    return {name: list(heapq.merge(*parts)) for name, parts in found.items()}


def _scored(listed: list[bytes]) -> Iterator[Candidate]:
    for key, score in zip(listed[::2], listed[1::2], strict=True):
        yield float(score), key


def _try(entries: list[Entry | None], buckets: Buckets, places: Sequence[int], takes: Sequence[Take]) -> None:
    """Put what is taken in its places; StoreError if a part of it failed, when all of it is in place."""
    calls = buckets.split(script_calls.TAKE, takes, taking) if takes else []
    replies = buckets.replies(calls)
    for call, reply in zip(calls, replies, strict=True):
        _now, *values = (reply.said if isinstance(reply, CommandFailed) else reply) or (0,)
        for position, value in zip(call.positions, values, strict=False):
            if value:
                entries[places[position]] = Entry(takes[position].namespace, takes[position].key, unpack(value))
    check_replies(replies)
