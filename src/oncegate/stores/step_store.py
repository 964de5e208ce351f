"""Verbs for stores that can judge in Python: all of them are one function over a batch of operations."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from oncegate.claims import (
    Address,
    Admission,
    Admit,
    Claim,
    Operation,
    Record,
    Redrive,
    Renew,
    Reset,
    Settlement,
    Verdict,
)


class StepStore(ABC):
    """A subclass says how a batch is read, judged with `oncegate.claims.step` and written, atomically."""

    @abstractmethod
    def _apply(self, operations: Sequence[Operation]) -> list[Any]:
        """The answers to these operations, in order."""

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


class InboxStepStore(StepStore):
    """One that keeps events, too, and takes requests of different kinds with one write."""

    @abstractmethod
    def _apply(self, operations: Sequence[Operation], *, admits: bool = False) -> list[Any]:
        """The same. `admits`: there may be admissions among them, which go by `oncegate.stores.entity_order`."""

    def admit(self, requests: Sequence[Admit]) -> list[Admission]:
        return self._apply(requests, admits=True)

    def together(self, operations: Sequence[Operation]) -> list[Any]:
        return self._apply(operations, admits=True)


def is_listed(where: tuple[str, bytes], record: Record, after: Address | None, now: int) -> bool:
    """Whether a page that starts past `after` has this record: an expired one is absent, swept or not."""
    present = record.expires_at is None or now < record.expires_at
    return present and (after is None or where > (after.namespace, after.key))
