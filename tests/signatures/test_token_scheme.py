"""Bearer tokens and API keys."""

import pytest

from oncegate import signatures
from oncegate.signatures import Refused, Verified
from tests.signatures.sending import BODY, NOW, token


def test_no_headers() -> None:
    """Headers may be None, as API Gateway sends null."""
    verdict = signatures.bearer(token(0)).check(None, b"", NOW)
    assert verdict == Refused(401, "the header authorization is missing")


@pytest.mark.parametrize("header", ["Bearer {}", "bearer {}", "BEARER {}"])
def test_bearer_in_any_case(header: str) -> None:
    """The word Bearer may be in any case; the token must be equal."""
    check = signatures.bearer(token(0)).check
    assert check({"authorization": header.format(token(0))}, b"", NOW) == Verified("0", 0)
    assert not check({"authorization": header.format(token(0).upper())}, b"", NOW)


def test_body_and_time_do_not_count() -> None:
    """A token is valid with every body and at every time: nothing is signed."""
    check = signatures.api_key(token(0)).check
    assert all(check({"x-api-key": token(0)}, body, now) for body in (b"", BODY) for now in (0, NOW))
