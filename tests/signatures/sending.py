"""Sign requests as the senders' documentation describes, without the code under test."""

import base64
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

from oncegate import signatures
from oncegate.signatures import Verifier
from oncegate.signatures.verifier import Secrets

NOW = 1_770_091_506_123_456  # microseconds
STAMP = "1770091506"
BODY = b'{"id":"evt-1","text":"caf\xc3\xa9"}'


def whsec(number: int) -> str:
    """A secret of Standard Webhooks."""
    return "whsec_" + base64.b64encode(hashlib.sha256(b"%d" % number).digest()).decode()


def plain(number: int) -> str:
    """A secret that is the key itself."""
    return f"sécret-number-{number:04d}"


def token(number: int) -> str:
    """A secret that the header contains."""
    return f"a token, number-{number:04d}"


def _mac(secret: str, message: bytes, algorithm: str = "sha256") -> bytes:
    return hmac.new(secret.encode(), message, algorithm).digest()


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _standard(secret: str, body: bytes, stamp: str) -> dict[str, str]:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signature = hmac.new(key, b"msg_1." + stamp.encode() + b"." + body, "sha256").digest()
    return {"webhook-id": "msg_1", "webhook-timestamp": stamp, "webhook-signature": f"v1,{_base64(signature)}"}


def _open_messaging(secret: str, body: bytes, stamp: str) -> dict[str, str]:
    return {"X-Hub-Signature-256": "sha256=" + _base64(_mac(secret, body))}


def _cxone(secret: str, body: bytes, stamp: str) -> dict[str, str]:
    return {"X-Request-Signature": _base64(_mac(secret, body)), "X-Signature-Algorithm": "none"}


def _expert(secret: str, body: bytes, stamp: str) -> dict[str, str]:
    signature = _mac(secret, f"{stamp}.".encode() + body).hex()
    return {"X-Nexus-Signature-256": f"sha256={signature}", "X-Nexus-Timestamp": stamp}


def _slack(secret: str, body: bytes, stamp: str) -> dict[str, str]:
    signature = _mac(secret, f"v0:{stamp}:".encode() + body).hex()
    return {"X-Slack-Signature": f"v0={signature}", "X-Slack-Request-Timestamp": stamp}


def _own(secret: str, body: bytes, stamp: str) -> dict[str, str]:
    return {"X-Sig": _base64(_mac(secret, body + f"|{stamp}".encode(), "sha512")), "X-Time": stamp}


def slack(secrets: Secrets) -> Verifier:
    return signatures.hmac(
        secrets,
        header="X-Slack-Signature",
        prefix="v0=",
        timestamp_header="X-Slack-Request-Timestamp",
        template="v0:{timestamp}:{body}",
    )


def own(secrets: Secrets) -> Verifier:
    return signatures.hmac(
        secrets,
        header="x-sig",
        algorithm="sha512",
        encoding="base64",
        timestamp_header="X-Time",
        template="{body}|{timestamp}",
    )


@dataclass(frozen=True)
class Sender:
    """A signature scheme: its verifier, its secrets, and the headers of a signed request."""

    verifier: Callable[[Secrets], Verifier]
    secret: Callable[[int], str]
    headers: Callable[[str, bytes, str], dict[str, str]]
    signature: str
    timestamp: str | None = None


SENDERS = {
    "standard-webhooks": Sender(
        signatures.standard_webhooks, whsec, _standard, "webhook-signature", "webhook-timestamp"
    ),
    "genesys-open-messaging": Sender(signatures.open_messaging, plain, _open_messaging, "X-Hub-Signature-256"),
    "cxone": Sender(signatures.cxone, plain, _cxone, "X-Request-Signature"),
    "cxone-expert": Sender(
        signatures.cxone_expert, plain, _expert, "X-Nexus-Signature-256", timestamp="X-Nexus-Timestamp"
    ),
    "hmac as Slack's": Sender(slack, plain, _slack, "X-Slack-Signature", "X-Slack-Request-Timestamp"),
    "hmac with a time at the end": Sender(own, plain, _own, "X-Sig", "X-Time"),
    "bearer": Sender(
        signatures.bearer, token, lambda secret, *_: {"Authorization": f"Bearer {secret}"}, "Authorization"
    ),
    "api-key": Sender(signatures.api_key, token, lambda secret, *_: {"X-Api-Key": secret}, "X-Api-Key"),
}
SIGNING = {name: sender for name, sender in SENDERS.items() if name not in ("bearer", "api-key")}
TIMED = {name: sender for name, sender in SENDERS.items() if sender.timestamp}


def sent(sender: Sender, number: int = 0, body: bytes = BODY, stamp: str = STAMP) -> dict[str, str]:
    return sender.headers(sender.secret(number), body, stamp)
