"""What the errors of AWS's services have in common: which of them pass, and sentences for those that do not."""

from typing import Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004  # botocore's own
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError

FAILURES: Final = (ClientError, BotoCoreError, ResponseParserError)
_PASSING: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "ThrottledException",
        "Throttling",
        "RequestThrottled",
        "OverLimit",
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
UNFOUND: Final = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    TokenRetrievalError,
    ProfileNotFound,
)
UNREACHED: Final = (HTTPClientError, ConnectionError)
_SERVER_FAULT: Final = 500


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def said_by(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Message", "")).strip()


def passes(error: Exception) -> bool:
    """Whether the same request may work a moment later."""
    if isinstance(error, ClientError):
        return code_of(error) in _PASSING or _status(error) >= _SERVER_FAULT
    return isinstance(error, UNREACHED)


def may_have_landed(error: Exception) -> bool:
    """Whether the request may have been carried out although it failed."""
    return not isinstance(error, ClientError) or _status(error) >= _SERVER_FAULT


def is_unaccepted(error: ClientError) -> bool:
    return code_of(error) in _UNACCEPTED


def is_denied(error: ClientError) -> bool:
    return code_of(error).startswith(("AccessDenied", "UnauthorizedOperation", "AuthorizationError"))


def unfound(error: Exception, place: str) -> str:
    return (
        f"no AWS credentials were found for {place} ({error}); give the machine or function a role,"
        " or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )


def unaccepted(error: ClientError, place: str) -> str:
    return f"{place} does not accept these AWS credentials ({code_of(error)}); renew or correct them"


def unreached(error: Exception, place: str) -> str:
    return f"{place} cannot be reached ({error}); check region, endpoint and network"


def unready(error: ClientError, place: str) -> str:
    return f"{place} could not do it in time ({code_of(error)}: {said_by(error)}); try again later"


def _status(error: ClientError) -> int:
    metadata: dict[str, Any] = error.response.get("ResponseMetadata", {})
    return int(metadata.get("HTTPStatusCode", 0))
