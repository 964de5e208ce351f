"""Load the Lua scripts and call them on the servers. A batch is split by bucket; each bucket gets one call."""

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

from oncegate.claims import Address, Release
from oncegate.clocks import Clock
from oncegate.errors import StoreError, StoreUnavailable
from oncegate.stores.redis.checks import check_layout
from oncegate.stores.redis.codec import encode_address, encode_settlement
from oncegate.stores.redis.connection import Command, RedisServer, Reply, execute_on_servers
from oncegate.stores.redis.errors import CommandFailed, store_error
from oncegate.stores.redis.servers import Cluster, Servers, SingleServer
from oncegate.stores.redis.settings import RedisSettings

# The pause in seconds before each retry. A failover takes a second or more. These pauses do not cover a failover: the
# caller decides whether to wait that long.
_RETRY_PAUSES: Final = (0.0, 0.05, 0.2)

# ── the scripts ───────────────────────────────────────────────────────────────────────────────────────────


class Script(Struct, frozen=True):
    """A Lua script and its properties.

    `writes`: replicas must confirm the call if the setting wait_replicas is used. `repeatable`: a second call after a
    lost reply does no harm. `reads_first`: KEYS[2] is the record of the first request, and the script reads this record
    together with the time. `lists_namespaces`: if ARGV[3] is given, the script adds the namespaces of the requests to
    the bucket's list of namespaces."""

    text: bytes
    digest: str
    writes: bool = True
    repeatable: bool = True
    reads_first: bool = False
    lists_namespaces: bool = False


def build_script(text: bytes, **flags: bool) -> Script:
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest(), **flags)


def _load(*names: str, **flags: bool) -> Script:
    """Return the script that consists of record.lua and these files, in this order."""
    texts = (pkgutil.get_data("oncegate.stores.redis", f"lua/{name}.lua") or b"" for name in ("record", *names))
    return build_script(b"".join(texts), **flags)


CLAIM: Final = _load("claim", "records", "known", reads_first=True, lists_namespaces=True)
SETTLE: Final = _load("settle", "records", "endings", reads_first=True)
# `give_back` does not wait for replicas: if its release is lost in a failover, the lease of the claim still ends.
_GIVE_BACK: Final = replace(SETTLE, writes=False)
# The next three scripts are not repeatable. After a lost reply, a second call would do more than requested, or would
# report a completed request as rejected.
TAKE: Final = _load("records", "take", repeatable=False)
OPERATE: Final = _load("records", "operate", repeatable=False)
SWAP: Final = _load("records", "swap", repeatable=False)
FORGET: Final = _load("records", "forget")
LOOK: Final = _load("records", "look", writes=False)


# ── the calls ─────────────────────────────────────────────────────────────────────────────────────────────

Item = TypeVar("Item", bound=Address)


class Call(Struct, frozen=True):
    """One call of a script on one bucket. `arguments` are the arguments of EVALSHA after the digest of the script.
    `requests` are the encoded requests, and `positions` are the positions of these requests in the batch.
    `new_namespaces` are the namespaces that the call adds to the bucket's list of namespaces."""

    bucket: int
    script: Script
    arguments: Command
    requests: Sequence[bytes] = ()
    positions: Sequence[int] = ()
    new_namespaces: Set[str] = frozenset()


