"""The claim protocol: a pure function from a record and an operation to the new record and an answer.

A record is in one of four states: P in progress, R released or admitted, C completed, D dead letter. Every operation
treats an expired record as absent. For each operation, the rows are tried from top to bottom, and the first row that
matches decides. "Owner matches" means that the record and the request have the same owner. "marks: C" means: if the
claim has `marks`, the new state is C instead.

    from                                           operation  to                              answer
    ─────────────────────────────────────────────  ─────────  ──────────────────────────────  ─────────────────────
    absent                                         claim      P, attempts 1; marks: C         Granted
    P with a live lease, or C; owner matches       claim      unchanged                       Granted, same fence
    any, other content, key binds content          claim      unchanged                       Conflict
    P with a live lease                            claim      unchanged                       InFlight
    R with a payload                               claim      unchanged                       Duplicate
    R, owner matches (the request arrives again)   claim      unchanged                       InFlight
    R without a payload                            claim      P (marks: C), fence + 1,        Granted
                                                              attempts + 1
    P with an expired lease                        claim      as the row above, and lost + 1; Granted
                                                              attempts + 1 only if lost was
                                                              not 0
    C                                              claim      unchanged; sliding: later       Duplicate
                                                              expiry, up to its limit
    D                                              claim      unchanged                       Buried

    R that is due, or P with an expired lease;     take       P, fence + 1; attempts and      Granted
    with a payload                                            lost as for a claim
    anything else                                  take       unchanged                       None

    absent, request has a lease                    admit      P, attempts 1, payload          Granted
    absent                                         admit      R, attempts 0, payload          Admitted
    R with a payload, owner matches                admit      unchanged                       Admitted
    P with a payload and a live lease, owner       admit      unchanged                       Granted, same fence
    matches
    any, other content, key binds content          admit      unchanged                       Conflict
    P with a live lease, without a payload         admit      unchanged                       InFlight
    R, or P with an expired lease; no payload      admit      R, payload attached; from P:    Admitted
                                                              lost + 1, and attempts - 1 if
                                                              lost was 0
    D                                              admit      unchanged                       Buried
    anything else                                  admit      unchanged                       Duplicate

    P, owner and fence match                       renew      later lease; expiry at least    True
                                                              the end of the lease
    P, owner and fence match                       complete   C, result stored, payload       True
                                                              removed
    P, owner and fence match                       release    R, due after the delay, lost 0; True
                                                              unavailable: attempts - 1, time
                                                              of the first such release kept;
                                                              unstarted: due now, attempts
                                                              - 1, lost kept
    P, owner and fence match                       bury       D with payload and error        True
    C, R or D, owner and fence match               the same   unchanged                       True
                                                   settle
    anything else                                  renew or   unchanged                       False: the lease is lost
                                                   settle

    P with a live lease, owner and fence match     abandon    lease ends now, rest kept       True
    anything else                                  abandon    unchanged                       False

    absent                                         seed       C, content unknown, expiry as   Granted
                                                              given
    anything else                                  seed       unchanged                       as for a claim

    D                                              redrive    R, attempts 0, payload kept     True
    any; with only_dead: D                         reset      absent                          True
    anything else                                  redrive or unchanged                       False
                                                   reset

    C                                              forget     C without entity, delivery id,  True
                                                              result and error
    D; with `waiting` also R or P with a payload   forget     C without entity, delivery id,  True
    and no live lease                                         result, payload and owner; error
                                                              ERASED, new expiry
    R, or P with an expired lease; no payload      forget     same state without entity,      True
                                                              delivery id and error
    anything else                                  forget     unchanged                       False

`lost` counts the consecutive attempts that were never settled, because the worker died or was paused for longer than
the lease. The first lost attempt does not count as an attempt, because another event of its batch may have killed the
worker. After a lost attempt, the event runs alone. Every further lost attempt therefore counts.

"Other content" means that record and request have different payload hashes. An empty hash in a record means that its
content is unknown: no content differs from it. Only `seed` writes such a record, for an event that took effect before
the gate was used. A seed is a claim with `marks` and an empty hash. The key of a seed always binds content, so a seed
never changes an existing record.

This module reads no clock, draws no random numbers and does no I/O. `now` is the time of the store in microseconds. The
memory and SQLite stores call `step` under their lock or in their transaction. The other stores decide in a script or in
a conditional write; `oncegate.testing` compares them with `step`, operation by operation.
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
UNKNOWN_CONTENT: Final = b""
ERASED: Final = "erased before it was processed"  # the error of a record that `forget` completed


class EventSummary(Struct, frozen=True, gc=False, array_like=True):
    """A description of the event of a record, for people. No rule of the protocol reads these fields."""

    source: str
    type: str | None = None
    entity: str | None = None
    occurred_at: int | None = None
    delivery_id: str | None = None


class Record(Struct, frozen=True, gc=False, array_like=True):
    """Everything the store holds about one key. Times are microseconds of the store's clock.

    `lease_until` is the end of the lease in state P. In state R it is the time from which a dispatcher may take the
    record. `lost` counts the consecutive attempts that were never settled. If several releases with `unavailable`
    follow each other, `unavailable_since` is the time of the first of these releases. If a completed event was
    published, `handed_to` is the queue or bus to which it was published; the consumer of that queue or bus claims
    another key."""

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

    @property
    def is_seeded(self) -> bool:
        return self.payload_hash == UNKNOWN_CONTENT

    @property
    def is_erased(self) -> bool:
        """Whether the record was completed by `forget`: its event was never processed."""
        return self.state == COMPLETED and self.error == ERASED


# ── operations ────────────────────────────────────────────────────────────────────────────────────────────


class Address(Struct, frozen=True, gc=False):
    """The address of a record: a namespace and a key."""

    namespace: str
    key: bytes


class Claim(Address, frozen=True, gc=False):
    """A request to run the handler for one delivery. `owner` is a random nonce, made once per request; retries of the
    request reuse it, so a lost reply is harmless.

    With `binds`, a record with another payload hash is a conflict. With `marks`, the claim writes a completed record at
    once, for effects that are better lost than repeated. With `slides`, a duplicate extends the expiry of a completed
    record to `retention` from now, but never beyond `slides` microseconds after `first_seen`; 0 means no extension."""

    owner: bytes
    payload_hash: bytes
    lease: int
    retention: int
    about: EventSummary
    binds: bool = True
    marks: bool = False
    slides: int = 0


def seed(namespace: str, key: bytes, *, owner: bytes, retention: int, about: EventSummary) -> Claim:
    """A claim that records an event as completed without running it, for `retention` microseconds from now. The content
    of the event is unknown. Granted means that the record was written. Any other answer means that the key already has
    a record, which stays as it is."""
    return Claim(namespace, key, owner, UNKNOWN_CONTENT, 0, retention, about, marks=True)


class Take(Address, frozen=True, gc=False):
    """A request of a dispatcher to run the payload that is stored with the record."""

    owner: bytes
    lease: int


class Admit(Address, frozen=True, gc=False):
    """A request of a receiver to store the payload until a dispatcher takes it. If the request has a lease and the key
    has no record, the receiver is granted the claim at once."""

    owner: bytes
    payload_hash: bytes
    payload: bytes
    about: EventSummary
    binds: bool = True
    lease: int = 0


class ClaimProof(Address, frozen=True, gc=False):
    """Proves that the caller holds the claim: owner and fence from the grant."""

    owner: bytes
    fence: int


class Renew(ClaimProof, frozen=True, gc=False):
    """Extend the lease to `lease` microseconds from now."""

    lease: int


class Complete(ClaimProof, frozen=True, gc=False):
    """The handler succeeded. Keep the result for `retention` from now."""

    retention: int
    result: bytes | None = None
    error: str | None = None
    handed_to: str | None = None


class Release(ClaimProof, frozen=True, gc=False):
    """The handler failed or never ran. The event may run again.

    A dispatcher does not take the record before `delay` is over; a delivery may claim the record at once. `unstarted`
    means that the handler never ran. The attempt then does not count, and dispatchers take this record before all other
    records. `unavailable` means that the attempt failed because a service that the handler calls is unavailable. The
    attempt then does not count."""

    error: str | None = None
    unstarted: bool = False
    delay: int = 0
    unavailable: bool = False


class Bury(ClaimProof, frozen=True, gc=False):
    """Make the event a dead letter with its payload and error, and keep it for `retention` from now."""

    retention: int
    payload: bytes
    error: str


class Abandon(ClaimProof, frozen=True, gc=False):
    """The process that holds the claim has ended, so nobody will settle the claim. The lease of the claim ends now."""


class Redrive(Address, frozen=True, gc=False):
    """An operator makes a dead letter run again."""


class Reset(Address, frozen=True, gc=False):
    """An operator removes a record in any state; with `only_dead`, only a dead letter."""

    only_dead: bool = False


class Forget(Address, frozen=True, gc=False):
    """An operator removes everything from a record that identifies a person: the entity and the delivery id of the
    summary, the result, the error and the payload. The record still recognises duplicates.

    An event whose payload is removed never runs. So its record becomes completed, for `retention` from now. A removed
    record was rejected: the next delivery would run the event, and would store the erased data again. A dead letter
    always loses its payload. A waiting event loses its payload only with `waiting`, because it has not run yet."""

    retention: int
    waiting: bool = False


Settlement: TypeAlias = Complete | Release | Bury
Operation: TypeAlias = Claim | Take | Admit | Renew | Settlement | Abandon | Redrive | Reset | Forget


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────


class _Answer(Struct, frozen=True, gc=False):
    record: Record
    at: int


class _Leased(_Answer, frozen=True, gc=False):
    @property
    def lease_left(self) -> int:
        return self.record.lease_until - self.at


class Granted(_Leased, frozen=True, gc=False):
    """The caller holds the claim and runs the handler. `record` has the fence, the attempts and the lease."""


class Duplicate(_Answer, frozen=True, gc=False):
    """The event is completed, or stored with its payload for a dispatcher. `record` is the original."""


class InFlight(_Leased, frozen=True, gc=False):
    """Another owner holds the claim. Or the claim of this request was already released, and the same request has
    arrived again."""


class Conflict(_Answer, frozen=True, gc=False):
    """The key has a record with another payload hash."""


class Buried(_Answer, frozen=True, gc=False):
    """The event is a dead letter."""


class Admitted(_Answer, frozen=True, gc=False):
    """The payload is stored."""


Verdict: TypeAlias = Granted | Duplicate | InFlight | Conflict | Buried
Admission: TypeAlias = Admitted | Granted | Duplicate | InFlight | Conflict | Buried
Answer: TypeAlias = Verdict | Admitted | bool | None


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────


def step(record: Record | None, operation: Operation, now: int) -> tuple[Record | None, Answer]:
    """Apply one operation at time `now`, in microseconds. Returns the new record and the answer.

    The new record is the same object as `record` if nothing changed. It is None if the key has no record."""
    if record is not None and record.expires_at is not None and now >= record.expires_at:
        record = None
    return _RULES[type(operation)](record, operation, now)


def _claim(record: Record | None, claim: Claim, now: int) -> tuple[Record, Verdict]:
    if record is None:
        record = _first_grant(claim, now)
        if claim.marks:
            record = _completed_if_marking(record, claim, now)
        return record, Granted(record, now)
    state = record.state
    alive = _has_live_lease(record, now)
    if record.owner == claim.owner and (alive or state == COMPLETED):
        return record, Granted(record, now)
    if claim.binds and not matches_content(record, claim.payload_hash):
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
        again = replace(again, expires_at=expires_at, payload_hash=claim.payload_hash)
        record = _completed_if_marking(again, claim, now)
        return record, Granted(record, now)
    if state == COMPLETED:
        record = _with_later_expiry(record, claim, now) if claim.slides else record
        return record, Duplicate(record, now)
    return record, Buried(record, now)


def _take(record: Record | None, take: Take, now: int) -> tuple[Record | None, Granted | None]:
    if record is None or record.payload is None or record.state == DEAD or now < record.lease_until:
        return record, None
    record = _granted_again(record, take, now)
    return record, Granted(record, now)


def _admit(record: Record | None, admit: Admit, now: int) -> tuple[Record, Admission]:
    if record is None:
        record = _admitted_record(admit, now)
        return record, Granted(record, now) if admit.lease else Admitted(record, now)
    state = record.state
    alive = _has_live_lease(record, now)
    if record.payload is not None and record.owner == admit.owner and (alive or state == RELEASED):
        return record, Granted(record, now) if alive else Admitted(record, now)
    if admit.binds and not matches_content(record, admit.payload_hash):
        return record, Conflict(record, now)
    if alive and record.payload is None:
        return record, InFlight(record, now)
    if state in (RELEASED, IN_PROGRESS) and record.payload is None:
        attempts, lost = _attempts_and_losses(record)
        free = replace(record, state=RELEASED, owner=admit.owner, lease_until=now, expires_at=None)
        kept = replace(free, payload=admit.payload, payload_hash=admit.payload_hash, attempts=attempts, lost=lost)
        return kept, Admitted(kept, now)
    if state == DEAD:
        return record, Buried(record, now)
    return record, Duplicate(record, now)


def _renew(record: Record | None, renew: Renew, now: int) -> tuple[Record | None, bool]:
    if record is None or not _is_holder(record, renew) or record.state != IN_PROGRESS:
        return record, False
    lease_until = now + renew.lease
    expires_at = None if record.expires_at is None else max(record.expires_at, lease_until)
    return replace(record, lease_until=lease_until, expires_at=expires_at), True


def _settle(record: Record | None, settlement: Settlement, now: int) -> tuple[Record | None, bool]:
    if record is None or not _is_holder(record, settlement):
        return record, False
    if record.state != IN_PROGRESS:
        return record, record.state == _END_STATE[type(settlement)]
    if isinstance(settlement, Complete):
        return _completed(record, settlement, now), True
    if isinstance(settlement, Release):
        return _released(record, settlement, now), True
    return _buried(record, settlement, now), True


def _abandon(record: Record | None, abandon: Abandon, now: int) -> tuple[Record | None, bool]:
    if record is None or not _is_holder(record, abandon) or not _has_live_lease(record, now):
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


def _forget(record: Record | None, forget: Forget, now: int) -> tuple[Record | None, bool]:
    if record is None or _has_live_lease(record, now):
        return record, False
    about = replace(record.about, entity=None, delivery_id=None)
    if record.state == DEAD or record.payload is not None:
        if record.state != DEAD and not forget.waiting:
            return record, False
        unowned = replace(record, state=COMPLETED, owner=NOBODY, lease_until=0, expires_at=now + forget.retention)
        done = replace(unowned, about=about, completed_at=now, result=None, error=ERASED, payload=None)
        return replace(done, lost=0, unavailable_since=None), True
    stripped = replace(record, about=about, result=None, error=ERASED if record.is_erased else None)
    return (record if stripped == record else stripped), True


# A table by type is used instead of `match`: each class pattern that does not match takes longer than the rule itself.
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
    Forget: _forget,
}
_END_STATE: Final[dict[type, State]] = {Complete: COMPLETED, Release: RELEASED, Bury: DEAD}


def matches_content(record: Record, payload_hash: bytes) -> bool:
    """Whether the record may have this content: its content is the same, or unknown."""
    return record.payload_hash in (payload_hash, UNKNOWN_CONTENT)


def _has_live_lease(record: Record, now: int) -> bool:
    return record.state == IN_PROGRESS and now < record.lease_until


def _is_holder(record: Record, proof: ClaimProof) -> bool:
    """Whether owner and fence match. An empty owner never matches: a redriven record has an empty owner."""
    return record.owner == proof.owner and record.fence == proof.fence and proof.owner != NOBODY


def _first_grant(claim: Claim, now: int) -> Record:
    lease_until, expires_at = now + claim.lease, now + claim.retention
    return Record(IN_PROGRESS, claim.owner, now, lease_until, 1, claim.payload_hash, expires_at, claim.about, now)


def _admitted_record(admit: Admit, now: int) -> Record:
    state, attempts = (IN_PROGRESS, 1) if admit.lease else (RELEASED, 0)
    until = now + admit.lease
    record = Record(state, admit.owner, now, until, attempts, admit.payload_hash, None, admit.about, now)  # type: ignore[arg-type]
    return replace(record, payload=admit.payload)


def _completed_if_marking(record: Record, claim: Claim, now: int) -> Record:
    """Return the granted record. If the claim has `marks`, the record is also completed: its handler may start at any
    time before the record expires, and the payload is no longer needed."""
    if not claim.marks:
        return record
    done = replace(record, state=COMPLETED, completed_at=now, expires_at=now + claim.retention, payload=None)
    return replace(done, lost=0, unavailable_since=None)


def _with_later_expiry(record: Record, claim: Claim, now: int) -> Record:
    """The completed record after a sliding claim. The expiry never moves to an earlier time."""
    expires_at = min(now + claim.retention, record.first_seen + claim.slides)
    if record.expires_at is None or expires_at <= record.expires_at:
        return record
    return replace(record, expires_at=expires_at)


def _attempts_and_losses(record: Record) -> tuple[int, int]:
    """`attempts` and `lost` before the next attempt. If the record is in progress, its last attempt is lost. The first
    lost attempt is subtracted from `attempts`, because another event of the batch may have killed the worker."""
    if record.state != IN_PROGRESS:
        return record.attempts, record.lost
    return record.attempts - (not record.lost), record.lost + 1


def _granted_again(record: Record, by: Claim | Take, now: int) -> Record:
    attempts, lost = _attempts_and_losses(record)
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
