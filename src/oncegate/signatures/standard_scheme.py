"""Standard Webhooks: the id, the time and the body, signed together."""

import binascii
from typing import Final

from oncegate.durations import Duration, microseconds
from oncegate.errors import SettingError
from oncegate.signatures.hmac_scheme import Spelling, untimely
from oncegate.signatures.verifier import Body, Given, Headers, Refused, Scheme, Secret, long_enough, picked

_ID: Final = "webhook-id"
_TIME: Final = "webhook-timestamp"
_SIGNATURE: Final = "webhook-signature"
_PREFIX: Final = "whsec_"
_SHORTEST: Final = 24  # bytes, by the specification
_VERSION: Final = "v1,"
_V1: Final = Spelling("sha256", "base64", _VERSION)


class StandardScheme(Scheme):
    """Several signatures may come at once, while the sender changes its secret; those of other versions are passed
    over, as the specification asks."""

    id_header = _ID

    def __init__(self, tolerance: Duration) -> None:
        self._tolerance = microseconds(tolerance, "tolerance")

    def given(self, headers: Headers, now: int) -> Given | Refused:
        found = picked(headers, (_ID, _TIME, _SIGNATURE))
        if isinstance(found, Refused):
            return found
        for name in (_ID, _TIME):
            # What is signed is joined with dots: with one more, the same text could be of another id.
            if "." in found[name]:
                return Refused(400, f"the header {name} has a dot in it, which Standard Webhooks do not allow")
        refused = untimely(found[_TIME], _TIME, now, self._tolerance)
        if refused is not None:
            return refused
        signatures = _signatures(found[_SIGNATURE])
        if not signatures:
            return Refused(401, f"the signatures in {_SIGNATURE} are not written as {_V1.words}, with a space between")
        signed = f"{found[_ID]}.{found[_TIME]}.".encode()
        return Given(signatures, f"none of the signatures in {_SIGNATURE} is of a known secret", signed)

    def key(self, secret: Secret) -> bytes:
        """Text is base64, with its prefix or without; bytes are the key itself."""
        key = secret if isinstance(secret, bytes) else _decoded(secret.removeprefix(_PREFIX))
        if key is None:
            raise SettingError(f"is not {_PREFIX} and base64, as secrets of Standard Webhooks are")
        return long_enough(key, _SHORTEST)

    def expected(self, key: bytes, given: Given, body: Body) -> bytes:
        return _V1.of(key, b"".join((given.before, body)))


def _signatures(written: str) -> list[bytes]:
    """Those of our version; none if one of them is no signature, such as two headers that a proxy has joined."""
    read = [_V1.read(part) for part in written.split(" ") if part.startswith(_VERSION)]
    return [signature for signature in read if signature is not None] if None not in read else []


def _decoded(text: str) -> bytes | None:
    """Some senders leave the padding out."""
    padded = text if text.endswith("=") else text + "=" * (-len(text) % 4)
    try:
        return binascii.a2b_base64(padded, strict_mode=True)
    except ValueError:
        return None
