"""The base class of stores that judge operations in Python, with `oncegate.claims.step`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from oncegate.claims import Address, Claim, Forget, Operation, Record, Redrive, Renew, Reset, Settlement, Verdict


class StepStore(ABC):
    """A store whose verbs are calls of `_apply`. Subclasses implement `_apply`."""

    @abstractmethod
    def _apply(self, operations: Sequence[Operation]) -> list[Any]:
        """Read the records, judge each operation with `step`, and write the changes. All of this is one atomic action.
        Return the answers in the order of the operations."""

    def claim(self, requests: Sequence[Claim]) -> list[Verdict]:
        return self._apply(requests)

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return self._apply(settlements)

    def renew(self, leases: Sequence[Renew]) -> list[bool]:
        return self._apply(leases)

    def redrive(self, requests: Sequence[Redrive]) -> list[bool]:
        return self._apply(requests)

    def reset(self, requests: Sequence[Reset]) -> list[bool]:
        return self._apply(requests)

    def forget(self, requests: Sequence[Forget]) -> list[bool]:
        return self._apply(requests)


def is_listed(where: tuple[str, bytes], record: Record, after: Address | None, now: int) -> bool:
    """Return whether a page that starts after the address `after` lists this record. Expired records are not listed."""
    is_present = record.expires_at is None or now < record.expires_at
    return is_present and (after is None or where > (after.namespace, after.key))
