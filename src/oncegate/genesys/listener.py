"""Receive events over notification channels: `oncegate genesys listen`.

Each frame is admitted to the inbox before it is handled. A channel is replaced before it ends, and for some seconds
both channels are read. Their copies of an event have the same key, so they are duplicates. A time in which events may
have been missed is recorded as a gap, with its beginning and its end.
"""

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate.backoff import Backoff
from oncegate.canonical import content_digest
from oncegate.claims import Address
from oncegate.clocks import Clock, since_boot, wall
from oncegate.durations import times as counted
from oncegate.errors import GenesysError, QueueError, SettingError, StoreError
from oncegate.events import Event
from oncegate.gate import Gate
from oncegate.genesys.client import GenesysDenied
from oncegate.genesys.notifications import (
    MOST_CHANNELS,
    MOST_TOPICS,
    ChannelReader,
    ListenTimes,
    NotificationApi,
    Rejection,
)
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.http_answers import keep_refused
from oncegate.ingress.inbox import InboxWorker
from oncegate.ingress.supervision import OutageLogger, stopped_by_signals
from oncegate.ingress.worker import Figures
from oncegate.journal import GapLog
from oncegate.stores.base import Change, Store

_log: Final = logging.getLogger("oncegate.work")
_MOST_WAITING: Final = 1_000  # frames in memory; then nothing is read from the sockets
_BATCH: Final = 100
_MOST_LANES: Final = MOST_CHANNELS // 2  # each lane has two channels while one replaces the other
_SAME_WITHIN: Final = 2_000_000  # microseconds
_MARK_RETENTION: Final = 30 * 86_400 * 1_000_000
_RETRY_STORE: Final = (0.2, 5.0)  # seconds
_RELEASE_WITHIN: Final = 5.0  # seconds


class Frame(Struct, frozen=True):
    """A frame, the channel on which it arrived, and when. `since` is the time at which the channel was opened."""

    raw: bytes
    channel: str
    at: int
    since: int


class ArrivalTimes:
    """Gives a time to events that have none, so that a later event with the same content is another event.

    The copy of an event on another channel gets the time of the first copy, if it arrives within two seconds, and if
    this channel was open when the first copy arrived. Two frames with the same content on one channel are two events.
    If equal events follow each other within two seconds while a channel is replaced, one may be taken for a copy."""

    def __init__(self) -> None:
        self._seen: dict[bytes, deque[tuple[int, set[str]]]] = {}

    def of(self, content: bytes, frame: Frame) -> int:
        seen = self._seen.setdefault(content, deque())
        while seen and frame.at - seen[0][0] > _SAME_WITHIN:
            seen.popleft()
        for first, channels in reversed(seen):
            if frame.channel not in channels and first >= frame.since:
                channels.add(frame.channel)
                return first
        at = frame.at if not seen else max(frame.at, seen[-1][0] + 1)  # frames of one batch may have the same time
        seen.append((at, {frame.channel}))
        return at

    def forget(self, now: int) -> None:
        """Forget contents that are too old to matter."""
        for content in [key for key, seen in self._seen.items() if not seen or now - seen[-1][0] > _SAME_WITHIN]:
            del self._seen[content]


class AliveMark:
    """The time until which everything was received and stored, in a document of the store. After a restart it tells
    since when nothing was received, even if the process was killed."""

    def __init__(self, store: Store, namespace: str, region: str, topics: Sequence[str]) -> None:
        self._store = store
        self._address = Address(namespace, content_digest(["genesys.listen", region, sorted(topics)]))

    def read(self) -> int | None:
        (found,) = self._store.load([self._address])
        return None if found.body is None else int(msgspec.json.decode(found.body))

    def write(self, at: int) -> None:
        (found,) = self._store.load([self._address])
        if found.body is None or int(msgspec.json.decode(found.body)) < at:
            where, body = self._address, msgspec.json.encode(at)
            self._store.swap([Change(where.namespace, where.key, found.version, body, _MARK_RETENTION)])


