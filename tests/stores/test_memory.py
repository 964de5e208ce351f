"""The memory store against the contract, and what only it promises."""

from oncegate.clocks import Clock
from oncegate.stores.base import Store
from oncegate.stores.memory import MemoryStore
from oncegate.testing import InboxContract, StoreContract


class TestMemoryStore(InboxContract, StoreContract):
    def open(self, clock: Clock | None) -> Store:
        return MemoryStore(clock=clock)

    def kept(self, store: Store) -> int:
        assert isinstance(store, MemoryStore)
        return sum(len(records) for records in store._records.values())
