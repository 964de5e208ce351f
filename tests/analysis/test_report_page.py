"""The report in a browser: a phone, a wide window and paper, without scripts and without the network."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from oncegate.analysis.examples import Examples
from oncegate.analysis.report import report
from oncegate.simulate.copies import CopyOptions
from oncegate.simulate.traffic import Plan, deliveries
from oncegate.sources import NO_HINTS
from tests.analysis import analyzed, batch_of
from tests.console.browser.conftest import running_browser

PLAN = Plan(events=120, seed=3, untimed=0.3, copy_options=CopyOptions(echo=0.3, invalid=0.1))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as started:
        yield started


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    documents = [each.copy.raw for each in deliveries(PLAN)]
    analysis = analyzed(documents, folder)
    raw = dict(batch_of(documents).documents)
    examples = Examples(
        analysis.places, ["f.jsonl"], lambda places: {each: raw[each.offset] for each in places}, NO_HINTS, redact=True
    )
    (folder / "report.html").write_text(report(analysis, examples, ["f.jsonl"]))
    return folder / "report.html"


@pytest.mark.parametrize("width", [390, 1100])
def test_it_fits(browser: Browser, page_file: Path, width: int) -> None:
    """The page fits its window, asks for no other file, and its examples unfold without scripts."""
    context = browser.new_context(viewport={"width": width, "height": 900}, java_script_enabled=True)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.goto(page_file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("details.type > summary").first.click()
    page.locator("details.type[open] details.example > summary").first.click()
    assert page.locator("details.example[open]").first.inner_text().count("at byte") == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (len(asked), problems) == (1, [])
    context.close()


def test_paper(browser: Browser, page_file: Path) -> None:
    """In print, the tables of all types are unfolded."""
    page = browser.new_page()
    page.goto(page_file.as_uri())
    page.emulate_media(media="print")
    assert page.locator("details.type table").last.is_visible()
    page.close()
