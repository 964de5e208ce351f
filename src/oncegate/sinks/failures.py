"""What the errors of AWS mean for an event that was to be published: try again later, or never."""

import re
from typing import Final

from botocore.exceptions import ClientError

from oncegate.aws import failures
from oncegate.aws.failures import code_of, said_by
from oncegate.errors import Bury, RetryLater
from oncegate.sinks.places import Place

# What AWS says of an event that it will never take, by the codes and the words of its services.
_HOPELESS: Final = frozenset({"InvalidMessageContents", "MalformedDetail", "RequestEntityTooLarge"})
_TOO_LARGE: Final = re.compile(r"too large|must be shorter|over the limit|exceed.*size|size.*exceed", re.IGNORECASE)
_WORDS: Final = failures.Words(
    "AWS", "write ?region=eu-central-1 behind its name", "allow it in the policy of the role or user"
)


def failure(error: Exception, place: Place) -> RetryLater | Bury:
    """What is not the event's own fault is to be tried again, though only a person may be able to mend it."""
    if isinstance(error, ClientError):
        code, said = code_of(error), said_by(error)
        if code in _HOPELESS or _TOO_LARGE.search(said):
            return Bury(f"{place.spoken} does not take this event ({code}: {said})")
    action = f"{place.service}:{error.operation_name}" if isinstance(error, ClientError) else ""
    return RetryLater(failures.failure(error, place.spoken, action, _WORDS).sentence, public=True)
