"""Targets: a file, an address of HTTP, a queue, a bus. Each is a URL."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from oncegate.errors import MissingExtra, SettingError, TargetError
from oncegate.simulate.sender import Accepted, Answer, Rejected, Retry, Target
from oncegate.simulate.traffic import PlannedDelivery
from oncegate.text import masked, quoted

STDOUT: Final = "-"
_SCHEMES: Final = "eventbridge://BUS, sqs://QUEUE, http://…/events, file://PATH or - (stdout)"
_OK: Final = range(200, 300)
_TRY_AGAIN: Final = (408, 425, 429)
_SERVER_FAULT: Final = 500
_PATIENCE: Final = 35.0  # longer than a service takes that gives a handler 30 seconds


def open_target(url: str, parallel: int = 1) -> Target:
    """The target that a URL names. It is asked for nothing yet but whether it is there."""
    scheme, colon, rest = url.partition("://")
    if not _can_be_meant(url):
        raise SettingError(f"{quoted(url)} is no URL; to send to, there are {_SCHEMES}")
    if url == STDOUT or (scheme == "file" and colon and rest):
        return File(STDOUT if url == STDOUT else rest)
    if scheme in ("http", "https") and urlsplit(url).hostname:
        return Http(url, parallel)
    if scheme in ("sqs", "eventbridge") and colon:
        return _of_aws(scheme, url, parallel)
    raise SettingError(f"{quoted(url)} is nowhere to send to; it is one of {_SCHEMES}")


def _can_be_meant(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return url.startswith("file://")


def is_bus(url: str) -> bool:
    return url.startswith("eventbridge://")


def goes_to_stdout(url: str) -> bool:
    return url in (STDOUT, f"file://{STDOUT}")


def _of_aws(scheme: str, url: str, parallel: int) -> Target:
    try:
        from oncegate.simulate.aws import EventBridgeTarget, SqsTarget
    except ImportError as error:
        raise MissingExtra(f"{scheme}:// (no {error.name} here)", "aws") from error
    return SqsTarget(url, parallel) if scheme == "sqs" else EventBridgeTarget(url, parallel)


class File:
    """One line for each delivery."""

    most = 1
    paced = False

    def __init__(self, path: str) -> None:
        self._path = path
        with self._told():
            self._stream: BinaryIO = sys.stdout.buffer if path == STDOUT else open(path, "wb")  # noqa: SIM115  # see close

    def send(self, batch: Sequence[PlannedDelivery]) -> list[Answer]:
        with self._told():
            for delivery in batch:
                self._stream.write(delivery.copy.raw + b"\n")
        return [Accepted()] * len(batch)

    def close(self) -> None:
        with self._told():
            if self._stream is sys.stdout.buffer:
                self._stream.flush()
            else:
                self._stream.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            place = "to stdout" if self._path == STDOUT else self._path
            raise TargetError(f"cannot write {place}: {error.strerror or error}") from error


class Http:
    """A POST for each delivery, as a webhook's sender or an EventBridge API destination makes it."""

    most = 1
    paced = True

    def __init__(self, url: str, parallel: int = 1) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra(f"http:// (no {error.name} here)", "serve") from error
        self._httpx: Any = httpx
        self._url = url
        self._answered = False
        limits = self._httpx.Limits(max_connections=parallel)
        headers = {"content-type": "application/json", "user-agent": "oncegate-simulate"}
        self._client = self._httpx.Client(timeout=_PATIENCE, limits=limits, headers=headers, trust_env=False)

    def send(self, batch: Sequence[PlannedDelivery]) -> list[Answer]:
        return [self._posted(delivery.copy.raw) for delivery in batch]

    def _posted(self, raw: bytes) -> Answer:
        try:
            response = self._client.post(self._url, content=raw)
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
            if not self._answered:
                place = masked(self._url, wholly=True)
                raise TargetError(
                    f"{place} cannot be reached ({error}); is it running, and is that its address?"
                ) from error
            return Retry(f"no answer ({type(error).__name__})")
        self._answered = True
        return _meaning(response)

    def close(self) -> None:
        self._client.close()


def _meaning(response: Any) -> Answer:
    code = response.status_code
    if code in _OK:
        return Accepted()
    if code in _TRY_AGAIN or code >= _SERVER_FAULT:
        return Retry(f"HTTP {code}", _retry_after(response.headers.get("retry-after")))
    return Rejected(f"HTTP {code}")


def _retry_after(said: str | None) -> float | None:
    """Seconds, or the time at which to come again; None for what is neither."""
    if said is None:
        return None
    if said.isascii() and said.isdecimal():
        return float(said)
    try:
        return max(0.0, (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
