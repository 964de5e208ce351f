"""Verify requests with a signature scheme and its secrets. The caller passes the time; this module reads no clock."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from hmac import compare_digest
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from oncegate.errors import SettingError


class Verified(Struct, frozen=True):
    """The result for a request that is signed with one of the secrets. `label` is the label of this secret, and `index`
    is its position among the secrets."""

    label: str
    index: int

    def __bool__(self) -> Literal[True]:
        return True


class Refused(Struct, frozen=True):
    """The result for a request that is rejected: the HTTP code and the reason, both to be sent in the response. The
    reason never contains a secret or the expected signature.

    The truth value of Refused is false, so that `if verifier.check(…):` does not accept invalid requests by mistake.
    """

    code: Literal[400, 401]
    reason: str

    def __bool__(self) -> Literal[False]:
        return False


Verdict: TypeAlias = Verified | Refused


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────────────
# A verifier has one secret, several secrets, or several secrets with labels. No error contains any part of a secret.


Secret: TypeAlias = str | bytes
Secrets: TypeAlias = Secret | list[Secret] | tuple[Secret, ...] | Mapping[str, Secret]

# 112 bits, the minimum for an HMAC key in NIST SP 800-131A.
MIN_SECRET_BYTES: Final = 14


def keys_of(secrets: Secrets, make_key: Callable[[Secret], bytes]) -> dict[str, bytes]:
    """The key of each secret, by label. `make_key` makes a key from a secret. If a secret has no label, its index is
    the label."""
    is_single = isinstance(secrets, str | bytes)
    keys = {
        label: _checked_key("the secret" if is_single else f"secret {label!r}", secret, make_key)
        for label, secret in _labelled(secrets)
    }
    if not keys:
        raise SettingError("a signature needs at least one secret")
    if len(set(keys.values())) < len(keys):
        raise SettingError("two of the secrets are equal; remove one")
    return keys


def check_length(key: bytes, min_bytes: int = MIN_SECRET_BYTES) -> bytes:
    """Return the key. Raises SettingError if the key is too short."""
    if len(key) < min_bytes:
        raise SettingError(f"has {len(key)} bytes; use at least {min_bytes} random bytes")
    return key


def utf8(secret: Secret) -> bytes:
    """The bytes of a secret. Text is encoded as UTF-8, and not decoded as base64 or hex."""
    return secret.encode() if isinstance(secret, str) else secret


def _labelled(secrets: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(secrets, str | bytes):
        return [("0", secrets)]
    if isinstance(secrets, Mapping):
        return [(str(label), secret) for label, secret in secrets.items()]
    if isinstance(secrets, list | tuple):
        return [(str(index), secret) for index, secret in enumerate(secrets)]
    raise SettingError("secrets must be one text, a list of texts, or a table of texts by label")


def _checked_key(name: str, secret: Any, make_key: Callable[[Secret], bytes]) -> bytes:
    problem = _secret_problem(secret)
    if problem is None:
        try:
            return make_key(secret)
        except SettingError as error:
            problem = str(error)
    raise SettingError(f"{name} {problem}")


def _secret_problem(secret: Any) -> str | None:
    if isinstance(secret, bytes):
        return None
    if not isinstance(secret, str):
        return "is neither text nor bytes"
    if secret != secret.strip():
        return "begins or ends with white space, such as a newline; remove it"
    # Checked here, because a later UnicodeEncodeError would contain the secret.
    return "is not valid Unicode text" if any("\ud800" <= character <= "\udfff" for character in secret) else None


# ── headers ───────────────────────────────────────────────────────────────────────────────────────────────
# Web frameworks pass headers as a mapping or as pairs, of text or of bytes, with one value or a list of values.


Headers: TypeAlias = Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None


def pick_headers(headers: Headers, names: Collection[str]) -> dict[str, str] | Refused:
    """The values of the headers with these names. Each of these headers must occur exactly once, in printable ASCII. A
    header that occurs twice is rejected, even if the two values are equal: a proxy may check one of the two headers,
    and this function would return the other."""
    found: dict[str, list[Any]] = {name: [] for name in names}
    for key, value in _pairs(headers):
        values = found.get(_text(key).lower())
        if values is not None:
            values.extend(value if isinstance(value, list | tuple) else [value])
    for name, values in found.items():
        if problem := _header_problem(values):
            return Refused(401, f"the header {name} {problem}")
    return {name: _text(values[0]) for name, values in found.items()}


def _pairs(headers: Headers) -> Iterable[tuple[Any, Any]]:
    """The headers as pairs of name and value. The headers of some frameworks are not a Mapping, but have `items` and
    iterate over names. Therefore this function checks for `items` and not for Mapping."""
    if headers is None:
        return ()
    return headers.items() if hasattr(headers, "items") else headers


def _header_problem(values: list[Any]) -> str | None:
    if not values:
        return "is missing"
    if len(values) > 1:
        return f"occurs {len(values)} times; send it once"
    text = _text(values[0])
    if not text:
        return "is empty"
    return None if text.isascii() and text.isprintable() else "has characters other than printable ASCII"


def _text(value: Any) -> str:
    """The value as text. Bytes are decoded as Latin-1, the encoding of HTTP headers. A value that is neither bytes nor
    text counts as empty."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


