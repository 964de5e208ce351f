"""TLS towards sinks: 1.2 or newer, always verified, on request pinned and with a certificate of our own."""

import base64
import binascii
import hashlib
import ssl
from collections.abc import Sequence
from typing import Final

from oncegate.errors import SettingError
from oncegate.sinks.wishes import Path

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
