"""The ablations. Each must break an invariant, or the check proves nothing."""

from typing import Final

from tests.model.ablation import Ablation
from tests.model.parts import Rules
from tests.model.settings import (
    ADMIT,
    ADMIT_CONFLICT,
    ADMIT_EXPIRY,
    ADMIT_RUN,
    BATCH_CONFLICT,
    CONFLICT,
    EXPIRY,
    FAULTS,
    FORGETFUL,
    MARK,
    MARK_ADMIT,
    MARK_EXPIRY,
    MIXED,
    OPERATOR,
    POISON,
    TRANSACTION,
)

_PROOF: Final = "record.owner == held.owner and record.fence == held.fence"
_SHORT: Final = OPERATOR._replace(expiry=True, lease=1, max_hold=1, retention=2, dead_retention=3)

_FUNCTION: Final = (
    Ablation(
        "unfenced settle",
        "the owner alone proves a claim",
        3,
        FAULTS,
        (_PROOF, "record.owner == held.owner"),
    ),
    Ablation(
        "settle by anybody",
        "neither owner nor fence is looked at",
        3,
        CONFLICT,
        (_PROOF, "True"),
    ),
    Ablation(
        "renewal by anybody",
        "a lease is renewed for whoever asks",
        3,
        EXPIRY,
        ("if record is None or not _mine(record, renew) or", "if record is None or"),
    ),
    Ablation(
        "renewal unwritten",
        "a renewal is answered and not written",
        1,
        FAULTS,
        ("return replace(record, lease_until=lease_until, expires_at=expires_at), True", "return record, True"),
    ),
    Ablation(
        "renewed and forgotten",
        "a renewal does not keep the record for as long as the lease",
        1,
        FORGETFUL,
        ("max(record.expires_at, lease_until)", "record.expires_at"),
    ),
    Ablation(
        "stolen lease",
        "a claim is granted while the lease of another is alive",
        3,
        CONFLICT,
        ("    if alive:\n        return record, InFlight", "    if False:\n        return record, InFlight"),
    ),
    Ablation(
        "stolen work",
        "a dispatcher takes what another is at",
        3,
        OPERATOR,
        (" or record.state == DEAD or now < record.lease_until:", " or record.state == DEAD:"),
    ),
    Ablation(
        "conflict unseen",
        "the payload hash is not compared",
        2,
        CONFLICT,
        ("if claim.binds and record.payload_hash != claim.payload_hash:", "if False:"),
    ),
    Ablation(
        "fence kept",
        "a takeover does not raise the fence",
        5,
        CONFLICT,
        ("fence=record.fence + 1,", "fence=record.fence,"),
    ),
    Ablation(
        "owner forgotten",
        "an owner that claims again is answered like a stranger",
        7,
        CONFLICT,
        ("if record.owner == claim.owner and (alive or state == COMPLETED):", "if False:"),
    ),
    Ablation(
        "settle only once",
        "the same settlement again is refused",
        7,
        CONFLICT,
        ("return record, record.state == _ENDS_IN[type(settlement)]", "return record, False"),
    ),
    Ablation(
        "completed is free",
        "a completed record is granted again",
        4,
        CONFLICT,
        ("if state in (IN_PROGRESS, RELEASED):", "if state in (IN_PROGRESS, RELEASED, COMPLETED):"),
    ),
    Ablation(
        "attempts uncounted",
        "a takeover does not count as an attempt",
        9,
        EXPIRY,
        ("attempts=record.attempts + 1,", "attempts=record.attempts,"),
    ),
    Ablation(
        "every attempt given back",
        "a failed attempt is given back like one that never started",
        9,
        EXPIRY,
        ("record.attempts - release.unstarted,", "record.attempts - 1,"),
    ),
    Ablation(
        "deleting release",
        "release deletes the record",
        9,
        EXPIRY,
        ("return _released(record, settlement, now), True", "return None, True"),
    ),
    Ablation(
        "burial without the body",
        "a dead letter is kept without its payload",
        2,
        CONFLICT,
        ("payload=bury.payload,", "payload=None,"),
    ),
    Ablation(
        "expiry left to the sweep",
        "an expired record counts until it is swept",
        15,
        EXPIRY,
        ("now >= record.expires_at:\n        record = None", "now >= record.expires_at:\n        pass"),
    ),
    Ablation(
        "redriven work expires",
        "a redriven dead letter keeps its expiry",
        2,
        _SHORT,
        ("None if record.payload is not None else record.expires_at", "record.expires_at"),
    ),
    Ablation(
        "taken-over work expires",
        "a claim gives work that is kept an expiry",
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
    Ablation("mark last", "a worker looks, runs and claims nothing", 1, CONFLICT, rules=Rules(claims_first=False)),
    Ablation("ack in flight", "what another is at is acknowledged", 6, CONFLICT, rules=Rules(nacks_in_flight=False)),
    Ablation(
        "ack unanswered",
        "what the store has not answered is acknowledged",
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
        "a conflict is acknowledged before its copy is kept",
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
        "late start", "an effect starts without a look at the clock", 12, FAULTS, rules=Rules(checks_validity=False)
    ),
    Ablation(
        "counting from the answer",
        "validity is counted from when the answer came",
        1,
        CONFLICT,
        rules=Rules(counts_from_sending=False),
    ),
    Ablation("one run more", "a grant beyond the last attempt is run", 9, EXPIRY, rules=Rules(buries_beyond=False)),
    Ablation(
        "failure given back",
        "a failed attempt is released as if it had not started",
        9,
        EXPIRY,
        rules=Rules(counts_failures=False),
    ),
    Ablation(
        "retries in company",
        "what was tried before is run together with its batch",
        9,
        POISON,
        rules=Rules(retries_alone=False),
    ),
    Ablation(
        "commit on every yes",
        "a transaction that is tried again commits its effect again",
        1,
        TRANSACTION,
        rules=Rules(commits_once=False),
    ),
)

_ADMISSION: Final = (
    Ablation(
        "admitted and not kept",
        "an admission is answered and its payload is not written",
        2,
        ADMIT,
        ("return replace(free, payload=admit.payload)\n", "return free\n"),
    ),
    Ablation(
        "admitted work expires",
        "what is admitted has an expiry",
        2,
        ADMIT_EXPIRY,
        ("now, until, attempts, admit.payload_hash, None,", "now, until, attempts, admit.payload_hash, until + 1,"),
    ),
    Ablation(
        "attached work expires",
        "a payload attached to a record that was there keeps its expiry",
        2,
        MIXED._replace(expiry=True),
        ("owner=admit.owner, lease_until=now, expires_at=None)", "owner=admit.owner, lease_until=now)"),
    ),
    Ablation(
        "admitted under a lease",
        "a payload is attached to what a worker is at",
        3,
        MIXED,
        ("    if alive and record.payload is None:\n", "    if False:\n"),
    ),
    Ablation(
        "admitted anew",
        "an owner that asks to admit again is answered like a stranger",
        7,
        ADMIT,
        (
            "if record.payload is not None and record.owner == admit.owner and (alive or state == RELEASED):",
            "if False:",
        ),
    ),
    Ablation(
        "admitted to run anew",
        "an owner that asks to admit and run again is answered like a stranger",
        7,
        ADMIT_RUN,
        ("record.owner == admit.owner and (alive or state == RELEASED):", "record.owner == admit.owner and not alive:"),
    ),
    Ablation(
        "admitted and run without a count",
        "a grant by an admission does not count as an attempt",
        9,
        ADMIT_RUN,
        ("(IN_PROGRESS, 1) if admit.lease else", "(IN_PROGRESS, 0) if admit.lease else"),
    ),
    Ablation(
        "admission of another content",
        "the payload hash is not compared when admitting",
        2,
        ADMIT_CONFLICT,
        ("if admit.binds and record.payload_hash != admit.payload_hash:", "if False:"),
    ),
    Ablation(
        "completed is admitted",
        "a completed event is admitted again",
        4,
        ADMIT,
        (
            "if state in (RELEASED, IN_PROGRESS) and record.payload is None:",
            "if state in (RELEASED, IN_PROGRESS, COMPLETED) and record.payload is None:",
        ),
    ),
    Ablation(
        "admitted twice over",
        "an admission is written over the one before",
        17,
        ADMIT,
        (
            "if state in (RELEASED, IN_PROGRESS) and record.payload is None:",
            "if state in (RELEASED, IN_PROGRESS):",
        ),
    ),
    Ablation(
        "claimed from the inbox",
        "a delivery is granted what was admitted",
        17,
        MIXED,
        ("    if state == RELEASED and record.payload is not None:\n", "    if False:\n"),
    ),
)

_MARKING: Final = (
    Ablation(
        "marked and not completed",
        "a marking claim is granted like any other",
        16,
        MARK,
        ("    if not claim.marks:\n        return record", "    if True:\n        return record"),
    ),
    Ablation(
        "marked twice",
        "a marking claim is granted what is completed",
        1,
        MARK,
        (
            "    if state in (IN_PROGRESS, RELEASED):\n        expires_at",
            "    if state in (IN_PROGRESS, RELEASED, COMPLETED):\n        expires_at",
        ),
    ),
    Ablation(
        "marking owner forgotten",
        "an owner that asks again for what it has marked is answered like a stranger",
        7,
        MARK,
        ("(alive or state == COMPLETED)", "alive"),
    ),
    Ablation(
        "marked and kept",
        "what is marked keeps the payload that was admitted",
        4,
        MARK_ADMIT,
        ("expires_at=now + claim.retention, payload=None)", "expires_at=now + claim.retention)"),
    ),
    Ablation(
        "failure of a marked one dropped",
        "what was marked and has failed is acknowledged without a copy",
        2,
        MARK,
        rules=Rules(keeps_marked=False),
    ),
    Ablation(
        "late start of a marked one",
        "what was marked is started without a look at the clock",
        12,
        MARK_EXPIRY,
        rules=Rules(checks_validity=False),
    ),
)

ABLATIONS: Final = _FUNCTION + _ADMISSION + _MARKING + _WORKER
