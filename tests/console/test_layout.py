"""The frame of a page: landmarks, the open screen, scripts and escaped text."""

import re

import htpy as h
import pytest

from oncegate.console.layout import csrf_field, document, error_page, login_page, passing_page
from oncegate.console.requests import Request
from oncegate.console.static import static_url

HOSTILE = "</title><script>alert(1)</script>\"'"


def request(path: str = "/", **options: str) -> Request:
    return Request("GET", path, {}, {}, **options)


def text_of(path: str = "/", **options: str) -> str:
    return document(request(path, **options), "Title", h.h1["Title"]).body.decode()


def test_a_page_has_landmarks_and_a_link_to_its_content() -> None:
    text = text_of()

    assert '<html lang="en">' in text
    assert "<title>Title · Oncegate</title>" in text
    assert re.search(r'<body><a class="skip" href="#main">', text)
    assert 'nav aria-label="Screens"' in text
    assert '<main id="main"' in text


def test_the_header_and_the_title_name_the_store() -> None:
    """Two consoles in two tabs can be told apart, also on an error page."""
    for text in (text_of(site_name="crm.db"), error_page(404, "x", request(site_name="crm.db")).body.decode()):
        assert re.search(r"<title>[^<]+ · crm.db · Oncegate</title>", text)
        assert '<span class="store" title="crm.db">crm.db</span>' in text


@pytest.mark.parametrize(
    ("path", "screen"),
    [("/", "Overview"), ("/events", "Events"), ("/dead-letters/drop", "Dead letters"), ("/eventsx", None)],
)
def test_the_open_screen_is_marked(path: str, screen: str | None) -> None:
    assert re.findall(r'aria-current="page">([^<]+)<', text_of(path)) == ([] if screen is None else [screen])


def test_other_screens_have_a_search() -> None:
    assert 'action="/console/events"' in text_of("/keys")
    assert 'role="search"' not in text_of("/events")


def test_a_page_can_have_more_scripts() -> None:
    page = document(request(), "Title", scripts=["console.css"]).body.decode()

    assert page.count('<script type="module"') == 2
    assert static_url("console.css") in page
    with pytest.raises(KeyError):
        document(request(), "Title", scripts=["none.js"])


def test_text_is_escaped() -> None:
    answers = [
        document(request(user=HOSTILE, csrf=HOSTILE), HOSTILE, h.p[HOSTILE]).body.decode(),
        login_page(HOSTILE, HOSTILE).body.decode(),
        error_page(503, HOSTILE, request(user=HOSTILE)).body.decode(),
        passing_page(HOSTILE).body.decode(),
        str(csrf_field(request(csrf=HOSTILE))),
    ]

    for text in answers:
        assert "<script>alert" not in text
        assert '\\"' not in text


def test_an_error_page_leads_back() -> None:
    answer = error_page(404, "This page does not exist.", request())

    assert answer.code == 404
    assert b'role="alert">This page does not exist.' in answer.body
    assert b'<a href="/console">' in answer.body
    assert b"Log out" in answer.body
    assert b"Log out" not in error_page(403, "No.").body
