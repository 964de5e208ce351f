"""The actions of an operator in a browser: redrive, drop, reset and replay."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from playwright.sync_api import Page, expect

from tests.console.browser.checks import low_contrast, too_wide, unreachable
from tests.console.browser.conftest import USER, OpenPage
from tests.console.browser.demo import Demo
from tests.stores.servers import until

MANY = 1_000
UNKNOWN = "has no customer unknown"


def confirm(page: Page, name: str) -> None:
    """Press the button of the page that asks for confirmation, and wait for the page of the task."""
    button = page.get_by_role("button", name=name, exact=True)
    expect(button).to_be_visible()  # the page is loaded
    assert too_wide(page) == []
    assert low_contrast(page) == []
    button.click()
    page.wait_for_url("**/console/task?id=*")


def conflicts(demo: Demo, name: str, number: int) -> None:
    """Make dead letters at once: the same ids with other content."""
    for amount in (1, 2):
        demo.send(
            [
                {"id": f"{name}-{each}", "type": name, "customer": f"{name}-{each}", "amount": amount}
                for each in range(number)
            ]
        )


@contextmanager
def locked(demo: Demo) -> Iterator[None]:
    """Hold the lock of the store, so that nothing can be changed."""
    with closing(sqlite3.connect(demo.folder / "demo.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def event_page(open_page: OpenPage, demo: Demo, name: str, **options: object) -> Page:
    """Open the screen of a new event that is processed."""
    (answer,) = demo.send({"id": name, "type": name, "customer": name})
    page = open_page(f"{demo.console}/event?key={answer['key']}&namespace=invoices", **options)

    def is_in_journal() -> bool:
        page.reload()
        return "Processed at the first attempt" in page.locator("main").inner_text()

    until(is_in_journal, "the rows of the journal")
    return page


def test_redrive_by_a_filter(demo: Demo, open_page: OpenPage) -> None:
    """The dead letters that match a filter run again, and the screen says who has redriven them."""
    page = open_page(f"{demo.console}/dead-letters")
    page.get_by_label("Error contains").fill(UNKNOWN)
    page.get_by_role("button", name="Filter").click()
    found = page.locator(".head").first
    expect(found).to_contain_text("dead letters in 1 group")
    count = found.inner_text().split()[0]
    page.locator(".head").first.get_by_role("link", name="Redrive").click()
    expect(page.locator("h1")).to_have_text(f"Redrive {count} dead letters")
    confirm(page, f"Redrive {count} dead letters")
    expect(page.get_by_text(f"{count} dead letters redriven.")).to_be_visible()
    page.get_by_role("link", name="Back").click()
    expect(page.get_by_text("No dead letter matches.")).to_be_visible()
    record = page.get_by_role("table", name="Who did what").get_by_role("row").nth(1)
    expect(record).to_contain_text("redrive")
    expect(record).to_contain_text(f"{USER} (127.0.0.1)")
    page.goto(f"{demo.console}/events?q=unknown-1&status=processed")
    expect(page.locator("#rows tr")).to_have_count(1)


def test_drop_many_with_progress(demo: Demo, open_page: OpenPage) -> None:
    """A bulk action shows its progress while it runs, and its result at the end."""
    conflicts(demo, "bulk.drop", MANY)
    page = open_page(f"{demo.console}/dead-letters/confirm?type=bulk.drop&action=drop")
    with locked(demo):
        confirm(page, "Drop 1,000 dead letters")
        expect(page.get_by_role("progressbar")).to_be_visible()
        expect(page.get_by_role("button", name="Cancel")).to_be_visible()
        assert low_contrast(page) == []
        assert unreachable(page) == []
    expect(page.get_by_text("1,000 dead letters dropped.")).to_be_visible()
    page.goto(f"{demo.console}/dead-letters?type=bulk.drop")
    expect(page.get_by_text("No dead letter matches.")).to_be_visible()


def test_cancel_a_task(demo: Demo, open_page: OpenPage) -> None:
    """A task that is cancelled changes nothing more, and says how many it has changed."""
    conflicts(demo, "bulk.cancel", MANY)
    page = open_page(f"{demo.console}/dead-letters/confirm?type=bulk.cancel&action=drop")
    with locked(demo):
        confirm(page, "Drop 1,000 dead letters")
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
    expect(page.get_by_text(re.compile("cancelled"))).to_be_visible()
    page.goto(f"{demo.console}/dead-letters?type=bulk.cancel")
    expect(page.locator(".head").first).to_contain_text("dead letters in")


def test_the_session_ends_during_a_task(demo: Demo, open_page: OpenPage) -> None:
    """The page of the task says that the person must log in again, and links to the login."""
    conflicts(demo, "bulk.session", 2)
    page = open_page(f"{demo.console}/dead-letters/confirm?type=bulk.session&action=drop", expected="401")
    with locked(demo):
        confirm(page, "Drop 2 dead letters")
        page.context.clear_cookies()
        expect(page.get_by_text("Your session has ended. The task goes on. Log in again")).to_be_visible()
        page.get_by_role("link", name="Log in again").click()
        page.wait_for_url("**/console/login?next=*task*")


def test_nothing_changes_without_confirmation(demo: Demo, open_page: OpenPage) -> None:
    """The link beside the button leads back, and the dead letters are still there."""
    conflicts(demo, "bulk.keep", 3)
    page = open_page(f"{demo.console}/dead-letters?type=bulk.keep")
    page.locator(".head").first.get_by_role("link", name="Drop").click()
    expect(page.locator("h1")).to_have_text("Drop 3 dead letters")
    page.get_by_role("link", name="Do not change anything").click()
    expect(page.locator(".head").first).to_contain_text("3 dead letters in")


def test_drop_without_script(demo: Demo, open_page: OpenPage) -> None:
    """An action needs no JavaScript: the page of the task loads itself again until the task has ended."""
    conflicts(demo, "bulk.plain", 2)
    page = open_page(f"{demo.console}/dead-letters/confirm?type=bulk.plain&action=drop", java_script=False)
    page.get_by_role("button", name="Drop 2 dead letters").click()
    expect(page.get_by_text("2 dead letters dropped.")).to_be_visible()


@pytest.mark.parametrize("width", [1400, 390])
def test_reset(demo: Demo, open_page: OpenPage, width: int) -> None:
    """A reset deletes the record of the key, and the screen of the event then says that there is none."""
    page = event_page(open_page, demo, f"reset-{width}", width=width)
    page.get_by_role("link", name="Reset the key…").click()
    confirm(page, "Reset the key")
    expect(page.get_by_text("Deleted the record of")).to_be_visible()
    page.get_by_role("link", name="Back").click()
    expect(page.get_by_text("Reset is not possible. The key has no record")).to_be_visible()
    expect(page.locator("main")).to_contain_text(f"{USER} (127.0.0.1)")


@pytest.mark.parametrize("width", [1400, 390])
def test_replay(demo: Demo, open_page: OpenPage, width: int) -> None:
    """A replay runs the event again, once for each name."""
    page = event_page(open_page, demo, f"replay-{width}", width=width)
    event = page.url
    for text in ('Replayed under the name "again".', 'The event was replayed under the name "again" before'):
        page.get_by_role("link", name="Replay under a name…").click()
        page.get_by_label("Name of the replay").fill("again")
        confirm(page, "Replay the event")
        expect(page.get_by_text(text)).to_be_visible()
        page.goto(event)
    page.goto(f"{demo.console}/events?q=replay-{width}&status=processed")
    expect(page.locator("#rows tr")).to_have_count(2)


def test_copy_as_curl(demo: Demo, open_page: OpenPage) -> None:
    """The command has the address of the route and the payload of the event."""
    page = event_page(open_page, demo, "copied")
    page.get_by_text("Send it again with curl").click()
    command = page.get_by_role("region", name="Actions").locator("pre")
    expect(command).to_contain_text(f"{demo.url}/events/invoices")
    expect(command).to_contain_text('"customer":"copied"')
