"""Send requests to AWS services in one region, for command-line tools. Every failure is an AwsError with one line."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from botocore.exceptions import ClientError
from msgspec import Struct

from oncegate.aws.clients import api_action, create_client
from oncegate.aws.failures import FAILURES, ErrorHints, FailureKind, classify, message_of
from oncegate.backoff import wait_until
from oncegate.errors import AwsError

_HINTS: Final = ErrorHints("AWS", "write --region eu-central-1", "ask for that permission, or use another AWS_PROFILE")
# The names of the page token in a request and in its response.
_PAGE_TOKENS: Final = {"lambda": ("Marker", "NextMarker")}
_DEFAULT_PAGE_TOKENS: Final = ("NextToken", "NextToken")


class Missing(AwsError):
    """The resource does not exist."""


class Denied(AwsError):
    """The caller lacks the permission for this request."""


class Unanswered(AwsError):
    """No request can succeed: the credentials or the region are missing or not accepted, or AWS cannot be reached."""


_ERRORS: Final[dict[FailureKind, type[AwsError]]] = {
    "transient": Unanswered,
    "not_sent": Unanswered,
    "not_aws": Unanswered,
    "denied": Denied,
}


class Identity(Struct, frozen=True):
    """The AWS identity of the caller, and the region of the requests."""

    arn: str
    account: str
    region: str

    @property
    def partition(self) -> str:
        return self.arn.split(":")[1]


class Cloud:
    """Sends requests to AWS services in one region.

    While `wait_until` waits, it calls `on_wait` with the name of the awaited thing. The caller can show this name,
    because some operations of AWS take a minute."""

    def __init__(
        self,
        region: str | None = None,
        endpoint: str | None = None,
        on_wait: Callable[[str], None] = lambda _what: None,
    ) -> None:
        self.endpoint = endpoint
        self.on_wait = on_wait
        self._region = region
        self._clients: dict[str, Any] = {}

    def call(self, service: str, action: str, **parameters: Any) -> dict[str, Any]:
        """Send a request and return the response. Raises Missing if the resource does not exist, and AwsError for any
        other failure."""
        try:
            response: dict[str, Any] = getattr(self._client(service), action)(**parameters)
        except FAILURES as error:
            raise self._error_for(error, f"{service}:{api_action(action)}") from error
        return response

    def find(self, service: str, action: str, **parameters: Any) -> dict[str, Any] | None:
        """Send a request and return the response, or None if the resource does not exist."""
        try:
            return self.call(service, action, **parameters)
        except Missing:
            return None

    def list_all(self, service: str, action: str, member: str, **parameters: Any) -> Iterator[Any]:
        """Request all pages of a list, and yield the items in the member `member` of each page."""
        request_token, response_token = _PAGE_TOKENS.get(service, _DEFAULT_PAGE_TOKENS)
        while True:
            response = self.call(service, action, **parameters)
            yield from response.get(member, [])
            if not response.get(response_token):
                return
            parameters[request_token] = response[response_token]

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Call `ready` repeatedly until it returns true. Raises AwsError after two minutes."""
        wait_until(ready, what, self.on_wait, AwsError)

    def identity(self) -> Identity:
        region = self.region
        response = self.call("sts", "get_caller_identity")
        return Identity(response["Arn"], response["Account"], region)

    @property
    def region(self) -> str:
        """The region of the requests. It is read from a client for SQS, because a client for STS needs no region."""
        try:
            return str(self._client("sqs").meta.region_name)
        except FAILURES as error:
            raise self._error_for(error, "") from error

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = create_client(
                service, self._region, self.endpoint, self._place, attempts=3, connect_timeout=5, read_timeout=30
            )
        return self._clients[service]

    @property
    def _place(self) -> str:
        if self.endpoint:
            return f"AWS at {self.endpoint}"
        return f"AWS in {self._region}" if self._region else "AWS"

    def _error_for(self, error: Exception, action: str) -> AwsError:
        failure = classify(error, self._place, action, _HINTS)
        if failure.kind == "missing" and isinstance(error, ClientError):
            return Missing(
                f"no such resource in {self._place} ({action}: {message_of(error)}); check its name and region"
            )
        if failure.kind == "transient" and isinstance(error, ClientError):
            return AwsError(failure.message)
        return _ERRORS.get(failure.kind, AwsError)(failure.message)
