"""The events that all competitors process: the claim of an event and its completion."""

import os
import uuid
from collections.abc import Sequence
from typing import Final

from oncegate.claims import Claim, Complete, EventSummary, Verdict

BATCH: Final = 100
NAMESPACE: Final = "default"
SOURCE: Final = "plain"
TYPE: Final = "call.ended"
LEASE: Final = 30_000_000
RETENTION: Final = 7 * 24 * 3_600_000_000
RESULT: Final = b"null"  # the result of a handler that returns None
DESCRIPTION: Final = (
    f"An event is a new key, claimed and completed in batches of {BATCH}. Its record holds the 16-byte key, owner and "
    "content hash, source, type, a delivery id of 36 characters, fence, attempts, times and the result null."
)

Batch = list[Claim]


def fresh(count: int) -> list[Batch]:
    return [[_claim() for _ in range(BATCH)] for _ in range(count // BATCH)]


def _claim() -> Claim:
    about = EventSummary(SOURCE, TYPE, delivery_id=str(uuid.uuid4()))
    return Claim(NAMESPACE, os.urandom(16), os.urandom(16), os.urandom(16), LEASE, RETENTION, about)


def completions(claims: Batch, verdicts: Sequence[Verdict]) -> list[Complete]:
    return [
        Complete(claim.namespace, claim.key, claim.owner, verdict.record.fence, RETENTION, RESULT)
        for claim, verdict in zip(claims, verdicts, strict=True)
    ]
