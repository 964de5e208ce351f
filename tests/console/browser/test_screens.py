"""Every screen in a browser: sizes, colours, the keyboard, and without JavaScript."""

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.browser.checks import NARROW, TABLET, injected, low_contrast, too_wide, unreachable, windows
from tests.console.browser.conftest import OpenPage
from tests.console.browser.demo import Demo

SCREENS = {
    "": "Overview",
    "/events": "Events",
    "/dead-letters": "Dead letters",
    "/keys": "Keys",
    "/settings": "Settings",
}


# How to find an event of each kind, by the filters of the Events screen.
KINDS = {
    "completed": "status=processed&route=contact-centre",
    "duplicate": "kind=re-emission",
    "echo": "kind=state-echo",
    "conflict": "status=conflict",
    "dead letter": "status=buried",
    "retried": "status=failed",
    "unreadable": "status=invalid",
    "storm": "type=invoice.paid&status=duplicate",
}


def follow(page: Page, name: str) -> None:
    """Open the first link of this kind on the page."""
    page.locator(f"main a[href^='/console/{name}?']").first.click()
    page.wait_for_url(f"**/console/{name}?*")


@pytest.mark.parametrize("path", SCREENS)
def test_the_page_fits(demo: Demo, open_page: OpenPage, path: str) -> None:
    """A screen has its heading, fits into the window, and all of its text can be read."""
    page = open_page(demo.console + path)
    expect(page.locator("h1")).to_have_text(SCREENS[path])
    page.set_viewport_size({"width": TABLET, "height": 900})
    assert too_wide(page) == []
    for window in windows(page):
        assert too_wide(page) == [], window
        assert low_contrast(page) == [], window
    assert injected(page) == []


def top(found: Locator) -> float:
    box = found.bounding_box()
    assert box is not None
    return box["y"]


def test_lines_of_a_narrow_and_a_wide_window(demo: Demo, open_page: OpenPage) -> None:
    """On a phone, the links to all screens are on one line. In a table, the first lines of all cells of a row are
    level, also beside a cell with several lines."""
    page = open_page(f"{demo.console}/dead-letters", width=NARROW)
    links = page.get_by_role("navigation", name="Screens").get_by_role("link").all()
    tops = [top(each) for each in links]
    assert (len(tops), len(set(tops))) == (len(SCREENS), 1)
    page.set_viewport_size({"width": 1400, "height": 900})
    for row in page.locator("section:has(h2) tbody tr:has(.short)").all():
        error = row.locator("td > a:not(.button)").first
        assert top(error) - top(row) < 14, row.inner_text()


@pytest.mark.parametrize("path", SCREENS)
def test_the_keyboard_reaches_everything(demo: Demo, open_page: OpenPage, path: str) -> None:
    """The Tab key reaches every control, and every control shows that it has the focus."""
    assert unreachable(open_page(demo.console + path)) == []


@pytest.mark.parametrize("path", SCREENS)
def test_reading_needs_no_script(demo: Demo, open_page: OpenPage, path: str) -> None:
    """Without JavaScript, a screen has the same heading and its content, and the links to the other screens work."""
    page = open_page(demo.console + path, java_script=False)
    expect(page.locator("h1")).to_have_text(SCREENS[path])
    page.get_by_role("navigation", name="Screens").get_by_role("link", name="Keys").click()
    expect(page.locator("h1")).to_have_text("Keys")


@pytest.mark.parametrize("kind", KINDS)
def test_the_screen_of_an_event_fits(demo: Demo, open_page: OpenPage, kind: str) -> None:
    """The screen of an event of each kind fits into a narrow window, can be read in dark colours, and needs only the
    keyboard."""
    page = open_page(f"{demo.console}/events?{KINDS[kind]}", width=NARROW, scheme="dark")
    follow(page, "event")
    expect(page.locator("h1")).to_contain_text("Event")
    assert too_wide(page) == []
    assert low_contrast(page) == []
    assert injected(page) == []
    assert unreachable(page) == []


@pytest.mark.parametrize("name", ["event", "conversation"])
def test_the_screen_of_one_thing_fits(demo: Demo, open_page: OpenPage, name: str) -> None:
    """The screens of an event and of a conversation fit into the window and can be read."""
    page = open_page(f"{demo.console}/events?kind=state-echo")
    follow(page, name)
    expect(page.locator("h1")).to_contain_text(name.capitalize())
    page.set_viewport_size({"width": TABLET, "height": 900})
    assert too_wide(page) == []
    for window in windows(page):
        assert too_wide(page) == [], window
        assert low_contrast(page) == [], window
    assert unreachable(page) == []


@pytest.mark.parametrize("name", ["event", "conversation"])
def test_reading_one_thing_needs_no_script(demo: Demo, open_page: OpenPage, name: str) -> None:
    """Without JavaScript, the links of the Events screen lead to an event and to a conversation."""
    page = open_page(f"{demo.console}/events?kind=state-echo", java_script=False)
    follow(page, name)
    expect(page.locator("h1")).to_contain_text(name.capitalize())
    expect(page.locator("main")).to_contain_text("state-echo")


def test_a_view_is_an_address(demo: Demo, open_page: OpenPage) -> None:
    """The choice of a filter is in the address, so that a copy of the address shows the same rows."""
    page = open_page(f"{demo.console}/events")
    page.get_by_label("Route").select_option("invoices")
    page.wait_for_url("**/console/events?route=invoices")
    page.get_by_role("navigation", name="Status").get_by_role("link", name="conflict").click()
    expect(page.locator("#rows tr").first).to_contain_text("conflict")
    shown = page.locator("#rows tr").count()
    other = open_page(page.url)
    expect(other.locator("#rows tr")).to_have_count(shown)
    expect(other.get_by_label("Route")).to_have_value("invoices")


def test_the_search_of_every_page(demo: Demo, open_page: OpenPage) -> None:
    """The key `/` leads to the search. A search by an id finds the event, and leads to its screen."""
    page = open_page(f"{demo.console}/keys")
    page.keyboard.press("/")
    page.keyboard.type("1003")
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/events?*q=1003*")
    expect(page.locator("#rows tr").first).to_contain_text("1003")
    follow(page, "event")
    expect(page.locator("h1")).to_have_text("Event 1003")
