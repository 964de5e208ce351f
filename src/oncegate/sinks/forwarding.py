"""Post each event to a URL, with the key of the event in the header `Idempotency-Key`.

This module uses httpcore2, the base of httpx2. With httpcore2, Oncegate can choose the address to connect to. httpx2
was rejected: its redirects, cookies and proxies from the environment would have to be switched off.
"""

import json
import re
import ssl
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path as File
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, quote_plus, urlsplit

import httpcore2
from msgspec import Struct

from oncegate import forks
from oncegate.clocks import Clock, wall
from oncegate.durations import Duration, microseconds
from oncegate.errors import Bury, RetryLater, SettingError
from oncegate.events import Event
from oncegate.files import Path, read_file
from oncegate.sinks.base import document
from oncegate.sinks.network import Network, NotAllowed, deadline, parse_pins, tls_context
from oncegate.text import MASK, clean

Headers = list[tuple[bytes, bytes]]

_FAILURES: Final = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError)
_URL: Final = re.compile(r"https?://[\x21-\x7e]+")
_MAX_CONNECTIONS: Final = 1_000
_MAX_IDLE: Final = 32
_IDLE_TIMEOUT: Final = 15.0  # seconds
_MAX_ANSWER_BYTES: Final = 64 * 1024
_KEPT_ANSWER_BYTES: Final = 8 * 1024  # more than 500 characters, so that a secret is masked before the answer is cut
_SHOWN_ANSWER: Final = 500  # characters of an error answer that are stored with the error
_SHOWN_PATH: Final = 200
_SHORTEST_SECRET: Final = 6  # shorter values of headers and parameters are common words and numbers
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

    The text of an error has the address of the receiver without the query, and the first 500 characters of an error
    answer. This text is stored with the event. The part of the text that may be logged has neither the path nor the
    answer: the path may be secret, and the answer may repeat parts of the event.
    """

    kind = "forward"

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
        self._url = httpcore2.URL(url)
        self._host = (b"Host", parts.netloc.encode())  # set here: httpcore2 would omit the brackets of an IPv6 address
        self.name = _origin(parts)
        self._address = f"{self.name}{_shortened(parts.path, _SHOWN_PATH)}"
        self._query = parts.query
        self._timeout = microseconds(timeout, "timeout") / 1e6
        self._headers = ExtraHeaders(headers)
        self._network = Network(allow_private=allow_private, secure=secure, pins=parse_pins(pins))
        self._tls = tls_context(ca, certificate, certificate_key)
        self._clock = clock
        self._pool: httpcore2.ConnectionPool | None = None
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock, self._forget_pool)

    def __call__(self, event: Event) -> None:
        extra = self._headers.read()
        headers = [self._host, *_ALWAYS, *event_headers(event), *extra]
        try:
            with deadline(self._timeout):
                answer = self._post(headers, document(event))
        except NotAllowed as error:
            raise self._retry_later(f"the event was not sent: {error}") from None
        except _FAILURES as error:
            raise self._retry_later(_describe(error)) from None
        self._check(answer, extra)

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _post(self, headers: Headers, body: bytes) -> "_Answer":
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout)
        with self._get_pool().stream(
            "POST", self._url, headers=headers, content=body, extensions={"timeout": timeouts}
        ) as answer:
            start = _drain(answer)
            received = {name.lower(): value for name, value in answer.headers}
            return _Answer(answer.status, start, received.get(b"retry-after"))

    def _check(self, answer: "_Answer", extra: Headers) -> None:
        """Raise Bury or RetryLater unless the status is 2xx."""
        status = answer.status
        if 200 <= status < 300:
            return
        text = _shown_answer(answer.start, _secrets(extra, self._query))
        detail = f"; the answer: {text}" if text else ""
        if status >= 500 or status in _TEMPORARY:
            raise self._retry_later(f"it answered {status}", detail, self._retry_seconds(answer.retry_after))
        if status >= 400:
            problem = f"it answered {status}: the receiver rejects this event; redrive it when this is fixed"
            raise Bury(self._failure(self._address, problem, detail), public=self._failure(self.name, problem))
        raise self._retry_later(f"it answered {status}: redirects are not followed; configure the new address", detail)

    def _retry_later(self, problem: str, detail: str = "", after: float | None = None) -> RetryLater:
        return RetryLater(
            self._failure(self._address, problem, detail), after, public=self._failure(self.name, problem)
        )

    def _failure(self, receiver: str, problem: str, detail: str = "") -> str:
        return f"forward to {receiver} failed: {problem}{detail}"

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

    def _get_pool(self) -> httpcore2.ConnectionPool:
        with self._lock:
            if self._pool is None:
                self._pool = httpcore2.ConnectionPool(
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


class _Answer(Struct, frozen=True):
    """The answer of a receiver: its status, the first bytes of its body, and its Retry-After header."""

    status: int
    start: bytes
    retry_after: bytes | None


def _drain(answer: httpcore2.Response) -> bytes:
    """Read the body of an answer, so that the connection can be reused. Returns the first bytes of the body. If the
    connection breaks while the body is read, the status of the answer is still valid."""
    size, start = 0, b""
    with suppress(*_FAILURES):
        for chunk in answer.iter_stream():
            start += chunk[: _KEPT_ANSWER_BYTES - len(start)]
            size += len(chunk)
            if size > _MAX_ANSWER_BYTES:
                break
    return start


def _shown_answer(start: bytes, secrets: Sequence[str]) -> str:
    """The first characters of an answer, without the secrets that the request has sent."""
    text = start.decode("utf-8", "replace").strip()
    if secrets:
        # Upper and lower case are the same: %2F and %2f encode the same character.
        text = re.sub("|".join(map(re.escape, secrets)), MASK, text, flags=re.IGNORECASE)
    return clean(_shortened(text, _SHOWN_ANSWER))


def _secrets(headers: Headers, query: str) -> list[str]:
    """The values of the configured headers and of the parameters of the URL, in every form in which a receiver may
    repeat them in an error answer, the longest first. The parts of a value, such as the token of `Bearer TOKEN`, are
    secrets too."""
    values = [value.decode() for _, value in headers] + [query, *(value for _, value in parse_qsl(query))]
    values += [parameter.partition("=")[2] for parameter in query.split("&")]  # as sent, not decoded
    parts = {part for value in values for part in (value, *value.split()) if len(part) >= _SHORTEST_SECRET}
    return sorted({form for part in parts for form in _encoded_forms(part)}, key=len, reverse=True)


def _encoded_forms(value: str) -> set[str]:
    """The value as plain text, in a JSON string and in a URL. Some JSON encoders also escape a slash, or the characters
    with a meaning in HTML."""
    in_json = json.dumps(value)[1:-1]
    for_html = "".join(f"\\u{ord(c):04x}" if c in "<>&'" else c for c in in_json)
    in_url = {quote(value), quote(value, safe=""), quote_plus(value)}
    return {value, in_json, in_json.replace("/", "\\/"), for_html} | in_url


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"


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
    """The URL without its path and query, for the log."""
    return f"{parts.scheme}://{parts.netloc}"


def _describe(error: Exception) -> str:
    """Why a request failed, for an error that names the receiver."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            reason = (cause.reason or "no reason given").lower().replace("_", " ")
            return f"the TLS handshake failed: {reason}"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpcore2.TimeoutException):
        return "it did not answer in time"
    if isinstance(error, httpcore2.ConnectError):
        origin = error.args[0] if error.args else None
        # strerror, and not str(), because it does not contain the error number.
        return f"it cannot be reached: {(origin.strerror if isinstance(origin, OSError) else None) or error}"
    return "it closed the connection, or did not answer in HTTP"


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
            raise RetryLater(f"forward failed: {error}", public=True) from None

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
