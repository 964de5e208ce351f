"""Verify the signature of a webhook over the raw bytes of its body, before the body is parsed.

    verifier = signatures.standard_webhooks({"crm": "whsec_…", "crm-next": "whsec_…"})
    verdict = verifier.check(headers, body, now)    # Verified(label, index) or Refused(code, reason)

Each signature scheme has its own module: `hmac_scheme.py`, `standard_scheme.py` and `token_scheme.py`. `senders.py`
assigns a scheme to each sender.
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
