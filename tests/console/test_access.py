"""Login tokens and session cookies, with a clock of the test."""

import pytest

from oncegate.console.access import Access, tidy_name

TOKEN = "a token for tests, long enough"  # noqa: S105


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(clock: Clock) -> Access:
    return Access([TOKEN], clock, clock)


def cookie(access: Access, user: str = "Ada") -> str:
    return access.cookie(user, secure=False).partition(";")[0]


def test_a_console_needs_a_token() -> None:
    with pytest.raises(ValueError, match="needs a token"):
        Access([])


def test_every_token_is_valid() -> None:
    access = Access(["the first token", "the second token"])

    assert access.is_valid("the first token", "a")
    assert access.is_valid(" the second token\n", "a")
    assert not access.is_valid("the third token", "a")
    assert not access.is_valid("\ud800", "a")


def test_ten_wrong_tokens_block_a_sender_for_a_minute(access: Access, clock: Clock) -> None:
    for _ in range(9):
        access.is_valid("wrong", "a")
    assert not access.is_blocked("a")
    access.is_valid("wrong", "a")

    assert access.is_blocked("a")
    assert not access.is_blocked("b")
    clock.now += 60.0
    assert not access.is_blocked("a")


def test_nobody_can_lock_out_the_operators(access: Access) -> None:
    """Wrong tokens of many senders block only these senders."""
    for number in range(200):
        for _ in range(10):
            access.is_valid("wrong", f"sender {number}")

    assert access.is_blocked("sender 0")
    assert not access.is_blocked("operator")


def test_the_wrong_tokens_of_many_senders_take_little_memory(access: Access) -> None:
    for number in range(5_000):
        access.is_valid("wrong", f"sender {number}")

    assert list(access._failures) == [f"sender {number}" for number in range(4_000, 5_000)]


def test_wrong_tokens_do_not_fill_the_log(access: Access, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(500):
        access.is_valid("wrong", f"sender {number}")
    assert len(caplog.records) == 100
    clock.now += 60.0
    access.is_valid("wrong", "the last")

    assert caplog.messages[-1] == "a login to the console from the last was refused: wrong token"


def test_a_right_token_is_not_counted(access: Access) -> None:
    for _ in range(20):
        assert access.is_valid(TOKEN, "a")

    assert not access.is_blocked("a")


def test_a_session_lasts_twelve_hours(access: Access, clock: Clock) -> None:
    header = cookie(access)
    session = access.session(header)

    assert session is not None
    assert (session.user, session.until) == ("Ada", int(clock.now) + 12 * 3600)
    clock.now += 12 * 3600 - 1
    assert access.session(header) == session
    clock.now += 1
    assert access.session(header) is None


def test_a_logout_ends_one_session(access: Access, clock: Clock) -> None:
    """A copy of the cookie is not valid any more. Another session of the same name in the same second is."""
    ended, other = cookie(access), cookie(access)
    session = access.session(ended)
    assert session is not None
    access.end(session)

    assert access.session(ended) is None
    assert access.session(other) is not None
    clock.now += 12 * 3600
    for _ in range(1_500):
        session = access.session(cookie(access))
        assert session is not None
        access.end(session)
    assert len(access._ended) == 1_000
    assert session.csrf in access._ended


@pytest.mark.parametrize(
    ("given", "user"),
    [
        ("", ""),
        (" \n\t", ""),
        (" Ada \n Lovelace ", "Ada Lovelace"),
        ("x" * 100, "x" * 60),
    ],
)
def test_the_name_is_on_one_line_and_short(given: str, user: str) -> None:
    assert tidy_name(given) == user


def test_the_cookie_is_ascii(access: Access) -> None:
    """A name may have any letters."""
    header = cookie(access, "Zoë; a=b")
    session = access.session(header)

    assert header.isascii()
    assert ";" not in header
    assert session is not None
    assert session.user == "Zoë; a=b"


def test_each_session_has_its_own_csrf_token(access: Access, clock: Clock) -> None:
    first = access.session(cookie(access))
    clock.now += 1
    second = access.session(cookie(access))

    assert first is not None
    assert second is not None
    assert first.csrf != second.csrf
    assert first.csrf not in cookie(access)


def test_consoles_with_other_tokens_have_other_cookies(access: Access) -> None:
    """A browser sends the cookies of all ports of a host to each of them."""
    other = Access(["another token, long enough"])

    assert access.cookie_name != other.cookie_name
    assert access.session(f"{cookie(other)}; {cookie(access)}") is not None
    assert access.session(cookie(other).replace(other.cookie_name, access.cookie_name)) is None


def test_the_order_of_the_tokens_does_not_matter(access: Access) -> None:
    """A second token can be added before or after the first."""
    both = Access([TOKEN, "another token, long enough"])

    assert Access(["another token, long enough", TOKEN]).session(cookie(both)) is not None


def test_the_session_is_found_among_other_cookies(access: Access) -> None:
    own = cookie(access)

    for header in (f"a=b; {own}", f"a=b;{own};c=d", f" {own} ; c", f"a={own}; {own}", f"x{own}; {own}"):
        assert access.session(header) is not None
    for header in (f"x{own}", f"a={own}", f"a b{own}"):
        assert access.session(header) is None


@pytest.mark.parametrize("header", [None, "", ";", "=", "a", "a=b", "oncegate_console=x", "; ; =;"])
def test_no_cookie_is_no_session(access: Access, header: str | None) -> None:
    assert access.session(header) is None


def test_the_cookie_that_ends_a_session(access: Access) -> None:
    assert access.ended_cookie(secure=True) == (
        f"{access.cookie_name}=; Path=/console; Max-Age=0; HttpOnly; SameSite=Strict; Secure"
    )
