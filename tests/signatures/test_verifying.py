"""A request passes if it was signed with a live secret, and with nothing about it changed since."""

import base64
import hmac as stdlib_hmac
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import Message
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from oncegate import signatures
from oncegate.signatures import Refused, Verified, verifier
from tests.signatures.sending import BODY, NOW, SENDERS, SIGNING, STAMP, TIMED, Sender, token, whsec

EXPERT = "401 the signature in x-nexus-signature-256"
_SECOND = 1_000_000
_OPEN_MESSAGE = (
    b'{"id":"c327c2078ca056db130c55ce648d9fa2","channel":{"id":"90b2b79d-61d2-41b1-8be0-9b9bac19bf3a","messageId":"c327'
    b'c2078ca056db130c55ce648d9fa2","platform":"Open","type":"Private","to":{"id":"customer-0001@example","idType":"Opaq'
    b'ue"},"from":{"nickname":"Support","id":"90b2b79d-61d2-41b1-8be0-9b9bac19bf3a","idType":"Opaque"},"time":"2021-02-0'
    b'1T15:04:05.123Z"},"conversationId":"94b6afbb-501b-4187-93d7-ddbad9be5bd2","type":"Text","text":"Hello World",'
    b'"direction":"Outbound","originatingEntity":"Human"}'
)

every_sender = pytest.mark.parametrize("sender", SENDERS.values(), ids=SENDERS)
every_signing = pytest.mark.parametrize("sender", SIGNING.values(), ids=SIGNING)
every_timed = pytest.mark.parametrize("sender", TIMED.values(), ids=TIMED)


def sent(sender: Sender, number: int = 0, body: bytes = BODY, stamp: str = STAMP) -> dict[str, str]:
    return sender.headers(sender.secret(number), body, stamp)


