"""Plots as SVG."""

import re

from oncegate.analysis.plots import Tick, curve, nice_maximum, stacked_bars


def test_the_end_of_the_axis() -> None:
    """The axis ends at a round number with four parts, at or above the highest bar."""
    assert [nice_maximum(number) for number in (0, 3, 5, 9, 21, 100, 1_001)] == [4, 4, 8, 20, 40, 200, 2_000]


def test_bars() -> None:
    """Each bar has a part for each kind, on top of the one before, and a tooltip; empty bars are left out."""
    made = stacked_bars("Copies", {"redelivery": [2, 0], "replay": [2, 0]}, [Tick(0, "09:00")], ["first", "second"])
    assert re.findall(r'<rect class="([a-z-]+)" x="5.000%" y="([\d.]+)"', made) == [
        ("redelivery", "89.00"),
        ("replay", "14.00"),
    ]
    assert "<title>first: 2 redelivery, 2 replay</title>" in made
    assert "second" not in made


def test_a_curve() -> None:
    """The recommended duration is marked, and each point says its share."""
    made = curve("Caught", [("1s", 0.5), ("1m", 1.0)], "1m")
    assert made.count('class="mark"') == 1
    assert "<title>1s: 50.00%</title>" in made
