"""Verbs for stores that can judge in Python: all of them are one function over a batch of operations."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

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


class JudgedStore(ABC):
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


class InboxStore(JudgedStore):
    """One that keeps events, too, and takes requests of different kinds with one write."""

    @abstractmethod
    def _apply(self, operations: Sequence[Operation], *, admits: bool = False) -> list[Any]:
        """The same. `admits`: there may be admissions among them, which are to be asked for `in_turn`."""

    def admit(self, requests: Sequence[Admit]) -> list[Admission]:
        return self._apply(requests, admits=True)

    def together(self, operations: Sequence[Operation]) -> list[Any]:
        return self._apply(operations, admits=True)


# A namespace and an entity: what is kept for it runs one at a time, in order.
Line = tuple[str, str | None]


def in_turn(operations: Sequence[Operation], busy: Callable[[Collection[Line]], Collection[Line]]) -> list[Operation]:
    """These operations, with a lease for admissions only of what may run at once. `busy` tells which of some lines have
    something kept already."""
    firsts: dict[Line, Admit] = {}
    for request in (operation for operation in operations if isinstance(operation, Admit)):
        line = (request.namespace, request.about.entity)
        first = firsts.setdefault(line, request)
        if first is not request and _happened(request) < _happened(first):
            firsts[line] = request
    waiting = busy([line for line, first in firsts.items() if line[1] is not None and first.lease])

    def is_free(operation: Operation) -> bool:
        if not isinstance(operation, Admit) or not operation.lease or operation.about.entity is None:
            return True
        line = (operation.namespace, operation.about.entity)
        return firsts[line] is operation and line not in waiting

    return [each if is_free(each) else replace(each, lease=0) for each in operations]


def _happened(request: Admit) -> float:
    return inf if request.about.occurred_at is None else request.about.occurred_at


def shown(where: tuple[str, bytes], record: Record, after: Address | None, now: int) -> bool:
    """Whether a page that starts past `after` has this record: an expired one is absent, swept or not."""
    present = record.expires_at is None or now < record.expires_at
    return present and (after is None or where > (after.namespace, after.key))
