"""The claim protocol: one pure function from a record and an operation to a record and an answer.

States: P in progress, R released or admitted, C completed, D dead letter. An expired record is absent to every
operation. Rows are tried from the top; the first that matches decides.

    from                                           operation  to                              answer
    ─────────────────────────────────────────────  ─────────  ──────────────────────────────  ─────────────────────
    absent                                         claim      P, attempts 1; marking: C       Granted
    P with its lease alive, or C; owner is mine    claim      unchanged                       Granted, same fence
    any, other payload hash, key binds content     claim      unchanged                       Conflict
    P, lease alive                                 claim      unchanged                       InFlight
    R with a payload                               claim      unchanged                       Duplicate
    R, owner is mine: a late copy of the request   claim      unchanged                       InFlight
    R without a payload                            claim      P (marking: C), fence + 1,      Granted
                                                              attempts + 1
    P with its lease over                          claim      the same, lost + 1; attempts    Granted
                                                              + 1 only if lost was not 0
    C                                              claim      unchanged; sliding: expiry      Duplicate
                                                              later, up to its limit
    D                                              claim      unchanged                       Buried

    R that is due or P with its lease over,        take       P, fence + 1, attempts and      Granted
    with a payload                                            lost as for a claim
    anything else                                  take       unchanged                       None

    absent                                         admit      R, attempts 0, payload          Admitted
    absent, with a lease                           admit      P, attempts 1, payload          Granted
    R with a payload, owner is mine                admit      unchanged                       Admitted
    P with a payload, lease alive, owner is mine   admit      unchanged                       Granted, same fence
    any, other payload hash, key binds content     admit      unchanged                       Conflict
    P, lease alive, without a payload              admit      unchanged                       InFlight
    R or P with its lease over, without a payload  admit      R, payload attached; of P,      Admitted
                                                              lost + 1, and attempts - 1 if
                                                              lost was 0
    D                                              admit      unchanged                       Buried
    any other                                      admit      unchanged                       Duplicate

    P, owner and fence mine                        renew      lease moved; expiry not sooner  True
    P, owner and fence mine                        complete   C, result kept, payload gone    True
    P, owner and fence mine                        release    R, due after the delay, lost    True
                                                              0; unavailable: attempts - 1,
                                                              time of the first such kept;
                                                              unstarted: due, attempts - 1,
                                                              lost kept
    P, owner and fence mine                        bury       D, payload and error            True
    C, R or D, owner and fence mine                same again unchanged                       True
    anything else                                  settle     unchanged                       False: the lease is lost

    P, owner and fence of an instance that ended   abandon    lease over, all else kept       True
    anything else                                  abandon    unchanged                       False

    D                                              redrive    R, attempts 0, payload kept     True
    any (only D if asked)                          reset      absent                          True
    anything else                                  either     unchanged                       False

`lost` counts the attempts in a row that were never settled: their worker died, or was stopped for longer than the
lease. The first of them may have died with a neighbour, so it does not count as an attempt. What has lost one is run
alone from then on, so every further one counts.

Nothing here reads a clock, draws a random number or does I/O: `now` is the store's time in microseconds.
The memory and SQLite stores call this function inside their lock or transaction; a store that must judge
elsewhere (in a script, in a condition) is compared with it step by step by `oncegate.testing`.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

State: TypeAlias = Literal["P", "R", "C", "D"]
IN_PROGRESS: Final = "P"
RELEASED: Final = "R"
COMPLETED: Final = "C"
DEAD: Final = "D"

NOBODY: Final = b""


class EventSummary(Struct, frozen=True, gc=False, array_like=True):
    """What explains a record to a person; no rule here looks at it."""

    source: str
    type: str | None = None
    entity: str | None = None
    occurred_at: int | None = None
    delivery_id: str | None = None


class Record(Struct, frozen=True, gc=False, array_like=True):
    """All that is kept of one key. Times are microseconds of the store's clock.

    `lost` counts the attempts in a row that were never settled. `unavailable_since` is the time of the first of the
    releases in a row that blamed something the handler calls. `handed_to` is the place that a completed event was
    published to: what happens there is another stage, with a key of its own."""

    state: State
    owner: bytes
    fence: int
    lease_until: int
    attempts: int
    payload_hash: bytes
    expires_at: int | None
    about: EventSummary
    first_seen: int
    completed_at: int | None = None
    result: bytes | None = None
    error: str | None = None
    payload: bytes | None = None
    lost: int = 0
    unavailable_since: int | None = None
    handed_to: str | None = None


# ── what can be asked ─────────────────────────────────────────────────────────────────────────────────────


class Address(Struct, frozen=True, gc=False):
    """Where a record is: a namespace and a key in it."""

    namespace: str
    key: bytes


class Claim(Address, frozen=True, gc=False):
    """A delivery asks for the right to run. The owner is drawn once per request and kept by its retries.

    A marking claim goes straight to completed, in the one write: for effects that are better lost than doubled.
    A sliding one has a completed record remembered for its retention from now, though never for longer than `slides`
    from when it was first seen."""

    owner: bytes
    payload_hash: bytes
    lease: int
    retention: int
    about: EventSummary
    binds: bool = True
    marks: bool = False
    slides: int = 0


class Take(Address, frozen=True, gc=False):
    """A dispatcher asks for the right to run what the record itself holds."""

    owner: bytes
    lease: int


class Admit(Address, frozen=True, gc=False):
    """A receiver asks that the payload be kept until a dispatcher takes it; with a lease, to be that dispatcher at once
    if it is new."""

    owner: bytes
    payload_hash: bytes
    payload: bytes
    about: EventSummary
    binds: bool = True
    lease: int = 0


class ClaimProof(Address, frozen=True, gc=False):
    """The proof of a claim: owner and fence, as granted."""

    owner: bytes
    fence: int


class Renew(ClaimProof, frozen=True, gc=False):
    lease: int


class Complete(ClaimProof, frozen=True, gc=False):
    retention: int
    result: bytes | None = None
    error: str | None = None
    handed_to: str | None = None


class Release(ClaimProof, frozen=True, gc=False):
    """What the record itself holds is not taken again before the delay is over, and before all others if it was never
    started; a delivery may claim it at once. `unavailable`: it failed because something that its handler calls is
    unavailable, so the attempt does not count."""

    error: str | None = None
    unstarted: bool = False
    delay: int = 0
    unavailable: bool = False


class Bury(ClaimProof, frozen=True, gc=False):
    retention: int
    payload: bytes
    error: str


class Abandon(ClaimProof, frozen=True, gc=False):
    """The instance that holds the claim is known to have ended: nobody will settle it."""


class Redrive(Address, frozen=True, gc=False):
    """A person sends a dead letter back to work."""


class Reset(Address, frozen=True, gc=False):
    """A person forgets a record, whatever its state, or only if it is a dead letter."""

    only_dead: bool = False


Settlement: TypeAlias = Complete | Release | Bury
Operation: TypeAlias = Claim | Take | Admit | Renew | Settlement | Abandon | Redrive | Reset


# ── what can be answered ──────────────────────────────────────────────────────────────────────────────────


class _Answer(Struct, frozen=True, gc=False):
    record: Record
    at: int


class _Leased(_Answer, frozen=True, gc=False):
    @property
    def lease_left(self) -> int:
        return self.record.lease_until - self.at


class Granted(_Leased, frozen=True, gc=False):
    """Run it: `record` has the fence, the attempts and the lease."""


class Duplicate(_Answer, frozen=True, gc=False):
    """It is done, or durable already: `record` is the original."""


class InFlight(_Leased, frozen=True, gc=False):
    """Somebody holds it."""


class Conflict(_Answer, frozen=True, gc=False):
    """The key is known with other content."""


class Buried(_Answer, frozen=True, gc=False):
    """It is a dead letter."""


class Admitted(_Answer, frozen=True, gc=False):
    """It is durable now."""


Verdict: TypeAlias = Granted | Duplicate | InFlight | Conflict | Buried
Admission: TypeAlias = Admitted | Granted | Duplicate | InFlight | Conflict | Buried
Answer: TypeAlias = Verdict | Admitted | bool | None


# ── the function ──────────────────────────────────────────────────────────────────────────────────────────


def step(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Answer]:
    """Judge one operation. The record is the same object if nothing changed and None if it is absent."""
    if record is not None and record.expires_at is not None and now >= record.expires_at:
        record = None
    return _RULES[type(operation)](record, operation, now)


def _claim(record: Record | None, claim: Claim, now: int) -> tuple[Record, Verdict]:
    if record is None:
        record = _first(claim, now)
        if claim.marks:
            record = _marked(record, claim, now)
        return record, Granted(record, now)
    state = record.state
    alive = _alive(record, now)
    if record.owner == claim.owner and (alive or state == COMPLETED):
        return record, Granted(record, now)
    if claim.binds and record.payload_hash != claim.payload_hash:
        return record, Conflict(record, now)
    if alive:
        return record, InFlight(record, now)
    if state == RELEASED and record.payload is not None:
        return record, Duplicate(record, now)
    if state == RELEASED and record.owner == claim.owner:
        return record, InFlight(record, now)
    if state in (IN_PROGRESS, RELEASED):
        expires_at = None if record.payload is not None else now + claim.retention
        again = _granted_again(record, claim, now)
        record = _marked(replace(again, expires_at=expires_at, payload_hash=claim.payload_hash), claim, now)
        return record, Granted(record, now)
    if state == COMPLETED:
        record = _slid(record, claim, now) if claim.slides else record
        return record, Duplicate(record, now)
    return record, Buried(record, now)


def _take(record: Record | None, take: Take, now: int) -> tuple[Record | None, Granted | None]:
    if record is None or record.payload is None or record.state == DEAD or now < record.lease_until:
        return record, None
    record = _granted_again(record, take, now)
    return record, Granted(record, now)


def _admit(record: Record | None, admit: Admit, now: int) -> tuple[Record, Admission]:
    if record is None:
        record = _kept(admit, now)
        return record, Granted(record, now) if admit.lease else Admitted(record, now)
    state = record.state
    alive = _alive(record, now)
    if record.payload is not None and record.owner == admit.owner and (alive or state == RELEASED):
        return record, Granted(record, now) if alive else Admitted(record, now)
    if admit.binds and record.payload_hash != admit.payload_hash:
        return record, Conflict(record, now)
    if alive and record.payload is None:
        return record, InFlight(record, now)
    if state in (RELEASED, IN_PROGRESS) and record.payload is None:
        attempts, lost = _after_loss(record)
        free = replace(record, state=RELEASED, owner=admit.owner, lease_until=now, expires_at=None)
        kept = replace(free, payload=admit.payload, payload_hash=admit.payload_hash, attempts=attempts, lost=lost)
        return kept, Admitted(kept, now)
    if state == DEAD:
        return record, Buried(record, now)
    return record, Duplicate(record, now)


def _renew(record: Record | None, renew: Renew, now: int) -> tuple[Record | None, bool]:
    if record is None or not _mine(record, renew) or record.state != IN_PROGRESS:
        return record, False
    lease_until = now + renew.lease
    expires_at = None if record.expires_at is None else max(record.expires_at, lease_until)
    return replace(record, lease_until=lease_until, expires_at=expires_at), True


def _settle(record: Record | None, settlement: Settlement, now: int) -> tuple[Record | None, bool]:
    if record is None or not _mine(record, settlement):
        return record, False
    if record.state != IN_PROGRESS:
        return record, record.state == _ENDS_IN[type(settlement)]
    if isinstance(settlement, Complete):
        return _completed(record, settlement, now), True
    if isinstance(settlement, Release):
        return _released(record, settlement, now), True
    return _buried(record, settlement, now), True


def _abandon(record: Record | None, abandon: Abandon, now: int) -> tuple[Record | None, bool]:
    if record is None or not _mine(record, abandon) or not _alive(record, now):
        return record, False
    return replace(record, lease_until=now), True


def _redrive(record: Record | None, _redrive: Redrive, _now: int) -> tuple[Record | None, bool]:
    if record is None or record.state != DEAD:
        return record, False
    expires_at = None if record.payload is not None else record.expires_at
    free = replace(record, state=RELEASED, owner=NOBODY, attempts=0, expires_at=expires_at)
    return replace(free, lost=0, unavailable_since=None), True


def _reset(record: Record | None, reset: Reset, _now: int) -> tuple[Record | None, bool]:
    if record is None or (reset.only_dead and record.state != DEAD):
        return record, False
    return None, True


# By type rather than by `match`: a class pattern that does not fit costs more than the rule that does.
_RULES: Final[dict[type, Callable[[Record | None, Any, int], tuple[Record | None, Answer]]]] = {
    Claim: _claim,
    Take: _take,
    Admit: _admit,
    Renew: _renew,
    Complete: _settle,
    Release: _settle,
    Bury: _settle,
    Abandon: _abandon,
    Redrive: _redrive,
    Reset: _reset,
}
_ENDS_IN: Final[dict[type, State]] = {Complete: COMPLETED, Release: RELEASED, Bury: DEAD}


def _alive(record: Record, now: int) -> bool:
    return record.state == IN_PROGRESS and now < record.lease_until


def _mine(record: Record, held: ClaimProof) -> bool:
    """An empty owner proves nothing: what belongs to nobody has one."""
    return record.owner == held.owner and record.fence == held.fence and held.owner != NOBODY


def _first(claim: Claim, now: int) -> Record:
    lease_until, expires_at = now + claim.lease, now + claim.retention
    return Record(IN_PROGRESS, claim.owner, now, lease_until, 1, claim.payload_hash, expires_at, claim.about, now)


def _kept(admit: Admit, now: int) -> Record:
    state, attempts = (IN_PROGRESS, 1) if admit.lease else (RELEASED, 0)
    until = now + admit.lease
    free = Record(state, admit.owner, now, until, attempts, admit.payload_hash, None, admit.about, now)  # type: ignore[arg-type]
    return replace(free, payload=admit.payload)


def _marked(record: Record, claim: Claim, now: int) -> Record:
    """A grant as it is; for a marking claim, completed at once. The effect may then start until the record expires, and
    a payload that is kept is not needed any more."""
    if not claim.marks:
        return record
    done = replace(record, state=COMPLETED, completed_at=now, expires_at=now + claim.retention, payload=None)
    return replace(done, lost=0, unavailable_since=None)


def _slid(record: Record, claim: Claim, now: int) -> Record:
    """A completed record as a sliding claim leaves it: its expiry is only moved to later."""
    expires_at = min(now + claim.retention, record.first_seen + claim.slides)
    if record.expires_at is None or expires_at <= record.expires_at:
        return record
    return replace(record, expires_at=expires_at)


def _after_loss(record: Record) -> tuple[int, int]:
    """The attempts that count and those lost in a row, before the next one. The attempt of a record in progress was
    never settled; if it was the first of such a row it may have died with a neighbour, and does not count."""
    if record.state != IN_PROGRESS:
        return record.attempts, record.lost
    return record.attempts - (not record.lost), record.lost + 1


def _granted_again(record: Record, by: Claim | Take, now: int) -> Record:
    attempts, lost = _after_loss(record)
    return replace(
        record,
        state=IN_PROGRESS,
        owner=by.owner,
        fence=record.fence + 1,
        lease_until=now + by.lease,
        attempts=attempts + 1,
        lost=lost,
    )


def _completed(record: Record, complete: Complete, now: int) -> Record:
    return Record(
        COMPLETED,
        record.owner,
        record.fence,
        0,
        record.attempts,
        record.payload_hash,
        now + complete.retention,
        record.about,
        record.first_seen,
        now,
        complete.result,
        complete.error,
        handed_to=complete.handed_to,
    )


def _released(record: Record, release: Release, now: int) -> Record:
    given_back = release.unstarted or release.unavailable
    attempts, error = record.attempts - given_back, release.error or record.error
    due = 0 if release.unstarted else now + release.delay
    released = replace(record, state=RELEASED, lease_until=due, attempts=attempts, error=error)
    if release.unstarted:
        return released
    since = (record.unavailable_since or now) if release.unavailable else None
    return replace(released, lost=0, unavailable_since=since)


def _buried(record: Record, bury: Bury, now: int) -> Record:
    ended = replace(record, state=DEAD, lease_until=0, expires_at=now + bury.retention)
    return replace(ended, payload=bury.payload, error=bury.error)
