"""What the errors of DynamoDB mean to whoever reads them: one sentence, and what to do."""

from typing import Final

from botocore.exceptions import ClientError

from oncegate.aws.failures import Kind, Words, code_of, failure, said_by
from oncegate.errors import StoreError, StoreRefused, StoreUnavailable, Unkeepable

_WORDS: Final = Words(
    "DynamoDB", "write dynamodb://Table?region=eu-central-1", "docs/stores/dynamodb.md lists what is needed"
)


class NoTable(StoreRefused):
    """There is no such table."""


class InUse(StoreError):
    """Somebody else is making the table."""


_ERRORS: Final[dict[Kind, type[StoreError]]] = {
    "passing": StoreUnavailable,
    "unasked": StoreRefused,
    "denied": StoreRefused,
    "missing": NoTable,
    "unlike": StoreRefused,
    "refused": StoreError,
}


def explained(error: Exception, place: str, action: str) -> StoreError:
    """An error that asking again would not help, or has not helped."""
    if isinstance(error, ClientError) and code_of(error) == "ResourceInUseException":
        return InUse(f"{place} is being created or changed ({said_by(error)}); try again later")
    if isinstance(error, ClientError) and "Item size" in said_by(error):
        return Unkeepable(
            f"a record for {place} is larger than the 400 kB that DynamoDB keeps; return a smaller result (max_result)"
            " or keep large payloads elsewhere"
        )
    found = failure(error, place, action, _WORDS)
    return _ERRORS[found.kind](found.sentence)


def unlike(place: str) -> StoreRefused:
    return StoreRefused(f"{place} does not answer as DynamoDB does; check the endpoint")
