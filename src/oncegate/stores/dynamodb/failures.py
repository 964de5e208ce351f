"""What the errors of DynamoDB mean to whoever reads them: one sentence, and what to do."""

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
from oncegate.errors import StoreError, StoreRefused, StoreUnavailable


class NoTable(StoreRefused):
    """There is no such table."""


class InUse(StoreError):
    """Somebody else is making the table."""


def explained(error: Exception, place: str, action: str) -> StoreError:
    """An error that asking again would not help, or has not helped."""
    if isinstance(error, ClientError):
        return _answered(error, place, action)
    if isinstance(error, UNFOUND):
        return StoreRefused(unfound(error, place))
    if isinstance(error, NoRegionError):
        return StoreRefused(
            f"{place} needs a region; write dynamodb://Table?region=eu-central-1 or set AWS_DEFAULT_REGION"
        )
    if isinstance(error, UNREACHED):
        return StoreUnavailable(unreached(error, place))
    if isinstance(error, BotoCoreError):
        return StoreError(f"{place} cannot be asked ({error})")
    return unlike(place)


def unlike(place: str) -> StoreRefused:
    return StoreRefused(f"{place} does not answer as DynamoDB does; check the endpoint")


def _answered(error: ClientError, place: str, action: str) -> StoreError:
    code, said = code_of(error), said_by(error)
    if passes(error):
        return StoreUnavailable(unready(error, place))
    if is_unaccepted(error):
        return StoreRefused(unaccepted(error, place))
    if is_denied(error):
        return StoreRefused(f"{place} does not allow {action} ({said}); docs/stores/dynamodb.md lists what is needed")
    if code == "ResourceNotFoundException":
        return NoTable(f"{place} does not exist; check its name, region and endpoint")
    if code == "ResourceInUseException":
        return InUse(f"{place} is being created or changed ({said}); try again later")
    if "Item size" in said:
        return StoreRefused(
            f"a record for {place} is larger than the 400 kB that DynamoDB keeps; return a smaller result (max_result)"
            " or keep large payloads elsewhere"
        )
    if code.isdecimal():  # a status of HTTP and no error of DynamoDB's
        return unlike(place)
    return StoreError(f"{place} refused {action} ({code}: {said})")
