"""A Lambda function with a signature rejects HTTP requests that were not signed."""

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from oncegate import Gate, keys, signatures
from oncegate.errors import SettingError
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.gate.conftest import Stumbling
from tests.ingress.invocations import Context, envelope, function_url, gateway, message

SECRET = "openmsg-example-secret"  # noqa: S105  # guards nothing


def header(body: bytes) -> str:
    return "sha256=" + base64.b64encode(hmac.new(SECRET.encode(), body, hashlib.sha256).digest()).decode()


def signed(request: dict[str, Any], signature: str | None = None) -> dict[str, Any]:
    """The request with a signature, by default the valid one."""
    sent = request["body"].encode()
    raw = base64.b64decode(sent) if request["isBase64Encoded"] else sent
    return {**request, "headers": {**request["headers"], "X-Hub-Signature-256": signature or header(raw)}}


@pytest.mark.parametrize("wrap", [gateway, function_url])
class TestRequests:
    def test_valid(self, gate: Gate, wrap: Any) -> None:
        """The signature is checked over the bytes that were sent, also if AWS has encoded them as base64."""
        handle = gate.lambda_handler(lambda event: event.id, signature=signatures.open_messaging(SECRET))
        request = signed(wrap(json.dumps(envelope(1, text="café"), ensure_ascii=False)))
        assert [json.loads(handle(request, Context())["body"])["status"] for _ in "12"] == ["processed", "duplicate"]

    def test_forged(self, stumbling: Stumbling, wrap: Any, capsys: pytest.CaptureFixture[str]) -> None:
        """A forged request is answered with 401 and the reason, which is logged. Nothing runs, nothing is stored and no
        request is sent to the store."""
        ran: list[Any] = []
        handle = Gate(stumbling).lambda_handler(ran.append, signature=signatures.open_messaging(SECRET))
        capsys.readouterr()
        forged = signed(wrap(envelope(1)), header(b"another body"))
        answer = handle(forged, Context())
        reason = "the signature in x-hub-signature-256 matches no secret"
        assert (answer["statusCode"], answer["headers"]["content-type"]) == (401, "application/problem+json")
        assert json.loads(answer["body"])["detail"] == reason
        assert json.loads(capsys.readouterr().out)["reason"] == reason
        for request in (wrap(envelope(1)), wrap(None), wrap(None, "GET"), {**forged, "headers": None}):
            assert handle(request, Context())["statusCode"] == 401
        assert (ran, stumbling.calls, stumbling.browse()) == ([], [], [])

    def test_a_header_twice(self, gate: Gate, wrap: Any) -> None:
        """If a header has several values, all of them are checked, not only the last one."""
        handle = gate.lambda_handler(lambda event: event.id, signature=signatures.open_messaging(SECRET))
        request = signed(wrap(envelope(1)))
        right = request["headers"]["X-Hub-Signature-256"]
        both = {**request, "multiValueHeaders": {"X-Hub-Signature-256": ["sha256=x", right]}}
        assert handle(both, Context())["statusCode"] == 401
        one = {**request, "multiValueHeaders": {"X-Hub-Signature-256": [right]}}
        assert handle(one, Context())["statusCode"] == 200


def test_headers_that_are_not_signed(store: MemoryStore) -> None:
    """Unsigned headers change neither the key nor the source nor the type: a copy stays a duplicate."""
    handle = Gate(store).lambda_handler(lambda event: event.id, signature=signatures.open_messaging(SECRET))
    spread = {"ce-specversion": "1.0", "ce-id": "other", "ce-source": "s", "ce-type": "t", "webhook-id": "msg_2"}
    for wrap in (gateway, function_url):
        for headers in ({}, spread):
            request = signed(wrap('{"id": "evt-1"}'))
            handle({**request, "headers": {**request["headers"], **headers}}, Context())
            several = {name: [value] for name, value in {**request["headers"], **headers}.items()}
            handle({**request, "headers": None, "multiValueHeaders": several}, Context())
    (entry,) = store.browse()
    assert (entry.record.about.source, entry.record.about.delivery_id) == ("plain", "evt-1")


