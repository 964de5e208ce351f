"""A verifier that could not work, or would not protect, is refused when it is made; secrets are never shown."""

from collections.abc import Callable
from typing import Any

import pytest

from oncegate import signatures
from oncegate.errors import SettingError
from oncegate.signatures import Verified, senders, verifier_of
from oncegate.signatures.hmac_scheme import Spelling
from tests.signatures.sending import BODY, NOW, SENDERS, STAMP, Sender, plain, token, whsec

every_sender = pytest.mark.parametrize("sender", SENDERS.values(), ids=SENDERS)


class TestSecrets:
    @every_sender
    def test_short_ones(self, sender: Sender) -> None:
        """One that could be guessed is refused, and so is none at all; the error says how long it has to be."""
        shortest = 24 if sender.secret is whsec else 14
        assert sender.verifier(b"x" * shortest)
        for secret in (b"", b"x" * (shortest - 1)):
            with pytest.raises(
                SettingError, match=rf"^secret '1' has {len(secret)} bytes; it needs {shortest} or more"
            ):
                sender.verifier([sender.secret(0), secret])

    @pytest.mark.parametrize(
        ("make", "secrets", "problem"),
        [
            (signatures.cxone, [], "a signature needs at least one secret"),
            (signatures.cxone, {}, "a signature needs at least one secret"),
            (signatures.cxone, [plain(1), plain(2), plain(1)], "two of the secrets are the same"),
            (signatures.cxone, {"a": plain(1), "b": plain(1).encode()}, "two of the secrets are the same"),
            (
                signatures.cxone,
                plain(1) + "\n",
                "the secret begins or ends with white space, perhaps the end of a line",
            ),
            (signatures.cxone, "\ud800" + plain(1), "the secret is not proper Unicode text"),
            (signatures.cxone, {"crm": None}, "secret 'crm' is neither text nor bytes"),
            (signatures.cxone, None, "secrets are one text, a list of them, or a table of them by label"),
            (
                signatures.standard_webhooks,
                "whsec_" + plain(1),
                "the secret is not whsec_ and base64, as secrets of Sta",
            ),
            (signatures.standard_webhooks, {"a": "whsec_AAA=A"}, "secret 'a' is not whsec_ and base64, as secrets of"),
            (signatures.bearer, plain(1), "the secret is not printable ASCII, which is all that a header can hold"),
            (
                signatures.api_key,
                b"\xff" * 14,
                "the secret is not printable ASCII, which is all that a header can hold",
            ),
        ],
    )
    def test_those_that_cannot_be_meant(self, make: Callable[[Any], Any], secrets: Any, problem: str) -> None:
        """Each mistake has its sentence, with the label of the secret and no part of it."""
        with pytest.raises(SettingError) as raised:
            make(secrets)
        assert str(raised.value).startswith(problem)
        assert "number-" not in str(raised.value)

    @every_sender
    def test_they_are_not_shown(self, sender: Sender) -> None:
        """Neither in the repr nor in what a refusal says."""
        secrets = {"old": sender.secret(0), "new": sender.secret(1)}
        verifier = sender.verifier(secrets)
        verdict = verifier.check(sender.headers(sender.secret(2), BODY, STAMP), BODY, NOW)
        right = sender.headers(sender.secret(0), BODY, STAMP)[sender.signature]
        shown = f"{verifier!r} {verifier} {verdict!r}"
        assert "secrets: old, new>" in shown
        for hidden in (*secrets.values(), sender.secret(2), right, right[-20:]):
            assert hidden not in shown


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"header": "x sig"}, "header='x sig' is not the name of a header"),
            ({"header": ""}, "header='' is not the name of a header"),
            ({"algorithm": "md5"}, "algorithm='md5' is not a choice; it is one of sha256, sha384, sha512"),
            ({"encoding": "base32"}, "encoding='base32' is not a choice; it is one of hex, base64"),
            ({"prefix": "sha256→"}, "prefix is not printable ASCII"),
            ({"timestamp_header": "X-Sig"}, "header and timestamp_header are the same"),
            ({"timestamp_header": "a:b"}, "timestamp_header='a:b' is not the name of a header"),
            (
                {"template": "v0"},
                "template='v0' does not say what is signed: it has, once, {body}, and {timestamp} only",
            ),
            ({"template": "{body}{body}"}, "template='{body}{body}' does not say what is signed"),
            ({"template": "{timestamp}.{body}"}, "template='{timestamp}.{body}' does not say what is signed"),
            ({"template": "{body}", "timestamp_header": "x-t"}, "template='{body}' does not say what is signed"),
            ({"template": "{body}.{id}", "timestamp_header": "x-t"}, "template='{body}.{id}' does not say what is"),
            ({"template": "{timestamp}{body}", "timestamp_header": "x-t"}, "template='{timestamp}{body}' has nothing"),
            (
                {"template": "{body}0{timestamp}", "timestamp_header": "x-t"},
                "template='{body}0{timestamp}' has nothing",
            ),
            ({"tolerance": "5"}, "tolerance='5' is not a duration"),
            ({"tolerance": "5m"}, "tolerance is about a signed time, and there is none without a timestamp_header"),
        ],
    )
    def test_what_cannot_be_meant(self, options: dict[str, str], problem: str) -> None:
        """Each mistake has its sentence, and by settings the name of the signature before it."""
        with pytest.raises(SettingError) as raised:
            verifier_of("hmac", plain(1), {"header": "x-sig", **options})
        assert str(raised.value).startswith(f"signature=hmac: {problem}")

    @pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
    @pytest.mark.parametrize("encoding", ["hex", "base64"])
    def test_every_spelling(self, algorithm: str, encoding: str) -> None:
        """What another spelling would take, this one does not."""
        spellings = [(name, form) for name in ("sha256", "sha384", "sha512") for form in ("hex", "base64")]
        scheme = Spelling(algorithm, encoding)
        headers = {"x-sig": scheme.of(plain(1).encode(), BODY)}
        taken = [
            spelling
            for spelling in spellings
            if signatures.hmac(plain(1), header="X-Sig", algorithm=spelling[0], encoding=spelling[1]).check(
                headers, BODY, NOW
            )
        ]
        assert taken == [(algorithm, encoding)]


class TestNames:
    def test_each_by_its_name(self) -> None:
        """A verifier made by name takes what the one made in Python takes."""
        by_name = [name for name in SENDERS if not name.startswith("hmac")]
        assert {*by_name, "hmac"} == set(senders.SENDERS)
        for name in by_name:
            sender = SENDERS[name]
            verifier = verifier_of(name, {"crm": sender.secret(0)})
            assert verifier.check(sender.headers(sender.secret(0), BODY, STAMP), BODY, NOW) == Verified("crm", 0)
            assert name in repr(verifier)

    def test_with_options(self) -> None:
        """They mean what they mean in Python."""
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
            ("cxone", {"header": "x"}, "signature=cxone takes no options, and header is one"),
            ("hmac", {"heder": "x"}, "there is no option of signature=hmac heder; did you mean header?"),
            ("hmac", {"header": 1}, "signature=hmac: header is text in quotes"),
            ("hmac", {}, "signature=hmac needs header, the name of the header with the signature"),
        ],
    )
    def test_mistakes(self, name: str, options: dict[str, Any], problem: str) -> None:
        """A name or an option that there is not is answered with the nearest that there is."""
        with pytest.raises(SettingError) as raised:
            verifier_of(name, plain(1), options)
        assert str(raised.value).startswith(problem)
