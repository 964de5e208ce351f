"""What the errors of SQS mean to whoever reads them: one sentence, and what to do."""

from typing import Final

from oncegate.aws.failures import Kind, Words, failure
from oncegate.errors import QueueError, QueueUnavailable

_WORDS: Final = Words("SQS", "write sqs://NAME?region=eu-central-1", "docs/guide/sqs.md lists what is needed")


class NoQueue(QueueError):
    """There is no such queue."""


_ERRORS: Final[dict[Kind, type[QueueError]]] = {"passing": QueueUnavailable, "missing": NoQueue}


def explained(error: Exception, place: str, action: str) -> QueueError:
    found = failure(error, place, action, _WORDS)
    return _ERRORS.get(found.kind, QueueError)(found.sentence)
