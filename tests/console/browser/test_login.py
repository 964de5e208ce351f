"""Log in and out in a browser, and open links from elsewhere."""

from playwright.sync_api import Browser, expect

from tests.browser import log_in, watch, window
from tests.console.browser.checks import low_contrast, too_wide, unreachable, windows
from tests.console.browser.conftest import OpenPage
from tests.console.browser.demo import Demo


def test_the_login_page_fits(demo: Demo, browser: Browser) -> None:
    """The login page fits into the window, can be read, and needs only the keyboard."""
    with window(browser) as context:
        page = context.new_page()
        page.goto(f"{demo.console}/login")
        expect(page.locator("#token")).to_be_focused()
        for shown in windows(page):
            assert too_wide(page) == [], shown
            assert low_contrast(page) == [], shown
        assert unreachable(page) == []


def test_a_wrong_token(demo: Demo, browser: Browser) -> None:
    """Without a token and a name, the browser does not send the form. A wrong token is answered with a reason,
    and the right token then leads to the page that was asked for."""
    with window(browser) as context:
        page = context.new_page()
        page.goto(f"{demo.console}/events?status=duplicate")
        page.wait_for_url("**/console/login?*")
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#token:invalid")).to_be_focused()
        page.locator("#token").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#user:invalid")).to_be_focused()
        page.locator("#user").fill("Ada")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("This token is not valid.")
        page.locator("#token").fill(demo.token)
        page.locator("#user").fill("Ada")
        page.keyboard.press("Enter")
        page.wait_for_url("**/console/events?status=duplicate")
        expect(page.locator("header .user")).to_have_text("Ada")


def test_log_in_without_script(demo: Demo, browser: Browser) -> None:
    """The login and the logout need no JavaScript."""
    with window(browser, java_script=False) as context:
        page = context.new_page()
        log_in(page, demo.console, demo.token)
        expect(page.locator("h1")).to_have_text("Overview")
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/console/login")
        page.goto(demo.console)
        page.wait_for_url("**/console/login?*")


def test_log_out(demo: Demo, browser: Browser) -> None:
    """After the logout, a page of the history of the browser asks for the token again."""
    with window(browser) as context:
        page = context.new_page()
        problems = watch(page)
        log_in(page, f"{demo.console}/events", demo.token)
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/console/login")
        assert context.cookies() == []
        page.go_back()
        page.wait_for_url("**/console/login?*")
        assert [problem for problem in problems if "401" not in problem] == []


def test_a_link_from_another_site(demo: Demo, open_page: OpenPage) -> None:
    """A link in a chat leads to its page, although the browser withholds the cookie from a link of another site."""
    target = f"{demo.console}/events?status=duplicate"
    page = open_page("about:blank", expected="status of 401")  # the page that leads to the login has this status
    other = "http://chat.example/"
    page.route(other, lambda route: route.fulfill(body=f'<a href="{target}">look</a>', content_type="text/html"))
    page.goto(other)
    page.get_by_role("link", name="look").click()
    page.wait_for_url(target)
    expect(page.locator("h1")).to_have_text("Events")
