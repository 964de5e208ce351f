"""The conformance suite for stores: every row of the protocol."""

from collections.abc import Iterator

import pytest
from hypothesis.stateful import run_state_machine_as_test

from oncegate.clocks import Clock
from oncegate.errors import StoreRefused
from oncegate.stores.base import Store
from oncegate.testing.claim_contract import ClaimContract, ExpiryContract, TakeContract
from oncegate.testing.clock import ManualClock
from oncegate.testing.model_comparison import HISTORIES, machine
from oncegate.testing.operator_contract import DocumentContract, ForgetContract, NamespaceContract, OperatorContract
from oncegate.testing.race_contract import ProcessRaceContract, RaceContract
from oncegate.testing.requests import NAMESPACE, claim, complete, granted
from oncegate.testing.settle_contract import AttemptContract, RenewContract, SettleContract


class StoreContract(
    ClaimContract,
    ExpiryContract,
    TakeContract,
    SettleContract,
    AttemptContract,
    RenewContract,
    OperatorContract,
    ForgetContract,
    NamespaceContract,
    DocumentContract,
    RaceContract,
):
    """Subclass this class and override `open`. For a slow store, reduce `histories`, the number of runs of the
    comparison with the model, `crowd`, the number of keys in the tests with very many keys, and `rounds`, the number of
    repetitions of a race between threads."""

    histories = HISTORIES

    def open(self, clock: Clock | None) -> Store:
        """Open an empty store. A second call in the same test opens the same store again."""
        raise NotImplementedError

    def open_empty(self, clock: Clock) -> Store:
        """Open an empty store for each run of the comparison with the model."""
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
        """Over random histories, the store gives the same answers as the pure function `claims.step`."""
        run_state_machine_as_test(machine(self.open_empty, self.histories))

    def test_closing_twice(self, store: Store) -> None:
        """A store may be closed twice."""
        store.close()

    def test_closed(self, store: Store) -> None:
        """A closed store refuses claims, settlements and searches, and says why."""
        record = granted(store)
        store.close()
        for call in (lambda: claim(store, "bob"), lambda: complete(store, record), lambda: store.browse(NAMESPACE)):
            with pytest.raises(StoreRefused, match="was closed"):
                call()


class SharedStoreContract(ProcessRaceContract, StoreContract):
    """The suite for stores that several processes can open. Override `url`, too. The racing processes use the clock of
    the store."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        # Racing processes read the real clock. For these processes, the records that this process writes must not lie
        # in the future.
        return ManualClock(1_600_000_000_000_000)
