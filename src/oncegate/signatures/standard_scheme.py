"""The scheme of Standard Webhooks. The signature covers the id, the timestamp and the body."""

import binascii
from typing import Final

from oncegate.durations import Duration, microseconds
from oncegate.errors import SettingError
from oncegate.signatures.hmac_scheme import SignatureFormat, check_timestamp
from oncegate.signatures.verifier import (
    Body,
    Headers,
    Refused,
    RequestSignatures,
    Scheme,
    Secret,
    check_length,
    pick_headers,
)

_ID: Final = "webhook-id"
_TIMESTAMP: Final = "webhook-timestamp"
_SIGNATURE: Final = "webhook-signature"
_PREFIX: Final = "whsec_"
_MIN_BYTES: Final = 24  # the minimum in the specification
_VERSION: Final = "v1,"
_V1: Final = SignatureFormat("sha256", "base64", _VERSION)


class StandardScheme(Scheme):
    """The header may contain several signatures, because a sender uses two secrets while it rotates its secret.
    Signatures of other versions than `v1` are ignored, as the specification requires."""

    id_header = _ID

    def __init__(self, tolerance: Duration) -> None:
        self._tolerance = microseconds(tolerance, "tolerance")

    def parse_headers(self, headers: Headers, now: int) -> RequestSignatures | Refused:
        found = pick_headers(headers, (_ID, _TIMESTAMP, _SIGNATURE))
        if isinstance(found, Refused):
            return found
        for name in (_ID, _TIMESTAMP):
            # Dots separate the parts of the signed message. If one of these parts contained a dot, the same signed
            # message could belong to another id.
            if "." in found[name]:
                return Refused(400, f"the header {name} contains a dot, which Standard Webhooks does not allow")
        refused = check_timestamp(found[_TIMESTAMP], _TIMESTAMP, now, self._tolerance)
        if refused is not None:
            return refused
        signatures = _signatures(found[_SIGNATURE])
        if not signatures:
            return Refused(401, f"the header {_SIGNATURE} is not a list of {_V1.description}, separated by spaces")
        signed = f"{found[_ID]}.{found[_TIMESTAMP]}.".encode()
        return RequestSignatures(signatures, f"no signature in {_SIGNATURE} matches a secret", signed)

    def key(self, secret: Secret) -> bytes:
        """The key of a secret. A secret that is text is decoded as base64, with or without the prefix `whsec_`. A
        secret that is bytes is the key itself."""
        key = secret if isinstance(secret, bytes) else _decode(secret.removeprefix(_PREFIX))
        if key is None:
            raise SettingError(f"must be {_PREFIX} and base64, the format of Standard Webhooks")
        return check_length(key, _MIN_BYTES)

    def expected(self, key: bytes, signatures: RequestSignatures, body: Body) -> bytes:
        return _V1.sign(key, b"".join((signatures.before, body)))


def _signatures(written: str) -> list[bytes]:
    """The signatures of version 1. The list is empty if one of these signatures is malformed, for example because a
    proxy has joined two headers."""
    parsed = [_V1.parse(part) for part in written.split(" ") if part.startswith(_VERSION)]
    return [signature for signature in parsed if signature is not None] if None not in parsed else []


def _decode(text: str) -> bytes | None:
    """Decode base64. The padding may be missing, because some senders omit it. Returns None if the text is not
    base64."""
    padded = text if text.endswith("=") else text + "=" * (-len(text) % 4)
    try:
        return binascii.a2b_base64(padded, strict_mode=True)
    except ValueError:
        return None
