"""Signed timestamps: whether a request was signed just now."""

import binascii
import re
from collections.abc import Callable
from hmac import digest
from typing import Final

from oncegate.durations import Duration, microseconds, spoken
from oncegate.errors import SettingError
from oncegate.signatures.verifier import Body, Given, Headers, Refused, Scheme, Secret, long_enough, picked, utf8
from oncegate.text import not_a_choice

TOLERANCE: Final = "5m"

# Seconds since 1970 until the year 5138, or milliseconds, by their number of digits.
_SECONDS: Final = re.compile(r"\d{1,11}", re.ASCII)
_MILLISECONDS: Final = re.compile(r"\d{13}", re.ASCII)


def untimely(written: str, header: str, now: int, tolerance: int) -> Refused | None:
    """Why this timestamp is refused, if it is: it may be older or newer than now by the tolerance, in microseconds."""
    signed = _moment(written)
    if signed is None:
        return Refused(401, f"the header {header} is no time in seconds since 1970")
    away = now - signed
    if abs(away) <= tolerance:
        return None
    found = f"{spoken(abs(away))} {'old' if away > 0 else 'ahead of the time here'}"
    return Refused(401, f"the time in {header} is {found}, more than the {spoken(tolerance)} that are allowed")


def _moment(written: str) -> int | None:
    if _SECONDS.fullmatch(written):
        return int(written) * 1_000_000
    return int(written) * 1_000 if _MILLISECONDS.fullmatch(written) else None


# HMACs of the body under a header, with or without a signed timestamp.


_SIZES: Final = {"sha256": 32, "sha384": 48, "sha512": 64}
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLACES: Final = re.compile(r"\{(\w+)\}")


def _hex(raw: bytes) -> bytes:
    return raw.hex().encode()


def _base64(raw: bytes) -> bytes:
    return binascii.b2a_base64(raw, newline=False)


_ENCODINGS: Final[dict[str, tuple[Callable[[bytes], bytes], str, str]]] = {
    "hex": (_hex, r"[0-9a-f]+", "digits of lower-case hex"),
    "base64": (_base64, r"[A-Za-z0-9+/]+={0,2}", "characters of base64"),
}


def header_name(written: str, option: str) -> str:
    """A header's name in lower case, or SettingError."""
    if not isinstance(written, str) or not _NAME.fullmatch(written):
        raise SettingError(f"{option}={written!r} is not the name of a header")
    return written.lower()


class Spelling:
    """How a signature is written: a prefix, then the digest as text. It is compared as text, so that each digest has
    one spelling only."""

    def __init__(self, algorithm: str, encoding: str, prefix: str = "") -> None:
        if algorithm not in _SIZES:
            raise SettingError(not_a_choice("algorithm", algorithm, _SIZES))
        if encoding not in _ENCODINGS:
            raise SettingError(not_a_choice("encoding", encoding, _ENCODINGS))
        if not (isinstance(prefix, str) and prefix.isascii() and prefix.isprintable()):
            raise SettingError("prefix is not printable ASCII, which is all that a header can hold")
        self._encode, pattern, words = _ENCODINGS[encoding]
        self._algorithm = algorithm
        self._prefix = prefix
        self._length = len(self._encode(bytes(_SIZES[algorithm])))
        self._form = re.compile(pattern)
        self.words = f"{prefix} and {self._length} {words}" if prefix else f"{self._length} {words}"

    def read(self, written: str) -> bytes | None:
        """The digest's text, if it is written like one."""
        text = written.removeprefix(self._prefix)
        fits = written.startswith(self._prefix) and len(text) == self._length and self._form.fullmatch(text)
        return text.encode() if fits else None

    def of(self, key: bytes, message: bytes) -> bytes:
        return self._encode(digest(key, message, self._algorithm))


class HmacScheme(Scheme):
    """One signature under one header; `template` says how the timestamp and the body are joined."""

    def __init__(
        self,
        header: str,
        spelling: Spelling,
        *,
        timestamp_header: str | None = None,
        template: str | None = None,
        tolerance: Duration | None = None,
    ) -> None:
        self._header = header_name(header, "header")
        self._spelling = spelling
        self._clock = None if timestamp_header is None else header_name(timestamp_header, "timestamp_header")
        if self._clock == self._header:
            raise SettingError("header and timestamp_header are the same; each has its own")
        self._names = [name for name in (self._header, self._clock) if name is not None]
        self._around = _around(template, timed=self._clock is not None)
        self._tolerance = microseconds(TOLERANCE if tolerance is None else tolerance, "tolerance")
        if tolerance is not None and self._clock is None:
            raise SettingError("tolerance is about a signed time, and there is none without a timestamp_header")

    def given(self, headers: Headers, now: int) -> Given | Refused:
        found = picked(headers, self._names)
        if isinstance(found, Refused):
            return found
        signature = self._spelling.read(found[self._header])
        if signature is None:
            return Refused(401, f"the signature in {self._header} is not written as {self._spelling.words}")
        stamp = ""
        if self._clock is not None:
            stamp = found[self._clock]
            refused = untimely(stamp, self._clock, now, self._tolerance)
            if refused is not None:
                return refused
        before, after = (part.replace("{timestamp}", stamp).encode() for part in self._around)
        return Given([signature], f"the signature in {self._header} is of no known secret", before, after)

    def key(self, secret: Secret) -> bytes:
        return long_enough(utf8(secret))

    def expected(self, key: bytes, given: Given, body: Body) -> bytes:
        return self._spelling.of(key, b"".join((given.before, body, given.after)))


def _around(template: str | None, *, timed: bool) -> tuple[str, str]:
    """What is signed before the body and after it."""
    if template is None:
        return ("{timestamp}.", "") if timed else ("", "")
    if not isinstance(template, str) or sorted(_PLACES.findall(template)) != ["body", "timestamp"][: 1 + timed]:
        wanted = "{body} and {timestamp}" if timed else "{body}, and {timestamp} only with a timestamp_header"
        raise SettingError(f"template={template!r} does not say what is signed: it has, once, {wanted}")
    before, _, after = template.partition("{body}")
    # A digit could otherwise move from one to the other, and the signature still be right.
    between = before.partition("{timestamp}")[2] if "{timestamp}" in before else after.partition("{timestamp}")[0]
    if timed and not between.strip("0123456789"):
        raise SettingError(f"template={template!r} has nothing to tell the timestamp from the body; put a . between")
    return before, after
