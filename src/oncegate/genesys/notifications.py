"""Notification channels of Genesys Cloud: create a channel, subscribe to topics, and read its WebSocket."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from oncegate.clocks import Clock, wall
from oncegate.errors import GenesysError
from oncegate.genesys.client import GenesysClient, GenesysMissing, GenesysUnavailable
from oncegate.times import microseconds_of, moment

MOST_TOPICS: Final = 1_000  # of one channel
MOST_CHANNELS: Final = 20  # of one OAuth client; the oldest is removed for the next one
_BATCH: Final = 200  # topics in one request
_CHANNELS: Final = "/api/v2/notifications/channels"
_METADATA: Final = "channel.metadata"
_CLOSING: Final = "v2.system.socket_closing"
_PING: Final = '{"message":"ping"}'
_PONG: Final = "pong"
_LARGEST_FRAME: Final = 4 * 1024 * 1024  # bytes
_CONNECT_WITHIN: Final = 20.0  # seconds
_CLOSE_WITHIN: Final = 1.0
_LOOK: Final = 0.05  # seconds between two checks of whether a ping was answered
_SERVER_ERROR: Final = 500


class ListenTimes(Struct, frozen=True):
    """The times of a listener, in seconds. A channel is replaced `renew_before` its end, or after `lifetime` if Genesys
    does not say when it ends. Both channels are read for `overlap`, if the old one answers a ping within `pong`. A ping
    is sent every `ping_every`, and Genesys sends a heartbeat every 30 s. A socket without any frame for `silence` is
    lost."""

    lifetime: float = 24 * 3_600.0
    renew_before: float = 3_600.0
    overlap: float = 10.0
    ping_every: float = 15.0
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
    which no event of the topics is missed, and `alive_at` is the time until which everything was received, in
    microseconds since 1970. Only the answer to a ping proves this: it comes after all frames that were sent before it.
    A frame proves nothing, because it may have waited in this machine while the socket was lost."""

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
        self._is_held = False  # whether a frame waits in `on_frame`
        self._pings: deque[int] = deque()  # when the pings were sent that have no answer yet
        self._pinged_at = 0.0
        self._answered = self._sent = 0  # the number of pings
        self.opened_at = 0
        self.live_since = 0
        self.alive_at = 0
        self.rejected: frozenset[str] = frozenset()  # topics that Genesys rejected on this channel
        self.reason = ""

    async def open(self, subscribe: Callable[[], Any]) -> None:
        """Connect, then call `subscribe`: an event after the subscription is received. Raises GenesysMissing if the
        channel does not exist any more, and GenesysUnavailable if the socket cannot be opened."""
        try:
            self._socket = await connect(
                self.channel.uri,
                max_size=_LARGEST_FRAME,
                ping_interval=None,  # Genesys has a ping of its own
                open_timeout=_CONNECT_WITHIN,
                close_timeout=_CLOSE_WITHIN,
                proxy=None,
            )
        except (OSError, TimeoutError, WebSocketException) as error:
            is_missing = isinstance(error, InvalidStatus) and error.response.status_code < _SERVER_ERROR
            failed = GenesysMissing if is_missing else GenesysUnavailable
            raise failed(f"the WebSocket cannot be opened ({_name_of(error)})") from error
        self.opened_at = self._clock()
        self._pinged_at = time.monotonic()
        self._task = asyncio.create_task(self._read(self._socket))
        try:
            await subscribe()
        except BaseException:
            await self.close()
            raise
        self.alive_at = self.live_since = self._clock()

    async def ended(self) -> None:
        """Wait until the channel is due for replacement, Genesys announces its end, or the socket is lost."""
        assert self._task is not None  # noqa: S101  # `open` was called
        # A short life must not lead to a new channel every few seconds.
        before = min(self._times.renew_before, (self.channel.ends - self.channel.begun) / 2)
        due = self.channel.ends - before - time.monotonic()
        notice = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait([self._task, notice], timeout=max(due, 0.0), return_when=asyncio.FIRST_COMPLETED)
        finally:
            notice.cancel()

    async def is_alive(self) -> bool:
        """Ask for a sign of life: a connection can be dead for minutes before the system reports it. While a frame
        waits to be stored, no answer can be read; this time does not count."""
        if self._socket is None:
            return False
        await self._ping(self._socket)
        number, waited = self._sent, 0.0
        while self._answered < number and not self.is_lost and waited < self._times.pong:
            await asyncio.sleep(_LOOK)
            waited += 0 if self._is_held else _LOOK
        return self._answered >= number

    @property
    def is_lost(self) -> bool:
        return self._task is not None and self._task.done()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])  # `await self._task` cannot tell who is cancelled, the task or the caller
        if self._socket is not None:
            await self._socket.close()
        if self._task is not None and not self._task.cancelled():
            self._task.result()

    async def _read(self, socket: ClientConnection) -> None:
        try:
            while True:
                frame = await self._next_frame(socket)
                raw = frame.encode() if isinstance(frame, str) else frame
                named = _named(raw)
                if named.topicName == _CLOSING:
                    self._closing.set()
                elif named.topicName != _METADATA:
                    self._is_held = True
                    await self._on_frame(self, raw)
                    self._is_held = False
                elif _message_of(named.eventBody) == _PONG:
                    self._note_answer()
        except (WebSocketException, OSError, TimeoutError) as error:
            self.reason = _name_of(error)

    async def _next_frame(self, socket: ClientConnection) -> str | bytes:
        every, silent = self._times.ping_every, 0.0
        while silent < self._times.silence:
            if time.monotonic() - self._pinged_at >= every:
                await self._ping(socket)
            try:
                async with asyncio.timeout(every):
                    return await socket.recv()
            except TimeoutError:  # count the waits, not the time: the process may have been stopped meanwhile
                silent += every
        raise TimeoutError(f"no frame and no answer to a ping for {self._times.silence:g} s")

    async def _ping(self, socket: ClientConnection) -> None:
        self._pinged_at = time.monotonic()
        self._pings.append(self._clock())
        self._sent += 1
        with suppress(OSError, WebSocketException):  # `recv` returns the frames that are left, and then raises
            await socket.send(_PING)

    def _note_answer(self) -> None:
        """Genesys answers pings in order. If it left one out, `alive_at` would be too early, never too late."""
        if self._pings:
            self.alive_at = max(self.alive_at, self._pings.popleft())
            self._answered += 1


class _Named(Struct):
    topicName: Any = None  # noqa: N815  # the names in the frame
    eventBody: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815


class _Message(Struct):
    message: Any = None


_decode_names: Final = msgspec.json.Decoder(_Named).decode
_decode_message: Final = msgspec.json.Decoder(_Message).decode


def _named(raw: bytes) -> _Named:
    try:
        return _decode_names(raw)
    except msgspec.MsgspecError:
        return _Named()


def _message_of(body: msgspec.Raw) -> Any:
    try:
        return _decode_message(body).message
    except msgspec.MsgspecError:
        return None


def _name_of(error: BaseException) -> str:
    return str(error) or type(error).__name__
