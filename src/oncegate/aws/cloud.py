"""Requests to several services of AWS in one region, for people at a command line: every failure is one sentence."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from botocore.exceptions import ClientError
from msgspec import Struct

from oncegate.aws.clients import api_action, create_client
from oncegate.aws.failures import FAILURES, ErrorHints, FailureKind, classify, message_of
from oncegate.errors import AwsError

_WORDS: Final = ErrorHints("AWS", "write --region eu-central-1", "ask for that right, or use another AWS_PROFILE")
_TOKENS: Final = {"lambda": ("Marker", "NextMarker")}
_NEXT: Final = ("NextToken", "NextToken")
_PATIENCE: Final = 120.0
_LOOK_EVERY: Final = 0.5


class Missing(AwsError):
    """There is no such thing."""


class Denied(AwsError):
    """It is not allowed to ask for this."""


class Unanswered(AwsError):
    """Nothing can be asked: there are no credentials that are accepted, no region, or no network."""


_ERRORS: Final[dict[FailureKind, type[AwsError]]] = {
    "transient": Unanswered,
    "not_sent": Unanswered,
    "not_aws": Unanswered,
    "denied": Denied,
}


class Identity(Struct, frozen=True):
    """Who asks, and where."""

    arn: str
    account: str
    region: str

    @property
    def partition(self) -> str:
        return self.arn.split(":")[1]


class Cloud:
    """`waiting` is told what is waited for, since some things take AWS a minute."""

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
        """The answer; Missing if what it is about is not there, else AwsError."""
        try:
            answer: dict[str, Any] = getattr(self._client(service), action)(**parameters)
        except FAILURES as error:
            raise self._explained(error, f"{service}:{api_action(action)}") from error
        return answer

    def find(self, service: str, action: str, **parameters: Any) -> dict[str, Any] | None:
        """The answer, or None if what it is about is not there."""
        try:
            return self.call(service, action, **parameters)
        except Missing:
            return None

    def list_all(self, service: str, action: str, member: str, **parameters: Any) -> Iterator[Any]:
        """What a request lists under a member, page after page."""
        given, told = _TOKENS.get(service, _NEXT)
        while True:
            answer = self.call(service, action, **parameters)
            yield from answer.get(member, [])
            if not answer.get(told):
                return
            parameters[given] = answer[told]

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait for what AWS has said it will do."""
        deadline = time.monotonic() + _PATIENCE
        while not ready():
            if time.monotonic() > deadline:
                raise AwsError(f"{what} was not ready after {_PATIENCE:.0f} s; try again later")
            self.on_wait(what)
            time.sleep(_LOOK_EVERY)

    def identity(self) -> Identity:
        region = self.region
        answer = self.call("sts", "get_caller_identity")
        return Identity(answer["Arn"], answer["Account"], region)

    @property
    def region(self) -> str:
        """The region that is asked. STS would do without one, so it is not the one to tell."""
        try:
            return str(self._client("sqs").meta.region_name)
        except FAILURES as error:
            raise self._explained(error, "") from error

    def close(self) -> None:
        for each in self._clients.values():
            each.close()
        self._clients.clear()

    # ── clients, and what their errors mean ───────────────────────────────────────────────────────────────

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

    def _explained(self, error: Exception, action: str) -> AwsError:
        found = classify(error, self._place, action, _WORDS)
        if found.kind == "missing" and isinstance(error, ClientError):
            return Missing(
                f"{self._place} has no such thing ({action}: {message_of(error)}); check its name and region"
            )
        if found.kind == "transient" and isinstance(error, ClientError):
            return AwsError(found.message)
        return _ERRORS.get(found.kind, AwsError)(found.message)
