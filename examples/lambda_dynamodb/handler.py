"""A Lambda function that opens a case in a CRM for each event, once. Its claims are in DynamoDB."""

import json
import os
from urllib.request import Request, urlopen

from oncegate import Event
from oncegate.settings import load

CRM_URL = os.environ["CRM_URL"]

# Made once, not for each invocation. Its settings are variables of the function, which `oncegate infra up` sets.
gate = load().gate()


def open_case(event: Event) -> dict[str, str]:
    """Runs once for each event. What it raises lets the event be delivered again.

    If the function dies between this call and its completion, the call is made again, with the same key: a CRM that
    heeds the `Idempotency-Key` then answers with the case that it has opened before.
    """
    case = {"type": event.type, "about": event.entity, "state": event.state}
    headers = {"Content-Type": "application/json", "Idempotency-Key": str(event.key)}
    with urlopen(Request(CRM_URL, json.dumps(case).encode(), headers), timeout=5) as answer:  # noqa: S310  # as it was set
        return {"case": json.load(answer)["case"]}


handler = gate.lambda_handler(open_case)
