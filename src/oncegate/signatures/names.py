"""Verifiers by the names that settings have for them."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from oncegate.errors import SettingError
from oncegate.signatures import senders
from oncegate.signatures.keyring import Secrets
from oncegate.signatures.verifier import Verifier
from oncegate.text import unknown

_HMAC: Final = ("header", "algorithm", "encoding", "prefix", "timestamp_header", "template", "tolerance")

# Each with its options, all of which are text.
SENDERS: Final[dict[str, tuple[Callable[..., Verifier], tuple[str, ...]]]] = {
    "standard-webhooks": (senders.standard_webhooks, ("tolerance",)),
    "genesys-open-messaging": (senders.open_messaging, ()),
    "cxone": (senders.cxone, ()),
    "cxone-expert": (senders.cxone_expert, ("tolerance",)),
    "hmac": (senders.hmac, _HMAC),
    "bearer": (senders.bearer, ()),
    "api-key": (senders.api_key, ("header",)),
}


def check_name(name: str) -> None:
    if name not in SENDERS:
        raise SettingError(unknown(str(name), SENDERS, "signature"))


def verifier_of(name: str, secrets: Secrets, options: Mapping[str, Any] | None = None) -> Verifier:
    """The verifier that settings ask for, or SettingError."""
    check_name(name)
    maker, known = SENDERS[name]
    given = options or {}
    for option, value in given.items():
        _check(name, option, value, known)
    if maker is senders.hmac and "header" not in given:
        raise SettingError('signature=hmac needs header, the name of the header with the signature: header = "x-…"')
    try:
        return maker(secrets, **given)
    except SettingError as error:
        raise SettingError(f"signature={name}: {error}") from None


def _check(name: str, option: str, value: Any, known: tuple[str, ...]) -> None:
    if not known:
        raise SettingError(f"signature={name} takes no options, and {option} is one")
    if option not in known:
        raise SettingError(unknown(option, known, f"option of signature={name}"))
    if not isinstance(value, str):
        raise SettingError(f"signature={name}: {option} is text in quotes")