class NotificationWorker:
    """Implements `oncegate.ingress.worker.Worker` for notification channels.

    A channel has at most 1,000 topics, so more topics are divided into lanes, each with a channel of its own."""

    def __init__(
        self,
        gate: Gate,
        inbox: InboxWorker,
        api: NotificationApi,
        topics: Sequence[str],
        *,
        read: Callable[[bytes], list[Event]],
        mark: AliveMark,
        gaps: GapLog,
        times: ListenTimes,
        drain: float,
        clock: Clock = wall,
    ) -> None:
        if len(topics) > _MOST_LANES * MOST_TOPICS:
            raise SettingError(
                f"{len(topics)} topics are too many; a listener can have {_MOST_LANES * MOST_TOPICS}. Use Amazon"
                " EventBridge for more"
            )
        self._gate, self._inbox, self._api = gate, inbox, api
        self._read, self._mark, self._gaps = read, mark, gaps
        self._times, self._drain, self._clock = times, drain, clock
        parts = [topics[start : start + MOST_TOPICS] for start in range(0, len(topics), MOST_TOPICS)]
        # Calls run in threads that do not delay the end of the process.
        self._threads = CallThreads("oncegate-genesys", 2 * len(parts) + 2)
        self._lanes = [_Lane(api, part, times, gaps, self._receive, self._threads, clock) for part in parts]
        self._arrivals = ArrivalTimes()
        self._counts: Counter[str] = Counter()
        self._admitting = 0
        self._outage_since: int | None = None
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False

    # ── the worker interface ──────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        asyncio.run(self._run_until_stopped())

    async def _run_until_stopped(self) -> None:
        self._stopped = asyncio.Event()
        self._frames: asyncio.Queue[Frame] = asyncio.Queue(_MOST_WAITING)
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._stopping:
                self._stopped.set()
        with stopped_by_signals(self.stop):
            await self._work()

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stopped.set)

    @property
    def figures(self) -> Figures:
        """The figures of the inbox. `received` counts the frames of all channels."""
        figures, duplicates = self._inbox.figures, self._counts["duplicates"]
        in_hand = figures.in_hand + self._admitting
        return replace(figures, received=self._counts["received"], duplicates=duplicates, in_hand=in_hand)

    @property
    def left_running(self) -> int:
        return self._inbox.left_running

    # ── working ───────────────────────────────────────────────────────────────────────────────────────────

    async def _work(self) -> None:
        inbox = asyncio.create_task(self._inbox.work())
        admitter = asyncio.create_task(self._admit_frames())
        lanes = [asyncio.create_task(lane.run()) for lane in self._lanes]
        stopped = asyncio.create_task(self._stopped.wait())
        marker = asyncio.create_task(self._mark_regularly())
        try:
            await asyncio.wait([inbox, admitter, marker, *lanes, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            alive = self._alive_at
            for task in (marker, stopped, *lanes):
                task.cancel()
            ended = await asyncio.gather(*lanes, marker, return_exceptions=True)
            await self._store_rest(admitter, alive)
            self._inbox.stop()
            ended += await asyncio.gather(inbox, admitter, return_exceptions=True)
            self._threads.close()
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _store_rest(self, admitter: "asyncio.Task[None]", alive: int | None) -> None:
        """Admit the frames that were received, for at most the drain time. If all were stored, the next start knows
        that nothing is missing until now."""
        if not admitter.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._drain):
                    await self._frames.join()
                    if alive is not None:
                        await self._threads.call(self._write_mark, alive)
        admitter.cancel()
        if left := self._frames.qsize() + self._admitting:
            _log.error("%s could not be stored before the end; the next start records the gap", counted(left, "frame"))

    async def _receive(self, reader: ChannelReader, raw: bytes) -> None:
        self._counts["received"] += 1
        await self._frames.put(Frame(raw, reader.channel.id, self._clock(), reader.opened_at))

    # ── admission ─────────────────────────────────────────────────────────────────────────────────────────

    async def _admit_frames(self) -> None:
        while True:
            frames = [await self._frames.get()]
            while len(frames) < _BATCH and not self._frames.empty():
                frames.append(self._frames.get_nowait())
            self._admitting = len(frames)
            await self._admit([event for frame in frames for event in self._events(frame)])
            self._admitting = 0
            self._arrivals.forget(self._clock())
            for _ in frames:
                self._frames.task_done()

    def _events(self, frame: Frame) -> list[Event]:
        """The events of a frame. An event without a time gets the time of its arrival as the time at which it was sent,
        in the member that EventBridge has for it."""
        events = self._read(frame.raw)
        if len(events) != 1 or events[0].occurred_at is not None or events[0].content_hash is None:
            return events
        document = msgspec.json.decode(frame.raw)
        if not isinstance(document, dict):  # Genesys sends no such frame
            return events
        content = repr((events[0].identity, events[0].content_hash)).encode()
        arrived = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self._arrivals.of(content, frame))
        return self._read(msgspec.json.encode({**document, "timestamp": arrived}))

    async def _admit(self, events: list[Event]) -> None:
        """Admit events. While the store does not answer, they wait in memory, and then nothing is read."""
        pauses = Backoff(*_RETRY_STORE)
        while events:
            # During an outage only one event is tried, so that the log does not repeat all of them.
            tried = events if self._outage_since is None else events[:1]
            try:
                refused = await self._refused(tried)
            except StoreError as error:
                self._store_failed(str(error))
                refused = tried
            if not refused:
                await self._store_answered(len(events))
            events = [*refused, *events[len(tried) :]]
            if refused:
                await asyncio.sleep(pauses.next_pause())

    async def _refused(self, events: list[Event]) -> list[Event]:
        """Admit events. Returns those that were not stored."""
        outcomes = await self._inbox.admit(events)
        if any(outcome.status == "invalid" for outcome in outcomes):
            outcomes = await self._threads.call(keep_refused, outcomes, self._gate.keep)
        self._counts["duplicates"] += sum(outcome.status == "duplicate" for outcome in outcomes)
        refused = [outcome for outcome in outcomes if not outcome.acked and outcome.kept is None]
        if failed := [outcome for outcome in refused if outcome.status != "in_flight"]:
            self._store_failed(failed[0].discreet)
        return [outcome.event for outcome in refused]

    def _store_failed(self, reason: str) -> None:
        if self._outage_since is None:
            self._outage_since = self._clock()
            _log.warning("frames cannot be stored (%s); they wait in memory until the store answers", reason)

    async def _store_answered(self, waiting: int) -> None:
        if self._outage_since is None:
            return
        since, self._outage_since = self._outage_since, None
        held = counted(waiting + self._frames.qsize(), "frame")
        why = f"the store did not answer; {held} waited in memory"
        await self._threads.call(self._gaps.add, "store", since, self._clock(), why)

    # ── the mark ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _alive_at(self) -> int | None:
        """The time until which all lanes received; None while a lane was never connected."""
        times = [lane.alive_at for lane in self._lanes]
        return None if None in times else min(filter(None, times))

    async def _mark_regularly(self) -> None:
        await self._record_time_stopped()
        while True:
            alive = self._alive_at
            if alive is not None and self._frames.empty() and not self._admitting:
                await self._threads.call(self._write_mark, alive)
            await asyncio.sleep(self._times.mark_every)

    async def _record_time_stopped(self) -> None:
        """When all lanes are connected for the first time, record the time since the last run as a gap."""
        before: int | None = None
        with suppress(StoreError):
            before = await self._threads.call(self._mark.read)
        live = [await lane.first_live() for lane in self._lanes]
        if before is not None:
            why = "the listener of these topics did not run, or it could not store what it received"
            await self._threads.call(self._gaps.add, "stopped", before, max(live), why)

    def _write_mark(self, at: int) -> None:
        with suppress(StoreError):  # the outage is logged where frames are stored
            self._mark.write(at)


