"""For tests: a clock moved by hand, and the conformance suite that every store passes.

A store joins the suite by saying how it is opened:

    class TestMyStore(StoreContract):
        def open(self, clock):
            return MyStore(clock=clock)

`SharedStoreContract` adds the races between processes, for stores that several can open at one URL, and
`InboxContract` what a store must hold to that stores events until they are run: name it first of the two.
"""

try:
    import hypothesis  # noqa: F401  # asked for here, so that the error can say what to install
    import pytest  # noqa: F401
except ImportError as _error:
    from oncegate.errors import MissingExtra

    raise MissingExtra("oncegate.testing", "testing") from _error

from oncegate.testing.clock import ManualClock
from oncegate.testing.contract import SharedStoreContract, StoreContract
from oncegate.testing.inbox_contract import InboxContract

__all__ = ["InboxContract", "ManualClock", "SharedStoreContract", "StoreContract"]
