"""The interface of a store, and the optional interfaces that some stores have.

Every verb takes a batch. Each item of the batch is processed atomically. A store holds addresses, records and
documents. The code of a store does not depend on events, JSON, key strategies or policies. `claim`, `settle`, `renew`,
`redrive`, `reset` and `forget` follow the rules of `oncegate.claims.step`.
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
    Forget,
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

    With `in_order`, the store returns an event only if no other event of the same entity is in progress, and no event
    of the same entity that happened earlier is waiting. If the earliest event of an entity is not yet due, the later
    events of that entity wait for it. Events without an entity are not ordered."""

    namespace: str
    owner: bytes
    lease: int
    in_order: bool = False


class Document(Struct, frozen=True, gc=False):
    """A small versioned document. The store keeps documents separately from claims. Version 0 without a body means that
    the document does not exist."""

    version: int = 0
    body: bytes | None = None


class Change(Address, frozen=True, gc=False):
    """A request to replace a document if the version of the document is still `version`. `retention` is in
    microseconds."""

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
        """Run an effect in a transaction that also completes the claim. Until the transaction ends, the store grants
        the claim to no other owner. `connection` is a connection of the user, if the store supports user connections
        (JoinsTransactions).

        The effect gets the connection and returns the completion. `transact` returns False if the caller no longer
        holds the claim; in this case, nothing was written. It raises EffectFailed or StoreError; in these cases,
        nothing was written either, with one exception: if the reply to the commit was lost, the commit may have
        happened. If it has happened, a repeated call returns False."""


@runtime_checkable
class JoinsTransactions(Protocol):
    """A transactional store that can use a connection of the user."""

    def check_connection(self, connection: Any) -> None:
        """Raise SettingError if the store cannot use the connection, and StoreError if the connection is lost. The
        check sends no request to the server."""


@runtime_checkable
class Inbox(Protocol):
    """A store that keeps events until they are processed, and can return them in the order of each entity."""

    def admit(self, requests: Sequence[Admit]) -> list[Admission]:
        """Store payloads. For each payload, exactly one request gets Admitted.

        A request with a lease may get Granted instead of Admitted, if the store keeps no other event of the same
        entity. If a batch has several requests for one entity, only the event that happened first can be granted. A
        store that does not check for other events of the entity answers Admitted, with or without a lease."""

    def kept(self, namespace: str, limit: int | None = None) -> int:
        """Return how many payloads a namespace holds, including the payloads of events whose handler is running. With
        `limit`, return `limit` if there are more: the count then takes time in proportion to its result."""


@runtime_checkable
class BatchesMixedOperations(Protocol):
    """A store that writes operations of different kinds in one batch."""

    def together(self, operations: Sequence[Operation]) -> list[Any]:
        """Execute the operations in one batch. Return the answers that the verbs would give if each operation was
        called alone, in this order."""


@runtime_checkable
class CountsQueueTime(Protocol):
    """A store that waits for a lock before it writes, and that can count the time in a queue as part of this wait."""

    def waited(self, seconds: float) -> AbstractContextManager[None]:
        """Return a context in which the calls of this thread count as already queued for `seconds`. If the lock
        wait of another call has timed out since these calls were queued, the store subtracts `seconds` from their
        timeout."""


@runtime_checkable
class CanProbe(Protocol):
    """A store that can check whether it accepts writes. A successful read does not prove that a write would succeed."""

    def probe(self, within: int) -> None:
        """Raise StoreError if a check of at most `within` microseconds shows that the store accepts no writes now."""


@runtime_checkable
class KnowsEndedProcesses(Protocol):
    """A store that can check whether the process that made a claim has ended."""

    def has_ended(self, owner: bytes) -> bool:
        """Return True if the process of this claim owner is known to have ended. False: it may still run."""


@runtime_checkable
class CanScan(Protocol):
    """A store that does not keep records in order. Each ordered page reads the whole store, so one unordered scan is
    faster than many ordered pages."""

    def scan(self, namespace: str | None = None) -> Iterator[Entry]:
        """Yield all records that `browse` would list, in any order. A record that changes during the scan may be
        yielded twice."""


@runtime_checkable
class KeepsDeletedData(Protocol):
    """A store or journal in a file that keeps deleted data in free space and in its log."""

    def purge(self, *, rewrite: bool) -> bool:
        """Empty the log. With `rewrite`, also rewrite the file without its free space; other processes cannot write
        until this has ended. Returns False if another process prevented it."""


