"""Tools for tests: a manual clock, and the conformance suite that every store passes.

To run the suite for a store, write a class that opens the store:

    class TestMyStore(StoreContract):
        def open(self, clock):
            return MyStore(clock=clock)

`SharedStoreContract` adds races between processes, for stores that several processes can open at one URL.
`InboxContract` adds the inbox, for stores that hold events until they run. Name `InboxContract` before the other base
class.
"""

try:
    import hypothesis  # noqa: F401  # imported first, so that the error below names what to install
    import pytest  # noqa: F401
except ImportError as _error:
    from oncegate.errors import MissingExtra

    raise MissingExtra("oncegate.testing", "testing") from _error

from oncegate.testing.clock import ManualClock
from oncegate.testing.contract import SharedStoreContract, StoreContract
from oncegate.testing.inbox_contract import InboxContract

__all__ = ["InboxContract", "ManualClock", "SharedStoreContract", "StoreContract"]
