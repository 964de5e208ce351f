"""Connect to receivers of forwarded events: always verified TLS 1.2 or newer, optional pins, and address checks.

The host name of a receiver is resolved once for each connection. The resulting addresses are checked, and the
connection is made to one of these addresses. If the name were resolved a second time after the check, it could resolve
to another address, inside the private network.
"""

import base64
import binascii
import hashlib
import ipaddress
import socket
import ssl
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

from httpcore2 import (
    SOCKET_OPTION,
    ConnectError,
    ConnectTimeout,
    NetworkBackend,
    NetworkStream,
    ReadTimeout,
    SyncBackend,
    WriteTimeout,
)

from oncegate.errors import SettingError
from oncegate.files import Path, check_file

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_PIN_PREFIX: Final = "sha256//"
_VERSION_TAG: Final = 0xA0  # DER
_LONG_LENGTH: Final = 0x80  # DER


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────────────


def tls_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """A context for connections with TLS 1.2 or newer. If `ca` is given, no other authority is trusted."""
    try:
        if ca is not None:
            check_file(ca)
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"the CA certificates in {ca} cannot be used: {_reason(error)}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        try:
            for file in (certificate, key or certificate):
                check_file(file)
            context.load_cert_chain(certificate, key, password=_reject_passphrase)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise SettingError(f"the client certificate in {certificate} cannot be used: {_reason(error)}") from None
    elif key is not None:
        raise SettingError("certificate_key needs certificate: set both")
    return context


def _reject_passphrase() -> bytes:
    """OpenSSL calls this function for an encrypted key. Without it, OpenSSL would ask for the passphrase on the
    terminal."""
    raise ValueError("its key has a passphrase; store the key without one, readable by the service only")


def _reason(error: Exception) -> str:
    """The text of the error, without OpenSSL's error numbers."""
    if isinstance(error, ssl.SSLError):
        reasons = {"KEY_VALUES_MISMATCH": "the key belongs to another certificate"}
        return reasons.get(error.reason or "", "it is not a valid PEM file")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# ── pins ──────────────────────────────────────────────────────────────────────────────────────────────────


def parse_pins(texts: Sequence[str]) -> frozenset[bytes]:
    """Parse pins. A pin is written in curl's form, sha256//BASE64, or as 64 hexadecimal digits."""
    return frozenset(map(_parse_pin, texts))


def _parse_pin(text: str) -> bytes:
    digits = text.strip().removeprefix(_PIN_PREFIX)
    try:
        pin = bytes.fromhex(digits) if len(digits) == 64 else base64.b64decode(digits, validate=True)
    except (ValueError, binascii.Error):
        pin = b""
    if len(pin) != hashlib.sha256().digest_size:
        raise SettingError(
            f"the pin {text!r} is not the SHA-256 of a public key; use curl's form, {_PIN_PREFIX}…, or 64 hexadecimal"
            " digits"
        )
    return pin


def format_pin(pin: bytes) -> str:
    return _PIN_PREFIX + base64.b64encode(pin).decode()


def pin_of(certificate: bytes) -> bytes:
    """The SHA-256 of the public key of a certificate. A renewed certificate with the same key has the same pin."""
    return hashlib.sha256(public_key_of(certificate)).digest()


def public_key_of(certificate: bytes) -> bytes:
    """The SubjectPublicKeyInfo of a certificate in DER. In a certificate, this member follows the optional version, the
    serial number, the algorithm, the issuer, the validity and the subject (RFC 5280, 4.1)."""
    signed, _ = _member(certificate, 0)
    at, _ = _member(certificate, signed)
    for _ in range(6 if certificate[at] == _VERSION_TAG else 5):
        _, at = _member(certificate, at)
    return certificate[at : _member(certificate, at)[1]]


def _member(der: bytes, at: int) -> tuple[int, int]:
    """The start and the end of the content of the DER member that begins at position `at`."""
    length, begin = der[at + 1], at + 2
    if length & _LONG_LENGTH:
        size = length ^ _LONG_LENGTH
        length, begin = int.from_bytes(der[begin : begin + size]), begin + size
    return begin, begin + length


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────────────

