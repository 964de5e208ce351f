"""What all that asks AWS shares: its clients, and how its errors are told apart.

botocore is an optional dependency: whoever imports this has seen to it that it is there.
"""

from functools import cache
from typing import Any, Final

import botocore.session
from botocore.config import Config
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
from botocore.loaders import Loader
from botocore.parsers import ResponseParserError

FAILURES: Final = (ClientError, BotoCoreError, ResponseParserError)
UNFOUND: Final = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    TokenRetrievalError,
    ProfileNotFound,
)
UNREACHED: Final = (HTTPClientError, ConnectionError)
UNACCEPTED: Final = frozenset(
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
_PASSING: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "ThrottledException",
        "Throttling",
        "RequestThrottled",
        "RequestLimitExceeded",
        "TransactionInProgressException",
        "TransactionConflictException",
        "InternalServerError",
        "InternalFailure",
        "ServiceUnavailable",
    }
)
_SERVER_FAULT: Final = 500


def client(service: str, region: str | None, endpoint: str | None, **config: Any) -> Any:
    """A client for a service. botocore's own retries are off: whoever asks decides what is asked again, and when."""
    session = botocore.session.Session()
    session.register_component("data_loader", _descriptions())
    options = Config(retries={"total_max_attempts": 1}, tcp_keepalive=True, user_agent_extra="oncegate", **config)
    return session.create_client(service, region_name=region, endpoint_url=endpoint, config=options)


@cache
def _descriptions() -> Loader:
    """botocore's descriptions of AWS, which take longer to read than all else: once for all clients of a process."""
    return Loader()


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


def no_credentials(place: str, error: Exception) -> str:
    return (
        f"no AWS credentials were found for {place} ({error}); give the machine or function a role,"
        " or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )


def _status(error: ClientError) -> int:
    metadata: dict[str, Any] = error.response.get("ResponseMetadata", {})
    return int(metadata.get("HTTPStatusCode", 0))
