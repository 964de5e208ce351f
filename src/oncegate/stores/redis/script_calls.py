"""The scripts: their text, and the digests by which servers know them."""

import hashlib
import pkgutil
import time
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from typing import Final, TypeVar
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace
from redis.exceptions import NoScriptError

from oncegate.claims import Address
from oncegate.clocks import Clock
from oncegate.errors import StoreError, StoreUnavailable
from oncegate.stores.redis.checks import check_layout
from oncegate.stores.redis.codec import where_of
from oncegate.stores.redis.connection import Command, CommandFailed, RedisServer, Reply, ask, exchange, explained
from oncegate.stores.redis.servers import Cluster, Servers, Single
from oncegate.stores.redis.settings import RedisSettings


class Script(Struct, frozen=True):
    """`writes`: replicas are to confirm what it does, if that is wanted. `reads_first`: it takes the key of its first
    request, to read it with the clock. `notes`: told to, it notes the namespaces of its requests."""

    text: bytes
    digest: str
    writes: bool = True
    repeatable: bool = True
    reads_first: bool = False
    notes: bool = False


def script_of(text: bytes, **how: bool) -> Script:
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest(), **how)


def _script(*names: str, **how: bool) -> Script:
    return script_of(b"".join(map(_text, ("record", *names))), **how)


def _text(name: str) -> bytes:
    return pkgutil.get_data("oncegate.stores.redis", f"{name}.lua") or b""


CLAIM: Final = _script("claim", "records", "known", reads_first=True, notes=True)
SETTLE: Final = _script("settle", "records", "endings", reads_first=True)
# Nobody waits for replicas to know what is given back: it comes free by itself, when its lease ends.
GIVE_BACK: Final = replace(SETTLE, writes=False)
# Asked again after a lost answer, these would do more than was asked, or tell that what they did was not to be done.
TAKE: Final = _script("records", "take", repeatable=False)
OPERATE: Final = _script("records", "operate", repeatable=False)
SWAP: Final = _script("records", "swap", repeatable=False)
LOOK: Final = _script("records", "look", writes=False)


# Buckets: a batch is split over them, each part goes to its server as one script call, and the answers come back
# in the order in which they were asked for.


# A failover shows itself at once and is over for good only after a second or more; waiting that long is the caller's.
_PAUSES: Final = (0.0, 0.05, 0.2)

Asked = TypeVar("Asked", bound=Address)


class Call(Struct, frozen=True):
    """One script call on one bucket: the words that follow the script's name. `requests` are those in it, and
    `positions` where they are in the batch that was split; `names` are namespaces that the bucket is told of by it."""

    bucket: int
    script: Script
    words: Command
    requests: Sequence[bytes] = ()
    positions: Sequence[int] = ()
    names: Set[str] = frozenset()


