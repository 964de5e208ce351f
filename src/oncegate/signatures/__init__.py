"""Signatures: whether a webhook comes from whom it should, checked over the raw bytes before anything is read.

    verifier = signatures.standard_webhooks({"crm": "whsec_…", "crm-next": "whsec_…"})
    verdict = verifier.check(headers, body, now)    # Verified(label, index) or Refused(code, reason)

Each way of signing is a scheme: `digests.py`, `standard.py` and `tokens.py`. `senders.py` says who uses which.
"""

from oncegate.signatures.senders import (
    api_key,
    bearer,
    cxone,
    cxone_expert,
    hmac,
    open_messaging,
    standard_webhooks,
    verifier_of,
)
from oncegate.signatures.verifier import Refused, Verdict, Verified, Verifier

__all__ = [
    "Refused",
    "Verdict",
    "Verified",
    "Verifier",
    "api_key",
    "bearer",
    "cxone",
    "cxone_expert",
    "hmac",
    "open_messaging",
    "standard_webhooks",
    "verifier_of",
]
