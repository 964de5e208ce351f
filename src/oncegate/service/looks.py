"""Looks at the store: what is told of it to those who watch the service, in time whatever the store does."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from oncegate.claims import Address
from oncegate.errors import StoreError
from oncegate.stores.base import Probed, Store

_WITHIN = 1.0
_PROBE_WITHIN = 800_000
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
        if self._asked is None or self._asked.done():
            self._asked = self._thread.submit(self._ask)
        try:
            async with asyncio.timeout(_WITHIN):
                await asyncio.shield(asyncio.wrap_future(self._asked))
        except (StoreError, TimeoutError):
            return False
        return True

    def close(self) -> None:
        self._thread.shutdown(wait=False)


def probe(store: Store) -> Look:
    """Whether it can be written, if it can tell; else whether it can be asked for something that is not there."""
    if isinstance(store, Probed):
        return Look(lambda: store.probe(_PROBE_WITHIN))
    return Look(lambda: store.load(_NOWHERE))
