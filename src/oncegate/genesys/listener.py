"""Receive events over notification channels: `oncegate genesys listen`.

Each frame is admitted to the inbox before it is handled. Lanes replace the channels. For some seconds both the old and
the new channel are read; their copies of an event have the same key, so they are duplicates. A time in which events may
have been missed is recorded as a gap, with its beginning and its end.
"""

import asyncio
import logging
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate.backoff import Backoff
from oncegate.canonical import content_digest
from oncegate.claims import Address
from oncegate.clocks import Clock, wall
from oncegate.durations import times as counted
from oncegate.errors import SettingError, StoreError
from oncegate.events import Event
from oncegate.gate import Gate, Outcome
from oncegate.genesys.lane import Lane
from oncegate.genesys.notifications import MOST_CHANNELS, MOST_TOPICS, ChannelReader, ListenTimes, NotificationApi
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.http_answers import keep_refused
from oncegate.ingress.inbox import InboxWorker
from oncegate.ingress.supervision import stopped_by_signals
from oncegate.ingress.worker import Figures
from oncegate.journal import GapLog
from oncegate.stores.base import Change, Store

_log: Final = logging.getLogger("oncegate.work")
_MOST_WAITING: Final = 1_000  # frames in memory; then nothing is read from the sockets
_BATCH: Final = 100
_MOST_LANES: Final = MOST_CHANNELS // 2  # each lane has two channels while one replaces the other
_SAME_WITHIN: Final = 2_000_000  # microseconds
_MARK_RETENTION: Final = 366 * 86_400 * 1_000_000
_RETRY_STORE: Final = (0.2, 5.0)  # seconds
_SHOWN_TOPICS: Final = 3


class Frame(Struct, frozen=True, eq=False):
    """A frame, the channel on which it arrived, and when. `since` is the time at which the channel was opened. When the
    frame arrived, everything was received until `proved`."""

    raw: bytes
    channel: str
    at: int
    since: int
    proved: int = 0


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
    """For each topic, the time until which everything was received and stored, in a document of the store. After a
    restart it tells since when nothing was received, even if the process was killed or the topics are others."""

    def __init__(self, store: Store, namespace: str, region: str, topics: Sequence[str]) -> None:
        self._store = store
        self._address = Address(namespace, content_digest(["genesys.listen", region]))
        self._topics = topics

    def read(self) -> dict[str, int]:
        """The times of the topics that were received before."""
        times, _ = self._load()
        return {topic: times[topic] for topic in self._topics if topic in times}

    def write(self, received: Mapping[str, int]) -> None:
        """Set the times of topics. A time never goes back. If another listener writes at the same time, this write has
        no effect; it is repeated soon."""
        before, version = self._load()
        after = before | {topic: max(at, before.get(topic, 0)) for topic, at in received.items()}
        oldest = max(after.values(), default=0) - _MARK_RETENTION
        body = msgspec.json.encode({topic: at for topic, at in after.items() if at > oldest})
        if after != before:
            self._store.swap([Change(self._address.namespace, self._address.key, version, body, _MARK_RETENTION)])

    def _load(self) -> tuple[dict[str, int], int]:
        (found,) = self._store.load([self._address])
        return {} if found.body is None else _decode_times(found.body), found.version


