"""Verify the signature of a webhook over its raw bytes, before it is parsed.

    verifier = signatures.standard_webhooks({"crm": "whsec_…", "crm-next": "whsec_…"})
    verdict = verifier.check(headers, body, now)    # Verified(label, index) or Refused(code, reason)

Each signature scheme is a module: `hmac_scheme.py`, `standard_scheme.py` and `token_scheme.py`. `senders.py` has the
scheme of each sender.
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
