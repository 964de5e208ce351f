"""Senders: how each of them signs."""

from oncegate.durations import Duration
from oncegate.signatures.digests import HmacScheme, Spelling
from oncegate.signatures.keyring import Secrets
from oncegate.signatures.standard import StandardScheme
from oncegate.signatures.timestamps import TOLERANCE
from oncegate.signatures.tokens import TokenScheme
from oncegate.signatures.verifier import Verifier


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