class ScriptCaller:
    """Calls scripts on the servers, with retries."""

    def __init__(self, settings: RedisSettings, clock: Clock | None, *, create: bool) -> None:
        self._settings = settings
        self._clock = clock
        self.servers: Servers = Cluster(settings) if settings.cluster else SingleServer(settings)
        self.bucket_count = len(self.servers.key_prefixes)
        self._time_keys = [prefix + b"t" for prefix in self.servers.key_prefixes]
        self._record_prefixes = [prefix + b"r" for prefix in self.servers.key_prefixes]
        self._listed_namespaces = self._no_namespaces()
        self._create = create
        self._layout_may_be_lost = False
        self._unresponsive: Set[str] = frozenset()
        self._wait = ("WAIT", str(settings.wait_replicas), str(int(settings.wait_timeout * 1_000)))
        try:
            self.servers.connect()
            check_layout(self.servers.layout_server(), settings, create=create)
        except BaseException:
            self.servers.close()
            raise

    def _no_namespaces(self) -> list[set[str]]:
        """Return an empty set for each bucket: no namespace is known to be in the bucket's list."""
        return [set() for _ in range(self.bucket_count)]

    def bucket_of(self, key: bytes) -> int:
        return crc32(key) % self.bucket_count if self.bucket_count > 1 else 0

    # ── making calls ──────────────────────────────────────────────────────────────────────────────────────

    def split(
        self, script: Script, items: Sequence[Item], encode: Callable[[Item], bytes], head: bytes = b""
    ) -> list[Call]:
        """Return one call for each bucket that the batch uses. The batch of a call is `head` and the requests of the
        bucket, in their order."""
        if self.bucket_count == 1:
            return [self._make_call(0, script, items, encode, head, range(len(items)))] if items else []
        positions_by_bucket: dict[int, list[int]] = {}
        for position, item in enumerate(items):
            positions_by_bucket.setdefault(self.bucket_of(item.key), []).append(position)
        return [
            self._make_call(bucket, script, [items[position] for position in positions], encode, head, positions)
            for bucket, positions in positions_by_bucket.items()
        ]

    def _make_call(
        self,
        bucket: int,
        script: Script,
        items: Sequence[Item],
        encode: Callable[[Item], bytes],
        head: bytes,
        positions: Sequence[int],
    ) -> Call:
        requests = [encode(item) for item in items]
        batch = head + b"".join(requests)
        if not script.reads_first:
            return Call(bucket, script, self._arguments(bucket, batch), requests, positions)
        arguments = self._arguments_reading_first(bucket, items[0], batch)
        if script.lists_namespaces:
            namespaces = {item.namespace for item in items}
            if not namespaces <= self._listed_namespaces[bucket]:
                return Call(bucket, script, (*arguments, "names"), requests, positions, namespaces)
        return Call(bucket, script, arguments, requests, positions)

    def call(self, bucket: int, script: Script, batch: bytes) -> Call:
        return Call(bucket, script, self._arguments(bucket, batch))

    def call_every_bucket(self, script: Script, batch: bytes) -> list[Call]:
        return [self.call(bucket, script, batch) for bucket in range(self.bucket_count)]

    def _arguments(self, bucket: int, batch: bytes) -> Command:
        return "1", self._time_keys[bucket], batch, self._test_time()

    def _arguments_reading_first(self, bucket: int, first: Address, batch: bytes) -> Command:
        record_key = self._record_prefixes[bucket] + encode_address(first)
        return "2", self._time_keys[bucket], record_key, batch, self._test_time()

    def _test_time(self) -> str:
        """Return the time of the clock of a test, or 0 without such a clock. With 0, the script uses the server's
        clock."""
        return "0" if self._clock is None else str(self._clock())

    def route_single(self, script: Script, address: Address, request: bytes) -> tuple[RedisServer, Command] | None:
        """Return the server and the command for a single request. The script must have `reads_first`. The caller sends
        the command. If the command fails, the caller passes the CommandFailed to `execute` or `try_execute` for
        retries.

        Return None if the call needs more than this command: a wait for replicas, a new namespace in the list, a search
        for a new primary, or a new layout version. The caller then uses `split` and `execute`."""
        bucket = self.bucket_of(address.key)
        if self._unresponsive or self._layout_may_be_lost or self._settings.wait_replicas:
            return None
        if script.lists_namespaces and address.namespace not in self._listed_namespaces[bucket]:
            return None
        arguments = self._arguments_reading_first(bucket, address, request)
        return self.servers.server_of(bucket), ("EVALSHA", script.digest, *arguments)

    # ── executing calls ───────────────────────────────────────────────────────────────────────────────────

    def execute(self, calls: Sequence[Call], first_reply: Reply | None = None) -> list[Reply]:
        """Execute the calls and return their replies in order. Raises StoreError if a call failed. `try_execute`
        describes `first_reply`."""
        replies = self.try_execute(calls, first_reply)
        if CommandFailed in map(type, replies):
            raise_failure(replies)
        return replies

    def try_execute(self, calls: Sequence[Call], first_reply: Reply | None = None) -> list[Reply]:
        """Execute the calls. Return a reply or a CommandFailed for each call. Transient failures are retried.

        `first_reply` is for a single call that the caller has already sent with `route_single`. It is the reply to this
        call, or its CommandFailed. The call is sent again only if it failed."""
        listed_namespaces = self._listed_namespaces
        if self._unresponsive:
            self._route_around(self._unresponsive)
        replies = self._execute_first(calls, first_reply)
        if self._unresponsive:
            self._unresponsive -= self._responding_servers(calls, replies)
        if CommandFailed in map(type, replies):
            if any(isinstance(reply, CommandFailed) and reply.server_may_have_changed for reply in replies):
                self._listed_namespaces = self._no_namespaces()  # a new primary may not have the lists
                self._layout_may_be_lost = self._create
            self._retry(calls, replies)
        if self._layout_may_be_lost and CommandFailed not in map(type, replies):
            self._restore_layout()
        for call, reply in zip(calls, replies, strict=True):
            if call.new_namespaces and not isinstance(reply, CommandFailed):
                listed_namespaces[call.bucket] |= call.new_namespaces
        return replies

    def give_back(self, releases: Sequence[Release]) -> None:
        """Release claims whose handlers will not run. If a release fails, the claim stays in progress until its lease
        ends."""
        if releases:
            self.try_execute(self.split(_GIVE_BACK, releases, encode_settlement))

    def _restore_layout(self) -> None:
        """Write the layout version again. It may be missing, because a server that restarted may have lost all data. A
        process that opens the store with create=False fails if the layout version is missing."""
        server = self.servers.layout_server()
        if server.name not in self._unresponsive:
            self._layout_may_be_lost = False
            with suppress(StoreError):
                check_layout(server, self._settings, create=True)

    def _execute_first(self, calls: Sequence[Call], first_reply: Reply | None) -> list[Reply]:
        """Make the first attempt. A single repeatable call is sent with `execute_repeatable`, which is faster."""
        call = calls[0] if len(calls) == 1 else None
        if call is None or not call.script.repeatable or self._settings.wait_replicas:
            return self._execute_once(calls)
        if first_reply is None:
            server = self.servers.server_of(call.bucket)
            first_reply = server.execute_repeatable(("EVALSHA", call.script.digest, *call.arguments))
        return self._execute_once(calls) if _is_unknown_script(first_reply) else [first_reply]

    def _execute_once(self, calls: Sequence[Call]) -> list[Reply]:
        """Make one attempt. If a server does not have a script, send the text of the script."""
        replies = self._send(calls, [("EVALSHA", call.script.digest, *call.arguments) for call in calls])
        unknown = [index for index, reply in enumerate(replies) if _is_unknown_script(reply)]
        if unknown:
            resent = [calls[index] for index in unknown]
            commands = [("EVAL", call.script.text, *call.arguments) for call in resent]
            for index, reply in zip(unknown, self._send(resent, commands), strict=True):
                replies[index] = reply
        return replies

    def _send(self, calls: Sequence[Call], commands: Sequence[Command]) -> list[Reply]:
        """Send each command to the server of its call, and return the replies. After writes, WAIT is sent over the same
        connection, because WAIT waits only for the writes of its own connection."""
        waits = bool(calls and self._settings.wait_replicas) and calls[0].script.writes
        if len(calls) == 1 and not waits:
            return self.servers.server_of(calls[0].bucket).execute(commands)
        indexes_by_server: dict[RedisServer, list[int]] = {}
        for index, call in enumerate(calls):
            indexes_by_server.setdefault(self.servers.server_of(call.bucket), []).append(index)
        received = execute_on_servers(
            {
                server: [*(commands[index] for index in indexes), *([self._wait] if waits else [])]
                for server, indexes in indexes_by_server.items()
            }
        )
        replies: list[Reply] = [None] * len(calls)
        for server, indexes in indexes_by_server.items():
            if waits:
                self._check_replicas(server, received[server])
            for index, reply in zip(indexes, received[server], strict=True):
                replies[index] = reply
        return replies

    def _check_replicas(self, server: RedisServer, replies: list[Reply]) -> None:
        """Remove the reply to WAIT from the replies. If too few replicas have confirmed the writes, replace the other
        replies by CommandFailed, because a failover could lose the writes."""
        confirmed = replies.pop()
        if isinstance(confirmed, CommandFailed):
            error: Exception = confirmed.error
        elif confirmed < self._settings.wait_replicas:
            error = StoreUnavailable(
                f"{confirmed} of {self._settings.wait_replicas} replicas of {server.name} have confirmed the write in "
                "time; a failover may lose it: try again, or lower wait_replicas"
            )
        else:
            return
        for index, reply in enumerate(replies):
            if not isinstance(reply, CommandFailed):
                replies[index] = CommandFailed(error, server.name, maybe_executed=True, unconfirmed_reply=reply)

    # ── retries ───────────────────────────────────────────────────────────────────────────────────────────

    def _retry(self, calls: Sequence[Call], replies: list[Reply]) -> None:
        self._try_successors(calls, replies)
        for pause in _RETRY_PAUSES:
            failed = [index for index, reply in enumerate(replies) if _may_retry(calls[index], reply)]
            if not failed:
                return
            time.sleep(pause)
            try:
                self.servers.refresh(self._unresponsive)
            except StoreError as error:
                for index in failed:
                    replies[index] = CommandFailed(error, replies[index].server, maybe_executed=True)
                return
            self._repeat(calls, replies, failed)

    def _try_successors(self, calls: Sequence[Call], replies: list[Reply]) -> None:
        """Repeat each call that timed out once, if another server now has the bucket of the call. The server that timed
        out is not tried again."""
        timed_out = {
            index: reply.server
            for index, reply in enumerate(replies)
            if isinstance(reply, CommandFailed) and reply.timed_out
        }
        if not timed_out:
            return
        self._route_around(self._unresponsive | set(timed_out.values()))
        moved = [
            index
            for index, server in timed_out.items()
            if self.servers.server_of(calls[index].bucket).name != server and _may_repeat(calls[index], replies[index])
        ]
        self._repeat(calls, replies, moved)

    def _route_around(self, unresponsive: Set[str]) -> None:
        """Read from the other servers which server now has the buckets of the unresponsive servers.

        As long as an unresponsive server still has a bucket, every later call first reads the servers again. Otherwise
        each call would wait for the timeout before it finds the new primary."""
        with suppress(StoreError):
            self.servers.refresh(unresponsive)
        self._unresponsive = unresponsive & {server.name for server in self.servers.all()}

    def _responding_servers(self, calls: Sequence[Call], replies: Sequence[Reply]) -> set[str]:
        """Return the names of the servers that replied. A reply with an error also counts."""
        return {
            reply.server if isinstance(reply, CommandFailed) else self.servers.server_of(call.bucket).name
            for call, reply in zip(calls, replies, strict=True)
            if not (isinstance(reply, CommandFailed) and reply.timed_out)
        }

    def _repeat(self, calls: Sequence[Call], replies: list[Reply], indexes: Sequence[int]) -> None:
        for index, reply in zip(indexes, self._execute_once([calls[index] for index in indexes]), strict=True):
            replies[index] = reply


def raise_failure(replies: Sequence[Reply]) -> None:
    """Raise the StoreError of the first failed call. If no call failed, do nothing."""
    for reply in replies:
        if isinstance(reply, CommandFailed):
            raise store_error(reply.error, reply.server)


def _is_unknown_script(reply: Reply) -> bool:
    return isinstance(reply, CommandFailed) and isinstance(reply.error, NoScriptError)


def _may_retry(call: Call, reply: Reply) -> bool:
    return isinstance(reply, CommandFailed) and reply.is_transient and _may_repeat(call, reply)


def _may_repeat(call: Call, failure: CommandFailed) -> bool:
    return call.script.repeatable or not failure.maybe_executed
