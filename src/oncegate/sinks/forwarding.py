"""Forwarding: each event posted to a URL, with its key for the receiver to be idempotent on."""

import re
import ssl
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path as File
from typing import Final
from urllib.parse import SplitResult, urlsplit

import httpcore

from oncegate import forks
from oncegate.clocks import Clock, wall
from oncegate.durations import Duration, microseconds
from oncegate.errors import Bury, RetryLater, SettingError
from oncegate.events import Event
from oncegate.sinks import Path
from oncegate.sinks.documents import document
from oncegate.sinks.network import Network, NotAllowed, context_for, pins_of, within

# Headers for a sink: the operator's own, and no value that could end one and begin another.


Headers = list[tuple[bytes, bytes]]

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
# What says where a request ends or goes, and what is said of the event here.
_OURS: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "expect", "host", "idempotency-key"}
    | {"keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"}
)


class OwnHeaders:
    """Headers that the operator has named, such as `Authorization`: given, or in a file with one on each line. A file
    is read anew for each event, so that a secret can be changed without a restart."""

    def __init__(self, given: Mapping[str, str] | Path | None) -> None:
        self._file = None if given is None or isinstance(given, Mapping) else File(given)
        self._fixed = checked(given) if isinstance(given, Mapping) else []
        if self._file is not None:
            self._read(self._file)

    def now(self) -> Headers:
        if self._file is None:
            return self._fixed
        try:
            return self._read(self._file)
        except SettingError as error:
            raise RetryLater(str(error), public=True) from None

    def _read(self, file: File) -> Headers:
        try:
            lines = file.read_text("ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise SettingError(f"the headers in {file} cannot be read: {why}") from None
        written = [line for line in lines if line.strip()]
        if any(":" not in line for line in written):
            raise SettingError(f"each line of {file} must be a header, written Name: value")
        pairs = (line.split(":", 1) for line in written)
        return checked({name.strip(): value.strip() for name, value in pairs}, f" in {file}")


def checked(headers: Mapping[str, str], where: str = "") -> Headers:
    """The headers as they are sent; SettingError, which does not repeat values, for what could not be meant."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise SettingError(f"{name!r}{where} is no name of a header")
        if name.lower() in _OURS or name.lower().startswith("oncegate-"):
            raise SettingError(f"the header {name}{where} is set by Oncegate itself; leave it out")
        if not _VALUE.fullmatch(value):
            raise SettingError(f"the header {name}{where} must be printable ASCII on one line; its value is not shown")
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def about(event: Event) -> Headers:
    """What is told of the event beside its body. What cannot stand in a header, as its sender wrote it, is left out."""
    told = {
        "Idempotency-Key": None if event.key is None else str(event.key),
        "Oncegate-Source": event.source,
        "Oncegate-Type": event.type,
        "Oncegate-Attempt": str(event.attempt),
    }
    return [(name.encode(), value.encode()) for name, value in told.items() if value and _VALUE.fullmatch(value)]


# Forwarding: each event posted to a URL, with its key for the receiver to be idempotent on.
#
# httpcore, on which httpx stands, is used by itself: it lets the address be chosen that is connected to, and knows no
# redirects, no cookies and no proxies from the environment that would have to be switched off.


_FAILURES: Final = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError)
_URL: Final = re.compile(r"https?://[\x21-\x7e]+")
_CONNECTIONS: Final = 1_000
_IDLE: Final = 32
_IDLE_FOR: Final = 15.0
_LONGEST_ANSWER: Final = 64 * 1024
_LONGEST_WAIT: Final = 3_600
# Answers of 4xx that are not about the event: too slow, the same key is being worked on, too early, too many.
_PASSING: Final = frozenset({408, 409, 425, 429})


class Forward:
    """A handler that posts the event's JSON as it came, from any number of threads.

    `timeout` is for the whole request. `headers` are further ones to send, or the file that has them, one on each line.
    `hosts` are the only ones that the URL may name; `*.example.com` is any below it. `allow_private` lets the
    name lead to private and loopback addresses, and only then may the URL be http://. `pins` are SHA-256 hashes of the
    public keys (SPKI) of which the receiver's certificate must have one. `ca` is a file of authorities to trust in
    place of the system's; `certificate` and `certificate_key` are those of this client. What is signed by nobody
    trusted, or for another name, is refused in any case.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: Duration = "10s",
        headers: Mapping[str, str] | Path | None = None,
        hosts: Sequence[str] = (),
        allow_private: bool = False,
        pins: Sequence[str] = (),
        ca: Path | None = None,
        certificate: Path | None = None,
        certificate_key: Path | None = None,
        clock: Clock = wall,
    ) -> None:
        parts = _parts(url)
        _check_host(parts, hosts)
        secure = parts.scheme == "https"
        if not secure and (not allow_private or pins or certificate):
            raise SettingError(
                f"{_named(parts)} is not encrypted: write https://, or allow_private for a place in your own network",
                settings=["allow_private"],
            )
        self._url = httpcore.URL(url)
        self._host = (b"Host", parts.netloc.encode())  # as it is written: httpcore would leave out the brackets of IPv6
        self.name = _named(parts)
        self._timeout = microseconds(timeout, "timeout") / 1e6
        self._headers = OwnHeaders(headers)
        self._network = Network(allow_private=allow_private, secure=secure, pins=pins_of(pins))
        self._tls = context_for(ca, certificate, certificate_key)
        self._clock = clock
        self._pool: httpcore.ConnectionPool | None = None
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock, self._forget)

    def __call__(self, event: Event) -> None:
        headers = [self._host, *_ALWAYS, *about(event), *self._headers.now()]
        try:
            with within(self._timeout):
                status, retry_after = self._posted(headers, document(event))
        except NotAllowed as error:
            raise RetryLater(f"{self.name} was not sent to: {error}", public=True) from None
        except _FAILURES as error:
            raise RetryLater(f"{self.name} {_trouble(error)}", public=True) from None
        self._judge(status, retry_after)

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _posted(self, headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[int, bytes | None]:
        """The status of the answer, and when to come again."""
        steps = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout)
        with self._open().stream(
            "POST", self._url, headers=headers, content=body, extensions={"timeout": steps}
        ) as answer:
            _drain(answer)
            said = {name.lower(): value for name, value in answer.headers}
            return answer.status, said.get(b"retry-after")

    def _judge(self, status: int, retry_after: bytes | None) -> None:
        if 200 <= status < 300:
            return
        answered = f"{self.name} answered {status}"
        if status >= 500 or status in _PASSING:
            raise RetryLater(answered, self._wait(retry_after), public=True)
        if status >= 400:
            raise Bury(f"{answered}: it does not take this event; redrive it when that is mended", public=True)
        raise RetryLater(f"{answered}: redirects are not followed; write the address that it has now", public=True)

    def _wait(self, said: bytes | None) -> float | None:
        """How long to wait: what `Retry-After` says in seconds or as a date, at most an hour."""
        text = (said or b"").decode("latin-1").strip()
        if re.fullmatch(r"[0-9]{1,9}", text):
            return min(float(text), _LONGEST_WAIT)
        try:
            when = parsedate_to_datetime(text)
        except ValueError:
            return None
        now = datetime.fromtimestamp(self._clock() / 1e6, UTC)
        left = ((when if when.tzinfo else when.replace(tzinfo=UTC)) - now).total_seconds()
        return min(max(left, 0.0), _LONGEST_WAIT)

    def _open(self) -> httpcore.ConnectionPool:
        with self._lock:
            if self._pool is None:
                self._pool = httpcore.ConnectionPool(
                    ssl_context=self._tls,
                    max_connections=_CONNECTIONS,
                    max_keepalive_connections=_IDLE,
                    keepalive_expiry=_IDLE_FOR,
                    network_backend=self._network,
                )
            return self._pool

    def _forget(self) -> None:
        """In a forked child: two processes on one connection would read each other's answers."""
        self._pool = None


