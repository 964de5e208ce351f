"""What the errors of AWS's services have in common: which of them pass, and sentences for those that do not."""

from typing import Any, Final, Literal, TypeAlias

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
from botocore.parsers import ResponseParserError
from msgspec import Struct

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
_DENIED: Final = ("AccessDenied", "UnauthorizedOperation", "AuthorizationError")
_MISSING: Final = frozenset(
    {
        "ResourceNotFoundException",
        "NoSuchEntity",
        "NoSuchEntityException",
        "NonExistentQueue",
        "QueueDoesNotExist",
        "AWS.SimpleQueueService.NonExistentQueue",
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
_CREDENTIALS: Final = (
    "give the machine or function a role, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
)

# It may work a moment later; nothing can be asked as it is; the right is missing, or the thing; it is no such service;
# or it was refused for another reason.
FailureKind: TypeAlias = Literal["transient", "not_sent", "denied", "missing", "not_aws", "refused"]


class Failure(Struct, frozen=True):
    """What an error means: which kind it is of, and the sentence for a person."""

    kind: FailureKind
    message: str


class ErrorHints(Struct, frozen=True):
    """What the sentences say of whoever asks: the service, how to name a region there, and what to do about rights."""

    service: str
    region: str
    rights: str


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def message_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Message", "")).strip()


def is_transient(error: Exception) -> bool:
    """Whether the same request may work a moment later."""
    if isinstance(error, ClientError):
        return code_of(error) in _PASSING or _status(error) >= _SERVER_FAULT
    return isinstance(error, _UNREACHED)


def may_have_been_applied(error: Exception) -> bool:
    """Whether the request may have been carried out although it failed."""
    return not isinstance(error, ClientError) or _status(error) >= _SERVER_FAULT


def is_denied(error: ClientError) -> bool:
    return code_of(error).startswith(_DENIED)


def classify(error: Exception, place: str, action: str, words: ErrorHints) -> Failure:
    """What an error of botocore's, or of the service behind it, means."""
    if isinstance(error, ClientError):
        return _answered(error, place, action, words)
    if isinstance(error, _UNFOUND):
        said = f"no AWS credentials were found for {place} ({error}); {_CREDENTIALS}"
        return Failure("not_sent", said)
    if isinstance(error, NoRegionError):
        return Failure("not_sent", f"{place} needs a region; {words.region} or set AWS_REGION")
    if isinstance(error, _UNREACHED):
        return Failure("transient", f"{place} cannot be reached ({error}); check region, endpoint and network")
    if isinstance(error, BotoCoreError):
        return Failure("refused", f"{place} cannot be asked ({error})")
    return _unlike(place, words)


def _answered(error: ClientError, place: str, action: str, words: ErrorHints) -> Failure:
    code, said = code_of(error), message_of(error)
    if is_transient(error):
        return Failure("transient", f"{place} could not do it in time ({code}: {said}); try again later")
    if code in _UNACCEPTED:
        return Failure("not_sent", f"{place} does not accept these AWS credentials ({code}); renew or correct them")
    if is_denied(error):
        return Failure("denied", f"{place} does not allow {action} ({said}); {words.rights}")
    if code in _MISSING:
        return Failure("missing", f"{place} does not exist; check its name, region and endpoint")
    if code.isdecimal():  # a status of HTTP and no error of the service's
        return _unlike(place, words)
    return Failure("refused", f"{place} refused {action} ({code}: {said})")


def _unlike(place: str, words: ErrorHints) -> Failure:
    return Failure("not_aws", f"{place} does not answer as {words.service} does; check the endpoint")


def _status(error: ClientError) -> int:
    metadata: dict[str, Any] = error.response.get("ResponseMetadata", {})
    return int(metadata.get("HTTPStatusCode", 0))
