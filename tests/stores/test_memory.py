"""The memory store against the contract, and what only it promises."""

from hypothesis import given
from hypothesis import strategies as st

from oncegate.clocks import Clock
from oncegate.stores.base import Store
from oncegate.stores.memory import MemoryStore, _Expiry
from oncegate.testing import InboxContract, StoreContract


class TestMemoryStore(InboxContract, StoreContract):
    def open(self, clock: Clock | None) -> Store:
        return MemoryStore(clock=clock)

    def kept(self, store: Store) -> int:
        assert isinstance(store, MemoryStore)
        return sum(len(records) for records in store._records.values())


_STEP = st.tuples(st.integers(0, 3_000_000), st.lists(st.tuples(st.integers(1, 4_000_000), st.booleans()), max_size=6))


@given(st.lists(_STEP, max_size=12))
def test_every_key_falls_due_once(steps: list[tuple[int, list[tuple[int, bool]]]]) -> None:
    """Keys of two namespaces fall due once each, none before its time and none later than the second after it, however
    adding and looking alternate."""
    expiry, ours, theirs = _Expiry(), dict[bytes, int](), dict[bytes, int]()
    waiting: dict[tuple[bool, bytes], int] = {}
    now = number = 0
    for pause, added in [*steps, (6_000_000, [])]:
        now += pause
        for entries, key in expiry.due(now, 1_000):
            assert waiting.pop((entries is ours, key)) <= now
        assert all(due > now - 1_000_000 for due in waiting.values())
        for after, mine in added:
            number += 1
            key = number.to_bytes(4, "big")
            expiry.add(now + after, ours if mine else theirs, key)
            waiting[mine, key] = now + after
    assert not waiting