class TestGenuine:
    @every_sender
    @pytest.mark.parametrize("body", [b"", BODY, b"\x00\xff\xfe not text", bytes(70_000)], ids=len)
    def test_what_was_signed_passes(self, sender: Sender, body: bytes) -> None:
        """Whatever the bytes are, and however they are held."""
        check = sender.verifier(sender.secret(0)).check
        for held in (body, bytearray(body), memoryview(body)):
            assert check(sent(sender, body=body), held, NOW) == Verified("0", 0)

    @every_sender
    def test_headers_of_every_framework(self, sender: Sender) -> None:
        """A mapping in any case, lists of values, pairs of text or of bytes, and those of http.server."""
        headers = sent(sender)
        message = Message()
        for name, value in headers.items():
            message[name] = value
        forms: list[Any] = [
            {name.upper(): value for name, value in headers.items()},
            {name: [value] for name, value in headers.items()},
            list(headers.items()),
            [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            {name.encode(): value.encode() for name, value in headers.items()},
            message,
        ]
        check = sender.verifier(sender.secret(0)).check
        assert [check(form, BODY, NOW) for form in forms] == [Verified("0", 0)] * len(forms)

    def test_a_message_of_open_messaging(self) -> None:
        """Base64 after sha256=, where others put hex."""
        headers = {"X-Hub-Signature-256": "sha256=GFVJC0KOidUKoAeEuh32glteUIXjgGT6iOQSUjwTIT4="}
        assert signatures.open_messaging("openmsg-example-secret").check(headers, _OPEN_MESSAGE, NOW)

    def test_the_vector_of_cxone(self) -> None:
        """The one that its documentation gives."""
        headers = {"X-Request-Signature": "mY/ehO6FCpo8xKIzCS05s2gTicm/ZjDmCm3YgrREVSg="}
        assert signatures.cxone("thisIsSecretKey").check(headers, b'{"foo":"bar"}', NOW)

    def test_the_vector_of_standard_webhooks(self) -> None:
        """The one that implementations of the specification test with."""
        headers = {
            "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "webhook-timestamp": "1614265330",
            "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        }
        check = signatures.standard_webhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").check
        assert check(headers, b'{"test": 2432232314}', 1614265330 * _SECOND)

    @given(st.text(max_size=50), st.binary(min_size=24, max_size=64), st.booleans())
    def test_what_the_reference_signs(self, text: str, key: bytes, padded: bool) -> None:
        """What the reference implementation of Standard Webhooks signs passes, whatever it is."""
        secret = "whsec_" + base64.b64encode(key).decode()
        when = datetime.fromtimestamp(int(STAMP), UTC)
        body = text.encode("utf-8", "replace").decode()
        signature = Webhook(secret).sign("msg_2", when, body)
        headers = {"webhook-id": "msg_2", "webhook-timestamp": STAMP, "webhook-signature": signature}
        check = signatures.standard_webhooks(secret if padded else secret.rstrip("=")).check
        assert check(headers, body.encode(), NOW) == Verified("0", 0)

    def test_what_the_reference_takes(self) -> None:
        """What passes here passes there, and what does not, does not, by the time that it is now."""
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


class TestSeveralSecrets:
    @every_sender
    def test_the_one_that_matched(self, sender: Sender) -> None:
        """The verdict has the label and the place of the secret; without labels, the place is the label."""
        labelled = sender.verifier({"old": sender.secret(0), "new": sender.secret(1)})
        listed = sender.verifier([sender.secret(0), sender.secret(1)])
        for number, label in enumerate(("old", "new")):
            headers = sent(sender, number)
            assert labelled.check(headers, BODY, NOW) == Verified(label, number)
            assert listed.check(headers, BODY, NOW) == Verified(str(number), number)
        assert not labelled.check(sent(sender, 2), BODY, NOW)
        assert labelled.labels == ("old", "new")

    def test_several_signatures(self) -> None:
        """While a sender of Standard Webhooks changes its secret it sends two; other versions are passed over. If both
        are known, the first secret is named."""
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

    @every_sender
    @pytest.mark.parametrize("matching", [0, 1, 2, 9])
    def test_all_are_compared(self, sender: Sender, matching: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each secret is compared in constant time, wherever the one that matches is, and if none does."""
        compared = []

        def compare(expected: bytes, given: bytes) -> bool:
            compared.append((len(expected), len(given)))
            return stdlib_hmac.compare_digest(expected, given)

        monkeypatch.setattr(verifier, "compare_digest", compare)
        checker = sender.verifier([sender.secret(number) for number in range(3)])
        assert bool(checker.check(sent(sender, matching), BODY, NOW)) == (matching < 3)
        assert len(compared) == 3
        assert all(expected == given for expected, given in compared)


class TestChanged:
    @every_sender
    def test_any_bit_of_a_signature(self, sender: Sender) -> None:
        """However little of what is sent under the headers is changed, it is refused."""
        check = sender.verifier(sender.secret(0)).check
        headers = {name: value.encode() for name, value in sent(sender).items() if name != "X-Signature-Algorithm"}
        assert check(headers, BODY, NOW)
        for name, value in headers.items():
            scheme = len("Bearer") if name == "Authorization" else 0  # which may be written in any case
            for flipped in flips(value, scheme):
                assert not check({**headers, name: flipped}, BODY, NOW), (name, flipped)

    @every_signing
    def test_any_bit_of_the_body(self, sender: Sender) -> None:
        """However little of the body is changed, cut off or added, it is refused."""
        check = sender.verifier(sender.secret(0)).check
        for body in (*flips(BODY), BODY[:-1], BODY[1:], BODY + b"\n", b" " + BODY, b""):
            assert not check(sent(sender), body, NOW), body

    @pytest.mark.parametrize("name", ["standard-webhooks", "genesys-open-messaging", "cxone-expert", "hmac as Slack's"])
    def test_the_prefix(self, name: str) -> None:
        """A signature is not right without its prefix, nor with two."""
        sender = SENDERS[name]
        headers = sent(sender)
        prefix, separator, signature = headers[sender.signature].partition("," if name.startswith("s") else "=")
        for changed in (signature, separator + signature, 2 * (prefix + separator) + signature):
            verdict = sender.verifier(sender.secret(0)).check({**headers, sender.signature: changed}, BODY, NOW)
            assert not verdict

    @every_timed
    def test_a_digit_from_the_time_to_the_body(self, sender: Sender) -> None:
        """What is signed can be cut in one way only."""
        check = sender.verifier(sender.secret(0)).check
        body = b"123" + BODY + b"."
        headers = sent(sender, body=body)
        assert check(headers, body, NOW)
        for stamp, moved in ((STAMP + "123", BODY + b"."), (STAMP[:-1], STAMP[-1:].encode() + body)):
            assert not check({**headers, str(sender.timestamp): stamp}, moved, NOW)

    @every_timed
    @pytest.mark.parametrize("away", [-301, -300, 0, 300, 301])
    def test_an_old_copy(self, sender: Sender, away: int) -> None:
        """Five minutes old or ahead is the most; milliseconds are taken as such."""
        check = sender.verifier(sender.secret(0)).check
        for unit in (1, 1_000):
            headers = sent(sender, stamp=str((int(STAMP) - away) * unit))
            assert bool(check(headers, BODY, int(STAMP) * _SECOND)) == (abs(away) <= 300)

    def test_another_tolerance(self) -> None:
        """It can be set, and holds to the microsecond."""
        sender = SENDERS["cxone-expert"]
        check = signatures.cxone_expert(sender.secret(0), tolerance="10s").check
        signed = int(STAMP) * _SECOND
        found = [bool(check(sent(sender), BODY, signed + away * _SECOND + 1)) for away in (-11, -10, 9, 10)]
        assert found == [False, True, True, False]


def flips(value: bytes, start: int = 0) -> Iterator[bytes]:
    """The bytes with one bit changed, for each bit from the start."""
    for index in range(start, len(value)):
        for bit in range(8):
            yield value[:index] + bytes([value[index] ^ 1 << bit]) + value[index + 1 :]


_NAMES = sorted({name for sender in SENDERS.values() for name in sent(sender)})
_VALUES = st.one_of(
    st.binary(max_size=80),
    st.text(max_size=80),
    st.lists(st.binary(max_size=5), max_size=2),
    st.none(),
    st.integers(),
    st.sampled_from([STAMP, "v1,", "sha256=", "Bearer ", "v1," + "A" * 43 + "=", "sha256=" + "a" * 64, "msg.1", "²"]),
)
_HEADERS = st.lists(st.tuples(st.sampled_from(_NAMES) | st.binary(max_size=9) | st.text(max_size=9), _VALUES))


class TestHostile:
    @given(_HEADERS, st.binary(max_size=99), st.integers(min_value=-(2**70), max_value=2**70))
    def test_nothing_raises(self, headers: list[Any], body: bytes, now: int) -> None:
        """Whatever is sent is refused with a code and a sentence, by every verifier."""
        for sender in SENDERS.values():
            for form in (headers, dict(headers)):
                verdict = sender.verifier(sender.secret(0)).check(form, body, now)
                assert isinstance(verdict, Refused)
                assert verdict.code in (400, 401)
                assert verdict.reason.isascii()
                assert not verdict

    @every_sender
    def test_a_header_twice(self, sender: Sender) -> None:
        """Two are refused, also if both are right, in another case or in a list."""
        check = sender.verifier(sender.secret(0)).check
        headers = sent(sender)
        value = headers[sender.signature]
        refused = Refused(401, f"the header {sender.signature.lower()} is there 2 times; send it once")
        assert check([*headers.items(), (sender.signature, value)], BODY, NOW) == refused
        assert check({**headers, sender.signature.swapcase(): value}, BODY, NOW) == refused
        assert check({**headers, sender.signature: [value, value]}, BODY, NOW) == refused
        assert not check({**headers, sender.signature: f"{value},{value}"}, BODY, NOW)
        assert not check({**headers, sender.signature: f"{value}, {value}"}, BODY, NOW)

    @every_sender
    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            ([], "is missing"),
            ("", "is empty"),
            (None, "is empty"),
            ("é", "holds more than printable ASCII characters"),
            (b"\xff", "holds more than printable ASCII characters"),
            ("a\nb", "holds more than printable ASCII characters"),
        ],
    )
    def test_what_is_no_header(self, sender: Sender, value: Any, problem: str) -> None:
        """Each is refused with a sentence of its own that names the header."""
        verdict = sender.verifier(sender.secret(0)).check({**sent(sender), sender.signature: value}, BODY, NOW)
        assert verdict == Refused(401, f"the header {sender.signature.lower()} {problem}")

    def test_no_headers_at_all(self) -> None:
        """As API Gateway has null for them."""
        verdict = signatures.bearer(token(0)).check(None, b"", NOW)
        assert verdict == Refused(401, "the header authorization is missing")

    @pytest.mark.parametrize(
        ("name", "changes", "refused"),
        [
            ("standard-webhooks", {"webhook-id": "msg.1"}, "400 the header webhook-id has a dot in it, which Standard"),
            ("standard-webhooks", {"webhook-timestamp": f"{STAMP}.0"}, "400 the header webhook-timestamp has a dot in"),
            ("standard-webhooks", {"webhook-timestamp": "soon"}, "401 the header webhook-timestamp is no time in sec"),
            ("standard-webhooks", {"webhook-timestamp": "1" * 12}, "401 the header webhook-timestamp is no time in s"),
            ("standard-webhooks", {"webhook-timestamp": "1770091000"}, "401 the time in webhook-timestamp is 8 m old"),
            ("standard-webhooks", {"webhook-signature": "v2,AA=="}, "401 the signatures in webhook-signature are not"),
            ("genesys-open-messaging", {"X-Hub-Signature-256": "sha1=AA"}, "401 the signature in x-hub-signature-256"),
            ("genesys-open-messaging", {"X-Hub-Signature-256": f"sha256={'a' * 64}"}, "401 the signature in x-hub-sig"),
            ("cxone", {"X-Request-Signature": "a" * 44}, "401 the signature in x-request-signature is of no known"),
            (
                "cxone",
                {"X-Request-Signature": "=" * 44},
                "401 the signature in x-request-signature is not written as 44",
            ),
            ("cxone-expert", {"X-Nexus-Timestamp": "1770099999"}, "401 the time in x-nexus-timestamp is 2 h ahead of"),
            (
                "cxone-expert",
                {"X-Nexus-Signature-256": f"sha256={'A' * 64}"},
                f"{EXPERT} is not written as sha256= and",
            ),
            (
                "cxone-expert",
                {"X-Nexus-Signature-256": "sha256=abc"},
                f"{EXPERT} is not written as sha256= and 64 digits",
            ),
            ("bearer", {"Authorization": "Basic YTpi"}, "401 the header authorization is not Bearer and a token"),
            ("bearer", {"Authorization": "Bearer  x"}, "401 the token in authorization is not known"),
            ("api-key", {"X-Api-Key": "x"}, "401 the key in x-api-key is not known"),
        ],
    )
    def test_each_refusal_says_why(self, name: str, changes: dict[str, str], refused: str) -> None:
        """The sentence says which header is wrong, and how."""
        sender = SENDERS[name]
        verdict = sender.verifier(sender.secret(0)).check({**sent(sender), **changes}, BODY, NOW)
        assert isinstance(verdict, Refused)
        assert f"{verdict.code} {verdict.reason}".startswith(refused)

    def test_another_spelling_of_the_same(self) -> None:
        """A digest has one spelling: upper-case hex and base64 that decodes to the same are refused."""
        sender = SENDERS["cxone-expert"]
        headers = sent(sender)
        headers["X-Nexus-Signature-256"] = "sha256=" + headers["X-Nexus-Signature-256"][7:].upper()
        assert not sender.verifier(sender.secret(0)).check(headers, BODY, NOW)
        # Of the last character before the padding, two bits decode to nothing.
        signature = "mY/ehO6FCpo8xKIzCS05s2gTicm/ZjDmCm3YgrREVSh="
        assert base64.b64decode(signature) == base64.b64decode(signature.replace("h=", "g="))
        verdict = signatures.cxone("thisIsSecretKey").check({"X-Request-Signature": signature}, b'{"foo":"bar"}', NOW)
        assert not verdict

    def test_text_is_no_body(self) -> None:
        """A body that was decoded already is a mistake of the caller, which must not pass for a forgery."""
        body: Any = "{}"
        with pytest.raises(TypeError, match="over the raw bytes of the body"):
            signatures.bearer(token(0)).check({}, body, NOW)


def test_the_core_does_without() -> None:
    """`import oncegate` does not load it, and it loads neither sockets nor a logger."""
    code = (
        "import sys, oncegate; before = 'oncegate.signatures' in sys.modules; import oncegate.signatures; print(before)"
    )
    code += "; print({'asyncio', 'logging', 'socket', 'ssl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "set()"]
