"""`make screenshots`: run the demo, and take the pictures of the console for the README."""

import sys
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import Page

from tests.browser import chromium, log_in, watch, window
from tests.console.browser.demo import running_demo

FOLDER: Final = Path(__file__).parents[1] / "docs" / "images"
LARGEST: Final = 200_000  # bytes
_TRAFFIC: Final = ("--seconds", "180", "--rate", "8")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_demo(Path(folder), *_TRAFFIC) as demo,
        chromium() as browser,
        window(browser) as context,
    ):
        page = context.new_page()
        log_in(page, demo.console, demo.token)
        problems = watch(page)
        page.goto(f"{demo.console}?range=15m")
        _take(page, "console-overview")
        page.goto(f"{demo.console}/events?status=conflict&route=contact-centre")
        page.locator("main a[href^='/console/event?']").first.click()
        page.wait_for_url("**/console/event?*")
        _take(page, "console-event")
        assert problems == [], problems


def _take(page: Page, name: str) -> None:
    page.wait_for_load_state("load")
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path)
    size = path.stat().st_size
    sys.stdout.write(f"{path.relative_to(Path.cwd())}: {size / 1000:.0f} kB\n")
    assert size <= LARGEST, f"{path}: {size} bytes; the largest size is {LARGEST}"


if __name__ == "__main__":
    main()
