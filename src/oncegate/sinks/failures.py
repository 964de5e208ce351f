"""What the errors of AWS mean for an event that was to be published: try again later, or never."""

import re
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
from oncegate.errors import Bury, RetryLater
from oncegate.sinks.places import Place

# What AWS says of an event that it will never take, by the codes and the words of its services.
_HOPELESS: Final = frozenset({"InvalidMessageContents", "MalformedDetail", "RequestEntityTooLarge"})
_TOO_LARGE: Final = re.compile(r"too large|must be shorter|over the limit|exceed.*size|size.*exceed", re.IGNORECASE)
_ABSENT: Final = ("NonExistentQueue", "QueueDoesNotExist", "ResourceNotFound")


def failure(error: Exception, place: Place) -> RetryLater | Bury:
    """What is not the event's own fault is to be tried again, though only a person may be able to mend it."""
    if isinstance(error, ClientError):
        code, said = code_of(error), said_by(error)
        if code in _HOPELESS or _TOO_LARGE.search(said):
            return Bury(f"{place.spoken} does not take this event ({code}: {said})")
        sentence = _answered(error, place.spoken, f"{place.service}:{error.operation_name}")
        return RetryLater(sentence, public=True)
    return RetryLater(_unanswered(error, place.spoken), public=True)


def _answered(error: ClientError, place: str, action: str) -> str:
    code = code_of(error)
    if passes(error):
        return unready(error, place)
    if is_unaccepted(error):
        return unaccepted(error, place)
    if is_denied(error):
        return f"{place} does not allow {action}; allow it in the policy of the role or user"
    if any(absent in code for absent in _ABSENT):
        return f"{place} does not exist; check its name, region and endpoint"
    if code.isdecimal():  # a status of HTTP and no error of AWS's
        return _unlike(place)
    return f"{place} refused {action} ({code}: {said_by(error)})"


def _unanswered(error: Exception, place: str) -> str:
    if isinstance(error, UNFOUND):
        return unfound(error, place)
    if isinstance(error, NoRegionError):
        return f"{place} needs a region; write ?region=eu-central-1 behind its name or set AWS_DEFAULT_REGION"
    if isinstance(error, UNREACHED):
        return unreached(error, place)
    return f"{place} cannot be asked ({error})" if isinstance(error, BotoCoreError) else _unlike(place)


def _unlike(place: str) -> str:
    return f"{place} does not answer as AWS does; check the endpoint"