@runtime_checkable
class CountsDeadLetters(Protocol):
    """A store that can count its dead letters without their payloads."""

    def count_dead_letters(self, namespace: str | None, limit: int) -> int:
        """Return how many dead letters a namespace has, or all namespaces together if `namespace` is None; return
        `limit` if there are more. A store that deletes expired records late may also count expired dead letters that
        are not deleted yet."""


class Store(Protocol):
    """A store of claims and documents. It is synchronous and thread-safe. A store that is reached over a network has
    the attribute `remote`.

    A verb that fails raises StoreError. In this case, either nothing of the batch was written, or all of the batch was
    written and the reply was lost. If the reply was lost, `claim`, `settle` and `renew` give the same answers when the
    caller repeats the batch.

    Every list of answers has the length and the order of the requests. The items of a batch are judged in order, as if
    each item was sent alone. From the microsecond of its expiry, a record or document counts as absent, even if it is
    not deleted yet.
    """

    def claim(self, requests: Sequence[Claim]) -> list[Verdict]:
        """Request claims. For each address, exactly one owner gets Granted until the lease of this owner ends."""

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """End claims. The answer is False if the caller no longer holds the claim; nothing was written then."""

    def renew(self, leases: Sequence[Renew]) -> list[bool]:
        """Move the end of each lease to now + `lease`. The answer is False if the caller no longer holds the claim."""

    def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
        """Grant each request one record that has a payload and no live lease. The answer is None if no such record is
        left.

        The returned record is in progress, has the owner of the request, and includes the payload."""

    def load(self, addresses: Sequence[Address]) -> list[Document]:
        """Read documents. Documents and records have separate addresses."""

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        """Replace documents whose version has not changed since `load`. The answer is False if the version has changed.
        The version of a document only increases."""

    def dead_letters(
        self, namespace: str | None = None, *, after: Address | None = None, limit: int = 100
    ) -> list[Entry]:
        """Return a page of at most `limit` dead letters in the order of their addresses, starting after `after`."""

    def redrive(self, requests: Sequence[Redrive]) -> list[bool]:
        """Return dead letters to processing. The answer is False if the record is not a dead letter."""

    def reset(self, requests: Sequence[Reset]) -> list[bool]:
        """Delete records. The answer is False if there is no record, or if the request has `only_dead` and the record
        is not a dead letter."""

    def forget(self, requests: Sequence[Forget]) -> list[bool]:
        """Remove what identifies a person from records. The answer is False if there is no record, if the event is in
        progress, or if it waits and the request does not have `waiting`. A store may also answer False if another
        process changes the record at the same time. In these cases, the record is unchanged."""

    def browse(
        self,
        namespace: str | None = None,
        *,
        key: bytes | None = None,
        after: Address | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        """Return a page of at most `limit` records in the order of their addresses, starting after `after`. With `key`,
        the page has only the records of this key, in every namespace or in `namespace`."""

    def close(self) -> None:
        """Close files and connections. A second call does nothing."""


_PAGE = 1_000
_DEAD_LETTER_PAGE = 100  # a dead letter has its payload, so a page of dead letters needs more memory


def scan(store: Store, namespace: str | None = None) -> Iterator[Entry]:
    """Yield all records in the order that is fastest for the store. A record that changes during the scan may be
    yielded twice."""
    return store.scan(namespace) if isinstance(store, CanScan) else _scan_pages(store, namespace)


def _scan_pages(store: Store, namespace: str | None) -> Iterator[Entry]:
    after = None
    while page := store.browse(namespace, after=after, limit=_PAGE):
        yield from page
        after = Address(page[-1].namespace, page[-1].key)


def count_dead_letters(store: Store, namespace: str | None, limit: int) -> int:
    """Return how many dead letters a namespace has, or all namespaces together if `namespace` is None; return `limit`
    if there are more. If the store cannot count its dead letters, read them in pages."""
    if isinstance(store, CountsDeadLetters):
        return store.count_dead_letters(namespace, limit)
    count, after = 0, None
    while count < limit and (page := store.dead_letters(namespace, after=after, limit=_DEAD_LETTER_PAGE)):
        count += len(page)
        after = Address(page[-1].namespace, page[-1].key)
    return min(count, limit)