class TestWebhookIds:
    def test_a_message_runs_once(self, store: MemoryStore) -> None:
        """The signed id is the key: a retry of a message is a duplicate, and the same body with another id is not."""
        key, body = bytes(range(24)), '{"type": "invoice.paid"}'

        def request(name: str) -> dict[str, Any]:
            mac = base64.b64encode(hmac.new(key, f"{name}.1770091506.{body}".encode(), "sha256").digest()).decode()
            sent = {"webhook-id": name, "webhook-timestamp": "1770091506", "webhook-signature": f"v1,{mac}"}
            return {**gateway(body), "headers": sent}

        gate = Gate(store, key=keys.webhook_id, wall=ManualClock(1_770_091_506_000_000))
        handle = gate.lambda_handler(lambda event: event.webhook_id, signature=signatures.standard_webhooks(key))
        said = [json.loads(handle(request(name), Context())["body"])["status"] for name in ("m-1", "m-1", "m-2")]
        assert said == ["processed", "duplicate", "processed"]

    def test_rejected_without_a_signed_id(self, store: MemoryStore) -> None:
        """keys.webhook_id is rejected for a function whose requests have no signed id."""
        gate = Gate(store, key=keys.webhook_id)
        for signature in (None, signatures.open_messaging(SECRET)):
            with pytest.raises(SettingError, match=r"needs signature=oncegate\.signatures\.standard_webhooks"):
                gate.lambda_handler(print, signature=signature)
        assert "needs the signed webhook-id of a Standard Webhook" in gate.run({"id": "evt-1"}, print).reason


def test_invocations_that_are_not_requests(gate: Gate) -> None:
    """Deliveries by AWS need no signature: records of a queue, events of a bus, and records of a failure
    destination."""
    handle = gate.lambda_handler(lambda event: event.id, signature=signatures.open_messaging(SECRET))
    failed = {"version": "1.0", "requestContext": {"condition": "RetriesExhausted"}, "requestPayload": envelope(3)}
    assert handle({"Records": [message(envelope(1))]}, Context()) == {"batchItemFailures": []}
    for event in (envelope(2), failed):
        assert handle(event, Context())["statusCode"] == 200


@pytest.mark.parametrize(
    "changes", [{"body": "?", "isBase64Encoded": True}, {"body": [1], "isBase64Encoded": True}, {"body": [1]}]
)
def test_invalid_bodies(gate: Gate, changes: dict[str, Any]) -> None:
    """A body that is neither text nor valid base64 is 400."""
    handle = gate.lambda_handler(lambda event: event.id, signature=signatures.open_messaging(SECRET))
    assert handle({**signed(gateway(envelope(1))), **changes}, Context())["statusCode"] == 400


def test_a_message_over_a_websocket(gate: Gate) -> None:
    """A WebSocket message has no headers and so no signature: it is rejected."""
    handle = gate.lambda_handler(lambda event: event.id, signature=signatures.open_messaging(SECRET))
    frame = {"requestContext": {"routeKey": "$default"}, "body": json.dumps(envelope(1)), "isBase64Encoded": False}
    assert handle(frame, Context())["statusCode"] == 401


def test_the_clock_of_the_gate(store: MemoryStore) -> None:
    """A signed time is compared with the clock of the gate."""
    key = bytes(range(24))
    body = json.dumps(envelope(1))
    mac = base64.b64encode(hmac.new(key, f"m-1.1770091506.{body}".encode(), "sha256").digest()).decode()
    sent = {"webhook-id": "m-1", "webhook-timestamp": "1770091506", "webhook-signature": f"v1,{mac}"}
    request = {**gateway(body), "headers": sent}
    codes = []
    for clock in (ManualClock(1_770_091_506_000_000), ManualClock(1_770_092_506_000_000)):
        handle = Gate(store, wall=clock).lambda_handler(
            lambda event: event.id, signature=signatures.standard_webhooks(key)
        )
        codes.append(handle(request, Context())["statusCode"])
    assert codes == [200, 401]


def test_a_secret_instead_of_a_verifier(gate: Gate) -> None:
    """A secret in place of a verifier is rejected, and the error does not repeat it."""
    given: Any = SECRET
    with pytest.raises(SettingError, match=r"^signature must be a verifier, such as oncegate\.signatures\.cxone"):
        gate.lambda_handler(print, signature=given)
