"""HMAC signatures: options, formats and timestamps."""

import base64

import pytest

from oncegate import signatures
from oncegate.errors import SettingError
from oncegate.signatures import verifier_of
from oncegate.signatures.hmac_scheme import SignatureFormat
from tests.signatures.sending import BODY, NOW, SENDERS, STAMP, TIMED, Sender, plain, sent

_SECOND = 1_000_000
every_timed = pytest.mark.parametrize("sender", TIMED.values(), ids=TIMED)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"header": "x sig"}, "header='x sig' is not a valid header name"),
        ({"header": ""}, "header='' is not a valid header name"),
        ({"algorithm": "md5"}, "algorithm='md5' is not a choice; it is one of sha256, sha384, sha512"),
        ({"encoding": "base32"}, "encoding='base32' is not a choice; it is one of hex, base64"),
        ({"prefix": "sha256→"}, "prefix must be printable ASCII"),
        ({"timestamp_header": "X-Sig"}, "header and timestamp_header are the same"),
        ({"timestamp_header": "a:b"}, "timestamp_header='a:b' is not a valid header name"),
        (
            {"template": "v0"},
            "template='v0' is not valid: it must contain, once each, {body}, and {timestamp} only",
        ),
        ({"template": "{body}{body}"}, "template='{body}{body}' is not valid: it must contain"),
        ({"template": "{timestamp}.{body}"}, "template='{timestamp}.{body}' is not valid: it must contain"),
        ({"template": "{body}", "timestamp_header": "x-t"}, "template='{body}' is not valid: it must contain"),
        ({"template": "{body}.{id}", "timestamp_header": "x-t"}, "template='{body}.{id}' is not valid: it must"),
        ({"template": "{timestamp}{body}", "timestamp_header": "x-t"}, "template='{timestamp}{body}' has no separator"),
        (
            {"template": "{body}0{timestamp}", "timestamp_header": "x-t"},
            "template='{body}0{timestamp}' has no separator",
        ),
        ({"tolerance": "5"}, "tolerance='5' is not a duration"),
        ({"tolerance": "5m"}, "tolerance needs a timestamp_header: without one no timestamp is signed"),
    ],
)
def test_invalid_options(options: dict[str, str], problem: str) -> None:
    """The error of an invalid option names the signature, the option and the problem."""
    with pytest.raises(SettingError) as raised:
        verifier_of("hmac", plain(1), {"header": "x-sig", **options})
    assert str(raised.value).startswith(f"signature=hmac: {problem}")


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
@pytest.mark.parametrize("encoding", ["hex", "base64"])
def test_formats_are_distinct(algorithm: str, encoding: str) -> None:
    """A signature in one format is rejected by every other format."""
    spellings = [(name, form) for name in ("sha256", "sha384", "sha512") for form in ("hex", "base64")]
    scheme = SignatureFormat(algorithm, encoding)
    headers = {"x-sig": scheme.sign(plain(1).encode(), BODY)}
    taken = [
        spelling
        for spelling in spellings
        if signatures.hmac(plain(1), header="X-Sig", algorithm=spelling[0], encoding=spelling[1]).check(
            headers, BODY, NOW
        )
    ]
    assert taken == [(algorithm, encoding)]


@pytest.mark.parametrize("name", ["standard-webhooks", "genesys-open-messaging", "cxone-expert", "hmac as Slack's"])
def test_prefix(name: str) -> None:
    """A signature without its prefix, or with two, is rejected."""
    sender = SENDERS[name]
    headers = sent(sender)
    prefix, separator, signature = headers[sender.signature].partition("," if name.startswith("s") else "=")
    for changed in (signature, separator + signature, 2 * (prefix + separator) + signature):
        verdict = sender.verifier(sender.secret(0)).check({**headers, sender.signature: changed}, BODY, NOW)
        assert not verdict


@every_timed
def test_digit_moved_between_timestamp_and_body(sender: Sender) -> None:
    """The signed message can be split into timestamp and body in one way only."""
    check = sender.verifier(sender.secret(0)).check
    body = b"123" + BODY + b"."
    headers = sent(sender, body=body)
    assert check(headers, body, NOW)
    for stamp, moved in ((STAMP + "123", BODY + b"."), (STAMP[:-1], STAMP[-1:].encode() + body)):
        assert not check({**headers, str(sender.timestamp): stamp}, moved, NOW)


@every_timed
@pytest.mark.parametrize("away", [-301, -300, 0, 300, 301])
def test_timestamp_tolerance(sender: Sender, away: int) -> None:
    """A timestamp may be five minutes old or ahead; milliseconds are recognised."""
    check = sender.verifier(sender.secret(0)).check
    for unit in (1, 1_000):
        headers = sent(sender, stamp=str((int(STAMP) - away) * unit))
        assert bool(check(headers, BODY, int(STAMP) * _SECOND)) == (abs(away) <= 300)


def test_tolerance_option() -> None:
    """The tolerance can be set, and holds to the microsecond."""
    sender = SENDERS["cxone-expert"]
    check = signatures.cxone_expert(sender.secret(0), tolerance="10s").check
    signed = int(STAMP) * _SECOND
    found = [bool(check(sent(sender), BODY, signed + away * _SECOND + 1)) for away in (-11, -10, 9, 10)]
    assert found == [False, True, True, False]


def test_other_encodings_of_the_digest() -> None:
    """Each digest has one valid text: upper-case hex, and other base64 of the same bytes, are rejected."""
    sender = SENDERS["cxone-expert"]
    headers = sent(sender)
    headers["X-Nexus-Signature-256"] = "sha256=" + headers["X-Nexus-Signature-256"][7:].upper()
    assert not sender.verifier(sender.secret(0)).check(headers, BODY, NOW)
    # The last two bits of the last character before the padding are not decoded.
    signature = "mY/ehO6FCpo8xKIzCS05s2gTicm/ZjDmCm3YgrREVSh="
    assert base64.b64decode(signature) == base64.b64decode(signature.replace("h=", "g="))
    verdict = signatures.cxone("thisIsSecretKey").check({"X-Request-Signature": signature}, b'{"foo":"bar"}', NOW)
    assert not verdict
