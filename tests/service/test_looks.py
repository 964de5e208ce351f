"""Looks at the store: answered in time, and by few threads, whatever the store does."""

import asyncio
import threading
import time

import pytest

from oncegate.errors import StoreUnavailable
from oncegate.service import monitoring
from oncegate.service.monitoring import StoreProbe, probe
from oncegate.stores.memory import MemoryStore


def test_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who ask while the store hangs are told in time that it has not answered, and it is asked once for them all;
    when it answers again it is asked anew."""
    monkeypatch.setattr(monitoring, "_PROBE_TIMEOUT", 0.1)
    answers, asked = threading.Event(), list[int]()

    def hang() -> None:
        asked.append(1)
        assert answers.wait(10)

    async def main() -> None:
        start = time.monotonic()
        assert await asyncio.gather(*(look.succeeds() for _ in range(20))) == [False] * 20
        assert (time.monotonic() - start < 1, len(asked)) == (True, 1)
        answers.set()
        while not await look.succeeds():
            """It may not have been told yet."""
        assert (await look.succeeds(), len(asked) > 1) == (True, True)

    look = StoreProbe(hang)
    asyncio.run(main())
    look.close()


def test_a_store_that_cannot_tell_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a store that has no probe it is asked whether it can be read."""

    def away(*_: object) -> None:
        raise StoreUnavailable("it is away")

    store = MemoryStore()
    look = probe(store)
    assert asyncio.run(look.succeeds())
    monkeypatch.setattr(store, "load", away)
    assert not asyncio.run(look.succeeds())
    look.close()
