"""The signature scheme of each sender: one function for each sender, and a table of these functions by name."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from oncegate.durations import Duration
from oncegate.errors import SettingError
from oncegate.signatures.hmac_scheme import TOLERANCE, HmacScheme, SignatureFormat
from oncegate.signatures.standard_scheme import StandardScheme
from oncegate.signatures.token_scheme import TokenScheme
from oncegate.signatures.verifier import Secrets, Verifier
from oncegate.text import unknown


def standard_webhooks(secrets: Secrets, *, tolerance: Duration = TOLERANCE) -> Verifier:
    """A verifier for Standard Webhooks (header `webhook-signature`). The secrets have the form `whsec_…`."""
    return Verifier("standard-webhooks", StandardScheme(tolerance), secrets)


def open_messaging(secrets: Secrets) -> Verifier:
    """A verifier for Genesys Cloud Open Messaging (header `X-Hub-Signature-256`). Genesys encodes the digest in base64;
    other senders use hex in this header. The signature covers no timestamp, so only the retention of the gate protects
    against replays."""
    scheme = HmacScheme("x-hub-signature-256", SignatureFormat("sha256", "base64", "sha256="))
    return Verifier("genesys-open-messaging", scheme, secrets)


def cxone(secrets: Secrets) -> Verifier:
    """A verifier for the digital channels of NICE CXone. The header `X-Signature-Algorithm` is ignored, because a
    sender must not choose the algorithm."""
    return Verifier("cxone", HmacScheme("x-request-signature", SignatureFormat("sha256", "base64")), secrets)


def cxone_expert(secrets: Secrets, *, tolerance: Duration = TOLERANCE) -> Verifier:
    """A verifier for NICE CXone Expert, which signs the timestamp and the body."""
    scheme = HmacScheme(
        "x-nexus-signature-256",
        SignatureFormat("sha256", "hex", "sha256="),
        timestamp_header="x-nexus-timestamp",
        tolerance=tolerance,
    )
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
    """A verifier for any other sender that sends an HMAC in a header.

    `template` describes the signed message, such as `v0:{timestamp}:{body}`. The default is `{body}`, or
    `{timestamp}.{body}` if `timestamp_header` is given."""
    scheme = HmacScheme(
        header,
        SignatureFormat(algorithm, encoding, prefix),
        timestamp_header=timestamp_header,
        template=template,
        tolerance=tolerance,
    )
    return Verifier("hmac", scheme, secrets)


def bearer(secrets: Secrets) -> Verifier:
    """A verifier for the header `Authorization: Bearer TOKEN`, which EventBridge API destinations can send."""
    return Verifier("bearer", TokenScheme("authorization", bearer=True), secrets)


def api_key(secrets: Secrets, *, header: str = "x-api-key") -> Verifier:
    """A verifier for a secret key in a header, which EventBridge API destinations can send."""
    return Verifier("api-key", TokenScheme(header, bearer=False), secrets)


# ── by name, for settings ─────────────────────────────────────────────────────────────────────────────────


_HMAC_OPTIONS: Final = ("header", "algorithm", "encoding", "prefix", "timestamp_header", "template", "tolerance")

# The function of each sender and the names of the options of the function. The value of every option is text.
SENDERS: Final[dict[str, tuple[Callable[..., Verifier], tuple[str, ...]]]] = {
    "standard-webhooks": (standard_webhooks, ("tolerance",)),
    "genesys-open-messaging": (open_messaging, ()),
    "cxone": (cxone, ()),
    "cxone-expert": (cxone_expert, ("tolerance",)),
    "hmac": (hmac, _HMAC_OPTIONS),
    "bearer": (bearer, ()),
    "api-key": (api_key, ("header",)),
}


def check_name(name: str) -> None:
    if name not in SENDERS:
        raise SettingError(unknown(str(name), SENDERS, "signature"))


def verifier_of(name: str, secrets: Secrets, options: Mapping[str, Any] | None = None) -> Verifier:
    """Return the verifier for this name of a sender. Raises SettingError if the name, an option or a secret is not
    valid."""
    check_name(name)
    make, known = SENDERS[name]
    options = options or {}
    for option, value in options.items():
        _check_option(name, option, value, known)
    if make is hmac and "header" not in options:
        raise SettingError('signature=hmac needs header, the name of the header with the signature: header = "x-…"')
    try:
        return make(secrets, **options)
    except SettingError as error:
        raise SettingError(f"signature={name}: {error}") from None


def _check_option(name: str, option: str, value: Any, known: tuple[str, ...]) -> None:
    if not known:
        raise SettingError(f"signature={name} takes no options; remove {option}")
    if option not in known:
        raise SettingError(unknown(option, known, f"option of signature={name}"))
    if not isinstance(value, str):
        raise SettingError(f"signature={name}: {option} must be text in quotes")
