"""A request passes if it is signed with one of the secrets and nothing in it has changed."""

import hmac as stdlib_hmac
import subprocess
import sys
from collections.abc import Callable, Iterator
from email.message import Message
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate import signatures
from oncegate.errors import SettingError
from oncegate.signatures import Refused, Verified, verifier
from tests.signatures.sending import BODY, NOW, SENDERS, SIGNING, STAMP, Sender, plain, sent, token, whsec

EXPERT = "401 the signature in x-nexus-signature-256"
every_sender = pytest.mark.parametrize("sender", SENDERS.values(), ids=SENDERS)
every_signing = pytest.mark.parametrize("sender", SIGNING.values(), ids=SIGNING)


@every_sender
@pytest.mark.parametrize("body", [b"", BODY, b"\x00\xff\xfe not text", bytes(70_000)], ids=len)
def test_signed_body(sender: Sender, body: bytes) -> None:
    """A signed body passes, whatever its bytes and its type."""
    check = sender.verifier(sender.secret(0)).check
    for held in (body, bytearray(body), memoryview(body)):
        assert check(sent(sender, body=body), held, NOW) == Verified("0", 0)


@every_sender
def test_headers_of_every_framework(sender: Sender) -> None:
    """Headers may be a mapping in any case, lists of values, pairs of text or bytes, or those of http.server."""
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


@every_sender
def test_matching_secret(sender: Sender) -> None:
    """The verdict has the label and the index of the secret; without labels, the index is the label."""
    labelled = sender.verifier({"old": sender.secret(0), "new": sender.secret(1)})
    listed = sender.verifier([sender.secret(0), sender.secret(1)])
    for number, label in enumerate(("old", "new")):
        headers = sent(sender, number)
        assert labelled.check(headers, BODY, NOW) == Verified(label, number)
        assert listed.check(headers, BODY, NOW) == Verified(str(number), number)
    assert not labelled.check(sent(sender, 2), BODY, NOW)
    assert labelled.labels == ("old", "new")