_ALWAYS: Final = [(b"Content-Type", b"application/json"), (b"User-Agent", b"oncegate")]


def _drain(answer: httpcore.Response) -> None:
    """What an answer says beside its status is read only to use the connection again, and told to nobody, as it may
    repeat what it was sent. That it breaks off does not take back what the status has said."""
    size = 0
    with suppress(*_FAILURES):
        for chunk in answer.iter_stream():
            size += len(chunk)
            if size > _LONGEST_ANSWER:
                return


def _parts(url: str) -> SplitResult:
    """A URL that can be meant. Errors do not repeat it, since a path may be as secret as a password."""
    if not isinstance(url, str) or not _URL.fullmatch(url):
        raise SettingError(
            "an event is forwarded to a URL such as https://crm.example/events, in ASCII, without blanks"
        )
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise SettingError("the URL to forward to cannot be read: its host or its port is not written as one") from None
    if not host or parts.fragment:
        raise SettingError("the URL to forward to needs a host, and has no use for a #fragment")
    if "@" in parts.netloc:
        raise SettingError("the URL to forward to must not hold a password; send it in a header, from a file")
    return parts


def _check_host(parts: SplitResult, hosts: Sequence[str]) -> None:
    host = parts.hostname or ""
    allowed = [name.lower().rstrip(".") for name in hosts]
    below = any(name.startswith("*.") and host.endswith(name[1:]) for name in allowed)
    if allowed and host not in allowed and not below:
        raise SettingError(f"the host {host} is none of those that may be forwarded to ({', '.join(hosts)})")


def _named(parts: SplitResult) -> str:
    """The sink in a sentence: without the path and the query, which may be secret."""
    return f"{parts.scheme}://{parts.netloc}"


def _trouble(error: Exception) -> str:
    """What a connection has come to, in words."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"shows a certificate that is not trusted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"does not agree on TLS: {(cause.reason or 'no reason given').lower().replace('_', ' ')}"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpcore.TimeoutException):
        return "did not answer in time"
    if isinstance(error, httpcore.ConnectError):
        return f"cannot be reached: {_plain(error)}"
    return "broke off, or did not answer in HTTP"


def _plain(error: Exception) -> str:
    """Why there is no connection, without the number of the error."""
    cause = error.args[0] if error.args else None
    return (cause.strerror if isinstance(cause, OSError) else None) or str(error)
