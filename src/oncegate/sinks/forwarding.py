"""Post each event to a URL, with the key of the event in the header `Idempotency-Key`.

This module uses httpcore, the base of httpx. With httpcore, Oncegate can choose the address to connect to. httpx was
rejected: its redirects, cookies and proxies from the environment would have to be switched off.
"""

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
from oncegate.files import Path, read_file
from oncegate.sinks.base import document
from oncegate.sinks.network import Network, NotAllowed, deadline, parse_pins, tls_context

Headers = list[tuple[bytes, bytes]]

_FAILURES: Final = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError)
_URL: Final = re.compile(r"https?://[\x21-\x7e]+")
_MAX_CONNECTIONS: Final = 1_000
_MAX_IDLE: Final = 32
_IDLE_TIMEOUT: Final = 15.0  # seconds
_MAX_ANSWER_BYTES: Final = 64 * 1024
_MAX_RETRY_AFTER: Final = 3_600  # seconds
# 4xx codes after which the event is retried, because the event itself is not wrong: Request Timeout, Conflict (another
# request with the same key is in progress), Too Early, Too Many Requests.
_TEMPORARY: Final = frozenset({408, 409, 425, 429})
_ALWAYS: Final = [(b"Content-Type", b"application/json"), (b"User-Agent", b"oncegate")]

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# A value is a single line, so that a value cannot end its header and begin another header.
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
# Headers that decide how the request is framed or routed, and headers that describe the event. Oncegate sets them.
_RESERVED: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "expect", "host", "idempotency-key"}
    | {"keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"}
)


class Forward:
    """A handler that posts the JSON of each event, as the JSON was received, to a URL. Thread-safe.

    - `timeout`: the maximum time for the whole request.
    - `headers`: additional headers, or the path of a file with one header on each line.
    - `hosts`: the only hosts that the URL may name. `*.example.com` allows every name below example.com.
    - `allow_private`: allow private and loopback addresses. An http:// URL needs this option.
    - `pins`: SHA-256 hashes of public keys (SPKI). The certificate of the receiver must have one of these keys.
    - `ca`: a file of certificate authorities. They are trusted instead of the authorities of the system.
    - `certificate` and `certificate_key`: the files with the client certificate and its private key.

    A receiver's certificate is always rejected if no trusted authority has signed it, or if it is for another name.
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
        parts = _split_url(url)
        _check_host(parts, hosts)
        secure = parts.scheme == "https"
        if not secure and (not allow_private or pins or certificate):
            raise SettingError(
                f"{_origin(parts)} is not encrypted; use https://, or allow_private for a receiver in your own network",
                settings=["allow_private"],
            )
        self._url = httpcore.URL(url)
        self._host = (b"Host", parts.netloc.encode())  # set here: httpcore would omit the brackets of an IPv6 address
        self.name = _origin(parts)
        self._timeout = microseconds(timeout, "timeout") / 1e6
        self._headers = ExtraHeaders(headers)
        self._network = Network(allow_private=allow_private, secure=secure, pins=parse_pins(pins))
        self._tls = tls_context(ca, certificate, certificate_key)
        self._clock = clock
        self._pool: httpcore.ConnectionPool | None = None
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock, self._forget_pool)

    def __call__(self, event: Event) -> None:
        headers = [self._host, *_ALWAYS, *event_headers(event), *self._headers.read()]
        try:
            with deadline(self._timeout):
                status, retry_after = self._post(headers, document(event))
        except NotAllowed as error:
            raise RetryLater(f"the event was not sent to {self.name}: {error}", public=True) from None
        except _FAILURES as error:
            raise RetryLater(f"{self.name} {_describe(error)}", public=True) from None
        self._check(status, retry_after)

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _post(self, headers: Headers, body: bytes) -> tuple[int, bytes | None]:
        """Post one event. Returns the status and the Retry-After header of the answer."""
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout)
        with self._get_pool().stream(
            "POST", self._url, headers=headers, content=body, extensions={"timeout": timeouts}
        ) as answer:
            _drain(answer)
            received = {name.lower(): value for name, value in answer.headers}
            return answer.status, received.get(b"retry-after")

    def _check(self, status: int, retry_after: bytes | None) -> None:
        """Raise Bury or RetryLater unless the status is 2xx."""
        if 200 <= status < 300:
            return
        answered = f"{self.name} answered {status}"
        if status >= 500 or status in _TEMPORARY:
            raise RetryLater(answered, self._retry_seconds(retry_after), public=True)
        if status >= 400:
            raise Bury(f"{answered}: the receiver rejects this event; redrive it when this is fixed", public=True)
        raise RetryLater(f"{answered}: redirects are not followed; configure the new address", public=True)

    def _retry_seconds(self, retry_after: bytes | None) -> float | None:
        """The value of Retry-After in seconds, at most an hour. The header has a number or a date; None if it has
        neither."""
        text = (retry_after or b"").decode("latin-1").strip()
        if re.fullmatch(r"[0-9]{1,9}", text):
            return min(float(text), _MAX_RETRY_AFTER)
        try:
            when = parsedate_to_datetime(text)
        except ValueError:
            return None
        now = datetime.fromtimestamp(self._clock() / 1e6, UTC)
        left = ((when if when.tzinfo else when.replace(tzinfo=UTC)) - now).total_seconds()
        return min(max(left, 0.0), _MAX_RETRY_AFTER)

    def _get_pool(self) -> httpcore.ConnectionPool:
        with self._lock:
            if self._pool is None:
                self._pool = httpcore.ConnectionPool(
                    ssl_context=self._tls,
                    max_connections=_MAX_CONNECTIONS,
                    max_keepalive_connections=_MAX_IDLE,
                    keepalive_expiry=_IDLE_TIMEOUT,
                    network_backend=self._network,
                )
            return self._pool

    def _forget_pool(self) -> None:
        """Called in a forked child. Drops the pool: if two processes used one connection, each could read the answers
        of the other."""
        self._pool = None


def _drain(answer: httpcore.Response) -> None:
    """Read the body of an answer, so that the connection can be reused. The body is dropped, because it may repeat
    parts of the event. If the connection breaks while the body is read, the status of the answer is still valid."""
    size = 0
    with suppress(*_FAILURES):
        for chunk in answer.iter_stream():
            size += len(chunk)
            if size > _MAX_ANSWER_BYTES:
                return


def _split_url(url: str) -> SplitResult:
    """Split a URL and check it. Error messages do not contain the URL, because its path may be secret."""
    if not isinstance(url, str) or not _URL.fullmatch(url):
        raise SettingError("invalid URL to forward to; use https://, ASCII and no spaces: https://crm.example/events")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise SettingError("invalid URL to forward to; check its host and its port") from None
    if not host or parts.fragment:
        raise SettingError("invalid URL to forward to; it needs a host and must have no #fragment")
    if "@" in parts.netloc:
        raise SettingError("the URL to forward to must not contain a password; send it in a header, from a file")
    return parts


def _check_host(parts: SplitResult, hosts: Sequence[str]) -> None:
    host = parts.hostname or ""
    allowed = [name.lower().rstrip(".") for name in hosts]
    is_below = any(name.startswith("*.") and host.endswith(name[1:]) for name in allowed)
    if allowed and host not in allowed and not is_below:
        raise SettingError(f"the host {host} is not among the allowed hosts ({', '.join(hosts)})")


def _origin(parts: SplitResult) -> str:
    """The URL for messages, without its path and query, because these may be secret."""
    return f"{parts.scheme}://{parts.netloc}"


def _describe(error: Exception) -> str:
    """Why a request failed, as the end of a sentence that starts with the name of the receiver."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"has a certificate that is not trusted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            reason = (cause.reason or "no reason given").lower().replace("_", " ")
            return f"failed the TLS handshake: {reason}"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpcore.TimeoutException):
        return "did not answer in time"
    if isinstance(error, httpcore.ConnectError):
        origin = error.args[0] if error.args else None
        # strerror, and not str(), because it does not contain the error number.
        return f"cannot be reached: {(origin.strerror if isinstance(origin, OSError) else None) or error}"
    return "closed the connection, or did not answer in HTTP"


