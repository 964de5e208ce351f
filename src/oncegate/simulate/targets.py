"""The targets of simulated traffic, by URL: a file, stdout, an HTTP address, a queue or a bus."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

import msgspec

from oncegate.errors import MissingExtra, SettingError, TargetError
from oncegate.simulate.sender import Accepted, Answer, Rejected, Retry, Target
from oncegate.simulate.traffic import PlannedDelivery
from oncegate.text import masked, quoted

STDOUT: Final = "-"
_SCHEMES: Final = "eventbridge://BUS, sqs://QUEUE, http://…/events, file://PATH or - (stdout)"
_OK: Final = range(200, 300)
_RETRYABLE: Final = (408, 425, 429)
_SERVER_ERROR: Final = 500
_LONGEST_DETAIL: Final = 500  # characters
_TIMEOUT: Final = 35.0  # seconds; longer than the 30 s that a service may give to a handler


def open_target(url: str, parallel: int = 1) -> Target:
    """Open the target at a URL. Nothing is sent yet, but for an AWS target this checks that the target exists."""
    scheme, colon, rest = url.partition("://")
    if not _is_url(url):
        raise SettingError(f"invalid target URL {quoted(url)}; use {_SCHEMES}")
    if url == STDOUT or (scheme == "file" and colon and rest):
        return File(STDOUT if url == STDOUT else rest)
    if scheme in ("http", "https") and urlsplit(url).hostname:
        return Http(url, parallel)
    if scheme in ("sqs", "eventbridge") and colon:
        return _aws_target(scheme, url, parallel)
    raise SettingError(f"unknown target {quoted(url)}; use {_SCHEMES}")


def _is_url(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return url.startswith("file://")


def is_bus(url: str) -> bool:
    return url.startswith("eventbridge://")


def goes_to_stdout(url: str) -> bool:
    return url in (STDOUT, f"file://{STDOUT}")


def _aws_target(scheme: str, url: str, parallel: int) -> Target:
    try:
        from oncegate.simulate.aws import EventBridgeTarget, SqsTarget
    except ImportError as error:
        raise MissingExtra(f"{scheme}:// ({error.name} is not installed)", "aws") from error
    return SqsTarget(url, parallel) if scheme == "sqs" else EventBridgeTarget(url, parallel)


class File:
    """Writes one line for each delivery."""

    most = 1
    paced = False

    def __init__(self, path: str) -> None:
        self._path = path
        with self._explain_errors():
            self._stream: BinaryIO = sys.stdout.buffer if path == STDOUT else open(path, "wb")  # noqa: SIM115  # see close

    def send(self, batch: Sequence[PlannedDelivery]) -> list[Answer]:
        with self._explain_errors():
            for delivery in batch:
                self._stream.write(_on_one_line(delivery.copy.raw) + b"\n")
        return [Accepted()] * len(batch)

    def close(self) -> None:
        with self._explain_errors():
            if self._stream is sys.stdout.buffer:
                self._stream.flush()
            else:
                self._stream.close()

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise SettingError(f"cannot write {self._path}: no file can have this name") from error
        except OSError as error:
            place = "to stdout" if self._path == STDOUT else self._path
            raise TargetError(f"cannot write {place}: {error.strerror or error}") from error


def _on_one_line(raw: bytes) -> bytes:
    """A document without line breaks. Only a recorded document has line breaks."""
    if b"\n" not in raw:
        return raw
    try:
        return msgspec.json.format(raw, indent=-1)
    except msgspec.MsgspecError:  # not JSON: a reader of the file refuses the document, too
        return b" ".join(raw.split())


class Http:
    """Sends one POST request for each delivery, like a webhook sender or an EventBridge API destination."""

    most = 1
    paced = True

    def __init__(self, url: str, parallel: int = 1) -> None:
        try:
            import httpx2
        except ImportError as error:
            raise MissingExtra(f"http:// ({error.name} is not installed)", "serve") from error
        self._httpx: Any = httpx2
        self._url = url
        self._answered = False
        limits = self._httpx.Limits(max_connections=parallel)
        headers = {"content-type": "application/json", "user-agent": "oncegate-simulate"}
        verify = not url.startswith("http://")  # without TLS, no certificate authorities have to be loaded
        self._client = self._httpx.Client(
            timeout=_TIMEOUT, limits=limits, headers=headers, trust_env=False, verify=verify
        )

    def send(self, batch: Sequence[PlannedDelivery]) -> list[Answer]:
        return [self._post(delivery.copy.raw) for delivery in batch]

    def _post(self, raw: bytes) -> Answer:
        try:
            response = self._client.post(self._url, content=raw)
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
            if not self._answered:
                place = masked(self._url, wholly=True)
                raise TargetError(f"cannot reach {place} ({error}); check the address and start the server") from error
            return Retry(f"no answer ({type(error).__name__})")
        self._answered = True
        return _answer_of(response)

    def close(self) -> None:
        self._client.close()


def _answer_of(response: Any) -> Answer:
    code = response.status_code
    if code in _OK:
        return Accepted()
    if code in _RETRYABLE or code >= _SERVER_ERROR:
        return Retry(f"HTTP {code}", _retry_after(response.headers.get("retry-after")), _detail(response.content))
    return Rejected(f"HTTP {code}", _detail(response.content))


class _Problem(msgspec.Struct):
    """The part of an error response (RFC 9457) that is shown."""

    detail: str


def _detail(body: bytes) -> str | None:
    """The reason in an error response; None if the response has another form."""
    try:
        return msgspec.json.decode(body, type=_Problem).detail[:_LONGEST_DETAIL]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _retry_after(header: str | None) -> float | None:
    """The seconds to wait, from a number or a date; None for any other value."""
    if header is None:
        return None
    if header.isascii() and header.isdecimal():
        return float(header)
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