# ── schemes and verifiers ─────────────────────────────────────────────────────────────────────────────────


Body: TypeAlias = bytes | bytearray | memoryview


class RequestSignatures(Struct, frozen=True):
    """The signatures of a request; at least one must match. `before` and `after` are the signed bytes before and after
    the body. `refusal` is the reason to send in the response if no signature matches."""

    signatures: list[bytes]
    refusal: str
    before: bytes = b""
    after: bytes = b""


class Scheme(ABC):
    """A signature scheme. It checks the headers without the secrets, so the reasons that it returns cannot reveal a
    secret. `id_header` is the header with the id of the message; None if the signature covers no id."""

    id_header: str | None = None

    @abstractmethod
    def parse_headers(self, headers: Headers, now: int) -> RequestSignatures | Refused:
        """Return the signatures in the headers, or the reason why the headers are invalid. `now` is the Unix time in
        microseconds."""

    @abstractmethod
    def key(self, secret: Secret) -> bytes:
        """Return the key of a secret. Raises SettingError if the secret is invalid. The text of the error is the end of
        a sentence that starts with the name of the secret, such as "has 3 bytes"."""

    @abstractmethod
    def expected(self, key: bytes, signatures: RequestSignatures, body: Body) -> bytes:
        """Return the signature that the request must have if it is signed with this key."""


class Verifier:
    """Checks that a request is signed with one of the secrets."""

    __slots__ = ("_keys", "_name", "_scheme")

    def __init__(self, name: str, scheme: Scheme, secrets: Secrets) -> None:
        self._name = name
        self._scheme = scheme
        self._keys = keys_of(secrets, scheme.key)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the secrets, in order."""
        return tuple(self._keys)

    @property
    def signs_id(self) -> bool:
        """Whether the signature covers the id of the message, as with Standard Webhooks."""
        return self._scheme.id_header is not None

    def signed_id(self, headers: Headers) -> str | None:
        """The signed id of a request that `check` has verified; None if the signature covers no id."""
        header = self._scheme.id_header
        found = None if header is None else pick_headers(headers, (header,))
        return None if header is None or found is None or isinstance(found, Refused) else found[header]

    def check(self, headers: Headers, body: Body, now: int) -> Verdict:
        """Check whether the request is signed with one of the secrets. `body` is the raw body, and `now` is the Unix
        time in microseconds. For an invalid request, the method returns Refused and does not raise. The only exception
        that it raises is TypeError, for a wrong call: if `body` is not bytes."""
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError("a signature is checked over the raw bytes of the body, before it is decoded or parsed")
        parsed = self._scheme.parse_headers(headers, now)
        return parsed if isinstance(parsed, Refused) else self._compare(parsed, body)

    def _compare(self, signatures: RequestSignatures, body: Body) -> Verdict:
        """Compare the expected signature of every secret with every signature of the request, even after a match. The
        time must not reveal which of them matched."""
        verified = None
        for index, (label, key) in enumerate(self._keys.items()):
            expected = self._scheme.expected(key, signatures, body)
            matches = [compare_digest(expected, signature) for signature in signatures.signatures]
            if any(matches) and verified is None:
                verified = Verified(label, index)
        return verified or Refused(401, signatures.refusal)

    def __repr__(self) -> str:
        return f"<Verifier {self._name}, secrets: {', '.join(self._keys)}>"