# ── headers ───────────────────────────────────────────────────────────────────────────────────────────────


class ExtraHeaders:
    """Headers that the operator has configured, such as `Authorization`. They are a mapping, or the path of a file with
    one header on each line. The file is read again for each event, so that a secret can be changed without a
    restart."""

    def __init__(self, headers: Mapping[str, str] | Path | None) -> None:
        self._file = None if headers is None or isinstance(headers, Mapping) else File(headers)
        self._fixed = encode_headers(headers) if isinstance(headers, Mapping) else []
        if self._file is not None:
            self._read_file(self._file)

    def read(self) -> Headers:
        if self._file is None:
            return self._fixed
        try:
            return self._read_file(self._file)
        except SettingError as error:
            raise RetryLater(str(error), public=True) from None

    def _read_file(self, file: File) -> Headers:
        try:
            lines = read_file(file).decode("ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise SettingError(f"the headers in {file} cannot be read: {reason}") from None
        written = [line for line in lines if line.strip()]
        if any(":" not in line for line in written):
            raise SettingError(f"each line of {file} must be a header in the form Name: value")
        pairs = (line.split(":", 1) for line in written)
        return encode_headers({name.strip(): value.strip() for name, value in pairs}, f" in {file}")


def encode_headers(headers: Mapping[str, str], where: str = "") -> Headers:
    """The headers as bytes. Raises SettingError for an invalid header. The error does not contain the value of the
    header, because the value may be secret."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise SettingError(f"{name!r}{where} is not a valid header name")
        if name.lower() in _RESERVED or name.lower().startswith("oncegate-"):
            raise SettingError(f"Oncegate sets the header {name}{where} itself; remove it")
        if not _VALUE.fullmatch(value):
            raise SettingError(f"the header {name}{where} must be printable ASCII on one line; its value is not shown")
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def event_headers(event: Event) -> Headers:
    """The headers that describe the event. A header is left out if its value is not valid in HTTP."""
    values = {
        "Idempotency-Key": None if event.key is None else str(event.key),
        "Oncegate-Source": event.source,
        "Oncegate-Type": event.type,
        "Oncegate-Attempt": str(event.attempt),
    }
    return [(name.encode(), value.encode()) for name, value in values.items() if value and _VALUE.fullmatch(value)]
