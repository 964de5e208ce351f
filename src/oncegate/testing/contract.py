"""The conformance suite: every line of the protocol, for any store."""

from collections.abc import Iterator

import pytest
from hypothesis.stateful import run_state_machine_as_test

from oncegate.clocks import Clock
from oncegate.stores.base import Store
from oncegate.testing.claim_contract import ClaimContract, ExpiryContract, TakeContract
from oncegate.testing.clock import ManualClock
from oncegate.testing.model_comparison import HISTORIES, machine
from oncegate.testing.operator_contract import DocumentContract, NamespaceContract, OperatorContract
from oncegate.testing.race_contract import ProcessRaceContract, RaceContract
from oncegate.testing.settle_contract import AttemptContract, RenewContract, SettleContract


class StoreContract(
    ClaimContract,
    ExpiryContract,
    TakeContract,
    SettleContract,
    AttemptContract,
    RenewContract,
    OperatorContract,
    NamespaceContract,
    DocumentContract,
    RaceContract,
):
    """Subclass it and say how the store is opened. A store that is slow to ask may be tried with fewer `histories`, and
    with less of a `crowd` where a test takes very many keys."""

    histories = HISTORIES

    def open(self, clock: Clock | None) -> Store:
        """An empty store, or for a second call in one test the same one again."""
        raise NotImplementedError

    def open_empty(self, clock: Clock) -> Store:
        """A store of its own for each run of the comparison with the model."""
        return self.open(clock)

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[Store]:
        store = self.open(clock)
        yield store
        store.close()

    def test_agrees_with_the_model(self) -> None:
        """Step by step, over random histories, the store answers as the pure function does."""
        run_state_machine_as_test(machine(self.open_empty, self.histories))

    def test_closing_twice(self, store: Store) -> None:
        """A store may be closed again."""
        store.close()


class SharedStoreContract(ProcessRaceContract, StoreContract):
    """For stores that several processes can open: say their URL too. The store's own clock is used there."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        # Processes in a race read the real clock; the records of this one must not be in their future.
        return ManualClock(1_600_000_000_000_000)
