"""The live tail of the Events screen in a browser."""

from playwright.sync_api import Page, expect

from tests.console.browser.conftest import OpenPage
from tests.console.browser.demo import Demo

BURST = 200


def invoices(name: str, number: int) -> list[dict[str, str]]:
    return [
        {"id": f"{name}-{each}", "type": f"tail.{name}", "customer": f"{name}-{each % 9}"} for each in range(number)
    ]


def open_tail(open_page: OpenPage, demo: Demo, name: str) -> Page:
    """Open the tail of the events of one type. The type is new, so an earlier event makes the table."""
    demo.send({"id": f"{name}-first", "type": f"tail.{name}", "customer": name})
    page = open_page(f"{demo.console}/events?type=tail.{name}&status=processed")
    expect(page.locator("#rows tr")).to_have_count(1)  # a page that was faster than the journal loads itself again
    expect(page.locator("#tail [data-state]")).to_have_text("Live")
    return page


def test_a_burst_is_shown(demo: Demo, open_page: OpenPage) -> None:
    """All events of a burst are added to the open page, newest first, and each leads to its event."""
    page = open_tail(open_page, demo, "burst")
    demo.send(*invoices("burst", BURST))
    rows = page.locator("#rows tr")
    expect(rows).to_have_count(BURST + 1)
    expect(rows.first).to_contain_text(f"burst-{BURST - 1}")
    expect(rows.last).to_contain_text("burst-first")
    rows.first.locator("a[href^='/console/event?']").first.click()
    page.wait_for_url("**/console/event?*")


def test_it_pauses_on_scroll(demo: Demo, open_page: OpenPage) -> None:
    """While a person reads further down, no row moves. A button says how many rows wait, and shows them. The state of
    the tail says why they wait."""
    page = open_tail(open_page, demo, "scroll")
    demo.send(*invoices("scroll", 40))
    rows, state = page.locator("#rows tr"), page.locator("#tail [data-state]")
    expect(rows).to_have_count(41)
    rows.last.scroll_into_view_if_needed()
    expect(state).to_have_text("Live")
    demo.send({"id": "late", "type": "tail.scroll", "customer": "late"})
    waiting = page.get_by_role("button", name="1 new row, show it")
    expect(waiting).to_have_count(1)
    expect(state).to_have_text("Paused while you scroll")
    expect(rows).to_have_count(41)
    waiting.click()
    expect(rows).to_have_count(42)
    expect(rows.first).to_be_in_viewport()
    expect(state).to_have_text("Live")


def test_it_pauses_as_soon_as_a_person_scrolls(demo: Demo, open_page: OpenPage) -> None:
    """No row moves while the top of the table is still in the window. The rows appear when the person is back."""
    page = open_tail(open_page, demo, "inch")
    demo.send(*invoices("inch", 40))
    rows, state = page.locator("#rows tr"), page.locator("#tail [data-state]")
    expect(rows).to_have_count(41)
    page.evaluate("window.scrollTo(0, 20)")
    expect(rows.first).to_be_in_viewport()
    demo.send({"id": "inch-late", "type": "tail.inch", "customer": "late"})
    expect(state).to_have_text("Paused while you scroll")
    expect(rows).to_have_count(41)
    page.evaluate("window.scrollTo(0, 0)")
    expect(rows).to_have_count(42)
    expect(state).to_have_text("Live")


def test_it_pauses_by_a_button(demo: Demo, open_page: OpenPage) -> None:
    """The keyboard pauses the tail and continues it."""
    page = open_tail(open_page, demo, "button")
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#tail [data-state]")).to_have_text("Paused")
    expect(page.get_by_role("button", name="Resume")).to_be_focused()
    demo.send(*invoices("button", 3))
    expect(page.get_by_role("button", name="3 new rows, show them")).to_be_visible()
    expect(page.locator("#rows tr")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("#rows tr")).to_have_count(4)
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def test_hostile_text_arrives_as_text(demo: Demo, open_page: OpenPage) -> None:
    """A row of the tail is text, whatever its event contains."""
    page = open_tail(open_page, demo, "hostile")
    text = "<img src=x onerror=alert(1)>"
    demo.send({"id": text, "type": "tail.hostile", "customer": text})
    expect(page.locator("#rows tr")).to_have_count(2)
    expect(page.locator("#rows tr").first).to_contain_text(text)
    assert page.locator("#rows img").count() == 0


