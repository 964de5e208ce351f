"""What a store is: few verbs, each taking a batch, each atomic for every item of it.

A store knows addresses, records and documents. It knows nothing of events, JSON, keys or policy. The rules by
which `claim`, `settle`, `renew`, `redrive` and `reset` answer are those of `oncegate.claims.step`.
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
    """A record with its address, as a person browsing sees it."""

    namespace: str
    key: bytes
    record: Record


class TakeRequest(Struct, frozen=True, gc=False):
    """A dispatcher's wish for one event that waits in a namespace with its payload.

    In order, it is given only one whose entity nobody is at, and of those that wait for an entity the one that happened
    first, due or not: whatever holds that up holds up those after it. What has no entity has no order."""

    namespace: str
    owner: bytes
    lease: int
    in_order: bool = False


class Document(Struct, frozen=True, gc=False):
    """A small versioned body beside the claims. Version 0 and no body: there is none."""

    version: int = 0
    body: bytes | None = None


class Change(Address, frozen=True, gc=False):
    """Replace a document if it still has the version that was loaded."""

    version: int
    body: bytes
    retention: int


class EffectFailed(Exception):
    """What an effect raised inside a transaction, carried out of it unharmed; the transaction was rolled back."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(cause)
        self.cause = cause


@runtime_checkable
class Transactional(Protocol):
    """A store in which an effect can be written together with its completion."""

    def transact(self, held: ClaimProof, effect: Callable[[Any], Complete], connection: Any = None) -> bool:
        """Run an effect in a transaction that completes the claim, while nobody else can be granted it: on a connection
        of the user's own if one is given and the store can work with it.

        The effect gets the connection and answers how to complete. False: the claim is no longer the asker's, and
        nothing was written. Raises EffectFailed, or StoreError, and then nothing was written either; but where the
        answer to a commit was lost it may have been, and then the same call answers False."""


@runtime_checkable
class JoinsTransactions(Protocol):
    """A transactional store that can do so on a connection of the user's own."""

    def check_connection(self, connection: Any) -> None:
        """SettingError if it will not do, StoreError if it is lost: as far as that shows before anything is asked."""


@runtime_checkable
class Inbox(Protocol):
    """A store that stores events until they are run, and gives them out in order."""

    def admit(self, requests: Sequence[Admit]) -> list[Admission]:
        """Keep payloads; Admitted to the one request that brought it.

        One with a lease may be Granted instead, if nothing else that is kept has its entity: of several in one batch
        the one that happened first. A store that does not look answers Admitted, as to one without."""

    def kept(self, namespace: str) -> int:
        """How many payloads are kept in a namespace, those that are being run included."""


@runtime_checkable
class BatchesMixedOperations(Protocol):
    """A store that takes requests of different kinds with one write."""

    def together(self, operations: Sequence[Operation]) -> list[Any]:
        """The answers that the verbs would give to these one after the other."""


@runtime_checkable
class CountsQueueTime(Protocol):
    """A store that waits for others until it may write, and for how long in all."""

    def waited(self, seconds: float) -> AbstractContextManager[None]:
        """What this thread asks for in here has waited that long before: that counts if others waited in vain since."""


@runtime_checkable
class CanProbe(Protocol):
    """A store that can tell whether it can be written, where a read would not show it."""

    def probe(self, within: int) -> None:
        """Raise StoreError if nothing can be written now, as far as that shows within so many microseconds."""


@runtime_checkable
class KnowsEndedProcesses(Protocol):
    """A store that can find out whether the process that made a claim still runs."""

    def has_ended(self, owner: bytes) -> bool:
        """Whether the process that claimed something under this owner is known to have ended."""


@runtime_checkable
class CanScan(Protocol):
    """A store that has to read all of itself for every page of records, and shows them faster without an order."""

    def scan(self, namespace: str | None = None) -> Iterator[Entry]:
        """All records that `browse` would show, a few at a time, in no order; one that changes may come twice."""


class Store(Protocol):
    """Synchronous and thread-safe; one that is asked over a network says so by an attribute `remote`.

    Raises StoreError, and then nothing of the batch was written; or it was, and only the answer was lost: then `claim`,
    `settle` and `renew` answer as they did when they are asked again.

    Every answer list has the length and order of what was asked. A batch is judged in order, as if its items
    came singly. An expired record or document is absent, to the microsecond, whether or not it was swept.
    """

    def claim(self, requests: Sequence[Claim]) -> list[Verdict]:
        """Ask for the right to run; Granted to exactly one owner until its lease is over."""

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """End claims. False: the claim is no longer the asker's, and nothing was written."""

    def renew(self, leases: Sequence[Renew]) -> list[bool]:
        """Move the end of leases to now + lease. False: the claim is no longer the asker's."""

    def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
        """Grant each want one record that holds its payload and that nobody holds; None: there is no more.

        The record is the grant: in progress, owned by the want's owner, with its payload."""

    def load(self, addresses: Sequence[Address]) -> list[Document]:
        """Read documents. They share no address with records."""

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        """Write documents whose version is unchanged since load; versions only rise."""

    def dead_letters(
        self, namespace: str | None = None, *, after: Address | None = None, limit: int = 100
    ) -> list[Entry]:
        """A page of dead letters in the order of their addresses, from past `after`."""

    def redrive(self, requests: Sequence[Redrive]) -> list[bool]:
        """Send dead letters back to work. False: it is no dead letter."""

    def reset(self, requests: Sequence[Reset]) -> list[bool]:
        """Forget records. False: there was none, or it is no dead letter and only those were meant."""

    def browse(
        self,
        namespace: str | None = None,
        *,
        key: bytes | None = None,
        after: Address | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        """A page of records in the order of their addresses; with `key`, that key in every namespace."""

    def close(self) -> None:
        """Let go of files and connections. A second call does nothing."""


# Walking over all records of a store, for people who look for one by what is no key.


_PAGE = 1_000


def scan(store: Store, namespace: str | None = None) -> Iterator[Entry]:
    """All records, in whatever order is the fastest; one that changes meanwhile may come twice."""
    return store.scan(namespace) if isinstance(store, CanScan) else _in_pages(store, namespace)


def _in_pages(store: Store, namespace: str | None) -> Iterator[Entry]:
    after = None
    while page := store.browse(namespace, after=after, limit=_PAGE):
        yield from page
        after = Address(page[-1].namespace, page[-1].key)
