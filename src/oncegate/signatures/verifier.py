"""Verdicts on a request: whose secret it was signed with, or why it is refused."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from hmac import compare_digest
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from oncegate.errors import SettingError


class Verified(Struct, frozen=True):
    """It was sent by one who knows a secret: that of this label, which is at this place among the secrets."""

    label: str
    index: int

    def __bool__(self) -> Literal[True]:
        return True


class Refused(Struct, frozen=True):
    """The HTTP code and the sentence to answer with; neither a secret nor the right signature is ever in it.

    It counts as false, so that `if verifier.check(…):` cannot let everybody in by mistake.
    """

    code: Literal[400, 401]
    reason: str

    def __bool__(self) -> Literal[False]:
        return False


Verdict: TypeAlias = Verified | Refused


# Secrets as users give them: one, several, or several with labels. No error repeats any part of one.


Secret: TypeAlias = str | bytes
Secrets: TypeAlias = Secret | list[Secret] | tuple[Secret, ...] | Mapping[str, Secret]

# 112 bits, below which NIST (SP 800-131A) no longer lets a key for HMAC be.
SHORTEST: Final = 14


def keys_of(secrets: Secrets, key: Callable[[Secret], bytes]) -> dict[str, bytes]:
    """The key that each secret stands for, by its label, which is its place if it was given none."""
    alone = isinstance(secrets, str | bytes)
    keys = {
        label: _key("the secret" if alone else f"secret {label!r}", secret, key) for label, secret in _labelled(secrets)
    }
    if not keys:
        raise SettingError("a signature needs at least one secret")
    if len(set(keys.values())) < len(keys):
        raise SettingError("two of the secrets are the same, so that they cannot be told apart; leave one out")
    return keys


def long_enough(key: bytes, shortest: int = SHORTEST) -> bytes:
    """The key, or SettingError."""
    if len(key) < shortest:
        raise SettingError(f"has {len(key)} bytes; it needs {shortest} or more, chosen at random")
    return key


def utf8(secret: Secret) -> bytes:
    """The bytes of a secret that stands for itself."""
    return secret.encode() if isinstance(secret, str) else secret


def _labelled(secrets: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(secrets, str | bytes):
        return [("0", secrets)]
    if isinstance(secrets, Mapping):
        return [(str(label), secret) for label, secret in secrets.items()]
    if isinstance(secrets, list | tuple):
        return [(str(index), secret) for index, secret in enumerate(secrets)]
    raise SettingError("secrets are one text, a list of them, or a table of them by label")


def _key(called: str, secret: Any, key: Callable[[Secret], bytes]) -> bytes:
    problem = _secret_problem(secret)
    if problem is None:
        try:
            return key(secret)
        except SettingError as error:
            problem = str(error)
    raise SettingError(f"{called} {problem}")


def _secret_problem(secret: Any) -> str | None:
    if isinstance(secret, bytes):
        return None
    if not isinstance(secret, str):
        return "is neither text nor bytes"
    if secret != secret.strip():
        return "begins or ends with white space, perhaps the end of a line; cut it off"
    # Asked here, since the error of an encoder keeps what it was to encode.
    return "is not proper Unicode text" if any("\ud800" <= each <= "\udfff" for each in secret) else None


# Headers as web frameworks have them: a mapping or pairs, of text or bytes, with one value or several.


Headers: TypeAlias = Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None


def picked(headers: Headers, names: Collection[str]) -> dict[str, str] | Refused:
    """The values of these headers, each of which must be there exactly once, as printable ASCII. Of two, a proxy may
    have looked at the other one; so that there are two is refused, even if they are the same."""
    found: dict[str, list[Any]] = {name: [] for name in names}
    for key, value in _pairs(headers):
        values = found.get(_text(key).lower())
        if values is not None:
            values.extend(value if isinstance(value, list | tuple) else [value])
    for name, values in found.items():
        if problem := _problem(values):
            return Refused(401, f"the header {name} {problem}")
    return {name: _text(values[0]) for name, values in found.items()}


def _pairs(headers: Headers) -> Iterable[tuple[Any, Any]]:
    """By what it can do: several frameworks' headers are no Mapping, and iterate over names."""
    if headers is None:
        return ()
    return headers.items() if hasattr(headers, "items") else headers


def _problem(values: list[Any]) -> str | None:
    if not values:
        return "is missing"
    if len(values) > 1:
        return f"is there {len(values)} times; send it once"
    text = _text(values[0])
    if not text:
        return "is empty"
    return None if text.isascii() and text.isprintable() else "holds more than printable ASCII characters"


def _text(value: Any) -> str:
    """HTTP's own reading of bytes; what is neither bytes nor text is as good as empty."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


# The verifier: a way of signing and the secrets that are live. Pure: the clock is the caller's.


Body: TypeAlias = bytes | bytearray | memoryview


class Given(Struct, frozen=True):
    """What a request says for itself: signatures, one of which must be right, and what was signed along with the body.
    `refusal` is what to say if none is."""

    signatures: list[bytes]
    refusal: str
    before: bytes = b""
    after: bytes = b""


class Scheme(ABC):
    """A way of signing. It sees the headers before any secret does, so what it refuses says nothing of secrets.
    `id_header` is the header with the id of a message, where that is signed with the body."""

    id_header: str | None = None

    @abstractmethod
    def given(self, headers: Headers, now: int) -> Given | Refused:
        """What the headers say, or why they cannot be right."""

    @abstractmethod
    def key(self, secret: Secret) -> bytes:
        """The key that a secret stands for; SettingError with what the secret is or has that it should not."""

    @abstractmethod
    def expected(self, key: bytes, given: Given, body: Body) -> bytes:
        """The signature that the holder of this key would have sent."""


class Verifier:
    """Checks that a request was sent by one who knows one of the secrets."""

    __slots__ = ("_keys", "_name", "_scheme")

    def __init__(self, name: str, scheme: Scheme, secrets: Secrets) -> None:
        self._name = name
        self._scheme = scheme
        self._keys = keys_of(secrets, scheme.key)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the secrets, in their order."""
        return tuple(self._keys)

    @property
    def signs_id(self) -> bool:
        """Whether the id of a message is signed with the body, as with Standard Webhooks."""
        return self._scheme.id_header is not None

    def signed_id(self, headers: Headers) -> str | None:
        """The id that was signed with a request that `check` has found genuine; None where no id is signed."""
        header = self._scheme.id_header
        found = None if header is None else picked(headers, (header,))
        return None if header is None or found is None or isinstance(found, Refused) else found[header]

    def check(self, headers: Headers, body: Body, now: int) -> Verdict:
        """Whether the request is genuine. `body` is what was sent, byte for byte; `now` is the time of day in
        microseconds since 1970. Whatever a sender can send is answered, and nothing is raised."""
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError("a signature is checked over the raw bytes of the body, before it is decoded or parsed")
        given = self._scheme.given(headers, now)
        return given if isinstance(given, Refused) else self._compared(given, body)

    def _compared(self, given: Given, body: Body) -> Verdict:
        """Every secret with every signature, also after one has matched: the time it takes tells nobody which did."""
        verified = None
        for index, (label, key) in enumerate(self._keys.items()):
            expected = self._scheme.expected(key, given, body)
            matches = [compare_digest(expected, signature) for signature in given.signatures]
            if any(matches) and verified is None:
                verified = Verified(label, index)
        return verified or Refused(401, given.refusal)

    def __repr__(self) -> str:
        return f"<Verifier {self._name}, secrets: {', '.join(self._keys)}>"
