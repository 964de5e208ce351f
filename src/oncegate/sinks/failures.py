"""What the errors of AWS mean for an event that was to be published: try again later, or never."""

import re
from typing import Final

from botocore.exceptions import ClientError, NoRegionError
from botocore.parsers import ResponseParserError

from oncegate.errors import Bury, RetryLater
from oncegate.sinks.places import Place
from oncegate.stores.dynamodb.failures import code_of, explained

# What AWS says of an event that it will never take, by the codes and the words of its services.
_HOPELESS: Final = frozenset({"InvalidMessageContents", "MalformedDetail", "RequestEntityTooLarge"})
_TOO_LARGE: Final = re.compile(r"too large|must be shorter|over the limit|exceed.*size|size.*exceed", re.IGNORECASE)
_ABSENT: Final = ("NonExistentQueue", "QueueDoesNotExist", "ResourceNotFound")


def failure(error: Exception, place: Place) -> RetryLater | Bury:
    """What is not the event's own fault is to be tried again, though only a person may be able to mend it."""
    if isinstance(error, ClientError):
        code, said = code_of(error), str(error.response.get("Error", {}).get("Message", ""))
        if code in _HOPELESS or _TOO_LARGE.search(said):
            return Bury(f"{place.spoken} does not take this event ({code}: {said})")
    return RetryLater(_sentence(error, place))


def _sentence(error: Exception, place: Place) -> str:
    if isinstance(error, NoRegionError):
        return f"{place.spoken} needs a region; write ?region=eu-central-1 behind its name or set AWS_DEFAULT_REGION"
    if isinstance(error, ResponseParserError) or (isinstance(error, ClientError) and code_of(error).isdecimal()):
        return f"{place.spoken} does not answer as AWS does; check the endpoint"
    if not isinstance(error, ClientError):
        return str(explained(error, place.spoken, ""))
    action = f"{place.service}:{error.operation_name}"
    if code_of(error).startswith("AccessDenied"):
        return f"{place.spoken} does not allow {action}; allow it in the policy of the role or user"
    if any(absent in code_of(error) for absent in _ABSENT):
        return f"{place.spoken} does not exist; check its name, region and endpoint"
    return str(explained(error, place.spoken, action))
