"""Tokens: the secret itself is sent under a header. Nothing is signed, so only TLS keeps it from being copied."""

from hashlib import sha256
from typing import Final

from oncegate.errors import SettingError
from oncegate.signatures.hmac_scheme import header_name
from oncegate.signatures.verifier import Body, Given, Headers, Refused, Scheme, Secret, long_enough, picked, utf8

_BEARER: Final = "bearer "


class TokenScheme(Scheme):
    """Hashes are compared: comparing the tokens would take longer or shorter by their length."""

    def __init__(self, header: str, *, bearer: bool) -> None:
        self._header = header_name(header, "header")
        self._bearer = bearer

    def given(self, headers: Headers, now: int) -> Given | Refused:  # noqa: ARG002  # tokens know no time
        found = picked(headers, (self._header,))
        if isinstance(found, Refused):
            return found
        token = found[self._header]
        if self._bearer:
            if not token.lower().startswith(_BEARER):
                return Refused(401, f"the header {self._header} is not Bearer and a token")
            token = token[len(_BEARER) :]
        what = "token" if self._bearer else "key"
        return Given([_hashed(token.encode())], f"the {what} in {self._header} is not known")

    def key(self, secret: Secret) -> bytes:
        raw = long_enough(utf8(secret))
        if not (raw.isascii() and raw.decode().isprintable()):
            raise SettingError("is not printable ASCII, which is all that a header can hold")
        return _hashed(raw)

    def expected(self, key: bytes, given: Given, body: Body) -> bytes:  # noqa: ARG002  # the same for every request
        return key


def _hashed(token: bytes) -> bytes:
    return sha256(token).digest()
