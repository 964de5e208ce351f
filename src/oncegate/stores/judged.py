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

    def admit(self, requests: Sequence[Admit]) -> list[Admission]:
        return self._apply(requests)

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return self._apply(settlements)

    def renew(self, leases: Sequence[Renew]) -> list[bool]:
        return self._apply(leases)

    def redrive(self, requests: Sequence[Redrive]) -> list[bool]:
        return self._apply(requests)

    def reset(self, requests: Sequence[Reset]) -> list[bool]:
        return self._apply(requests)


# A namespace and an entity: what is kept for it runs one at a time, in order.
Line = tuple[str, str | None]


def in_turn(requests: Sequence[Admit], busy: Callable[[Collection[Line]], Collection[Line]]) -> Sequence[Admit]:
    """These admissions, with a lease only for what may run at once. `busy` tells which of some lines have something
    kept already."""
    if not any(request.lease for request in requests):
        return requests
    firsts: dict[Line, Admit] = {}
    for request in requests:
        line = (request.namespace, request.about.entity)
        first = firsts.setdefault(line, request)
        if first is not request and _happened(request) < _happened(first):
            firsts[line] = request
    waiting = busy([line for line in firsts if line[1] is not None])
    return [request if _is_free(request, firsts, waiting) else replace(request, lease=0) for request in requests]


def _is_free(request: Admit, firsts: dict[Line, Admit], waiting: Collection[Line]) -> bool:
    line = (request.namespace, request.about.entity)
    return line[1] is None or (line not in waiting and firsts[line] is request)


def _happened(request: Admit) -> float:
    return inf if request.about.occurred_at is None else request.about.occurred_at


def shown(where: tuple[str, bytes], record: Record, after: Address | None, now: int) -> bool:
    """Whether a page that starts past `after` has this record: an expired one is absent, swept or not."""
    present = record.expires_at is None or now < record.expires_at
    return present and (after is None or where > (after.namespace, after.key))
