"""Notification channels of Genesys Cloud: create a channel, subscribe to topics, and read its WebSocket."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from oncegate.clocks import Clock, wall
from oncegate.errors import GenesysError
from oncegate.genesys.client import GenesysClient, GenesysUnavailable
from oncegate.times import microseconds_of, moment

MOST_TOPICS: Final = 1_000  # of one channel
MOST_CHANNELS: Final = 20  # of one OAuth client; the oldest is removed for the next one
_BATCH: Final = 200  # topics in one request
_CHANNELS: Final = "/api/v2/notifications/channels"
_METADATA: Final = "channel.metadata"
_CLOSING: Final = "v2.system.socket_closing"
_PING: Final = '{"message":"ping"}'
_LARGEST_FRAME: Final = 4 * 1024 * 1024  # bytes
_CONNECT_WITHIN: Final = 20.0  # seconds

End: TypeAlias = Literal["due", "closing", "lost"]


class ListenTimes(Struct, frozen=True):
    """The times of a listener, in seconds. A channel is replaced `renew_before` its end, or after `lifetime` if Genesys
    does not say when it ends. Both channels are read for `overlap`. After `silence` without a frame, a ping is sent;
    Genesys sends a heartbeat every 30 s. A socket without an answer within `pong` is lost."""

    lifetime: float = 24 * 3_600.0
    renew_before: float = 3_600.0
    overlap: float = 10.0
    silence: float = 45.0
    pong: float = 10.0
    mark_every: float = 10.0


class Rejection(Struct, frozen=True):
    """A topic that the OAuth client may not subscribe to."""

    topic: str
    reason: str


class Channel(Struct, frozen=True):
    """A channel. It was created at `begun`, and Genesys ends it at `ends`, on the monotonic clock. Everybody who knows
    `uri` can read the channel, so it is never logged."""

    id: str
    uri: str
    begun: float
    ends: float


class NotificationApi:
    """Creates channels and subscribes to topics. Each call blocks."""

    def __init__(self, client: GenesysClient, times: ListenTimes) -> None:
        self._client = client
        self._times = times

    def create(self) -> Channel:
        begun = time.monotonic()
        found = self._client.call("POST", _CHANNELS) or {}
        if not found.get("id") or not str(found.get("connectUri", "")).startswith(("wss://", "ws://127.0.0.1:")):
            raise GenesysUnavailable("Genesys Cloud created a channel without an id or a secure address; try again")
        expires = moment(found.get("expires"))
        life = 0.0 if expires is None else (microseconds_of(expires) - wall()) / 1e6
        if not 0 < life < self._times.lifetime:  # it is not stated, or the clock of this machine is wrong
            life = self._times.lifetime
        return Channel(found["id"], found["connectUri"], begun, begun + life)

    def subscribe(self, channel: Channel, topics: Sequence[str]) -> tuple[Rejection, ...]:
        """Subscribe to topics, in batches. Returns the topics that were rejected, with the reasons."""
        rejected: list[Rejection] = []
        for start in range(0, len(topics), _BATCH):
            body = [{"id": topic} for topic in topics[start : start + _BATCH]]
            path = f"{_CHANNELS}/{channel.id}/subscriptions"
            # The first batch replaces what the channel has, the others are added. With ignoreErrors, a topic that is
            # not allowed is rejected alone.
            method: Literal["PUT", "POST"] = "POST" if start else "PUT"
            answer = self._client.call(method, path, query={"ignoreErrors": True}, body=body) or {}
            rejected += map(_rejection, filter(_is_rejected, answer.get("entities") or []))
        return tuple(rejected)

    def release(self, channel: Channel) -> None:
        """Remove the subscriptions of a channel that is no longer read. Channels cannot be deleted; they expire."""
        with suppress(GenesysError):
            self._client.call("DELETE", f"{_CHANNELS}/{channel.id}/subscriptions")


def _is_rejected(found: dict[str, Any]) -> bool:
    return found.get("state") == "Rejected"


def _rejection(found: dict[str, Any]) -> Rejection:
    missing = found.get("missingPermissions") or []
    why = f"the permission {' and '.join(missing)} is missing" if missing else found.get("rejectionReason")
    return Rejection(str(found.get("id")), str(why or "no reason is given"))


# ── the socket ────────────────────────────────────────────────────────────────────────────────────────────


class ChannelReader:
    """Reads the frames of one channel, and tells when and why this ends.

    `on_frame` gets each event frame with the reader; while it waits, nothing is read. `live_since` is the time from
    which no event of the topics is missed, and `alive_at` is the time of the last frame, in microseconds since 1970."""

    def __init__(
        self,
        channel: Channel,
        times: ListenTimes,
        on_frame: Callable[["ChannelReader", bytes], Any],
        clock: Clock = wall,
    ) -> None:
        self.channel = channel
        self._times = times
        self._on_frame = on_frame
        self._clock = clock
        self._socket: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._heard = asyncio.Event()
        self.opened_at = 0
        self.live_since = 0
        self.alive_at = 0
        self.reason = ""

    async def open(self, subscribe: Callable[[], Any]) -> None:
        """Connect, then call `subscribe`: an event after the subscription is received. Raises GenesysUnavailable if the
        socket cannot be opened."""
        try:
            self._socket = await connect(
                self.channel.uri,
                max_size=_LARGEST_FRAME,
                ping_interval=None,  # Genesys has a ping of its own
                open_timeout=_CONNECT_WITHIN,
                proxy=None,
            )
        except (OSError, TimeoutError, WebSocketException) as error:
            raise GenesysUnavailable(f"the WebSocket cannot be opened ({_name_of(error)})") from error
        self.opened_at = self._clock()
        self._task = asyncio.create_task(self._read(self._socket))
        try:
            await subscribe()
        except BaseException:
            await self.close()
            raise
        self.alive_at = self.live_since = self._clock()

    async def ended(self) -> End:
        """Wait until the channel is due for replacement, Genesys announces its end, or the socket is lost."""
        assert self._task is not None  # noqa: S101  # `open` was called
        # A short life must not lead to a new channel every few seconds.
        before = min(self._times.renew_before, (self.channel.ends - self.channel.begun) / 2)
        due = self.channel.ends - before - time.monotonic()
        notice = asyncio.create_task(self._closing.wait())
        try:
            done, _ = await asyncio.wait(
                [self._task, notice], timeout=max(due, 0.0), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            notice.cancel()
        if self._task in done:
            return "lost"
        return "closing" if notice in done else "due"

    async def is_alive(self) -> bool:
        """Ask for a sign of life. A connection can be dead for minutes before the system reports it."""
        if self._socket is None or self.is_lost:
            return False
        self._heard.clear()
        with suppress(OSError, WebSocketException, TimeoutError):
            await self._socket.send(_PING)
            async with asyncio.timeout(self._times.pong):
                await self._heard.wait()
                return True
        return False

    @property
    def is_lost(self) -> bool:
        return self._task is not None and self._task.done()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._socket is not None:
            await self._socket.close()

    async def _read(self, socket: ClientConnection) -> None:
        try:
            while True:
                frame = await self._next_frame(socket)
                self.alive_at = self._clock()
                self._heard.set()
                raw = frame.encode() if isinstance(frame, str) else frame
                topic = _topic_of(raw)
                if topic == _CLOSING:
                    self._closing.set()
                elif topic != _METADATA:
                    await self._on_frame(self, raw)
        except (WebSocketException, OSError, TimeoutError) as error:
            self.reason = _name_of(error)

    async def _next_frame(self, socket: ClientConnection) -> str | bytes:
        try:
            async with asyncio.timeout(self._times.silence):
                return await socket.recv()
        except TimeoutError:
            await socket.send(_PING)
        try:
            async with asyncio.timeout(self._times.pong):
                return await socket.recv()
        except TimeoutError:
            silent = self._times.silence + self._times.pong
            raise TimeoutError(f"no frame and no pong for {silent:g} s") from None


class _Named(Struct):
    topicName: Any = None  # noqa: N815  # the name in the frame


_decode: Final = msgspec.json.Decoder(_Named).decode


def _topic_of(raw: bytes) -> Any:
    try:
        return _decode(raw).topicName
    except msgspec.MsgspecError:
        return None


def _name_of(error: BaseException) -> str:
    return str(error) or type(error).__name__
