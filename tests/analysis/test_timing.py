"""Times of a recording: gaps, order, retention, window and sizes."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from oncegate.analysis.answer import time_sentences
from oncegate.analysis.timing import CurvePoint, choose_window, dynamodb_price, store_sizes
from tests.analysis import analyzed

DAY = 86_400


def logged(second: int, number: int, state: str = "ended", at: int | None = None) -> bytes:
    """An event that was logged some seconds after midnight."""
    time = f"2026-02-{3 + second // DAY:02d}T{second % DAY // 3600:02d}:{second % 3600 // 60:02d}:{second % 60:02d}Z"
    event: dict[str, Any] = {"id": f"e-{number}", "type": "call", "conversationId": "c", "state": state}
    event["timestamp"] = 1_770_076_800_000 + (second if at is None else at) * 1_000
    return f"{time} {msgspec.json.encode(event).decode()}".encode()


def test_gaps_and_retention(tmp_path: Path) -> None:
    """The gap of a copy is the time since the first delivery. The curve counts the copies that a retention catches, and
    the retention is at least twice the longest gap."""
    recording = [logged(0, 1), logged(60, 2), logged(3 * DAY, 1, at=0), logged(5 * DAY, 1, at=0)]
    timing = (analysis := analyzed(recording, tmp_path)).timing
    assert (timing.known_gaps, timing.longest_gap) == (2, 5 * DAY * 1_000_000)
    curve = {point.duration: point.caught for point in timing.retention_curve}
    assert (curve["2d"], curve["3d"], curve["4d"], curve["5d"]) == (0, 1, 1, 2)
    assert analysis.retention.duration == "14d"
    assert not any("is shorter than that gap" in each for each in time_sentences(analysis))
    shorter = msgspec.structs.replace(analysis, current_retention="4d")
    assert "The current retention 4d is shorter than that gap: such a copy would run again." in time_sentences(shorter)
    assert timing.slots == {"redelivery": [*[0] * 28, 1, *[0] * 18, 1]}


def test_an_equal_time_says_nothing(tmp_path: Path) -> None:
    """Two deliveries of one envelope have the same time of publication, so their gap is not known."""
    envelope = {"id": "1", "source": "a", "detail-type": "b", "time": "2026-02-03T04:05:06Z", "detail": {"x": 1}}
    timing = analyzed([envelope, envelope], tmp_path).timing
    assert (timing.known_gaps, timing.gaps) == (0, [])


def test_order_and_ties(tmp_path: Path) -> None:
    """Late events arrive after a later event of their entity; ties have the time of another event of it."""
    recording = [logged(1, 1, "a", at=10), logged(2, 2, "b", at=5), logged(3, 3, "c", at=20), logged(4, 4, "d", at=20)]
    timing = analyzed(recording, tmp_path).timing
    assert (timing.ordered, timing.late, timing.ties) == (4, 1, 2)
    assert timing.lateness is None


@pytest.mark.parametrize(
    ("echoes", "caught", "chosen"),
    [
        (0, (0, 0, 0), "500ms"),
        (1_000, (10, 999, 1_000), "500ms"),
        (1_000, (10, 998, 1_000), "1s"),
        (9, (1, 2, 3), "1s"),
    ],
)
def test_the_window(echoes: int, caught: tuple[int, ...], chosen: str) -> None:
    """The shortest window that joins 99.9 % of the echoes; the default if there are none."""
    curve = [CurvePoint(name, count) for name, count in zip(("200ms", "500ms", "1s"), caught, strict=True)]
    assert choose_window(echoes, curve).duration == chosen


def test_sizes_and_price() -> None:
    """50 events a second for 7 days are 30 million keys; the price follows the formula that is shown."""
    sizes = {each.store: each.bytes for each in store_sizes(50, 7 * DAY * 1_000_000)}
    assert sizes["SQLite"] == 50 * 7 * DAY * 300
    price, formula = dynamodb_price(1_000_000, 500_000, 30 * DAY * 1_000_000, 7 * DAY * 1_000_000)
    assert price == pytest.approx(2.5 * 0.625 + 1_000_000 * 7 / 30 * 1_000 / 1e9 * 0.25)
    assert formula.startswith("(2 * 1,000,000 events + 500,000 copies) * $0.625 per million write units")
