"""The parts of a modelled world: the shared state, the state of a worker, and the rules of a worker.

A state is one `Shared` and three `Worker`s. The next moves of a worker depend only on the shared part and on itself,
never on the other two. So `explore` computes the moves of a worker once, and uses them in every state with the same two
parts.

Owners and fences are stored as relations, because the protocol only compares them: `holds` means that the record has
the owner of this request, `stale` that the record has another fence than the one granted.
"""

from typing import Final, NamedTuple

from msgspec import Struct

LIVENESS: Final = 8


INVARIANTS: Final = {
    1: "At most one claim on a key is valid at a time. A key has at most one effect: always in a transaction, and with"
    " a plain handler unless a fault occurred between the start of the effect and its completion.",
    2: "An acknowledged event has taken effect, or is stored with its payload until an operator drops or erases it. An"
    " event in mark_first mode may also be lost, but only by a fault between its mark and its end.",
    3: "A write is accepted only from the owner, and only with the current fence.",
    4: "A completed record leaves this state only by expiry or by an operator.",
    5: "The fence rises with every grant.",
    6: "An event is not acknowledged while it is in flight or while the store has not answered. A conflict is"
    " acknowledged only after its copy is stored.",
    7: "A repeated request of the same owner gets the same answer.",
    8: "When faults stop, every delivery is acknowledged, and its record is completed or buried.",
    9: "An effect starts at most max_attempts times that count, and at most twice as often in total: the first of"
    " several lost attempts in a row does not count. A poison event does not bury other events.",
    12: "No effect starts after the end of the validity that the worker itself has computed for its lease.",
    15: "A store that has swept an expired record answers in the same way as a store that has not.",
    16: "An event in mark_first mode runs at most once, whatever fails.",
    17: "An admitted event is granted to a dispatcher only, and no admission changes a record that has a payload.",
    18: "A seed changes no existing record. Until it expires, a seeded event is a duplicate, whatever its content.",
    19: "An erasure leaves nothing in a record that identifies a person. It changes no record with a live lease, and a"
    " waiting event only if the operator includes waiting events. A completed record keeps its state, owner, fence and"
    " expiry. An event that loses its payload becomes completed.",
}


class Violation(Exception):
    """An invariant does not hold. The numbers are those of `INVARIANTS`."""

    def __init__(self, invariant: int, what: str) -> None:
        super().__init__(invariant, what)
        self.invariant = invariant
        self.what = what


class Content(NamedTuple):
    """One event. Contents with the same key and different names are in conflict."""

    name: str
    key: int
    copy_key: int
    deliveries: int
    poison: bool = False  # its handler always kills the worker


class Setting(NamedTuple):
    """A world to explore: its events, its times in ticks, and its number of faults."""

    name: str
    contents: tuple[Content, ...]
    faults: int
    duplicates: int = 0
    skews: int = 0
    operators: int = 0
    acts: tuple[str, ...] = ("redrive", "reset")  # what the operator may do; also: seed, forget
    outages: int = 0  # how often a service that the handler calls is unavailable
    abandons: bool = False  # whether the end of a worker can become known
    batch: int = 1
    transaction: bool = False
    expiry: bool = False  # otherwise everything happens before the first expiry
    failures: bool = True  # whether handlers may fail
    ways: tuple[str, ...] = ("claim",)  # what a worker may do with a delivery; see `settings`
    lease: int = 2
    max_hold: int = 3
    retention: int = 5
    dead_retention: int = 6
    max_attempts: int = 2

    @property
    def keys(self) -> int:
        return 1 + max(max(content.key, content.copy_key) for content in self.contents)


class Rules(NamedTuple):
    """The behaviour of a worker around the store. The defaults are the shipped behaviour; an ablation changes one."""

    claims_first: bool = True
    completes_after_effect: bool = True
    nacks_in_flight: bool = True
    nacks_unanswered: bool = True
    acks_after_settle: bool = True
    keeps_conflicts: bool = True
    owner_for_each: bool = True
    checks_validity: bool = True
    counts_from_sending: bool = True
    buries_beyond: bool = True
    counts_failures: bool = True
    retries_alone: bool = True
    commits_once: bool = True
    keeps_marked: bool = True
    abandons_the_ended: bool = True


class Shared(Struct, frozen=True, gc=False):
    """The store, the queue, the faults that are left, and the history for the invariants.

    Tuples are indexed by key or by content. Numbers with names ending in `_bits` have one bit for each.
    """

    records: tuple[int, ...]
    queue: tuple[int, ...]
    faults: int
    duplicates: int
    skews: int
    operators: int
    outages: int
    runs: tuple[int, ...]  # effects started in this life of the key, since a redrive, that found nothing unavailable
    counted: tuple[int, ...]  # those of them that count: all except the first of each row that was never settled
    effect_of: tuple[int, ...]  # the content that took effect first in this life of the key, or -1
    started_bits: int = 0  # keys whose effect was started by the last grant
    ended_bits: int = 0  # keys whose last grant went to a worker that is known to have ended
    outrun_bits: int = 0  # keys that were granted to another worker after that
    struck_bits: int = 0  # keys with a fault between the start of an effect and its completion
    forgotten_bits: int = 0  # keys whose record was removed by expiry or by an operator
    applied_bits: int = 0  # contents
    owed_bits: int = 0  # contents that were acknowledged before any effect
    excused_bits: int = 0  # contents whose dead letter expired or was dropped, or that were marked and hit by a fault
    marked: tuple[int, ...] = ()  # by content: how many workers have marked it and not finished
    skewed: bool = False  # the clock of the store has jumped, so a worker may trust an expired lease
    meddled: bool = False  # an operator acted while a worker may have trusted its claim


class Job(Struct, frozen=True, gc=False):
    """One delivery of a worker, or (`kept`) one event that the worker took from the store."""

    content: int
    key: int
    stage: str
    holds: bool = False
    stale: bool = False
    attempts: int = 0
    suspect: bool = False  # the previous attempt was never settled
    valid: int = 0  # ticks for which the worker may trust its lease
    hold: int = 0  # ticks for which the lease may still be renewed
    kept: bool = False
    marked: bool = False  # it counts as completed since the grant


class Late(Struct, frozen=True, gc=False):
    """A request that its worker gave up or sent again, and that may still arrive."""

    verb: str
    content: int
    key: int
    holds: bool
    stale: bool
    job: int  # the job with the same owner, or -1 if it is gone


class Worker(Struct, frozen=True, gc=False):
    jobs: tuple[Job, ...] = ()
    waited: int = 0  # ticks since the claim was sent
    late: Late | None = None


IDLE: Final = Worker()


class Stir(NamedTuple):
    """A record was granted to another: no other request holds it now, and after a new fence the others are stale."""

    key: int
    refenced: bool


class Move(NamedTuple):
    """One step. `kind` is go, fail, spin (an answer that changes nothing), start (take work) or fault."""

    label: str
    shared: Shared
    worker: Worker
    stirs: tuple[Stir, ...] = ()
    kind: str = "go"


def changed(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])
