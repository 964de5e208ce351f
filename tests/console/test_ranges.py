"""The range of a screen: names, explicit times, intervals, and links to the events of a range."""

from urllib.parse import parse_qs, urlsplit

import pytest

from oncegate.console.ranges import RANGES, range_links, range_text, read_range
from oncegate.console.requests import Request

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NOW = 1_789_994_123 * SECOND  # 2026-09-21 12:35:23 UTC


def query_of(address: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}


@pytest.mark.parametrize("name", RANGES)
def test_a_named_range_ends_now_and_has_whole_intervals(name: str) -> None:
    length, every = RANGES[name]
    found = read_range({"range": name}, NOW)

    assert (found.name, found.problem) == (name, None)
    assert NOW <= found.until < NOW + MINUTE
    assert found.since % every == 0
    assert length <= found.until - found.since < length + every + MINUTE
    assert found.starts[0] == found.since
    assert found.starts[-1] < found.until <= found.starts[-1] + every
    assert 14 <= len(found.starts) <= 61


def test_the_default_is_a_day() -> None:
    assert read_range({}, NOW).name == "24h"
    assert read_range({"range": ""}, NOW).name == "24h"


def test_an_unknown_name() -> None:
    found = read_range({"range": "<b>"}, NOW)

    assert found.name == "24h"
    assert found.problem == "range='<b>' is not a range; it is one of 15m, 1h, 6h, 24h, 7d, 14d"


def test_explicit_times() -> None:
    found = read_range({"since": "2026-09-21T10:00:30Z", "until": "2026-09-21T11:00:01Z", "range": "7d"}, NOW)

    assert (found.name, found.every) == (None, 2 * MINUTE)
    assert query_of(found.events()) == {"since": "2026-09-21T10:00:00.000Z", "until": "2026-09-21T11:01:00.000Z"}


def test_only_a_start_or_only_an_end() -> None:
    assert read_range({"since": "2h"}, NOW).until >= NOW
    only_end = read_range({"until": "2026-09-21 10:00"}, NOW)
    assert only_end.until - only_end.since == DAY


@pytest.mark.parametrize(
    "query",
    [
        {"since": "nonsense"},
        {"since": "2026-09-21 10:00", "until": "2026-09-21 10:00"},
        {"since": "2026-09-22 10:00", "until": "2026-09-21 10:00"},
    ],
)
def test_invalid_times_are_reported_and_ignored(query: dict[str, str]) -> None:
    found = read_range(query, NOW)

    assert found.problem
    assert found.since < found.until


@pytest.mark.parametrize("since", ["1m", "45m", "90m", "3h", "3d", "40d", "400d", "36500d", "1970-01-01"])
def test_any_length_has_few_intervals(since: str) -> None:
    found = read_range({"since": since}, NOW)

    assert found.since >= 0
    assert 1 <= len(found.starts) <= 61
    assert found.every % MINUTE == 0


def test_links_to_the_events_of_a_range_and_of_an_interval() -> None:
    found = read_range({"range": "1h"}, NOW)

    assert query_of(found.events(status="failed", kind=None)) == {
        "status": "failed",
        "since": "2026-09-21T11:36:00.000Z",
    }
    assert query_of(found.events(1)) == {"since": "2026-09-21T11:38:00.000Z", "until": "2026-09-21T11:40:00.000Z"}
    last = query_of(found.events(len(found.starts) - 1))
    assert last["until"] == "2026-09-21T12:36:00.000Z"


def test_an_interval_that_is_cut_by_the_range() -> None:
    found = read_range({"since": "2026-09-21 10:01", "until": "2026-09-21 13:59"}, NOW)

    assert found.every == 5 * MINUTE
    assert query_of(found.events(0)) == {"since": "2026-09-21T10:01:00.000Z", "until": "2026-09-21T10:05:00.000Z"}


def test_links_keep_the_other_parameters() -> None:
    request = Request("GET", "/", {"since": "2h", "until": "1h", "route": "crm & co"}, {})
    shown = str(range_links(request, read_range(request.query, NOW)))

    assert "/console/?route=crm+%26+co&amp;range=15m" in shown
    assert "since" not in shown
    assert "aria-current" not in shown


def test_the_range_in_words() -> None:
    named, explicit = read_range({"range": "1h"}, NOW), read_range({"since": "2h", "until": "1h"}, NOW)

    assert "".join(map(str, range_text(named))).startswith("From <time")  # type: ignore[arg-type]
    assert str(range_text(named)[-1]) == "now"  # type: ignore[index]
    assert "11:36 UTC" in str(range_text(explicit)[-1])  # type: ignore[index]
