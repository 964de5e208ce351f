"""The Redis store: one server or a cluster, one script call for the part of a batch that lies in one bucket.

The rules are those of `oncegate.claims.step`, stated once more in the scripts, which judge and write in one go where
the records are, and take the time from their server. `record.lua` draws the layout of the keys.
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
from oncegate.stores.redis.browse import browse_all, browse_key, dead_letters, scan_all
from oncegate.stores.redis.checks import check_again
from oncegate.stores.redis.codec import unpack, unpack_answer, unpack_only
from oncegate.stores.redis.connection import CommandFailed, Reply
from oncegate.stores.redis.requests import (
    claiming,
    packed_about,
    reading,
    redriving,
    renewing,
    resetting,
    settling,
    swapping,
    text,
)
from oncegate.stores.redis.script_calls import Buckets, Call, Script, check_replies
from oncegate.stores.redis.settings import RedisSettings
from oncegate.stores.redis.take import give_back, take

_GRANTED_ANEW: Final = ord("N")
_UNCHANGED: Final = ord("K")
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
        self._buckets: Buckets | None = Buckets(settings, clock, create=create)
        forks.watch(self)

    # ── the verbs ─────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, requests: Sequence[Claim]) -> list[Verdict]:
        buckets, said = self._open(), None
        if len(requests) == 1:
            (claim,) = requests
            sent = claiming(claim)
            said = buckets.ask_alone(script_calls.CLAIM, claim, sent)
            if type(said) is bytes:
                now, letter, value = unpack_only(said)
                return [_granted(claim, now) if letter == _GRANTED_ANEW else _judged(claim, sent, letter, value, now)]
        calls = buckets.split(script_calls.CLAIM, requests, claiming) if requests else []
        replies = buckets.replies(calls, said)
        if CommandFailed in map(type, replies):
            self._give_back(requests, calls, replies)
            check_replies(replies)
        return _verdicts(requests, zip(calls, replies, strict=True))

    def _give_back(self, requests: Sequence[Claim], calls: Sequence[Call], replies: Sequence[Reply]) -> None:
        """Release what was granted beside a part of the batch that failed, or was not confirmed by replicas: it would
        use up the attempts of events that never ran."""
        said = [reply.said if isinstance(reply, CommandFailed) else reply for reply in replies]
        answered = [(call, reply) for call, reply in zip(calls, said, strict=True) if reply is not None]
        verdicts = _verdicts(requests, answered)
        give_back(
            self._open(),
            [
                Release(request.namespace, request.key, request.owner, verdict.record.fence, unstarted=True)
                for request, verdict in zip(requests, verdicts, strict=True)
                if isinstance(verdict, Granted) and verdict.record.state == IN_PROGRESS
            ],
        )

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return self._told(script_calls.SETTLE, settlements, settling)

    def renew(self, leases: Sequence[Renew]) -> list[bool]:
        return self._told(script_calls.SETTLE, leases, renewing)

    def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
        return take(self._open(), wants)

    def load(self, addresses: Sequence[Address]) -> list[Document]:
        documents = [Document()] * len(addresses)
        for call, (now, *values) in self._each(script_calls.LOOK, addresses, reading, text(b"documents")):
            for position, value in zip(call.positions, values, strict=True):
                if value and now < int.from_bytes(value[7:14]):
                    documents[position] = Document(int.from_bytes(value[:7]), value[14:])
        return documents

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        return self._told(script_calls.SWAP, changes, swapping)

    def dead_letters(
        self, namespace: str | None = None, *, after: Address | None = None, limit: int = 100
    ) -> list[Entry]:
        return dead_letters(self._open(), namespace, after, limit)

    def redrive(self, requests: Sequence[Redrive]) -> list[bool]:
        return self._told(script_calls.OPERATE, requests, redriving)

    def reset(self, requests: Sequence[Reset]) -> list[bool]:
        return self._told(script_calls.OPERATE, requests, resetting)

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

    def probe(self, within: int) -> None:  # noqa: ARG002  # an answer takes no longer than the timeout
        """See `oncegate.stores.base.Probed`. A swap of nothing notes the time, and that is a write."""
        buckets = self._open()
        buckets.ask(buckets.everywhere(script_calls.SWAP, b""))
        for server in buckets.servers.all():
            check_again(server, self._settings)

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────────

    def _told(self, script: Script, asked: Sequence[Any], request: Callable[[Any], bytes]) -> list[bool]:
        """For scripts that answer with a digit for each request."""
        said = None
        if len(asked) == 1 and script.reads_first:
            said = self._open().ask_alone(script, asked[0], request(asked[0]))
            if type(said) is bytes:
                return [said[0] == _YES]
        answers = [False] * len(asked)
        for call, digits in self._each(script, asked, request, said=said):
            for position, digit in zip(call.positions, digits, strict=True):
                answers[position] = digit == _YES
        return answers

    def _each(
        self,
        script: Script,
        asked: Sequence[Any],
        request: Callable[[Any], bytes],
        head: bytes = b"",
        said: Reply | None = None,
    ) -> Iterator[tuple[Call, Reply]]:
        """The calls that a batch falls into, each with its reply."""
        buckets = self._open()
        calls = buckets.split(script, asked, request, head) if asked else []
        return zip(calls, buckets.ask(calls, said), strict=True)

    def _open(self) -> Buckets:
        buckets = self._buckets
        if buckets is not None:
            return buckets
        with self._lock:
            if self._closed:
                raise StoreRefused(f"the store at {self._settings.place} was closed")
            if self._buckets is None:
                self._buckets = Buckets(self._settings, self._clock, create=True)
            return self._buckets

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._buckets is not None:
                self._buckets.servers.close()
                self._buckets = None

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """The child connects anew: the connections that it inherits are the parent's, which loses nothing when they are
        closed here."""
        if in_child and self._buckets is not None:
            self._buckets.servers.close()
            self._buckets = None
        self._lock.release()


def _verdicts(requests: Sequence[Claim], answered: Iterable[tuple[Call, Reply]]) -> list[Any]:
    """The verdict for each request; None where there was no answer."""
    verdicts: list[Any] = [None] * len(requests)
    for call, reply in answered:
        now, letters, records = unpack_answer(reply, len(call.positions))
        for position, sent, letter in zip(call.positions, call.requests, letters, strict=True):
            claim = requests[position]
            if letter == _GRANTED_ANEW:
                verdicts[position] = _granted(claim, now)
            else:
                verdicts[position] = _judged(claim, sent, letter, next(records), now)
    return verdicts


def _granted(claim: Claim, now: int) -> Any:
    """Granted anew at this time: what the record is then the server need not say."""
    return step(None, claim, now)[1]


def _judged(claim: Claim, sent: bytes, letter: int, value: bytes, now: int) -> Any:
    """The verdict on a claim, sent like this, that found a record; one that it leaves as it is is judged here."""
    if letter == _UNCHANGED:
        return step(unpack(value, claim.about, packed_about(sent)), claim, now)[1]
    return _VERDICTS[letter](unpack(value), now)
