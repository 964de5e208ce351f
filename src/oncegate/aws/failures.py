"""Classify errors of AWS services, and write their messages."""

from typing import Any, Final, Literal, TypeAlias

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004  # botocore's class, not the built-in
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError
from msgspec import Struct

FAILURES: Final = (ClientError, BotoCoreError, ResponseParserError)

FailureKind: TypeAlias = Literal[
    "transient",  # the same request may succeed later
    "not_sent",  # no usable credentials or no region
    "denied",  # a permission is missing
    "missing",  # the resource does not exist
    "not_aws",  # the endpoint does not answer like the AWS service
    "refused",  # any other error
]

_TRANSIENT: Final = frozenset(
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
_BAD_CREDENTIALS: Final = frozenset(
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
_DENIED: Final = ("AccessDenied", "UnauthorizedOperation", "AuthorizationError")
_MISSING: Final = frozenset(
    {
        "ResourceNotFoundException",
        "NoSuchEntity",
        "NoSuchEntityException",
        "NonExistentQueue",
        "StateMachineDoesNotExist",
        "QueueDoesNotExist",
        "AWS.SimpleQueueService.NonExistentQueue",
    }
)
_NO_CREDENTIALS: Final = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    TokenRetrievalError,
    ProfileNotFound,
)
_UNREACHABLE: Final = (HTTPClientError, ConnectionError)
_SERVER_ERROR: Final = 500


class Failure(Struct, frozen=True):
    """The kind of an error, and a message for people."""

    kind: FailureKind
    message: str


class ErrorHints(Struct, frozen=True):
    """The parts of a message that depend on the caller.

    `service` is the name of the service, `region` says how to set a region, and `permission` says how to get a
    permission."""

    service: str
    region: str
    permission: str


def classify(error: Exception, place: str, action: str, hints: ErrorHints) -> Failure:
    """Return the kind and the message of an error in `FAILURES`."""
    if isinstance(error, ClientError):
        return _classify_response(error, place, action, hints)
    if isinstance(error, _NO_CREDENTIALS):
        return Failure(
            "not_sent",
            f"no AWS credentials were found for {place} ({error}); give the machine or function a role, or set"
            " AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    if isinstance(error, NoRegionError):
        return Failure("not_sent", f"{place} needs a region; {hints.region} or set AWS_REGION")
    if isinstance(error, _UNREACHABLE):
        return Failure("transient", f"{place} cannot be reached ({error}); check region, endpoint and network")
    if isinstance(error, BotoCoreError):
        return Failure("refused", f"cannot send the request to {place} ({error}); check its parameters")
    return not_aws(place, hints)


def _classify_response(error: ClientError, place: str, action: str, hints: ErrorHints) -> Failure:
    code, message = code_of(error), message_of(error)
    if is_transient(error):
        return Failure("transient", f"{place} throttled or failed the request ({code}: {message}); retry later")
    if code in _BAD_CREDENTIALS:
        return Failure("not_sent", f"{place} does not accept these AWS credentials ({code}); renew or correct them")
    if is_denied(error):
        return Failure("denied", f"{place} does not allow {action} ({message}); {hints.permission}")
    if code in _MISSING:
        return Failure("missing", f"{place} does not exist; check its name, region and endpoint")
    if code.isdecimal():  # if the body is not an AWS error, botocore uses the HTTP status as the code
        return not_aws(place, hints)
    return Failure("refused", f"{place} refused {action} ({code}: {message})")


def not_aws(place: str, hints: ErrorHints) -> Failure:
    return Failure("not_aws", f"{place} does not answer as {hints.service} does; check the endpoint")


def is_transient(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, ClientError):
        return code_of(error) in _TRANSIENT or _http_status(error) >= _SERVER_ERROR
    return isinstance(error, _UNREACHABLE)


def may_have_been_applied(error: Exception) -> bool:
    """Return whether the service may have executed the request although the client got this error."""
    return not isinstance(error, ClientError) or _http_status(error) >= _SERVER_ERROR


def is_denied(error: ClientError) -> bool:
    return code_of(error).startswith(_DENIED)


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def message_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Message", "")).strip()


def _http_status(error: ClientError) -> int:
    metadata: dict[str, Any] = error.response.get("ResponseMetadata", {})
    return int(metadata.get("HTTPStatusCode", 0))
