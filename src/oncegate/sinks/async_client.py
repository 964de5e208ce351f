"""Use an asyncio client in plain handlers, which run in threads."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from oncegate import forks

_CLOSE_WITHIN = 5.0  # seconds

_Client = TypeVar("_Client")
_Result = TypeVar("_Result")


class AsyncClient(Generic[_Client]):
    """A client in an event loop, which runs in a thread of its own. Loop and client start with the first call; after a
    fork, the child starts its own. If the client is no longer open, the next call connects again. Thread-safe."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], Awaitable[_Client]],
        is_open: Callable[[_Client], bool],
        disconnect: Callable[[_Client], Awaitable[object]],
    ) -> None:
        self._name = name
        self._connect = connect
        self._is_open = is_open
        self._disconnect = disconnect
        self._lock = threading.Lock()
        self._running: _Running[_Client] | None = None
        self._watch = forks.holding(self._lock, self._forget)

    def call(self, use: Callable[[_Client], Awaitable[_Result]], within: float) -> _Result:
        """Call `use` with the client, and return its result. Raises TimeoutError after `within` seconds."""
        with self._lock:
            running = self._running = self._running or _Running(self._name)
        future = asyncio.run_coroutine_threadsafe(self._use(running, use), running.loop)
        try:
            return future.result(within)
        except BaseException:
            future.cancel()
            raise

    async def _use(self, running: "_Running[_Client]", use: Callable[[_Client], Awaitable[_Result]]) -> _Result:
        async with running.connecting:
            if running.client is None or not self._is_open(running.client):
                previous, running.client = running.client, None
                if previous is not None:
                    with suppress(Exception):  # only a part of the client may be closed, such as a channel
                        await self._disconnect(previous)
                running.client = await self._connect()
        return await use(running.client)

    def close(self) -> None:
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.stop(self._disconnect)

    def _forget(self) -> None:
        self._running = None


class _Running(Generic[_Client]):
    """The loop, its thread and the client. In a forked child there is no such thread."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.connecting = asyncio.Lock()
        self.client: _Client | None = None
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def stop(self, disconnect: Callable[[_Client], Awaitable[object]]) -> None:
        async def end() -> None:
            if self.client is not None:
                await disconnect(self.client)

        with suppress(Exception):  # the server closes a connection without a goodbye, too
            asyncio.run_coroutine_threadsafe(end(), self.loop).result(_CLOSE_WITHIN)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_CLOSE_WITHIN)
        if not self._thread.is_alive():
            self.loop.close()
