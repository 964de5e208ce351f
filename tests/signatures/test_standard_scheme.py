"""Standard Webhooks, compared with the reference implementation."""

import base64
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from oncegate import signatures
from oncegate.signatures import Verified
from tests.signatures.sending import BODY, NOW, SENDERS, STAMP, sent, whsec

_SECOND = 1_000_000


def test_vector_of_the_specification() -> None:
    """The test vector of the specification passes."""
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    check = signatures.standard_webhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").check
    assert check(headers, b'{"test": 2432232314}', 1614265330 * _SECOND)


@given(st.text(max_size=50), st.binary(min_size=24, max_size=64), st.booleans())
def test_signed_by_the_reference(text: str, key: bytes, padded: bool) -> None:
    """Whatever the reference implementation signs passes."""
    secret = "whsec_" + base64.b64encode(key).decode()
    when = datetime.fromtimestamp(int(STAMP), UTC)
    body = text.encode("utf-8", "replace").decode()
    signature = Webhook(secret).sign("msg_2", when, body)
    headers = {"webhook-id": "msg_2", "webhook-timestamp": STAMP, "webhook-signature": signature}
    check = signatures.standard_webhooks(secret if padded else secret.rstrip("=")).check
    assert check(headers, body.encode(), NOW) == Verified("0", 0)


def test_same_verdict_as_the_reference() -> None:
    """A request passes here if and only if it passes in the reference implementation, at the current time."""
    now = datetime.now(UTC)
    for away, secret in ((0, 0), (290, 0), (310, 0), (-310, 0), (0, 1)):
        stamp = str(int(now.timestamp()) - away)
        headers = sent(SENDERS["standard-webhooks"], secret, stamp=stamp)
        ours = signatures.standard_webhooks(whsec(0)).check(headers, BODY, int(now.timestamp()) * _SECOND)
        try:
            Webhook(whsec(0)).verify(BODY, headers)
        except WebhookVerificationError:
            assert not ours
        else:
            assert ours


def test_several_signatures() -> None:
    """While a sender rotates its secret it sends two signatures; other versions are ignored. If both match, the
    first secret is named."""
    sender = SENDERS["standard-webhooks"]
    headers = sent(sender, 8)
    signed = [sent(sender, number)["webhook-signature"] for number in (7, 8)]
    for together in (signed, signed[::-1], ["v1a,AAAA", "", "v2,x", *signed]):
        headers["webhook-signature"] = " ".join(together)
        assert sender.verifier(whsec(8)).check(headers, BODY, NOW)
        assert sender.verifier([whsec(1), whsec(7)]).check(headers, BODY, NOW) == Verified("1", 1)
        assert sender.verifier([whsec(8), whsec(7)]).check(headers, BODY, NOW) == Verified("0", 0)
    headers["webhook-signature"] = signed[1].replace("v1,", "v2,")
    assert not sender.verifier(whsec(8)).check(headers, BODY, NOW)
