"""The list of ablations. Each must break an invariant; otherwise the check proves nothing."""

from typing import Final

from tests.model.ablation import Ablation
from tests.model.parts import Rules
from tests.model.settings import (
    ABANDON,
    ADMIT,
    ADMIT_CONFLICT,
    ADMIT_EXPIRY,
    ADMIT_RUN,
    BATCH_CONFLICT,
    CONFLICT,
    ERASE,
    EXPIRY,
    FAULTS,
    FORGETFUL,
    MARK,
    MARK_ADMIT,
    MARK_EXPIRY,
    MIXED,
    OPERATOR,
    POISON,
    SEED,
    TRANSACTION,
)

_PROOF: Final = "record.owner == proof.owner and record.fence == proof.fence"
_SHORT: Final = OPERATOR._replace(expiry=True, lease=1, max_hold=1, retention=2, dead_retention=3)

_FUNCTION: Final = (
    Ablation(
        "unfenced settle",
        "the owner alone proves a claim; the fence is not compared",
        3,
        FAULTS,
        (_PROOF, "record.owner == proof.owner"),
    ),
    Ablation(
        "unchecked settle",
        "neither owner nor fence is compared",
        3,
        CONFLICT,
        (_PROOF, "True"),
    ),
    Ablation(
        "unchecked renewal",
        "a lease is renewed without a check of owner and fence",
        3,
        EXPIRY,
        ("if record is None or not _is_holder(record, renew) or", "if record is None or"),
    ),
    Ablation(
        "unwritten renewal",
        "a renewal is answered but not written",
        1,
        FAULTS,
        ("return replace(record, lease_until=lease_until, expires_at=expires_at), True", "return record, True"),
    ),
    Ablation(
        "expiry during a lease",
        "a renewal does not extend the expiry of the record to the end of the lease",
        1,
        FORGETFUL,
        ("max(record.expires_at, lease_until)", "record.expires_at"),
    ),
    Ablation(
        "stolen lease",
        "a claim is granted during the lease of another owner",
        3,
        CONFLICT,
        ("    if alive:\n        return record, InFlight", "    if False:\n        return record, InFlight"),
    ),
    Ablation(
        "stolen waiting event",
        "a dispatcher takes an event during the lease of another owner",
        3,
        OPERATOR,
        (" or record.state == DEAD or now < record.lease_until:", " or record.state == DEAD:"),
    ),
    Ablation(
        "undetected conflict",
        "the payload hash is not compared",
        2,
        CONFLICT,
        ("if claim.binds and not matches_content(record, claim.payload_hash):", "if False:"),
    ),
    Ablation(
        "unchanged fence",
        "a takeover does not raise the fence",
        5,
        CONFLICT,
        ("fence=record.fence + 1,", "fence=record.fence,"),
    ),
    Ablation(
        "forgotten owner",
        "a repeated claim of the same owner is treated as a new claim",
        7,
        CONFLICT,
        ("if record.owner == claim.owner and (alive or state == COMPLETED):", "if False:"),
    ),
    Ablation(
        "unrepeatable settle",
        "a repeated settlement is refused",
        7,
        CONFLICT,
        ("return record, record.state == _END_STATE[type(settlement)]", "return record, False"),
    ),
    Ablation(
        "completed record granted",
        "a completed record is granted again",
        4,
        CONFLICT,
        ("if state in (IN_PROGRESS, RELEASED):", "if state in (IN_PROGRESS, RELEASED, COMPLETED):"),
    ),
    Ablation(
        "uncounted attempts",
        "a grant after a release does not count as an attempt",
        9,
        EXPIRY,
        ("attempts=attempts + 1,", "attempts=max(attempts, 1),"),
    ),
    Ablation(
        "uncounted losses",
        "lost attempts do not count",
        9,
        POISON,
        ("return record.attempts - (not record.lost), record.lost + 1", "return record.attempts - 1, record.lost + 1"),
    ),
    Ablation(
        "forgotten losses",
        "every lost attempt counts as the first in a row",
        9,
        POISON,
        ("record.attempts - (not record.lost), record.lost + 1", "record.attempts - (not record.lost), 0"),
    ),
    Ablation(
        "losses forgotten by a release",
        "releasing a claim that was not started resets the count of lost attempts",
        9,
        POISON,
        ("    if release.unstarted:\n        return released\n", ""),
    ),
    Ablation(
        "unchecked abandon",
        "a claim is abandoned without a check of owner and fence",
        3,
        ABANDON,
        ("not _is_holder(record, abandon) or not _has_live_lease(record, now)", "not _has_live_lease(record, now)"),
    ),
    Ablation(
        "every attempt given back",
        "a failed attempt is given back like an attempt that never started",
        9,
        EXPIRY,
        ("record.attempts - given_back,", "record.attempts - 1,"),
    ),
    Ablation(
        "deleting release",
        "release deletes the record",
        9,
        EXPIRY,
        ("return _released(record, settlement, now), True", "return None, True"),
    ),
    Ablation(
        "dead letter without payload",
        "a dead letter is stored without its payload",
        2,
        CONFLICT,
        ("payload=bury.payload,", "payload=None,"),
    ),
    Ablation(
        "expiry left to the sweep",
        "an expired record is valid until it is swept",
        15,
        EXPIRY,
        ("now >= record.expires_at:\n        record = None", "now >= record.expires_at:\n        pass"),
    ),
    Ablation(
        "redriven event expires",
        "a redriven dead letter keeps its expiry",
        2,
        _SHORT,
        ("None if record.payload is not None else record.expires_at", "record.expires_at"),
    ),
    Ablation(
        "taken-over event expires",
        "a claim sets an expiry on a record that holds a payload",
        2,
        _SHORT,
        ("None if record.payload is not None else now + claim.retention", "now + claim.retention"),
    ),
)