class Buckets:
    """All that is said to servers goes through here."""

    def __init__(self, settings: RedisSettings, clock: Clock | None, *, create: bool) -> None:
        self._settings = settings
        self._clock = clock
        self.servers: Servers = Cluster(settings) if settings.cluster else Single(settings)
        self.count = len(self.servers.bases)
        self._clocks = [base + b"t" for base in self.servers.bases]
        self._records = [base + b"r" for base in self.servers.bases]
        self._told = self._nothing_told()
        self._create = create
        self._doubtful = False  # whether what there is has its note on the layout still
        self._hung: Set[str] = frozenset()
        self._wait = ("WAIT", str(settings.wait_replicas), str(int(settings.wait_timeout * 1_000)))
        try:
            self.servers.meet()
            check_layout(self.servers.home(), settings, create=create)
        except BaseException:
            self.servers.close()
            raise

    def _nothing_told(self) -> list[set[str]]:
        """The namespaces that each bucket is known to know: none."""
        return [set() for _ in range(self.count)]

    def of(self, key: bytes) -> int:
        return crc32(key) % self.count if self.count > 1 else 0

    def split(
        self, script: Script, asked: Sequence[Asked], request: Callable[[Asked], bytes], head: bytes = b""
    ) -> list[Call]:
        """A call for each bucket that a batch is about; within a bucket, requests stay in their order. `head` is put
        before the requests."""
        if self.count == 1:
            return [self._part(0, script, asked, request, head, range(len(asked)))]
        positions: dict[int, list[int]] = {}
        for position, each in enumerate(asked):
            positions.setdefault(self.of(each.key), []).append(position)
        return [
            self._part(bucket, script, [asked[position] for position in here], request, head, here)
            for bucket, here in positions.items()
        ]

    def _part(
        self,
        bucket: int,
        script: Script,
        asked: Sequence[Asked],
        request: Callable[[Asked], bytes],
        head: bytes,
        positions: Sequence[int],
    ) -> Call:
        requests = [request(each) for each in asked]
        batch = head + b"".join(requests)
        if not script.reads_first:
            return Call(bucket, script, ("1", self._clocks[bucket], batch, self._given()), requests, positions)
        words = self._reading_first(bucket, asked[0], batch)
        if script.notes and not (names := {each.namespace for each in asked}) <= self._told[bucket]:
            return Call(bucket, script, (*words, "names"), requests, positions, names)
        return Call(bucket, script, words, requests, positions)

    def _reading_first(self, bucket: int, first: Address, batch: bytes) -> Command:
        """What is said to a script that reads the record of the first request with the clock."""
        return "2", self._clocks[bucket], self._records[bucket] + where_of(first), batch, self._given()

    def _given(self) -> str:
        """The time of a clock that a test moves."""
        return "0" if self._clock is None else str(self._clock())

    def call(self, bucket: int, script: Script, batch: bytes) -> Call:
        return Call(bucket, script, ("1", self._clocks[bucket], batch, self._given()))

    def everywhere(self, script: Script, batch: bytes) -> list[Call]:
        return [self.call(bucket, script, batch) for bucket in range(self.count)]

    def ask_alone(self, script: Script, address: Address, request: bytes) -> Reply | None:
        """What comes back for one request, of a script that reads it first, by the shortest way: a reply, or a `Failed`
        to be gone on from. None if there is something to see to as well, and it was not asked."""
        bucket = self.of(address.key)
        if self._hung or self._doubtful or self._settings.wait_replicas:
            return None
        if script.notes and address.namespace not in self._told[bucket]:
            return None
        words = self._reading_first(bucket, address, request)
        return self.servers.having(bucket).ask_once(("EVALSHA", script.digest, *words))

    def ask(self, calls: Sequence[Call], said: Reply | None = None) -> list[Reply]:
        """The replies to these calls, in order; StoreError if one of them failed."""
        replies = self.replies(calls, said)
        if CommandFailed in map(type, replies):
            check_replies(replies)
        return replies

    def replies(self, calls: Sequence[Call], said: Reply | None = None) -> list[Reply]:
        """A reply or a `Failed` for each call. What may pass in a moment is asked again, a few times at most. One call
        may have been asked before, alone; this was `said`."""
        told = self._told
        if self._hung:
            self._look_past(self._hung)
        replies = self._ask_first(calls, said)
        if self._hung:
            self._hung -= self._heard_of(calls, replies)
        if CommandFailed in map(type, replies):
            if any(isinstance(reply, CommandFailed) and reply.may_be_another for reply in replies):
                self._told = self._nothing_told()  # who has taken over may not have heard it
                self._doubtful = self._create
            self._ask_again(calls, replies)
        if self._doubtful and CommandFailed not in map(type, replies):
            self._note_layout()
        for call, reply in zip(calls, replies, strict=True):
            if call.names and not isinstance(reply, CommandFailed):
                told[call.bucket] |= call.names
        return replies

    def _note_layout(self) -> None:
        """A server that is back may have lost all it had, and people are to find the store that goes on in it."""
        home = self.servers.home()
        if home.name not in self._hung:
            self._doubtful = False
            with suppress(StoreError):
                check_layout(home, self._settings, create=True)

    def _ask_first(self, calls: Sequence[Call], said: Reply | None) -> list[Reply]:
        """One call alone is asked the shortest way, if it may be asked again when that fails."""
        call = calls[0] if len(calls) == 1 else None
        if call is None or not call.script.repeatable or self._settings.wait_replicas:
            return self._ask_once(calls)
        if said is None:
            said = self.servers.having(call.bucket).ask_once(("EVALSHA", call.script.digest, *call.words))
        return self._ask_once(calls) if _unknown_script(said) else [said]

    def _ask_again(self, calls: Sequence[Call], replies: list[Reply]) -> None:
        self._ask_successors(calls, replies)
        for pause in _PAUSES:
            again = [index for index, reply in enumerate(replies) if _may_pass(calls[index], reply)]
            if not again:
                return
            time.sleep(pause)
            try:
                self.servers.look_again(self._hung)
            except StoreError as error:
                for index in again:
                    replies[index] = CommandFailed(error, replies[index].place, unsure=True)
                return
            self._repeat(calls, replies, again)

    def _ask_successors(self, calls: Sequence[Call], replies: list[Reply]) -> None:
        """Those that hung are not asked again; but who has taken over from them by now is, once."""
        hung = {
            index: reply.place for index, reply in enumerate(replies) if isinstance(reply, CommandFailed) and reply.hung
        }
        if not hung:
            return
        self._look_past(self._hung | set(hung.values()))
        moved = [index for index, place in hung.items() if self.servers.having(calls[index].bucket).name != place]
        self._repeat(calls, replies, [index for index in moved if _may_repeat(calls[index], replies[index])])

    def _look_past(self, hung: Set[str]) -> None:
        """Find out from the others who has the buckets of servers that hang. As long as nobody has them the next call
        looks first, or each would have to wait for what hangs before it finds out."""
        with suppress(StoreError):
            self.servers.look_again(hung)
        self._hung = hung & {server.name for server in self.servers.all()}

    def _heard_of(self, calls: Sequence[Call], replies: Sequence[Reply]) -> set[str]:
        """The servers that have said something, if only that they cannot."""
        return {
            reply.place if isinstance(reply, CommandFailed) else self.servers.having(call.bucket).name
            for call, reply in zip(calls, replies, strict=True)
            if not (isinstance(reply, CommandFailed) and reply.hung)
        }

    def _repeat(self, calls: Sequence[Call], replies: list[Reply], again: Sequence[int]) -> None:
        for index, reply in zip(again, self._ask_once([calls[index] for index in again]), strict=True):
            replies[index] = reply

    def _ask_once(self, calls: Sequence[Call]) -> list[Reply]:
        replies = self._send(calls, [("EVALSHA", call.script.digest, *call.words) for call in calls])
        unknown = [index for index, reply in enumerate(replies) if _unknown_script(reply)]
        if unknown:
            texts = [calls[index] for index in unknown]
            commands = [("EVAL", call.script.text, *call.words) for call in texts]
            for index, reply in zip(unknown, self._send(texts, commands), strict=True):
                replies[index] = reply
        return replies

    def _send(self, calls: Sequence[Call], commands: Sequence[Command]) -> list[Reply]:
        """By server, with a wait for the replicas behind what is written: on the same connection, or it would wait for
        nothing."""
        waits = bool(calls and self._settings.wait_replicas) and calls[0].script.writes
        if len(calls) == 1 and not waits:
            return ask(self.servers.having(calls[0].bucket), commands)
        by_server: dict[RedisServer, list[int]] = {}
        for index, call in enumerate(calls):
            by_server.setdefault(self.servers.having(call.bucket), []).append(index)
        sent = {
            server: [*(commands[index] for index in here), *([self._wait] if waits else [])]
            for server, here in by_server.items()
        }
        received = exchange(sent)
        if waits:
            for server, answers in received.items():
                self._check_replicas(server, answers)
        replies: list[Reply] = [None] * len(calls)
        for server, here in by_server.items():
            for index, reply in zip(here, received[server], strict=True):
                replies[index] = reply
        return replies

    def _check_replicas(self, server: RedisServer, replies: list[Reply]) -> None:
        """Take the answer to the wait off the others; if there is none, what was written is not known to be safe."""
        reached = replies.pop()
        if isinstance(reached, CommandFailed):
            replies[:] = _unsafe(replies, reached.error, server)
        elif reached < self._settings.wait_replicas:
            error = StoreUnavailable(
                f"{reached} of {self._settings.wait_replicas} replicas of {server.name} have confirmed the write in "
                "time; it is not safe yet: ask again, or lower wait_replicas"
            )
            replies[:] = _unsafe(replies, error, server)


def check_replies(replies: Sequence[Reply]) -> None:
    """Raise the StoreError that the first failure means."""
    for reply in replies:
        if isinstance(reply, CommandFailed):
            raise explained(reply.error, reply.place)


def _unsafe(replies: Sequence[Reply], error: Exception, server: RedisServer) -> list[Reply]:
    """What was done, but may be lost yet."""
    return [
        each if isinstance(each, CommandFailed) else CommandFailed(error, server.name, unsure=True, said=each)
        for each in replies
    ]


def _unknown_script(reply: Reply) -> bool:
    return isinstance(reply, CommandFailed) and isinstance(reply.error, NoScriptError)


def _may_pass(call: Call, reply: Reply) -> bool:
    return isinstance(reply, CommandFailed) and reply.passing and _may_repeat(call, reply)


def _may_repeat(call: Call, failed: CommandFailed) -> bool:
    return call.script.repeatable or not failed.unsure
