"""The senders: their published examples, and their names in settings."""

from typing import Any

import pytest

from oncegate import signatures
from oncegate.errors import SettingError
from oncegate.signatures import Verified, senders, verifier_of
from tests.signatures.sending import BODY, NOW, SENDERS, STAMP, plain, token

_OPEN_MESSAGE = (
    b'{"id":"c327c2078ca056db130c55ce648d9fa2","channel":{"id":"90b2b79d-61d2-41b1-8be0-9b9bac19bf3a","messageId":"c327'
    b'c2078ca056db130c55ce648d9fa2","platform":"Open","type":"Private","to":{"id":"customer-0001@example","idType":"Opaq'
    b'ue"},"from":{"nickname":"Support","id":"90b2b79d-61d2-41b1-8be0-9b9bac19bf3a","idType":"Opaque"},"time":"2021-02-0'
    b'1T15:04:05.123Z"},"conversationId":"94b6afbb-501b-4187-93d7-ddbad9be5bd2","type":"Text","text":"Hello World",'
    b'"direction":"Outbound","originatingEntity":"Human"}'
)


def test_open_messaging() -> None:
    """Open Messaging sends base64 after sha256=, where others send hex."""
    headers = {"X-Hub-Signature-256": "sha256=GFVJC0KOidUKoAeEuh32glteUIXjgGT6iOQSUjwTIT4="}
    assert signatures.open_messaging("openmsg-example-secret").check(headers, _OPEN_MESSAGE, NOW)


def test_vector_of_cxone() -> None:
    """The example in the documentation of CXone passes."""
    headers = {"X-Request-Signature": "mY/ehO6FCpo8xKIzCS05s2gTicm/ZjDmCm3YgrREVSg="}
    assert signatures.cxone("thisIsSecretKey").check(headers, b'{"foo":"bar"}', NOW)


def test_each_name() -> None:
    """A verifier made by name accepts what the function accepts."""
    by_name = [name for name in SENDERS if not name.startswith("hmac")]
    assert {*by_name, "hmac"} == set(senders.SENDERS)
    for name in by_name:
        sender = SENDERS[name]
        verifier = verifier_of(name, {"crm": sender.secret(0)})
        assert verifier.check(sender.headers(sender.secret(0), BODY, STAMP), BODY, NOW) == Verified("crm", 0)
        assert name in repr(verifier)


def test_options() -> None:
    """Options by name work as in Python."""
    sender = SENDERS["hmac as Slack's"]
    options = {
        "header": "X-Slack-Signature",
        "prefix": "v0=",
        "timestamp_header": "X-Slack-Request-Timestamp",
        "template": "v0:{timestamp}:{body}",
        "tolerance": "1m",
    }
    check = verifier_of("hmac", plain(0), options).check
    headers = sender.headers(plain(0), BODY, STAMP)
    assert [bool(check(headers, BODY, NOW + away)) for away in (0, 61_000_000)] == [True, False]
    assert verifier_of("api-key", token(0), {"header": "X-Key"}).check({"x-key": token(0)}, b"", NOW)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("standard_webhook", {}, "there is no signature standard_webhook; did you mean standard-webhooks?"),
        ("genesys", {}, "there is no signature genesys; "),
        ("cxone", {"header": "x"}, "signature=cxone takes no options; remove header"),
        ("hmac", {"heder": "x"}, "there is no option of signature=hmac heder; did you mean header?"),
        ("hmac", {"header": 1}, "signature=hmac: header must be text in quotes"),
        ("hmac", {}, "signature=hmac needs header, the name of the header with the signature"),
    ],
)
def test_mistakes(name: str, options: dict[str, Any], problem: str) -> None:
    """An unknown name or option is an error that suggests the nearest one."""
    with pytest.raises(SettingError) as raised:
        verifier_of(name, plain(1), options)
    assert str(raised.value).startswith(problem)
