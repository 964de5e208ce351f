"""The verbs of stores that judge operations in Python, with `oncegate.claims.step`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from oncegate.claims import Address, Claim, Operation, Record, Redrive, Renew, Reset, Settlement, Verdict


class StepStore(ABC):
    """Every verb is one call of `_apply`, which a subclass implements."""

    @abstractmethod
    def _apply(self, operations: Sequence[Operation]) -> list[Any]:
        """Read the records, judge each operation with `step`, write the changes, all atomically. Return the answers
        in order."""

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


def is_listed(where: tuple[str, bytes], record: Record, after: Address | None, now: int) -> bool:
    """Whether a page that starts after the address `after` lists this record: it does not list expired records."""
    is_present = record.expires_at is None or now < record.expires_at
    return is_present and (after is None or where > (after.namespace, after.key))
