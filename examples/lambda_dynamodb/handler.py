"""A Lambda function that opens one case in a CRM for each event. DynamoDB holds its claims."""

import json
import os
from urllib.request import Request, urlopen

from oncegate import Event
from oncegate.settings import load

CRM_URL = os.environ["CRM_URL"]

# Created once, not for each invocation. `oncegate infra up` sets the settings as environment variables of the function.
gate = load().gate()


def open_case(event: Event) -> dict[str, str]:
    """Runs once for each event. If it raises, the event is delivered again.

    If the function dies between this request and the completion, the request is repeated with the same key. A CRM that
    supports `Idempotency-Key` then returns the case that it has already opened.
    """
    case = {"type": event.type, "about": event.entity, "state": event.state}
    headers = {"Content-Type": "application/json", "Idempotency-Key": str(event.key)}
    with urlopen(Request(CRM_URL, json.dumps(case).encode(), headers), timeout=5) as answer:  # noqa: S310  # from the settings
        return {"case": json.load(answer)["case"]}


handler = gate.lambda_handler(open_case)