_decode_times: Final = msgspec.json.Decoder(dict[str, int]).decode


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
        self._lanes = [Lane(api, part, times, gaps, self._receive, self._threads, clock) for part in parts]
        self._arrivals = ArrivalTimes()
        self._counts: Counter[str] = Counter()
        self._unstored: dict[Frame, None] = {}  # that were received, the oldest first
        self._in_flight: set[asyncio.Task[None]] = set()
        self._has_recorded_stop = False
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
        in_hand = figures.in_hand + len(self._unstored)
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
            received = self._received
            for task in (marker, stopped, *lanes):
                task.cancel()
            ended = await asyncio.gather(*lanes, marker, return_exceptions=True)
            await self._store_rest(admitter, received)
            self._inbox.stop()
            ended += await asyncio.gather(inbox, admitter, return_exceptions=True)
            self._threads.close()
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _store_rest(self, admitter: "asyncio.Task[None]", received: Mapping[str, int]) -> None:
        """Admit the frames that were received, for at most the drain time. If all were stored, the next start knows
        that nothing is missing until now."""
        if not admitter.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._drain):
                    await self._frames.join()
                    await asyncio.gather(*self._in_flight)
                    await self._write_mark(received)
        admitter.cancel()
        if self._unstored:
            left = counted(len(self._unstored), "frame")
            _log.error("%s could not be stored before the end; the next start records the gap", left)

    async def _receive(self, reader: ChannelReader, raw: bytes) -> None:
        self._counts["received"] += 1
        frame = Frame(raw, reader.channel.id, self._clock(), reader.opened_at, reader.alive_at)
        self._unstored[frame] = None
        await self._frames.put(frame)

    # ── admission ─────────────────────────────────────────────────────────────────────────────────────────

    async def _admit_frames(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                frames = [await self._frames.get()]
                while len(frames) < _BATCH and not self._frames.empty():
                    frames.append(self._frames.get_nowait())
                in_flight = await self._admit([(event, frame) for frame in frames for event in self._events(frame)])
                self._arrivals.forget(frames[-1].at)
                self._note_stored(frames, except_for=[frame for _, frame in in_flight])
                if in_flight:
                    await self._admit_later(in_flight, group)
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

    def _note_stored(self, frames: Sequence[Frame], except_for: Collection[Frame] = ()) -> None:
        for frame in set(frames).difference(except_for):
            self._unstored.pop(frame, None)

    async def _admit_later(self, waiting: "list[_Waiting]", group: asyncio.TaskGroup) -> None:
        """Admit events again that another worker runs now. The others go on meanwhile, unless too many wait."""
        task = group.create_task(self._admit_until_stored(waiting))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)
        if len(self._in_flight) * _BATCH > _MOST_WAITING:
            await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)

    async def _admit_until_stored(self, waiting: "list[_Waiting]") -> None:
        pauses, frames = Backoff(*_RETRY_STORE), [frame for _, frame in waiting]
        while waiting:
            await asyncio.sleep(pauses.next_pause())
            waiting = await self._admit(waiting)
        self._note_stored(frames)

    async def _admit(self, waiting: "list[_Waiting]") -> "list[_Waiting]":
        """Admit events, and return those that another worker runs now. While the store does not answer, all wait in
        memory, and then nothing is read."""
        pauses, in_flight = Backoff(*_RETRY_STORE), list[_Waiting]()
        while waiting:
            # During an outage only one event is tried, so that the log does not repeat all of them.
            tried = waiting if self._outage_since is None else waiting[:1]
            try:
                outcomes = await self._outcomes([event for event, _ in tried])
            except StoreError as error:
                self._store_failed(str(error))
                failed = tried
            else:
                refused = [(each, outcome) for each, outcome in zip(tried, outcomes, strict=True) if _refused(outcome)]
                in_flight += [each for each, outcome in refused if outcome.status == "in_flight"]
                failed = [each for each, outcome in refused if outcome.status != "in_flight"]
                for _, outcome in refused:
                    if outcome.status != "in_flight":
                        self._store_failed(outcome.discreet)
            if not failed:
                await self._store_answered()
            waiting = [*failed, *waiting[len(tried) :]]
            if failed:
                await asyncio.sleep(pauses.next_pause())
        return in_flight

    async def _outcomes(self, events: list[Event]) -> list[Outcome]:
        outcomes = await self._inbox.admit(events)
        if any(outcome.status == "invalid" for outcome in outcomes):
            outcomes = await self._threads.call(keep_refused, outcomes, self._gate.keep)
        self._counts["duplicates"] += sum(outcome.status == "duplicate" for outcome in outcomes)
        return outcomes

    def _store_failed(self, reason: str) -> None:
        if self._outage_since is None:
            self._outage_since = self._clock()
            _log.warning("frames cannot be stored (%s); they wait in memory until the store answers", reason)

    async def _store_answered(self) -> None:
        if self._outage_since is None:
            return
        since, self._outage_since = self._outage_since, None
        why = f"the store did not answer; {counted(len(self._unstored), 'frame')} waited in memory"
        await self._threads.call(self._gaps.add, "store", since, self._clock(), why)

    # ── the mark ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _received(self) -> dict[str, int]:
        """For each topic that is subscribed, the time until which everything was received."""
        return {topic: at for lane in self._lanes for topic, at in lane.received.items()}

    @property
    def _stored(self) -> dict[str, int]:
        """For each topic that is subscribed, the time until which everything was received and stored."""
        received = self._received
        if not self._unstored:
            return received
        proved = min(frame.proved for frame in self._unstored)
        return {topic: min(at, proved) for topic, at in received.items()}

    async def _mark_regularly(self) -> None:
        await self._record_time_stopped()
        self._has_recorded_stop = True
        while True:
            await self._write_mark(self._stored)
            await asyncio.sleep(self._times.mark_every)

    async def _record_time_stopped(self) -> None:
        """When all lanes are connected for the first time, record the time since the last run as a gap. Topics that
        were received until different times have different gaps."""
        before = await self._read_mark()
        live = {topic: at for lane in self._lanes for topic, at in (await lane.first_live()).items()}
        stopped_at = defaultdict[int, list[str]](list)
        for topic, at in before.items():
            stopped_at[at].append(topic)
        for at, topics in sorted(stopped_at.items()):
            named = _named(topics, len(live))
            why = f"the listener of {named} did not run, or it could not store what it received"
            await self._threads.call(self._gaps.add, "stopped", at, max(live[topic] for topic in topics), why)

    async def _read_mark(self) -> dict[str, int]:
        """Read the mark before it is written for the first time. Without it, a gap would be lost."""
        pauses = Backoff(*_RETRY_STORE)
        while True:
            with suppress(StoreError):
                return dict(await self._threads.call(self._mark.read))
            await asyncio.sleep(pauses.next_pause())

    async def _write_mark(self, received: Mapping[str, int]) -> None:
        """Write the mark, unless it would pass a gap that is not in the journal yet: after a kill, the mark tells the
        next start about that gap."""
        if self._has_recorded_stop and await self._threads.call(self._gaps.write_rest):
            with suppress(StoreError):  # the outage is logged where frames are stored
                await self._threads.call(self._mark.write, received)


# An event that is to be admitted, and its frame.
_Waiting: TypeAlias = tuple[Event, Frame]


def _refused(outcome: Outcome) -> bool:
    return not outcome.acked and outcome.kept is None


def _named(topics: Sequence[str], count: int) -> str:
    """Topics in a sentence: all `count` topics, or some of them."""
    if len(topics) == count:
        return "these topics"
    more = ", …" if len(topics) > _SHOWN_TOPICS else ""
    return f"{len(topics)} of {counted(count, 'topic')} ({', '.join(topics[:_SHOWN_TOPICS])}{more})"
