"""A browser that is logged in to a service with traffic of every kind."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, StorageState

from tests.browser import INSTALL, NoBrowser, chromium, log_in, watch, window
from tests.console.browser.demo import Demo, running_demo
from tests.stores.servers import missing

OpenPage = Callable[..., Page]
USER = "Maximilian Mustermann"  # a long name takes the most room in the header


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test may have to download Chromium."""
    for item in items:
        if "console/browser" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(360))


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with running_demo(tmp_path_factory.mktemp("demo")) as service:
        yield service


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Not for a whole session of tests: the event loop of Playwright runs in this thread, where other tests start their
    own event loop."""
    with ExitStack() as stack:
        try:
            started = stack.enter_context(chromium())
        except NoBrowser:
            missing("Chromium", INSTALL)
        yield started


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with running_browser() as started:
        yield started


@pytest.fixture(scope="package")
def session(browser: Browser, demo: Demo) -> StorageState:
    """The cookie of a person who is logged in."""
    with window(browser) as context:
        log_in(context.new_page(), demo.console, demo.token, USER)
        return context.storage_state()


@pytest.fixture
def open_page(browser: Browser, session: StorageState) -> Iterator[OpenPage]:
    """Opens a page in a new window. The test fails if the page has logged an error without the `expected` text, or has
    violated its content security policy."""
    watched: list[tuple[list[str], str | None]] = []
    with ExitStack() as stack:

        def open_page(url: str, *, expected: str | None = None, **options: Any) -> Page:
            page = stack.enter_context(window(browser, session=session, **options)).new_page()
            watched.append((watch(page), expected))
            page.goto(url)
            return page

        yield open_page
    problems = [each for found, expected in watched for each in found if expected is None or expected not in each]
    assert problems == []
