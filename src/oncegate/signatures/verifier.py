"""The verifier: a way of signing and the secrets that are live. Pure: the clock is the caller's."""

from abc import ABC, abstractmethod
from hmac import compare_digest
from typing import TypeAlias

from msgspec import Struct

from oncegate.signatures.headers import Headers, picked
from oncegate.signatures.keyring import Secret, Secrets, keys_of
from oncegate.signatures.verdict import Refused, Verdict, Verified

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