# Every IPv4 range that IANA lists as special. Globally reachable special ranges are included, because no webhook
# receiver has an address in them. Python's `is_global` was rejected, because it changes from version to version.
_SPECIAL: Final = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
        ),
    )
)
# An IPv6 address is public if it is in _PUBLIC_6 and not in a range of _SPECIAL_6. All other IPv6 addresses are
# private, special or unassigned.
_PUBLIC_6: Final = ipaddress.IPv6Network("2000::/3")
_SPECIAL_6: Final = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20")))
# A NAT64 translator maps these IPv6 addresses to IPv4 addresses, and the IPv4 address is checked. The local-use prefix
# 64:ff9b:1::/48 is not included, because Oncegate cannot know its mapping.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")


class NotAllowed(Exception):
    """A connection to this address, or to a receiver with this certificate, is not allowed. The text of the exception
    says why."""


def is_private(address: Address) -> bool:
    """Whether an address is not on the public Internet: private, loopback, link-local, reserved or special."""
    target = _target(address)
    if isinstance(target, ipaddress.IPv4Address):
        return any(target in network for network in _SPECIAL)
    return target not in _PUBLIC_6 or any(target in network for network in _SPECIAL_6)


def is_not_unicast(address: Address) -> bool:
    """Whether an address does not belong to a single host: multicast, unspecified or broadcast."""
    target = _target(address)
    return target.is_multicast or target.is_unspecified or target == _BROADCAST


def _target(address: Address) -> Address:
    """The IPv4 address that is embedded in an IPv6 address; the address itself if there is none."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address


# ── connections ───────────────────────────────────────────────────────────────────────────────────────────

_NEVER: Final = float("inf")
_deadline: ContextVar[float] = ContextVar("oncegate_sink_deadline", default=_NEVER)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Limit the total time of all network operations in this block. A socket timeout is not enough: it starts again
    with every byte that a slow receiver sends."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


class Network(NetworkBackend):
    """Connects to allowed addresses only. Private addresses are allowed with `allow_private`. Public addresses are
    allowed with TLS only."""

    def __init__(self, *, allow_private: bool, secure: bool, pins: Collection[bytes]) -> None:
        self._allow_private = allow_private
        self._secure = secure
        self._pins = pins
        self._sockets = SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> NetworkStream:
        failure: Exception = ConnectError("the name has no address")
        for address in self._resolve(host, port):
            try:
                stream = self._sockets.connect_tcp(
                    address, port, _timeout(timeout, ConnectTimeout), local_address, socket_options
                )
            except (ConnectError, ConnectTimeout) as error:
                failure = error
            else:
                return _Stream(stream, self._pins)
        raise failure

    def _resolve(self, host: str, port: int) -> list[str]:
        """All addresses of a host name. Raises NotAllowed if one of these addresses is not allowed."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise ConnectError("the name cannot be resolved") from error
        addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
        for address in addresses:
            if (problem := self._problem(ipaddress.ip_address(address))) is not None:
                raise NotAllowed(f"its name resolves to {address}, {problem}")
        return addresses

    def _problem(self, address: Address) -> str | None:
        if is_not_unicast(address):
            return "which is not the address of a single host"
        if is_private(address):
            return None if self._allow_private else "which is a private address; set allow_private to allow it"
        return None if self._secure else "which is a public address; use https://"


class _Stream(NetworkStream):
    """A connection that respects the deadline. If there are pins, no data is sent before the pin of the receiver is
    checked."""

    def __init__(self, stream: NetworkStream, pins: Collection[bytes]) -> None:
        self._stream = stream
        self._pins = pins

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _timeout(timeout, ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _timeout(timeout, WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> NetworkStream:
        secure = self._stream.start_tls(ssl_context, server_hostname, _timeout(timeout, ConnectTimeout))
        if self._pins and (pin := _peer_pin(secure)) not in self._pins:
            secure.close()
            raise NotAllowed(f"the pin of its certificate is {format_pin(pin)}, which is not among the pins")
        return _Stream(secure, self._pins)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _peer_pin(stream: NetworkStream) -> bytes:
    connection: ssl.SSLSocket = stream.get_extra_info("socket")
    certificate = connection.getpeercert(binary_form=True)
    assert certificate is not None  # noqa: S101  # the handshake has verified it
    return pin_of(certificate)


def _timeout(timeout: float | None, expired: type[Exception]) -> float | None:
    """The timeout of one network operation: `timeout`, or the time until the deadline if this time is shorter. Raises
    `expired` after the deadline."""
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise expired("the deadline is over")
    return min((bound for bound in (timeout, left) if bound is not None and bound != _NEVER), default=None)
