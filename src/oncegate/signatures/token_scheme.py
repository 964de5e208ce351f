"""The scheme of tokens. A header contains the secret itself. Nothing is signed, so only TLS protects the secret."""

from hashlib import sha256
from typing import Final

from oncegate.errors import SettingError
from oncegate.signatures.hmac_scheme import header_name
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

_BEARER: Final = "bearer "


class TokenScheme(Scheme):
    """Compares hashes of tokens. The tokens themselves are not compared, because the time would depend on their
    length."""

    def __init__(self, header: str, *, bearer: bool) -> None:
        self._header = header_name(header, "header")
        self._bearer = bearer

    def parse_headers(self, headers: Headers, now: int) -> RequestSignatures | Refused:  # noqa: ARG002  # a token has no timestamp
        found = pick_headers(headers, (self._header,))
        if isinstance(found, Refused):
            return found
        token = found[self._header]
        if self._bearer:
            if not token.lower().startswith(_BEARER):
                return Refused(401, f"the header {self._header} is not of the form Bearer TOKEN")
            token = token[len(_BEARER) :]
        what = "token" if self._bearer else "key"
        return RequestSignatures([_hash(token.encode())], f"the {what} in {self._header} is unknown")

    def key(self, secret: Secret) -> bytes:
        raw = check_length(utf8(secret))
        if not (raw.isascii() and raw.decode().isprintable()):
            raise SettingError("must be printable ASCII: a header cannot contain other characters")
        return _hash(raw)

    def expected(self, key: bytes, signatures: RequestSignatures, body: Body) -> bytes:  # noqa: ARG002  # the same for every request
        return key


def _hash(token: bytes) -> bytes:
    return sha256(token).digest()
