"""The script of every page: forms, copies, times and the keyboard. The page of these tests has one of each."""

import time
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import htpy as h
import pytest
from playwright.sync_api import Page, Route, expect

from oncegate.console.components import copy_button, moment
from oncegate.console.layout import document
from oncegate.console.requests import Request
from tests.console.browser.conftest import OpenPage
from tests.console.browser.demo import Demo

HOSTILE = "<b>a & \"b\"</b>\n'c'"
HOUR = timedelta(hours=1)


class Sent(list[str]):
    """The requests of the page: the method and the query or the form."""


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def page(demo: Demo, open_page: OpenPage, sent: Sent) -> Page:
    past = int((datetime.now(UTC) - 3 * HOUR).timestamp() * 1_000_000)
    body = document(
        Request("GET", "/parts", {}, {}),
        "Parts",
        h.form("#filters", method="get", data_autosubmit=True)[
            h.label["Status", h.select(name="status")[h.option(value="")["All"], h.option["failed"]]],
            h.label["Type", h.input(name="type")],
            h.button(".without-script", type="submit")["Filter"],
        ],
        h.form("#change", method="post")[h.button("#save", name="what", value="save")["Save"],],
        copy_button(HOSTILE),
        h.p[moment(past)],
    ).body

    def answer(route: Route) -> None:
        request = route.request
        sent.append(f"{request.method} {request.post_data or urlsplit(request.url).query}")
        if request.method == "POST":
            time.sleep(0.5)
        route.fulfill(body=body, content_type="text/html", headers={"content-security-policy": "script-src 'self'"})

    page = open_page(f"{demo.console}/settings")
    page.route(f"{demo.console}/parts**", answer)
    page.goto(f"{demo.console}/parts")
    page.wait_for_selector("html.scripted")
    sent.clear()
    return page


def test_a_choice_is_sent_at_once(page: Page, sent: Sent) -> None:
    """Empty fields are left out of the address, and the button is not needed."""
    expect(page.get_by_role("button", name="Filter")).to_be_hidden()
    page.get_by_label("Status").select_option("failed")
    page.wait_for_url("**/parts?status=failed")

    assert sent == ["GET status=failed"]


def test_a_form_can_be_used_after_going_back(page: Page) -> None:
    page.get_by_label("Status").select_option("failed")
    page.wait_for_url("**/parts?status=failed")
    page.go_back()

    expect(page.get_by_label("Type")).to_be_enabled()


def test_a_second_click_sends_nothing(page: Page, sent: Sent) -> None:
    """The buttons of a form are disabled as soon as the form is sent. The value of the clicked button is sent."""
    is_disabled = page.evaluate("""() => new Promise((resolve) => {
      const button = document.querySelector("#save");
      button.click();
      setTimeout(() => resolve(button.disabled), 100);
    })""")
    page.wait_for_timeout(1_000)

    assert is_disabled
    assert sent == ["POST what=save"]


def test_a_text_is_copied(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.locator("button[data-copy]")
    button.click()

    expect(button).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == HOSTILE
    expect(button).to_have_text("Copy")


def test_the_title_of_a_time_says_how_long_ago_it_was(page: Page) -> None:
    page.locator("time").hover()

    assert page.locator("time").get_attribute("title") == "3 hours ago"


def test_a_slash_leads_to_the_search(page: Page) -> None:
    page.keyboard.press("/")
    search = page.get_by_role("searchbox")
    expect(search).to_be_focused()
    page.keyboard.type("a/b")

    assert search.input_value() == "a/b"


def test_without_script_no_button_is_missing_its_function(demo: Demo, open_page: OpenPage) -> None:
    """A button that only works with JavaScript is hidden without it."""
    page = open_page(f"{demo.console}/settings", java_script=False)

    assert page.locator("button[data-copy]:visible").count() == 0
