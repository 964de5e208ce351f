"""Senders: how each of them signs."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from oncegate.durations import Duration
from oncegate.errors import SettingError
from oncegate.signatures.hmac_scheme import TOLERANCE, HmacScheme, Spelling
from oncegate.signatures.standard_scheme import StandardScheme
from oncegate.signatures.token_scheme import TokenScheme
from oncegate.signatures.verifier import Secrets, Verifier
from oncegate.text import unknown


def standard_webhooks(secrets: Secrets, *, tolerance: Duration = TOLERANCE) -> Verifier:
    """Standard Webhooks (`webhook-signature`); secrets are `whsec_…`."""
    return Verifier("standard-webhooks", StandardScheme(tolerance), secrets)


def open_messaging(secrets: Secrets) -> Verifier:
    """Genesys Cloud Open Messaging: base64 where others who use this header write hex. It signs no time, so only the
    gate's retention keeps a copy from being played again."""
    scheme = HmacScheme("x-hub-signature-256", Spelling("sha256", "base64", "sha256="))
    return Verifier("genesys-open-messaging", scheme, secrets)


def cxone(secrets: Secrets) -> Verifier:
    """NICE CXone's digital channels. `X-Signature-Algorithm` is not looked at: a sender does not get to choose."""
    return Verifier("cxone", HmacScheme("x-request-signature", Spelling("sha256", "base64")), secrets)


def cxone_expert(secrets: Secrets, *, tolerance: Duration = TOLERANCE) -> Verifier:
    """NICE CXone Expert: the timestamp and the body."""
    spelling = Spelling("sha256", "hex", "sha256=")
    scheme = HmacScheme("x-nexus-signature-256", spelling, timestamp_header="x-nexus-timestamp", tolerance=tolerance)
    return Verifier("cxone-expert", scheme, secrets)


def hmac(
    secrets: Secrets,
    *,
    header: str,
    algorithm: str = "sha256",
    encoding: str = "hex",
    prefix: str = "",
    timestamp_header: str | None = None,
    template: str | None = None,
    tolerance: Duration | None = None,
) -> Verifier:
    """Any other sender that puts an HMAC under a header.

    `template` is what is signed, such as `v0:{timestamp}:{body}`; without one it is the body, or with a
    `timestamp_header` the timestamp, a dot and the body."""
    scheme = HmacScheme(
        header,
        Spelling(algorithm, encoding, prefix),
        timestamp_header=timestamp_header,
        template=template,
        tolerance=tolerance,
    )
    return Verifier("hmac", scheme, secrets)


def bearer(secrets: Secrets) -> Verifier:
    """`Authorization: Bearer …`, as EventBridge API destinations can send it."""
    return Verifier("bearer", TokenScheme("authorization", bearer=True), secrets)


def api_key(secrets: Secrets, *, header: str = "x-api-key") -> Verifier:
    """A key under a header of its own, as EventBridge API destinations can send it."""
    return Verifier("api-key", TokenScheme(header, bearer=False), secrets)


# Verifiers by the names that settings have for them.


_HMAC: Final = ("header", "algorithm", "encoding", "prefix", "timestamp_header", "template", "tolerance")

# Each with its options, all of which are text.
SENDERS: Final[dict[str, tuple[Callable[..., Verifier], tuple[str, ...]]]] = {
    "standard-webhooks": (standard_webhooks, ("tolerance",)),
    "genesys-open-messaging": (open_messaging, ()),
    "cxone": (cxone, ()),
    "cxone-expert": (cxone_expert, ("tolerance",)),
    "hmac": (hmac, _HMAC),
    "bearer": (bearer, ()),
    "api-key": (api_key, ("header",)),
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
    if maker is hmac and "header" not in given:
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