_WORKER: Final = (
    Ablation(
        "mark first",
        "a claim is completed before its effect",
        2,
        CONFLICT,
        rules=Rules(completes_after_effect=False),
    ),
    Ablation(
        "no claim",
        "a worker checks for a completed record and runs the effect without a claim",
        1,
        CONFLICT,
        rules=Rules(claims_first=False),
    ),
    Ablation(
        "ack in flight", "an event that is in flight is acknowledged", 6, CONFLICT, rules=Rules(nacks_in_flight=False)
    ),
    Ablation(
        "ack without an answer",
        "an event is acknowledged although the store has not answered",
        6,
        CONFLICT,
        rules=Rules(nacks_unanswered=False),
    ),
    Ablation(
        "ack before settle",
        "a delivery is acknowledged before its settlement is confirmed",
        2,
        CONFLICT,
        rules=Rules(acks_after_settle=False),
    ),
    Ablation(
        "conflict without a copy",
        "a conflict is acknowledged before its copy is stored",
        6,
        CONFLICT,
        rules=Rules(keeps_conflicts=False),
    ),
    Ablation(
        "one owner per batch",
        "the requests of one batch share an owner",
        1,
        BATCH_CONFLICT,
        rules=Rules(owner_for_each=False),
    ),
    Ablation(
        "late start", "an effect starts without a check of the lease", 12, FAULTS, rules=Rules(checks_validity=False)
    ),
    Ablation(
        "validity from the answer",
        "validity is counted from the arrival of the answer",
        1,
        CONFLICT,
        rules=Rules(counts_from_sending=False),
    ),
    Ablation(
        "one attempt too many", "a grant beyond the last attempt runs", 9, POISON, rules=Rules(buries_beyond=False)
    ),
    Ablation(
        "failed attempt given back",
        "a failed attempt is released as if it had not started",
        9,
        EXPIRY,
        rules=Rules(counts_failures=False),
    ),
    Ablation(
        "lost event in a batch",
        "an event with a lost attempt runs together with its batch",
        9,
        POISON,
        rules=Rules(retries_alone=False),
    ),
    Ablation(
        "running worker abandoned",
        "the claim of a running worker is abandoned",
        1,
        ABANDON,
        rules=Rules(abandons_the_ended=False),
    ),
    Ablation(
        "repeated commit",
        "a retried transaction commits its effect again",
        1,
        TRANSACTION,
        rules=Rules(commits_once=False),
    ),
)

