"""HMAC signatures in a header, with or without a signed timestamp."""

import binascii
import re
from collections.abc import Callable
from hmac import digest
from typing import Final

from oncegate.durations import Duration, microseconds, spoken
from oncegate.errors import SettingError
from oncegate.signatures.verifier import (
    Body,
    Headers,
    Refused,
    RequestSignatures,
    Scheme,
    Secret,
    check_length,
    pick_headers,
    utf8,
)
from oncegate.text import not_a_choice

TOLERANCE: Final = "5m"

# A Unix time in seconds (until the year 5138) or in milliseconds. The number of digits shows which of the two it is.
_SECONDS: Final = re.compile(r"\d{1,11}", re.ASCII)
_MILLISECONDS: Final = re.compile(r"\d{13}", re.ASCII)


def check_timestamp(written: str, header: str, now: int, tolerance: int) -> Refused | None:
    """Return the reason to reject a timestamp; None if the timestamp differs from `now` by at most `tolerance`. `now`
    and `tolerance` are in microseconds."""
    signed_at = _parse_timestamp(written)
    if signed_at is None:
        return Refused(401, f"the header {header} is not a Unix time in seconds")
    age = now - signed_at
    if abs(age) <= tolerance:
        return None
    found = f"{spoken(abs(age))} {'old' if age > 0 else 'in the future'}"
    return Refused(401, f"the timestamp in {header} is {found}; the tolerance is {spoken(tolerance)}")


def _parse_timestamp(written: str) -> int | None:
    if _SECONDS.fullmatch(written):
        return int(written) * 1_000_000
    return int(written) * 1_000 if _MILLISECONDS.fullmatch(written) else None


# ── the scheme ────────────────────────────────────────────────────────────────────────────────────────────


_SIZES: Final = {"sha256": 32, "sha384": 48, "sha512": 64}
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLACEHOLDERS: Final = re.compile(r"\{(\w+)\}")


def _hex(raw: bytes) -> bytes:
    return raw.hex().encode()


def _base64(raw: bytes) -> bytes:
    return binascii.b2a_base64(raw, newline=False)


_ENCODINGS: Final[dict[str, tuple[Callable[[bytes], bytes], str, str]]] = {
    "hex": (_hex, r"[0-9a-f]+", "lower-case hex digits"),
    "base64": (_base64, r"[A-Za-z0-9+/]+={0,2}", "base64 characters"),
}


def header_name(written: str, option: str) -> str:
    """The name of a header in lower case. Raises SettingError if the name is not valid."""
    if not isinstance(written, str) or not _NAME.fullmatch(written):
        raise SettingError(f"{option}={written!r} is not a valid header name")
    return written.lower()


class SignatureFormat:
    """The text format of a signature: a prefix, then the encoded digest. Signatures can be compared as text, because
    each digest has exactly one valid text."""

    def __init__(self, algorithm: str, encoding: str, prefix: str = "") -> None:
        if algorithm not in _SIZES:
            raise SettingError(not_a_choice("algorithm", algorithm, _SIZES))
        if encoding not in _ENCODINGS:
            raise SettingError(not_a_choice("encoding", encoding, _ENCODINGS))
        if not (isinstance(prefix, str) and prefix.isascii() and prefix.isprintable()):
            raise SettingError("prefix must be printable ASCII: a header cannot contain other characters")
        self._encode, pattern, characters = _ENCODINGS[encoding]
        self._algorithm = algorithm
        self._prefix = prefix
        self._length = len(self._encode(bytes(_SIZES[algorithm])))
        self._pattern = re.compile(pattern)
        digest_format = f"{self._length} {characters}"
        self.description = f"{prefix} and {digest_format}" if prefix else digest_format

    def parse(self, written: str) -> bytes | None:
        """The encoded digest without its prefix; None if the text does not have this format."""
        text = written.removeprefix(self._prefix)
        matches = written.startswith(self._prefix) and len(text) == self._length and self._pattern.fullmatch(text)
        return text.encode() if matches else None

    def sign(self, key: bytes, message: bytes) -> bytes:
        """The encoded HMAC of the message, without the prefix."""
        return self._encode(digest(key, message, self._algorithm))


class HmacScheme(Scheme):
    """A scheme with one signature in one header. `template` describes how the sender builds the signed message from the
    timestamp and the body."""

    def __init__(
        self,
        header: str,
        signature_format: SignatureFormat,
        *,
        timestamp_header: str | None = None,
        template: str | None = None,
        tolerance: Duration | None = None,
    ) -> None:
        self._header = header_name(header, "header")
        self._format = signature_format
        self._timestamp_header = None if timestamp_header is None else header_name(timestamp_header, "timestamp_header")
        if self._timestamp_header == self._header:
            raise SettingError("header and timestamp_header are the same; name two different headers")
        self._names = [name for name in (self._header, self._timestamp_header) if name is not None]
        self._affixes = _affixes(template, has_timestamp=self._timestamp_header is not None)
        self._tolerance = microseconds(TOLERANCE if tolerance is None else tolerance, "tolerance")
        if tolerance is not None and self._timestamp_header is None:
            raise SettingError("tolerance needs a timestamp_header: without one no timestamp is signed")

    def parse_headers(self, headers: Headers, now: int) -> RequestSignatures | Refused:
        found = pick_headers(headers, self._names)
        if isinstance(found, Refused):
            return found
        signature = self._format.parse(found[self._header])
        if signature is None:
            return Refused(401, f"the signature in {self._header} is not {self._format.description}")
        timestamp = ""
        if self._timestamp_header is not None:
            timestamp = found[self._timestamp_header]
            refused = check_timestamp(timestamp, self._timestamp_header, now, self._tolerance)
            if refused is not None:
                return refused
        before, after = (part.replace("{timestamp}", timestamp).encode() for part in self._affixes)
        return RequestSignatures([signature], f"the signature in {self._header} matches no secret", before, after)

    def key(self, secret: Secret) -> bytes:
        return check_length(utf8(secret))

    def expected(self, key: bytes, signatures: RequestSignatures, body: Body) -> bytes:
        return self._format.sign(key, b"".join((signatures.before, body, signatures.after)))


def _affixes(template: str | None, *, has_timestamp: bool) -> tuple[str, str]:
    """The parts of the template before and after the body. Raises SettingError if the template is not valid."""
    if template is None:
        return ("{timestamp}.", "") if has_timestamp else ("", "")
    if (
        not isinstance(template, str)
        or sorted(_PLACEHOLDERS.findall(template)) != ["body", "timestamp"][: 1 + has_timestamp]
    ):
        wanted = "{body} and {timestamp}" if has_timestamp else "{body}, and {timestamp} only with a timestamp_header"
        raise SettingError(f"template={template!r} is not valid: it must contain, once each, {wanted}")
    before, _, after = template.partition("{body}")
    # Without a separator, an attacker could move a digit between the timestamp and the body, and the signature would
    # still match.
    between = before.partition("{timestamp}")[2] if "{timestamp}" in before else after.partition("{timestamp}")[0]
    if has_timestamp and not between.strip("0123456789"):
        raise SettingError(
            f"template={template!r} has no separator between {{timestamp}} and {{body}}; add one, such as ."
        )
    return before, after
