"""The memory store: the contract, packed records, and expiry."""

from hypothesis import given
from hypothesis import strategies as st

from oncegate.claims import COMPLETED, IN_PROGRESS
from oncegate.clocks import Clock
from oncegate.stores.base import Store
from oncegate.stores.memory import MemoryStore, _Expiry
from oncegate.testing import InboxContract, StoreContract
from oncegate.testing.requests import KEY, NAMESPACE, complete, granted, stored


class TestMemoryStore(InboxContract, StoreContract):
    histories = 100

    def open(self, clock: Clock | None) -> Store:
        return MemoryStore(clock=clock)

    def kept(self, store: Store) -> int:
        assert isinstance(store, MemoryStore)
        return sum(len(records) for records in store._records.values())


def test_completed_records_are_packed() -> None:
    """A record in progress is an object; a completed one is packed into bytes, and is read as it was."""
    store = MemoryStore()
    record = granted(store)
    assert store._records[NAMESPACE][KEY] is record
    assert record.state == IN_PROGRESS
    assert complete(store, record)
    assert isinstance(store._records[NAMESPACE][KEY], bytes)
    after = stored(store)
    assert after is not None
    assert (after.state, after.owner, after.about) == (COMPLETED, record.owner, record.about)


_STEP = st.tuples(st.integers(0, 3_000_000), st.lists(st.tuples(st.integers(1, 4_000_000), st.booleans()), max_size=6))


@given(st.lists(_STEP, max_size=12))
def test_every_key_is_due_once(steps: list[tuple[int, list[tuple[int, bool]]]]) -> None:
    """Each key of two namespaces is returned once, not before its time and at most a second after it, in whatever order
    keys are added and due keys are read."""
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
