"""The interface of a store, and the optional interfaces that some stores have.

Every verb takes a batch and is atomic for each item of the batch. A store holds addresses, records and documents. It
knows nothing about events, JSON, how keys are made, or policies. `claim`, `settle`, `renew`, `redrive` and `reset`
follow the rules of `oncegate.claims.step`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from oncegate.claims import (
    Address,
    Admission,
    Admit,
    Claim,
    ClaimProof,
    Complete,
    Operation,
    Record,
    Redrive,
    Renew,
    Reset,
    Settlement,
    Verdict,
)


class Entry(Struct, frozen=True, gc=False):
    """A record with its address."""

    namespace: str
    key: bytes
    record: Record


class TakeRequest(Struct, frozen=True, gc=False):
    """A dispatcher's request for one waiting event of a namespace.

    With `in_order`, the store returns an event only if no other event of its entity is in progress and no event of its
    entity that happened earlier is waiting. An event that is first but not yet due delays the later events of its
    entity. Events without an entity have no order."""

    namespace: str
    owner: bytes
    lease: int
    in_order: bool = False


class Document(Struct, frozen=True, gc=False):
    """A small versioned document, stored beside the claims. Version 0 without a body means: no document."""

    version: int = 0
    body: bytes | None = None


class Change(Address, frozen=True, gc=False):
    """Replace a document if its version is still the one that was loaded. `retention` is in microseconds."""

    version: int
    body: bytes
    retention: int


class EffectFailed(Exception):
    """An effect raised `cause` inside a transaction. The transaction was rolled back."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(cause)
        self.cause = cause


@runtime_checkable
class Transactional(Protocol):
    """A store that can commit an effect together with its completion."""

    def transact(self, held: ClaimProof, effect: Callable[[Any], Complete], connection: Any = None) -> bool:
        """Run an effect in a transaction that completes the claim. No other owner can be granted the claim meanwhile.
        `connection` is a connection of the user, if the store supports one (JoinsTransactions).

        The effect gets the connection and returns the completion. Returns False if the caller no longer holds the
        claim; then nothing was written. Raises EffectFailed or StoreError; then nothing was written either, with one
        exception: if the reply to the commit was lost, the commit may have happened. The same call then returns
        False."""


@runtime_checkable
class JoinsTransactions(Protocol):
    """A transactional store that can use a connection of the user."""

    def check_connection(self, connection: Any) -> None:
        """Raise SettingError if the store cannot use the connection, and StoreError if the connection is lost. Checks
        only what is known without a request to the server."""


@runtime_checkable
class Inbox(Protocol):
    """A store that keeps events until they are processed, and returns them in order."""

    def admit(self, requests: Sequence[Admit]) -> list[Admission]:
        """Store payloads. For each payload exactly one request gets Admitted.

        A request with a lease may get Granted instead, if the store keeps no other event of its entity. Of several
        requests for one entity in a batch, only the event that happened first can be granted. A store that does not
        check this answers Admitted, as it does to a request without a lease."""

    def kept(self, namespace: str) -> int:
        """Return how many payloads a namespace holds, including those whose handler is running."""


@runtime_checkable
class BatchesMixedOperations(Protocol):
    """A store that writes operations of different kinds in one batch."""

    def together(self, operations: Sequence[Operation]) -> list[Any]:
        """Return the answers that the verbs would give to the operations one after the other."""


@runtime_checkable
class CountsQueueTime(Protocol):
    """A store that waits for a lock before it writes, and counts the time that a call has spent in a queue."""

    def waited(self, seconds: float) -> AbstractContextManager[None]:
        """Inside the context, the calls of this thread count as queued for `seconds` already. If the wait of another
        call has timed out since they were queued, the store subtracts `seconds` from its timeout."""


@runtime_checkable
class CanProbe(Protocol):
    """A store that can check whether it accepts writes, because a successful read would not prove it."""

    def probe(self, within: int) -> None:
        """Raise StoreError if the store accepts no writes now, as far as a check of `within` microseconds can show."""


@runtime_checkable
class KnowsEndedProcesses(Protocol):
    """A store that can find out whether the process that made a claim still runs."""

    def has_ended(self, owner: bytes) -> bool:
        """Whether the process of this claim owner is known to have ended."""


@runtime_checkable
class CanScan(Protocol):
    """A store without an order of records. Each ordered page reads the whole store, so an unordered scan is faster."""

    def scan(self, namespace: str | None = None) -> Iterator[Entry]:
        """Yield all records that `browse` would list, in any order. A record that changes meanwhile may come twice."""


class Store(Protocol):
    """Synchronous and thread-safe. A store that is reached over a network has an attribute `remote`.

    Every verb raises StoreError if it fails. Then either nothing of the batch was written, or all of it was written and
    the reply was lost. In the second case, `claim`, `settle` and `renew` give the same answers when they are repeated.

    Every list of answers has the length and order of the requests. A batch is judged in order, as if its items came one
    by one. An expired record or document is absent from the microsecond of its expiry, whether or not it was deleted.
    """

    def claim(self, requests: Sequence[Claim]) -> list[Verdict]:
        """Request claims. Exactly one owner gets Granted until its lease ends."""

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """End claims. False: the caller no longer holds the claim, and nothing was written."""

    def renew(self, leases: Sequence[Renew]) -> list[bool]:
        """Move the end of leases to now + lease. False: the caller no longer holds the claim."""

    def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
        """Grant each request one record that has a payload and no live lease; None: there are no more.

        The record is the grant: in progress, owned by the request's owner, with its payload."""

    def load(self, addresses: Sequence[Address]) -> list[Document]:
        """Read documents. Documents and records have separate addresses."""

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        """Write documents whose version has not changed since `load`. Versions only increase."""

    def dead_letters(
        self, namespace: str | None = None, *, after: Address | None = None, limit: int = 100
    ) -> list[Entry]:
        """Return a page of dead letters in the order of their addresses, starting after `after`."""

    def redrive(self, requests: Sequence[Redrive]) -> list[bool]:
        """Return dead letters to processing. False: the record is not a dead letter."""

    def reset(self, requests: Sequence[Reset]) -> list[bool]:
        """Delete records. False: there is no record, or the request allows only dead letters and it is not one."""

    def browse(
        self,
        namespace: str | None = None,
        *,
        key: bytes | None = None,
        after: Address | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        """Return a page of records in the order of their addresses; with `key`, that key in every namespace."""

    def close(self) -> None:
        """Close files and connections. A second call does nothing."""


_PAGE = 1_000


def scan(store: Store, namespace: str | None = None) -> Iterator[Entry]:
    """Yield all records in the order that is fastest for the store. A record that changes meanwhile may come twice."""
    return store.scan(namespace) if isinstance(store, CanScan) else _in_pages(store, namespace)


def _in_pages(store: Store, namespace: str | None) -> Iterator[Entry]:
    after = None
    while page := store.browse(namespace, after=after, limit=_PAGE):
        yield from page
        after = Address(page[-1].namespace, page[-1].key)