def test_it_waits_while_the_pointer_or_the_focus_is_on_a_row(demo: Demo, open_page: OpenPage) -> None:
    """A row does not move away from a person who is about to click it."""
    page = open_tail(open_page, demo, "hover")
    rows = page.locator("#rows tr")
    rows.first.hover()
    demo.send({"id": "second", "type": "tail.hover", "customer": "second"})
    expect(page.get_by_role("button", name="1 new row, show it")).to_be_visible()
    expect(rows).to_have_count(1)
    page.mouse.move(0, 0)
    expect(rows).to_have_count(2)
    rows.first.locator("a").first.focus()
    demo.send({"id": "third", "type": "tail.hover", "customer": "third"})
    expect(page.get_by_role("button", name="1 new row, show it")).to_be_visible()
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Pause").focus()
    expect(rows).to_have_count(3)


def test_the_page_keeps_the_newest_thousand_rows(demo: Demo, open_page: OpenPage) -> None:
    """The page of a busy service does not grow without a bound. The link to older rows continues after the last row."""
    page = open_tail(open_page, demo, "many")
    demo.send(*invoices("many", 1_100))
    rows = page.locator("#rows tr")
    expect(rows.first).to_contain_text("many-1099", timeout=30_000)
    expect(rows).to_have_count(1_000)
    page.get_by_role("link", name="Older").click()
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("many-99")


def test_a_hidden_page_has_no_stream(demo: Demo, open_page: OpenPage) -> None:
    """Another tab is in front. The rows of the meantime arrive when the page is shown again."""
    page = open_tail(open_page, demo, "hidden")
    set_visibility(page, "hidden")
    demo.send(*invoices("hidden", 5))
    expect(page.locator("#rows tr")).to_have_count(1)
    set_visibility(page, "visible")
    expect(page.locator("#rows tr")).to_have_count(6)


def test_the_end_of_a_problem_is_shown(demo: Demo, open_page: OpenPage) -> None:
    """The page does not say that the journal cannot be read until the next row arrives."""
    page = open_tail(open_page, demo, "problem")
    # wait_for_function would use eval, which the policy of the page forbids.
    page.evaluate(
        """() => {
            const states = [];
            window.states = new Promise((resolve, reject) => {
                setTimeout(() => reject(`only ${JSON.stringify(states)} after 20 s`), 20_000);
                const note = (records) => {
                    states.push(...records.map(({ target }) => target.textContent));
                    if (states.length >= 2) resolve(states.slice(0, 2));
                };
                new MutationObserver(note).observe(document.querySelector("#tail [data-state]"), {childList: true});
            });
        }"""
    )
    body = 'retry: 60000\n\nevent: problem\ndata: "locked"\n\nevent: solved\ndata: null\n\n'
    page.route("**/console/tail?*", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    set_visibility(page, "hidden")
    set_visibility(page, "visible")
    assert page.evaluate("() => window.states") == ["The journal cannot be read: locked", "Live"]


def set_visibility(page: Page, state: str) -> None:
    """Headless Chromium shows every page, so the state is replaced."""
    page.evaluate(
        """(state) => {
            Object.defineProperty(document, "hidden", {configurable: true, value: state === "hidden"});
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        state,
    )


def test_a_row_is_the_same_after_a_reload(demo: Demo, open_page: OpenPage) -> None:
    """The script makes the same cells as the service."""
    page = open_tail(open_page, demo, "same")
    demo.send({"id": "same \u202e<b>&amp;", "type": "tail.same", "customer": "a/b?c=d&e f+g\u200f"})
    row = page.locator("#rows tr").first
    expect(row).to_contain_text("same \\u202e<b>&amp;")
    live = [cell.inner_html() for cell in row.locator("td").all()]
    page.reload()
    assert [cell.inner_html() for cell in row.locator("td").all()] == live
    assert len(live) == 7
