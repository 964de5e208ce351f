"""What the errors of AWS mean to whoever reads them: one sentence, and what to do."""

from typing import Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004  # botocore's own
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
)

from oncegate.errors import StoreError, StoreRefused, StoreUnavailable


class NoTable(StoreRefused):
    """There is no such table."""


class InUse(StoreError):
    """Somebody else is making the table."""


_PASSING: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "ThrottledException",
        "Throttling",
        "RequestLimitExceeded",
        "TransactionInProgressException",
        "TransactionConflictException",
        "InternalServerError",
        "InternalFailure",
        "ServiceUnavailable",
    }
)
_UNACCEPTED: Final = frozenset(
    {
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "IncompleteSignature",
        "MissingAuthenticationToken",
        "ExpiredTokenException",
        "ExpiredToken",
    }
)
_UNFOUND: Final = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    TokenRetrievalError,
    ProfileNotFound,
)
_UNREACHED: Final = (HTTPClientError, ConnectionError)
_SERVER_FAULT: Final = 500


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def passes(error: Exception) -> bool:
    """Whether the same request may work a moment later."""
    if isinstance(error, ClientError):
        return code_of(error) in _PASSING or _status(error) >= _SERVER_FAULT
    return isinstance(error, _UNREACHED)


def may_have_landed(error: Exception) -> bool:
    """Whether the request may have been carried out although it failed."""
    return not isinstance(error, ClientError) or _status(error) >= _SERVER_FAULT


def explained(error: Exception, place: str, action: str) -> StoreError:
    """An error that asking again would not help, or has not helped."""
    if isinstance(error, ClientError):
        return _answered(error, place, action)
    if isinstance(error, _UNFOUND):
        return StoreRefused(
            f"no AWS credentials were found for {place} ({error}); give the machine or function a role,"
            " or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if isinstance(error, NoRegionError):
        return StoreRefused(f"{place} needs a region; write dynamodb://Table?region=eu-central-1 or set AWS_REGION")
    if isinstance(error, _UNREACHED):
        return StoreUnavailable(f"{place} cannot be reached ({error}); check region, endpoint and network")
    if isinstance(error, BotoCoreError):
        return StoreError(f"{place} cannot be asked ({error})")
    return unlike(place)


def unlike(place: str) -> StoreRefused:
    return StoreRefused(f"{place} does not answer as DynamoDB does; check the endpoint")


def _answered(error: ClientError, place: str, action: str) -> StoreError:
    code, said = code_of(error), _said(error)
    if passes(error):
        return StoreUnavailable(f"{place} could not do it in time ({code}: {said}); try again later")
    if code in _UNACCEPTED:
        return StoreRefused(f"{place} does not accept these AWS credentials ({code}); renew or correct them")
    if code.startswith("AccessDenied"):
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


def _said(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Message", "")).strip()


def _status(error: ClientError) -> int:
    metadata: dict[str, Any] = error.response.get("ResponseMetadata", {})
    return int(metadata.get("HTTPStatusCode", 0))