_ADMISSION: Final = (
    Ablation(
        "unwritten admission",
        "an admission is answered but its payload is not written",
        2,
        ADMIT,
        ("return replace(record, payload=admit.payload)\n", "return record\n"),
    ),
    Ablation(
        "admitted event expires",
        "an admitted record has an expiry",
        2,
        ADMIT_EXPIRY,
        ("now, until, attempts, admit.payload_hash, None,", "now, until, attempts, admit.payload_hash, until + 1,"),
    ),
    Ablation(
        "attached payload expires",
        "an existing record keeps its expiry when a payload is attached",
        2,
        MIXED._replace(expiry=True),
        ("owner=admit.owner, lease_until=now, expires_at=None)", "owner=admit.owner, lease_until=now)"),
    ),
    Ablation(
        "admission during a lease",
        "a payload is attached to a record in progress",
        3,
        MIXED,
        ("    if alive and record.payload is None:\n", "    if False:\n"),
    ),
    Ablation(
        "forgotten owner of an admission",
        "a repeated admission of the same owner is treated as a new one",
        7,
        ADMIT,
        (
            "if record.payload is not None and record.owner == admit.owner and (alive or state == RELEASED):",
            "if False:",
        ),
    ),
    Ablation(
        "forgotten owner of an admission with a lease",
        "a repeated admission with a lease, of the same owner, is treated as a new one",
        7,
        ADMIT_RUN,
        ("record.owner == admit.owner and (alive or state == RELEASED):", "record.owner == admit.owner and not alive:"),
    ),
    Ablation(
        "uncounted admission with a lease",
        "a grant by an admission does not count as an attempt",
        9,
        ADMIT_RUN,
        ("(IN_PROGRESS, 1) if admit.lease else", "(IN_PROGRESS, 0) if admit.lease else"),
    ),
    Ablation(
        "undetected conflict at admission",
        "the payload hash is not compared when admitting",
        2,
        ADMIT_CONFLICT,
        ("if admit.binds and not matches_content(record, admit.payload_hash):", "if False:"),
    ),
    Ablation(
        "completed event admitted",
        "a completed event is admitted again",
        4,
        ADMIT,
        (
            "if state in (RELEASED, IN_PROGRESS) and record.payload is None:",
            "if state in (RELEASED, IN_PROGRESS, COMPLETED) and record.payload is None:",
        ),
    ),
    Ablation(
        "overwritten admission",
        "an admission overwrites an earlier one",
        17,
        ADMIT,
        (
            "if state in (RELEASED, IN_PROGRESS) and record.payload is None:",
            "if state in (RELEASED, IN_PROGRESS):",
        ),
    ),
    Ablation(
        "delivery claims an admitted event",
        "a claim by a delivery is granted an admitted event",
        17,
        MIXED,
        ("    if state == RELEASED and record.payload is not None:\n", "    if False:\n"),
    ),
)

_MARKING: Final = (
    Ablation(
        "mark without completion",
        "a marking claim does not complete the record",
        16,
        MARK,
        ("    if not claim.marks:\n        return record", "    if True:\n        return record"),
    ),
    Ablation(
        "marked twice",
        "a marking claim is granted a completed record",
        1,
        MARK,
        (
            "    if state in (IN_PROGRESS, RELEASED):\n        expires_at",
            "    if state in (IN_PROGRESS, RELEASED, COMPLETED):\n        expires_at",
        ),
    ),
    Ablation(
        "forgotten owner of a mark",
        "a repeated marking claim of the same owner is treated as a new claim",
        7,
        MARK,
        ("(alive or state == COMPLETED)", "alive"),
    ),
    Ablation(
        "marked record keeps its payload",
        "a marked record keeps the payload that was admitted",
        4,
        MARK_ADMIT,
        ("expires_at=now + claim.retention, payload=None)", "expires_at=now + claim.retention)"),
    ),
    Ablation(
        "failed marked event dropped",
        "a marked event that failed is acknowledged without a stored copy",
        2,
        MARK,
        rules=Rules(keeps_marked=False),
    ),
    Ablation(
        "late start of a marked event",
        "a marked event starts without a check of the lease",
        12,
        MARK_EXPIRY,
        rules=Rules(checks_validity=False),
    ),
)

_SEEDING: Final = (
    Ablation(
        "seeded event in conflict",
        "a seeded record matches no content",
        18,
        SEED,
        ("return record.payload_hash in (payload_hash, UNKNOWN_CONTENT)", "return record.payload_hash == payload_hash"),
    ),
    Ablation(
        "seed over a record",
        "a seed completes a record that exists",
        18,
        SEED,
        ("UNKNOWN_CONTENT, 0, retention, about, marks=True)", "UNKNOWN_CONTENT, 0, retention, about, False, True)"),
    ),
)

_REMOVED: Final = "return (None if record.state == COMPLETED else stripped), True"
_ERASURE: Final = (
    Ablation(
        "erasure during a run",
        "the record of an event in progress is erased",
        19,
        ERASE,
        ("if record is None or _has_live_lease(record, now):", "if record is None:"),
    ),
    Ablation(
        "erased waiting event",
        "a waiting event is erased although the operator did not include waiting events",
        19,
        ERASE,
        ("if record.state != DEAD and not forget.waiting:", "if False:"),
    ),
    Ablation(
        "erased event that runs",
        "an event without its payload can still be claimed",
        19,
        ERASE,
        ("return replace(done, lost=0, unavailable_since=None), True", "return replace(done, state=RELEASED), True"),
    ),
    Ablation(
        "erased completion",
        "the erasure removes a completed record",
        4,
        ERASE,
        ("return (record if stripped == record else stripped), True", _REMOVED),
    ),
)

ABLATIONS: Final = _FUNCTION + _ADMISSION + _MARKING + _SEEDING + _ERASURE + _WORKER
