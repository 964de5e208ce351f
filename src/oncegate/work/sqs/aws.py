"""Clients of SQS, and how the errors of AWS are told apart."""

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
_PASSING: Final = frozenset(
    {
        "ThrottlingException",
        "Throttling",
        "RequestThrottled",
        "RequestLimitExceeded",
        "InternalFailure",
        "ServiceUnavailable",
    }
)
_SERVER_FAULT: Final = 500


def client(region: str | None, endpoint: str | None, **config: Any) -> Any:
    """A client. botocore's own retries are off: whoever asks decides what is asked again, and when."""
    session = botocore.session.Session()
    session.register_component("data_loader", _descriptions())
    options = Config(retries={"total_max_attempts": 1}, tcp_keepalive=True, user_agent_extra="oncegate", **config)
    return session.create_client("sqs", region_name=region, endpoint_url=endpoint, config=options)


@cache
def _descriptions() -> Loader:
    """botocore's descriptions of AWS, which take longer to read than all else: once for all workers of a process."""
    return Loader()


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def said_by(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Message", "")).strip()


def passes(error: ClientError) -> bool:
    """Whether the same request may work a moment later."""
    metadata: dict[str, Any] = error.response.get("ResponseMetadata", {})
    return code_of(error) in _PASSING or int(metadata.get("HTTPStatusCode", 0)) >= _SERVER_FAULT


def is_unaccepted(error: ClientError) -> bool:
    return code_of(error) in _UNACCEPTED
