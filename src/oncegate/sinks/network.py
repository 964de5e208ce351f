"""TLS towards sinks: 1.2 or newer, always verified, on request pinned and with a certificate of our own."""

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

from httpcore import (
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
from oncegate.sinks import Path

_PREFIX: Final = "sha256//"
_VERSION: Final = 0xA0
_LONG: Final = 0x80


def context_for(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """The terms of TLS. With a `ca`, only what it has signed is trusted, and no other authority."""
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"the authority's certificates in {ca} cannot be used: {_why(error)}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, password=_no_passphrase)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise SettingError(f"the client certificate in {certificate} cannot be used: {_why(error)}") from None
    elif key is not None:
        raise SettingError("certificate_key needs the certificate that it belongs to")
    return context


def _no_passphrase() -> bytes:
    """Asked for where a person would be: a service has nobody to ask."""
    raise ValueError("its key has a passphrase; keep it without one, readable by the service alone")


def _why(error: Exception) -> str:
    """The reason without the numbers of OpenSSL."""
    if isinstance(error, ssl.SSLError):
        return {"KEY_VALUES_MISMATCH": "its key is that of another"}.get(error.reason or "", "it is no PEM file of one")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# ── pins ──────────────────────────────────────────────────────────────────────────────────────────────────


def pins_of(written: Sequence[str]) -> frozenset[bytes]:
    """Pins as curl writes them, sha256//BASE64, or as 64 hexadecimal digits."""
    return frozenset(_pin(each) for each in written)


def _pin(written: str) -> bytes:
    text = written.strip().removeprefix(_PREFIX)
    try:
        found = bytes.fromhex(text) if len(text) == 64 else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        found = b""
    if len(found) != hashlib.sha256().digest_size:
        raise SettingError(
            f"the pin {written!r} is no SHA-256 of a public key; write it as curl does, {_PREFIX}…, or as 64"
            " hexadecimal digits"
        )
    return found


def spelt(pin: bytes) -> str:
    return _PREFIX + base64.b64encode(pin).decode()


def pin_of(certificate: bytes) -> bytes:
    """SHA-256 of the certificate's public key, so that a renewal that keeps the key keeps the pin."""
    return hashlib.sha256(public_key_of(certificate)).digest()


def public_key_of(certificate: bytes) -> bytes:
    """The SubjectPublicKeyInfo of a certificate in DER, which is behind the version (that may be left out), the number,
    the algorithm, the issuer, the validity and the subject (RFC 5280, 4.1)."""
    signed, _ = _member(certificate, 0)
    at, _ = _member(certificate, signed)
    for _ in range(6 if certificate[at] == _VERSION else 5):
        _, at = _member(certificate, at)
    return certificate[at : _member(certificate, at)[1]]


def _member(der: bytes, at: int) -> tuple[int, int]:
    """Where the content of the member that begins here begins and ends."""
    length, begin = der[at + 1], at + 2
    if length & _LONG:
        size = length ^ _LONG
        length, begin = int.from_bytes(der[begin : begin + size]), begin + size
    return begin, begin + length


# Connections to a sink: its name is resolved once for each, and what was checked is what is connected to.
#
# A name that is checked and then resolved again could by then lead to another place, inside of the network.


Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

# Every range that IANA lists as special, whether or not it is globally reachable: no webhook is received there.
# Python's own `is_global` changes from version to version.
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
# Of IPv6 only this is public, but for what is special in it: what lies outside is private, special or not assigned.
_PUBLIC_6: Final = ipaddress.IPv6Network("2000::/3")
_SPECIAL_6: Final = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20")))
# Addresses of IPv4 in those of IPv6: what a translator on the way would make of them counts. The prefix for translators
# of one's own, 64:ff9b:1::/48, is not among them: what they make of an address is not known here.
_TRANSLATED: Final = ipaddress.IPv6Network("64:ff9b::/96")
_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")
_NEVER: Final = float("inf")
_deadline: ContextVar[float] = ContextVar("oncegate_sink_deadline", default=_NEVER)


class NotAllowed(Exception):
    """A place that must not be connected to, or is not the one that was meant; the text says why."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """All that is sent and received in it takes no longer than this. Timeouts of sockets alone would start anew with
    every byte of a sink that dribbles."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def is_private(address: Address) -> bool:
    """Whether an address is none of the public Internet's: private, loopback, link-local, reserved or special."""
    meant = _meant(address)
    if isinstance(meant, ipaddress.IPv4Address):
        return any(meant in network for network in _SPECIAL)
    return meant not in _PUBLIC_6 or any(meant in network for network in _SPECIAL_6)


def is_nobodys(address: Address) -> bool:
    """Whether no single host can be meant by it."""
    meant = _meant(address)
    return meant.is_multicast or meant.is_unspecified or meant == _BROADCAST


def _meant(address: Address) -> Address:
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address


class Network(NetworkBackend):
    """Connects to where it may. Without TLS only private addresses can be reached, and these only if allowed."""

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
        failure: Exception = ConnectError("its name has no address")
        for address in self._checked(host, port):
            try:
                stream = self._sockets.connect_tcp(
                    address, port, _left(timeout, ConnectTimeout), local_address, socket_options
                )
            except (ConnectError, ConnectTimeout) as error:
                failure = error
            else:
                return _Stream(stream, self._pins)
        raise failure

    def _checked(self, host: str, port: int) -> list[str]:
        """All addresses of a name, if each of them may be connected to."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise ConnectError("its name cannot be resolved") from error
        addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
        for address in addresses:
            if (problem := self._problem(ipaddress.ip_address(address))) is not None:
                raise NotAllowed(f"its name leads to {address}, {problem}")
        return addresses

    def _problem(self, address: Address) -> str | None:
        if is_nobodys(address):
            return "which is no address of a single host"
        if is_private(address):
            return None if self._allow_private else "which is a private address; allow these with allow_private"
        return None if self._secure else "which is a public address; write https://"


class _Stream(NetworkStream):
    """A connection that keeps to the deadline, and on which nothing is said before its pin is checked."""

    def __init__(self, stream: NetworkStream, pins: Collection[bytes]) -> None:
        self._stream = stream
        self._pins = pins

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout, ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(timeout, WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> NetworkStream:
        secure = self._stream.start_tls(ssl_context, server_hostname, _left(timeout, ConnectTimeout))
        if self._pins and (pin := _shown(secure)) not in self._pins:
            secure.close()
            raise NotAllowed(f"the public key of its certificate is {spelt(pin)}, which is not pinned")
        return _Stream(secure, self._pins)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _shown(stream: NetworkStream) -> bytes:
    """The pin of the certificate that the other side has shown."""
    connection: ssl.SSLSocket = stream.get_extra_info("socket")
    certificate = connection.getpeercert(binary_form=True)
    assert certificate is not None  # noqa: S101  # it was verified
    return pin_of(certificate)


def _left(timeout: float | None, late: type[Exception]) -> float | None:
    """The time that a single step may take."""
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise late("the time for it is over")
    return min((bound for bound in (timeout, left) if bound is not None and bound != _NEVER), default=None)
