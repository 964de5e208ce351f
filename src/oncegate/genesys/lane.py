"""A lane keeps a notification channel open for up to 1,000 topics, and replaces the channel before it ends."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from oncegate.clocks import Clock, since_boot
from oncegate.durations import times as counted
from oncegate.errors import GenesysError, QueueError
from oncegate.genesys.client import GenesysDenied, GenesysMissing, GenesysUnavailable
from oncegate.genesys.notifications import Channel, ChannelReader, ListenTimes, NotificationApi, Rejection
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.supervision import OutageLogger
from oncegate.journal import GapLog

_log: Final = logging.getLogger("oncegate.work")
_RELEASE_WITHIN: Final = 2.0  # seconds


class Lane:
    """Up to 1,000 topics. They have one channel, and two while one channel replaces the other. Times without a channel
    are recorded as gaps."""

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
        self._outage = OutageLogger(since_boot, "it is tried again")
        self._unused: Channel | None = None  # the channel of an attempt that has failed
        self._readers: list[ChannelReader] = []
        self._rejected_since: dict[str, int] = {}  # topics that were allowed before
        self._first = asyncio.Event()
        self._first_live = 0

    @property
    def received(self) -> dict[str, int]:
        """For each topic that is subscribed, the time until which everything was received. While a channel is replaced,
        the time of the old channel counts: it may be lost, and then a gap begins there that is not recorded yet."""
        at = min((reader.alive_at for reader in self._readers), default=None)
        return {} if at is None else {topic: at for topic in self._topics if topic not in self._rejected_since}

    async def first_live(self) -> dict[str, int]:
        """Wait for the first subscription. Returns its time, for each topic."""
        await self._first.wait()
        return dict.fromkeys(self._topics, self._first_live)

    async def run(self) -> None:
        try:
            current = await self._open_until_live()
            self._first_live = current.live_since
            self._first.set()
            while True:
                await current.ended()
                current = await self._replace(current)
        finally:
            await asyncio.gather(*(self._close(reader) for reader in [*self._readers]))

    async def _replace(self, old: ChannelReader) -> ChannelReader:
        """Open the next channel. If the old channel does not answer when the next one is live, events may have been
        missed in between."""
        new = await self._open_until_live(old)
        if await old.is_alive():
            await asyncio.sleep(self._times.overlap)
            if new.is_lost and not old.is_lost:
                # The gaps of topics that only the new channel had were recorded as ended.
                since = self._rejected_since
                self._rejected_since = {topic: since.get(topic, new.alive_at) for topic in old.rejected}
                await self._close(new)
                return old
        else:
            why = f"the notification socket was lost ({old.reason or 'it did not answer a ping'})"
            await self._threads.call(self._gaps.add, "socket", old.alive_at, new.live_since, why)
        await self._close(old)
        return new

    async def _open_until_live(self, old: ChannelReader | None = None) -> ChannelReader:
        """Open a channel, with retries. What a retry cannot change is an error at the start. Later it is an error only
        when nothing is received any more."""
        while True:
            try:
                reader = await self._open(is_first=old is None)
            except GenesysError as error:
                is_permanent = isinstance(error, GenesysDenied)
                if old is None:
                    is_permanent = not isinstance(error, GenesysMissing | GenesysUnavailable)
                if is_permanent and (old is None or old.is_lost):
                    raise QueueError(str(error)) from error
                self._outage.failed(f"no notification channel can be opened ({error})")
                await asyncio.sleep(self._outage.pause)
                continue
            self._outage.succeeded("notification channels can be opened")
            return reader

    async def _open(self, *, is_first: bool) -> ChannelReader:
        """Open a channel. If this fails, the channel is used for the next attempt: a client can have 20 channels, and
        Genesys closes the oldest for one more."""
        channel = self._unused
        if channel is None or time.monotonic() > (channel.begun + channel.ends) / 2:
            channel = self._unused = await self._threads.call(self._api.create)
        reader = ChannelReader(channel, self._times, self._on_frame, self._clock)
        rejected: list[Rejection] = []

        async def subscribe() -> None:
            rejected[:] = await self._threads.call(self._api.subscribe, channel, self._topics)
            if rejected and (is_first or len(rejected) == len(self._topics)):
                raise GenesysDenied(_rejections(rejected, len(self._topics)))

        try:
            await reader.open(subscribe)
        except GenesysMissing:
            self._unused = None
            raise
        self._unused = None
        reader.rejected = frozenset(each.topic for each in rejected)
        self._readers.append(reader)
        await self._note_rejected(rejected, reader.live_since)
        return reader

    async def _note_rejected(self, rejected: Sequence[Rejection], now: int) -> None:
        """Log topics that are rejected now, and record the gap of those that are allowed again. If the listener ends
        before that, the mark tells the next start about it."""
        if rejected:
            _log.error("%s", _rejections(rejected, len(self._topics)))
        before = self._rejected_since
        after = {each.topic: before.get(each.topic, now) for each in rejected}
        self._rejected_since = before | after  # the mark must not pass a gap that is not recorded yet
        for topic in before.keys() - after.keys():
            why = f"Genesys Cloud rejected the topic {topic}"
            await self._threads.call(self._gaps.add, "rejected", before[topic], now, why)
        self._rejected_since = after

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