class _Lane:
    """Up to 1,000 topics. They have one channel, and two while one channel replaces the other."""

    def __init__(
        self,
        api: NotificationApi,
        topics: Sequence[str],
        times: ListenTimes,
        gaps: GapLog,
        on_frame: Callable[[ChannelReader, bytes], Any],
        threads: CallThreads,
        clock: Clock,
    ) -> None:
        self._api, self._topics, self._times = api, topics, times
        self._gaps, self._on_frame, self._threads, self._clock = gaps, on_frame, threads, clock
        self._outage = OutageLogger(since_boot)
        self._readers: list[ChannelReader] = []
        self._first = asyncio.Event()
        self._first_live = 0

    @property
    def alive_at(self) -> int | None:
        """The time until which everything was received; None if no channel was opened yet. While a channel is replaced,
        its own last frame counts: it may be lost, and then a gap begins there that is not recorded yet."""
        return min((reader.alive_at for reader in self._readers), default=None)

    async def first_live(self) -> int:
        await self._first.wait()
        return self._first_live

    async def run(self) -> None:
        try:
            current = await self._open_until_live(first=True)
            self._first_live = current.live_since
            self._first.set()
            while True:
                await current.ended()
                current = await self._replace(current)
        finally:
            for reader in [*self._readers]:
                await self._close(reader)

    async def _replace(self, old: ChannelReader) -> ChannelReader:
        """Open the next channel. If the old channel does not answer when the next one is live, events may have been
        missed in between."""
        new = await self._open_until_live()
        if await old.is_alive():
            await asyncio.sleep(self._times.overlap)
        else:
            why = f"the notification socket was lost ({old.reason or 'it did not answer a ping'})"
            await self._threads.call(self._gaps.add, "socket", old.alive_at, new.live_since, why)
        await self._close(old)
        return new

    async def _open_until_live(self, *, first: bool = False) -> ChannelReader:
        """Open a channel, with retries. What a retry cannot change is an error: no permission, or at the start a topic
        that is rejected."""
        while True:
            try:
                reader = await self._open(first)
            except GenesysDenied as error:
                raise QueueError(str(error)) from error
            except GenesysError as error:
                self._outage.failed(f"no notification channel can be opened ({error})")
                await asyncio.sleep(self._outage.pause)
                continue
            self._outage.succeeded("notification channels can be opened")
            return reader

    async def _open(self, first: bool) -> ChannelReader:
        channel = await self._threads.call(self._api.create)
        reader = ChannelReader(channel, self._times, self._on_frame, self._clock)

        async def subscribe() -> None:
            rejected = await self._threads.call(self._api.subscribe, channel, self._topics)
            if rejected and (first or len(rejected) == len(self._topics)):
                raise QueueError(_rejections(rejected, len(self._topics)))
            if rejected:
                _log.error("%s", _rejections(rejected, len(self._topics)))

        await reader.open(subscribe)
        self._readers.append(reader)
        return reader

    async def _close(self, reader: ChannelReader) -> None:
        self._readers.remove(reader)
        await reader.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_RELEASE_WITHIN):
                await self._threads.call(self._api.release, reader.channel)


def _rejections(rejected: Sequence[Rejection], count: int) -> str:
    listed = "; ".join(f"{each.topic} ({each.reason})" for each in rejected[:10])
    more = f"; and {len(rejected) - 10} more" if len(rejected) > 10 else ""
    return f"Genesys Cloud rejected {len(rejected)} of {counted(count, 'topic')}: {listed}{more}"
