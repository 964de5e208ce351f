"""The checks find the problems that they look for."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page

from tests.browser import watch, window
from tests.console.browser.checks import injected, low_contrast, too_wide, unreachable

BROKEN = {
    "grey on white": (low_contrast, '<p style="color:#888">text</p>'),
    "grey on a half-transparent panel": (
        low_contrast,
        '<div style="background:rgb(0 0 0 / 50%)"><p style="color:#999">text</p></div>',
    ),
    "text of a chart": (low_contrast, '<svg><text y="20" fill="#999">text</text></svg>'),
    "mixed colours": (low_contrast, '<p style="color:color-mix(in srgb, black 40%, white)">text</p>'),
    "a long word": (too_wide, f"<p>{'x' * 500}</p>"),
    "no outline": (unreachable, '<a href="/a" style="outline:none">link</a>'),
    "out of the tab order": (unreachable, '<a href="/a">a</a><div inert><button>b</button></div>'),
    "a script": (injected, "<script></script>"),
    "an image": (injected, '<img src="x">'),
    "an attribute": (injected, '<p onclick="f()">text</p>'),
    "a link with a script": (injected, '<a href="javascript:f()">text</a>'),
    "a link to another site": (injected, '<a href="https://other.example/">text</a>'),
}
SOUND = '<p>text</p><svg><text y="20">text</text></svg><a href="/a">a</a><button>b</button><button disabled>c</button>'


def show(browser: Browser, html: str) -> Page:
    page = window(browser, width=390).new_page()
    page.route("http://site.example/", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto("http://site.example/")
    return page


@pytest.mark.parametrize(("check", "html"), BROKEN.values(), ids=BROKEN)
def test_a_check_finds_its_problem(browser: Browser, check: Callable[[Page], list[str]], html: str) -> None:
    """Each check reports a page that is broken in its way."""
    page = show(browser, html)
    assert check(page)
    page.context.close()


def test_a_sound_page_has_no_problems(browser: Browser) -> None:
    """No check reports a page without problems."""
    page = show(browser, SOUND)
    assert [check(page) for check in (low_contrast, too_wide, injected, unreachable)] == [[], [], [], []]
    page.context.close()


def test_a_violation_of_the_policy_is_recorded(browser: Browser) -> None:
    """Inline styles, inline scripts, exceptions and missing files are problems of the page."""
    page = window(browser).new_page()
    problems = watch(page)
    html = '<p style="color:red">a</p><script>f()</script><img src="/missing">'
    headers = {"content-security-policy": "default-src 'self'", "content-type": "text/html"}
    page.route("http://site.example/", lambda route: route.fulfill(body=html, headers=headers))
    page.route("http://site.example/missing", lambda route: route.fulfill(status=404))
    with page.expect_response("**/missing"):
        page.goto("http://site.example/")
    page.locator("p").wait_for()
    page.evaluate("() => new Promise((done) => setTimeout(() => { setTimeout(done); missing(); }))")
    page.context.close()
    for words in ("inline style", "inline script", "status of 404", "is not defined"):
        assert [words in problem for problem in problems].count(True) == 1, problems
