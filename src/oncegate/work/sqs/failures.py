"""What the errors of SQS mean to whoever reads them: one sentence, and what to do."""

from typing import Final

from botocore.exceptions import BotoCoreError, ClientError, NoRegionError

from oncegate.aws.failures import (
    UNFOUND,
    UNREACHED,
    code_of,
    is_denied,
    is_unaccepted,
    passes,
    said_by,
    unaccepted,
    unfound,
    unreached,
    unready,
)
from oncegate.errors import QueueError, QueueUnavailable

_ABSENT: Final = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "NonExistentQueue"})


class NoQueue(QueueError):
    """There is no such queue."""


def explained(error: Exception, place: str, action: str) -> QueueError:
    if isinstance(error, ClientError):
        return _answered(error, place, action)
    if isinstance(error, UNFOUND):
        return QueueError(unfound(error, place))
    if isinstance(error, NoRegionError):
        return QueueError(f"{place} needs a region; write sqs://NAME?region=eu-central-1 or set AWS_DEFAULT_REGION")
    if isinstance(error, UNREACHED):
        return QueueUnavailable(unreached(error, place))
    if isinstance(error, BotoCoreError):
        return QueueError(f"{place} cannot be asked ({error})")
    return _unlike(place)


def _unlike(place: str) -> QueueError:
    return QueueError(f"{place} does not answer as SQS does; check the endpoint")


def _answered(error: ClientError, place: str, action: str) -> QueueError:
    code, said = code_of(error), said_by(error)
    if passes(error):
        return QueueUnavailable(unready(error, place))
    if is_unaccepted(error):
        return QueueError(unaccepted(error, place))
    if code in _ABSENT:
        return NoQueue(f"{place} does not exist; check its name, account, region and endpoint")
    if is_denied(error):
        return QueueError(f"{place} does not allow {action} ({said}); docs/guide/sqs.md lists what is needed")
    if code.isdecimal():  # a status of HTTP and no error of SQS's
        return _unlike(place)
    return QueueError(f"{place} refused {action} ({code}: {said})")
