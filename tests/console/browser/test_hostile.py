"""Hostile text in every field of an event is shown as text, on every screen."""

import json
import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Dialog, Page, expect

from tests.console.browser.checks import NARROW, injected, too_wide, windows
from tests.console.browser.conftest import OpenPage
from tests.console.browser.demo import Demo

SCRIPT = "<script>alert(1)</script>"
TEXTS = {
    "script": SCRIPT,
    "attribute": "\"'><img src=x onerror=alert(1)><svg onload=alert(1)>",
    "link": "javascript:alert(1)//",
    "template": "{{7*7}}${7*7}<%= 7 %>&lt;b&gt;&#60;b&#62;",
    "right to left": "\u202etxt.exe\u2066\u200f",
    "control": "a\u0001b\u001b[31mc\r\nSet-Cookie: x=1\u2028\ufeff",
    "emoji": "👩‍👩‍👧‍👦🏴‍☠️" * 3,
    "long word": "W" * 10_000,
    "long line": "word " * 2_000,
    "path": "../../console/logout?next=//other.example#x",
    "query": "a&b=c;d%00+e=f#g?h",
}
SURROGATE = b'{"id": "\\ud800 half", "type": "hostile", "customer": "\\udfff", "amount": 1}'


def invoice(text: str, **others: object) -> dict[str, object]:
    return {"id": text, "type": text, "customer": text, text: {text: [text]}, **others}


@pytest.fixture(scope="module")
def hostile(demo: Demo) -> Demo:
    """The service after hostile events of every kind: processed, duplicate, conflict and dead letter."""
    for text in TEXTS.values():
        demo.send(invoice(text), invoice(text), invoice(text, amount=2), {"id": f"dead {text}", "type": text})
    demo.send(invoice("a\u0000b"), {"id": "nul", "type": "hostile", "customer": "c-1", "a": "a\u0000b"})
    demo.send(SURROGATE, b"\x00\xff not JSON <script>alert(1)</script>", b'{"id": "' + b"[" * 10_000)
    return demo


def check(page: Page) -> None:
    assert injected(page) == []
    assert too_wide(page) == []
    assert re.match(r"http://127\.0\.0\.1:\d+/console\b", page.url)


def no_dialog(page: Page) -> None:
    def fail(dialog: Dialog) -> None:
        dialog.dismiss()
        pytest.fail(f"the page has run a script: {dialog.message}")

    page.on("dialog", fail)


@pytest.mark.parametrize("path", ["", "/events", "/dead-letters", "/keys", "/settings"])
def test_a_screen_shows_text(hostile: Demo, open_page: OpenPage, path: str) -> None:
    """A screen with hostile events runs no script, has no element of an event, and fits into the window."""
    page = open_page(hostile.console + path)
    no_dialog(page)
    expect(page.locator("h1")).to_be_visible()
    for _ in windows(page):
        check(page)


@pytest.mark.parametrize("name", TEXTS)
def test_an_event_is_found_by_its_text(hostile: Demo, open_page: OpenPage, name: str) -> None:
    """The search finds the event by its hostile id, and its screen and the screen of its conversation show text."""
    term = TEXTS[name][:900]
    page = open_page(f"{hostile.console}/events?q={quote(term)}", width=NARROW)
    no_dialog(page)
    check(page)
    if len(TEXTS[name]) < 900:
        page.locator("#rows a[href^='/console/event?']").first.click()
        page.wait_for_url("**/console/event?*")
        check(page)
        page.goto(f"{hostile.console}/conversation?id={quote(term)}")
        check(page)


def test_a_long_type_fits(demo: Demo, open_page: OpenPage) -> None:
    """The screen of an event fits into the window, with a type that has no space and no other place to wrap."""
    (answer,) = demo.send({"id": "long type", "type": "w" * 201, "customer": "c-1"})
    page = open_page(f"{demo.console}/event?key={answer['key']}&namespace=invoices", width=1280)
    expect(page.locator("main")).to_contain_text("w" * 201)
    check(page)
    page.set_viewport_size({"width": NARROW, "height": 900})
    check(page)


@pytest.mark.parametrize("path", ["/event", "/conversation", "/events", "/dead-letters", "/keys", ""])
def test_a_hostile_query(demo: Demo, open_page: OpenPage, path: str) -> None:
    """Hostile text in a query is shown as text, or is refused with a page of the console."""
    names = ("q", "key", "id", "namespace", "status", "kind", "type", "route", "entity", "since", "until", "before")
    query = "&".join(f"{name}={quote(SCRIPT)}" for name in names)
    page = open_page(f"{demo.console}{path}?{query}", width=NARROW, expected="status of 4")
    no_dialog(page)
    expect(page.locator("h1")).to_be_visible()
    check(page)


def test_the_payload_is_shown_as_text(hostile: Demo, open_page: OpenPage) -> None:
    """The screen of an event shows its payload with the hostile text in it."""
    page = open_page(f"{hostile.console}/events?q={quote(SCRIPT)}&status=processed")
    page.locator("#rows a[href^='/console/event?']").first.click()
    page.wait_for_url("**/console/event?*")
    expect(page.locator("main")).to_contain_text(json.dumps(SCRIPT))
