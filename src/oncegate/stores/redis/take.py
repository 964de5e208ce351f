"""Take waiting events: find due events in all buckets, and take those that became due first."""

import heapq
from collections.abc import Iterator, Sequence

from oncegate.claims import Release, Take
from oncegate.errors import StoreError
from oncegate.stores.base import Entry, TakeRequest
from oncegate.stores.redis import script_calls
from oncegate.stores.redis.codec import decode_record, encode_namespace, encode_take, encode_texts
from oncegate.stores.redis.errors import CommandFailed
from oncegate.stores.redis.script_calls import ScriptCaller, raise_failure

# The time at which an event became due, and its key.
_Candidate = tuple[float, bytes]


def take(caller: ScriptCaller, requests: Sequence[TakeRequest]) -> list[Entry | None]:
    """Return one event for each request, or None if no event is left in the namespace of the request. If a call fails,
    release the events that were taken and raise StoreError."""
    entries: list[Entry | None] = [None] * len(requests)
    try:
        _fill(entries, caller, requests)
    except StoreError:
        taken = [entry for entry in entries if entry is not None]
        caller.give_back(
            [Release(e.namespace, e.key, e.record.owner, e.record.fence, unstarted=True) for e in taken],
        )
        raise
    return entries


def _fill(entries: list[Entry | None], caller: ScriptCaller, requests: Sequence[TakeRequest]) -> None:
    """Take an event for each request and store it in `entries`. If another process takes a candidate first, find new
    candidates for the unfilled requests, until no candidate is left."""
    unfilled = list(range(len(requests)))
    while unfilled:
        found = _find_candidates(caller, [requests[index] for index in unfilled])
        candidates = {namespace: iter(due) for namespace, due in found.items()}
        indexes: list[int] = []
        takes: list[Take] = []
        for index in unfilled:
            request = requests[index]
            if candidate := next(candidates[request.namespace], None):
                indexes.append(index)
                takes.append(Take(request.namespace, candidate[1], request.owner, request.lease))
        _take_candidates(entries, caller, indexes, takes)
        unfilled = [index for index in indexes if entries[index] is None]


def _find_candidates(caller: ScriptCaller, requests: Sequence[TakeRequest]) -> dict[str, list[_Candidate]]:
    """Return the due events of each namespace, in the order of their due time. Usually no event is due; then this read
    is the only command."""
    namespaces = list(dict.fromkeys(request.namespace for request in requests))
    query = encode_texts([b"waiting", b"%d" % len(requests), *map(encode_namespace, namespaces)])
    found: dict[str, list[list[_Candidate]]] = {namespace: [] for namespace in namespaces}
    for _now, *lists in caller.execute(caller.call_every_bucket(script_calls.LOOK, query)):
        for namespace, keys_and_scores in zip(namespaces, lists, strict=True):
            found[namespace].append(list(_parse_scores(keys_and_scores)))
    return {namespace: list(heapq.merge(*parts)) for namespace, parts in found.items()}


def _parse_scores(keys_and_scores: list[bytes]) -> Iterator[_Candidate]:
    for key, score in zip(keys_and_scores[::2], keys_and_scores[1::2], strict=True):
        yield float(score), key


def _take_candidates(
    entries: list[Entry | None], caller: ScriptCaller, indexes: Sequence[int], takes: Sequence[Take]
) -> None:
    """Take the candidates. Store each taken event in `entries`, at the index of its request. Raise StoreError if a call
    failed, after all taken events are stored."""
    calls = caller.split(script_calls.TAKE, takes, encode_take)
    replies = caller.try_execute(calls)
    for call, reply in zip(calls, replies, strict=True):
        _now, *values = (reply.unconfirmed_reply if isinstance(reply, CommandFailed) else reply) or (0,)
        for position, value in zip(call.positions, values, strict=False):
            if value:
                request = takes[position]
                entries[indexes[position]] = Entry(request.namespace, request.key, decode_record(value))
    raise_failure(replies)
