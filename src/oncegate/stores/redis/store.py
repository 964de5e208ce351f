"""The Redis store, on one server or a cluster.

A batch becomes one script call for each bucket. The scripts implement the rules of `oncegate.claims.step` in Lua, so
that the server decides and writes atomically, with the time of the server's clock. `lua/record.lua` documents the keys
and the record layout.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from oncegate import forks
from oncegate.claims import (
    IN_PROGRESS,
    Address,
    Buried,
    Claim,
    Conflict,
    Duplicate,
    Forget,
    Granted,
    InFlight,
    Redrive,
    Release,
    Renew,
    Reset,
    Settlement,
    Verdict,
    step,
)
from oncegate.clocks import Clock
from oncegate.errors import StoreRefused
from oncegate.stores.base import Change, Document, Entry, TakeRequest
from oncegate.stores.redis import script_calls
from oncegate.stores.redis.browse import browse_all, browse_key, count_dead_letters, dead_letters, scan_all
from oncegate.stores.redis.checks import check_eviction_again
from oncegate.stores.redis.codec import (
    claimed_summary,
    decode_answer,
    decode_document,
    decode_record,
    decode_single_answer,
    encode_change,
    encode_claim,
    encode_forget,
    encode_lookup,
    encode_redrive,
    encode_renewal,
    encode_reset,
    encode_settlement,
    encode_text,
)
from oncegate.stores.redis.connection import Reply
from oncegate.stores.redis.errors import CommandFailed
from oncegate.stores.redis.script_calls import Call, Script, ScriptCaller, raise_failure
from oncegate.stores.redis.settings import RedisSettings
from oncegate.stores.redis.take import take

# The letters in the answer of claim.lua.
_NEW: Final = ord("N")
_KNOWN: Final = ord("K")
_VERDICTS: Final[dict[int, type[Any]]] = {
    ord("G"): Granted,
    ord("U"): Duplicate,
    ord("I"): InFlight,
    ord("X"): Conflict,
    ord("B"): Buried,
}
_YES: Final = ord("1")


class RedisStore:
    remote = True

    def __init__(self, settings: RedisSettings, *, create: bool = True, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._caller: ScriptCaller | None = ScriptCaller(settings, clock, create=create)
        forks.watch(self)

    # ── claims ────────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, requests: Sequence[Claim]) -> list[Verdict]:
        caller, first_reply = self._open(), None
        if len(requests) == 1:
            (claim,) = requests
            encoded = encode_claim(claim)
            if route := caller.route_single(script_calls.CLAIM, claim, encoded):
                server, command = route
                first_reply = server.execute_repeatable(command)
                if type(first_reply) is bytes:
                    return [_verdict(claim, encoded, *decode_single_answer(first_reply))]
        calls = caller.split(script_calls.CLAIM, requests, encode_claim)
        replies = caller.try_execute(calls, first_reply)
        if CommandFailed in map(type, replies):
            self._give_back(requests, calls, replies)
            raise_failure(replies)
        return _verdicts(requests, zip(calls, replies, strict=True))

    def _give_back(self, requests: Sequence[Claim], calls: Sequence[Call], replies: Sequence[Reply]) -> None:
        """When `claim` fails, release the claims that were granted nevertheless. `claim` fails because another part of
        the batch failed, or because too few replicas confirmed the grant. Without the release, events that never ran
        would lose an attempt."""
        answers = [reply.unconfirmed_reply if isinstance(reply, CommandFailed) else reply for reply in replies]
        answered = [(call, answer) for call, answer in zip(calls, answers, strict=True) if answer is not None]
        verdicts = _verdicts(requests, answered)
        self._open().give_back(
            [
                Release(request.namespace, request.key, request.owner, verdict.record.fence, unstarted=True)
                for request, verdict in zip(requests, verdicts, strict=True)
                if isinstance(verdict, Granted) and verdict.record.state == IN_PROGRESS
            ],
        )

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return self._execute_each(script_calls.SETTLE, settlements, encode_settlement)

    def renew(self, leases: Sequence[Renew]) -> list[bool]:
        return self._execute_each(script_calls.SETTLE, leases, encode_renewal)

    def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
        return take(self._open(), wants)

    # ── documents ─────────────────────────────────────────────────────────────────────────────────────────

    def load(self, addresses: Sequence[Address]) -> list[Document]:
        documents = [Document()] * len(addresses)
        caller = self._open()
        calls = caller.split(script_calls.LOOK, addresses, encode_lookup, encode_text(b"documents"))
        for call, (now, *values) in zip(calls, caller.execute(calls), strict=True):
            for position, value in zip(call.positions, values, strict=True):
                if value:
                    version, expires_at, body = decode_document(value)
                    if now < expires_at:
                        documents[position] = Document(version, body)
        return documents

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        return self._execute_each(script_calls.SWAP, changes, encode_change)

    # ── operators ─────────────────────────────────────────────────────────────────────────────────────────

    def dead_letters(
        self, namespace: str | None = None, *, after: Address | None = None, limit: int = 100
    ) -> list[Entry]:
        return dead_letters(self._open(), namespace, after, limit)

    def count_dead_letters(self, namespace: str | None, limit: int) -> int:
        """See `oncegate.stores.base.CountsDeadLetters`."""
        return count_dead_letters(self._open(), namespace, limit)

    def redrive(self, requests: Sequence[Redrive]) -> list[bool]:
        return self._execute_each(script_calls.OPERATE, requests, encode_redrive)

    def reset(self, requests: Sequence[Reset]) -> list[bool]:
        return self._execute_each(script_calls.OPERATE, requests, encode_reset)

    def forget(self, requests: Sequence[Forget]) -> list[bool]:
        return self._execute_each(script_calls.FORGET, requests, encode_forget)

    def browse(
        self,
        namespace: str | None = None,
        *,
        key: bytes | None = None,
        after: Address | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        if key is None:
            return browse_all(self._open(), namespace, after, limit)
        return browse_key(self._open(), key, namespace, after, limit)

    def scan(self, namespace: str | None = None) -> Iterator[Entry]:
        return scan_all(self._open(), namespace)

    def probe(self, within: int) -> None:  # noqa: ARG002  # the store has a timeout for each reply
        """See `oncegate.stores.base.CanProbe`. The probe is an empty swap. It stores the time, so the server must
        accept a write."""
        caller = self._open()
        caller.execute(caller.call_every_bucket(script_calls.SWAP, b""))
        for server in caller.servers.all():
            check_eviction_again(server, self._settings)

    # ── calls and connections ─────────────────────────────────────────────────────────────────────────────

    def _execute_each(self, script: Script, items: Sequence[Any], encode: Callable[[Any], bytes]) -> list[bool]:
        """Call a script that answers with one digit for each request. Return the digits as booleans."""
        caller, first_reply = self._open(), None
        if (
            len(items) == 1
            and script.reads_first
            and (route := caller.route_single(script, items[0], encode(items[0])))
        ):
            server, command = route
            first_reply = server.execute_repeatable(command)
            if type(first_reply) is bytes:
                return [first_reply[0] == _YES]
        results = [False] * len(items)
        calls = caller.split(script, items, encode)
        for call, digits in zip(calls, caller.execute(calls, first_reply), strict=True):
            for position, digit in zip(call.positions, digits, strict=True):
                results[position] = digit == _YES
        return results

    def _open(self) -> ScriptCaller:
        caller = self._caller
        if caller is not None:
            return caller
        with self._lock:
            if self._closed:
                raise StoreRefused(f"the store at {self._settings.place} was closed")
            if self._caller is None:
                self._caller = ScriptCaller(self._settings, self._clock, create=True)
            return self._caller

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._disconnect()

    def _disconnect(self) -> None:
        if self._caller is not None:
            self._caller.servers.close()
            self._caller = None

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """Close the connections in the child only. The child opens new connections at its next call. The connections of
        the parent stay open."""
        if in_child:
            self._disconnect()
        self._lock.release()


def _verdicts(requests: Sequence[Claim], answered: Iterable[tuple[Call, Reply]]) -> list[Any]:
    """Return the verdict for each request, or None for a request without an answer."""
    verdicts: list[Any] = [None] * len(requests)
    for call, reply in answered:
        now, letters, records = decode_answer(reply, len(call.positions))
        for position, encoded, letter in zip(call.positions, call.requests, letters, strict=True):
            value = b"" if letter == _NEW else next(records)
            verdicts[position] = _verdict(requests[position], encoded, now, letter, value)
    return verdicts


def _verdict(claim: Claim, encoded: bytes, now: int, letter: int, value: bytes) -> Any:
    """Return the verdict in the answer of claim.lua. `encoded` is the encoded claim, and `value` is the record.

    In two cases, `step` computes the verdict from the claim. The first case is a new record, because the claim
    determines the record. The second case is a completed record that the claim does not change."""
    if letter == _NEW:
        return step(None, claim, now)[1]
    if letter == _KNOWN:
        return step(decode_record(value, claim.about, claimed_summary(encoded)), claim, now)[1]
    return _VERDICTS[letter](decode_record(value), now)