@every_sender
@pytest.mark.parametrize("matching", [0, 1, 2, 9])
def test_all_secrets_are_compared(sender: Sender, matching: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every secret is compared in constant time, wherever the matching one is, and if none matches."""
    compared = []

    def compare(expected: bytes, given: bytes) -> bool:
        compared.append((len(expected), len(given)))
        return stdlib_hmac.compare_digest(expected, given)

    monkeypatch.setattr(verifier, "compare_digest", compare)
    checker = sender.verifier([sender.secret(number) for number in range(3)])
    assert bool(checker.check(sent(sender, matching), BODY, NOW)) == (matching < 3)
    assert len(compared) == 3
    assert all(expected == given for expected, given in compared)


@every_sender
def test_short_secrets(sender: Sender) -> None:
    """A secret that is too short is rejected; the error has the minimum length."""
    shortest = 24 if sender.secret is whsec else 14
    assert sender.verifier(b"x" * shortest)
    for secret in (b"", b"x" * (shortest - 1)):
        with pytest.raises(
            SettingError, match=rf"^secret '1' has {len(secret)} bytes; use at least {shortest} random bytes"
        ):
            sender.verifier([sender.secret(0), secret])


@pytest.mark.parametrize(
    ("make", "secrets", "problem"),
    [
        (signatures.cxone, [], "a signature needs at least one secret"),
        (signatures.cxone, {}, "a signature needs at least one secret"),
        (signatures.cxone, [plain(1), plain(2), plain(1)], "two of the secrets are equal"),
        (signatures.cxone, {"a": plain(1), "b": plain(1).encode()}, "two of the secrets are equal"),
        (
            signatures.cxone,
            plain(1) + "\n",
            "the secret begins or ends with white space, such as a newline",
        ),
        (signatures.cxone, "\ud800" + plain(1), "the secret is not valid Unicode text"),
        (signatures.cxone, {"crm": None}, "secret 'crm' is neither text nor bytes"),
        (signatures.cxone, None, "secrets must be one text, a list of texts, or a table of texts by label"),
        (
            signatures.standard_webhooks,
            "whsec_" + plain(1),
            "the secret must be whsec_ and base64, the format of Sta",
        ),
        (signatures.standard_webhooks, {"a": "whsec_AAA=A"}, "secret 'a' must be whsec_ and base64, the format of"),
        (signatures.bearer, plain(1), "the secret must be printable ASCII: a header cannot contain other characters"),
        (
            signatures.api_key,
            b"\xff" * 14,
            "the secret must be printable ASCII: a header cannot contain other characters",
        ),
    ],
)
def test_invalid_secrets(make: Callable[[Any], Any], secrets: Any, problem: str) -> None:
    """The error of an invalid secret has its label and no part of the secret."""
    with pytest.raises(SettingError) as raised:
        make(secrets)
    assert str(raised.value).startswith(problem)
    assert "number-" not in str(raised.value)


@every_sender
def test_secrets_are_not_shown(sender: Sender) -> None:
    """Neither the repr of a verifier nor a reason contains a secret or the expected signature."""
    secrets = {"old": sender.secret(0), "new": sender.secret(1)}
    verifier = sender.verifier(secrets)
    verdict = verifier.check(sender.headers(sender.secret(2), BODY, STAMP), BODY, NOW)
    right = sender.headers(sender.secret(0), BODY, STAMP)[sender.signature]
    shown = f"{verifier!r} {verifier} {verdict!r}"
    assert "secrets: old, new>" in shown
    for hidden in (*secrets.values(), sender.secret(2), right, right[-20:]):
        assert hidden not in shown


@every_sender
def test_changed_signature(sender: Sender) -> None:
    """A change of any bit in the headers is rejected."""
    check = sender.verifier(sender.secret(0)).check
    headers = {name: value.encode() for name, value in sent(sender).items() if name != "X-Signature-Algorithm"}
    assert check(headers, BODY, NOW)
    for name, value in headers.items():
        scheme = len("Bearer") if name == "Authorization" else 0  # the scheme may be in any case
        for flipped in flips(value, scheme):
            assert not check({**headers, name: flipped}, BODY, NOW), (name, flipped)


@every_signing
def test_changed_body(sender: Sender) -> None:
    """A change of any bit of the body, or of its length, is rejected."""
    check = sender.verifier(sender.secret(0)).check
    for body in (*flips(BODY), BODY[:-1], BODY[1:], BODY + b"\n", b" " + BODY, b""):
        assert not check(sent(sender), body, NOW), body


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


@given(_HEADERS, st.binary(max_size=99), st.integers(min_value=-(2**70), max_value=2**70))
def test_nothing_raises(headers: list[Any], body: bytes, now: int) -> None:
    """Every verifier rejects arbitrary input with a code and a reason, and raises nothing."""
    for sender in SENDERS.values():
        for form in (headers, dict(headers)):
            verdict = sender.verifier(sender.secret(0)).check(form, body, now)
            assert isinstance(verdict, Refused)
            assert verdict.code in (400, 401)
            assert verdict.reason.isascii()
            assert not verdict


@every_sender
def test_header_twice(sender: Sender) -> None:
    """A header that occurs twice is rejected, even with equal valid values, in another case or in a list."""
    check = sender.verifier(sender.secret(0)).check
    headers = sent(sender)
    value = headers[sender.signature]
    refused = Refused(401, f"the header {sender.signature.lower()} occurs 2 times; send it once")
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
        ("é", "has characters other than printable ASCII"),
        (b"\xff", "has characters other than printable ASCII"),
        ("a\nb", "has characters other than printable ASCII"),
    ],
)
def test_invalid_header(sender: Sender, value: Any, problem: str) -> None:
    """A missing, empty or non-ASCII header is rejected with a reason that names it."""
    verdict = sender.verifier(sender.secret(0)).check({**sent(sender), sender.signature: value}, BODY, NOW)
    assert verdict == Refused(401, f"the header {sender.signature.lower()} {problem}")


@pytest.mark.parametrize(
    ("name", "changes", "refused"),
    [
        ("standard-webhooks", {"webhook-id": "msg.1"}, "400 the header webhook-id contains a dot, which Standard"),
        ("standard-webhooks", {"webhook-timestamp": f"{STAMP}.0"}, "400 the header webhook-timestamp contains a dot"),
        ("standard-webhooks", {"webhook-timestamp": "soon"}, "401 the header webhook-timestamp is not a Unix time"),
        ("standard-webhooks", {"webhook-timestamp": "1" * 12}, "401 the header webhook-timestamp is not a Unix"),
        ("standard-webhooks", {"webhook-timestamp": "1770091000"}, "401 the timestamp in webhook-timestamp is 8 m old"),
        ("standard-webhooks", {"webhook-signature": "v2,AA=="}, "401 the header webhook-signature is not a list"),
        ("genesys-open-messaging", {"X-Hub-Signature-256": "sha1=AA"}, "401 the signature in x-hub-signature-256"),
        ("genesys-open-messaging", {"X-Hub-Signature-256": f"sha256={'a' * 64}"}, "401 the signature in x-hub-sig"),
        ("cxone", {"X-Request-Signature": "a" * 44}, "401 the signature in x-request-signature matches no secret"),
        (
            "cxone",
            {"X-Request-Signature": "=" * 44},
            "401 the signature in x-request-signature is not 44 base64",
        ),
        ("cxone-expert", {"X-Nexus-Timestamp": "1770099999"}, "401 the timestamp in x-nexus-timestamp is 2 h in"),
        (
            "cxone-expert",
            {"X-Nexus-Signature-256": f"sha256={'A' * 64}"},
            f"{EXPERT} is not sha256= and",
        ),
        (
            "cxone-expert",
            {"X-Nexus-Signature-256": "sha256=abc"},
            f"{EXPERT} is not sha256= and 64 lower-case",
        ),
        ("bearer", {"Authorization": "Basic YTpi"}, "401 the header authorization is not of the form Bearer TOKEN"),
        ("bearer", {"Authorization": "Bearer  x"}, "401 the token in authorization is unknown"),
        ("api-key", {"X-Api-Key": "x"}, "401 the key in x-api-key is unknown"),
    ],
)
def test_reasons(name: str, changes: dict[str, str], refused: str) -> None:
    """The reason names the header and the problem."""
    sender = SENDERS[name]
    verdict = sender.verifier(sender.secret(0)).check({**sent(sender), **changes}, BODY, NOW)
    assert isinstance(verdict, Refused)
    assert f"{verdict.code} {verdict.reason}".startswith(refused)


def test_text_body_raises() -> None:
    """A body that is already decoded is a TypeError, not an invalid signature."""
    body: Any = "{}"
    with pytest.raises(TypeError, match="over the raw bytes of the body"):
        signatures.bearer(token(0)).check({}, body, NOW)


def test_imports() -> None:
    """`import oncegate` does not import signatures, and signatures import neither sockets nor logging."""
    code = (
        "import sys, oncegate; before = 'oncegate.signatures' in sys.modules; import oncegate.signatures; print(before)"
    )
    code += "; print({'asyncio', 'logging', 'socket', 'ssl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "set()"]
