"""Looks at the store: what is told of it to those who watch the service, in time whatever the store does."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from oncegate.claims import Address
from oncegate.errors import StoreError, StoreUnavailable
from oncegate.stores.base import Probed, Store

_log = logging.getLogger("oncegate.service")

_WITHIN = 1.0
_PROBE_WITHIN = 800_000
_LOOK_EVERY = 30.0
_NOWHERE = [Address("oncegate.service", b"ready")]


class Look:
    """A question to the store, in a thread that no event needs. Whoever asks while it is under way waits for the same
    answer, so that a store which hangs holds one thread."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="oncegate-look")
        self._asked: Future[object] | None = None

    async def answered(self) -> bool:
        """Whether the store has answered in time."""
        return await self.problem() is None

    async def problem(self) -> StoreError | None:
        """Why it has not, if so."""
        if self._asked is None or self._asked.done():
            self._asked = self._thread.submit(self._ask)
        try:
            async with asyncio.timeout(_WITHIN):
                await asyncio.shield(asyncio.wrap_future(self._asked))
        except StoreError as error:
            return error
        except TimeoutError:
            return StoreUnavailable(f"the store did not answer within {_WITHIN:.0f} s")
        return None

    def close(self) -> None:
        self._thread.shutdown(wait=False)


class Readiness:
    """Whether the store can be used, as it is told to those who ask; the log is told in full when that changes."""

    def __init__(self, store: Store) -> None:
        self._look = probe(store)
        self._known: str | None = None

    async def problem(self) -> str | None:
        """What keeps the store from being used, in words that tell nothing of where it is; None if nothing does."""
        error = await self._look.problem()
        brief = None if error is None else error.brief
        if brief != self._known:
            self._known = brief
            if error is None:
                _log.warning("the store can be used again")
            else:
                _log.warning("the store cannot be used: %s", error)
        return brief

    async def watch(self, stop: asyncio.Event) -> None:
        """Look now and then, so that the log has it also where nobody asks."""
        while not stop.is_set():
            await self.problem()
            try:
                async with asyncio.timeout(_LOOK_EVERY):
                    await stop.wait()
            except TimeoutError:
                """Time to look again."""

    def close(self) -> None:
        self._look.close()


def probe(store: Store) -> Look:
    """Whether it can be written, if it can tell; else whether it can be asked for something that is not there."""
    if isinstance(store, Probed):
        return Look(lambda: store.probe(_PROBE_WITHIN))
    return Look(lambda: store.load(_NOWHERE))
