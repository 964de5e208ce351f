"""The style sheet: contrast of every pair of colours, a class for every status, and no colour outside the variables."""

import re
from pathlib import Path

import pytest

import oncegate.console
from oncegate.console.components import badge
from oncegate.gate.outcome import STATUSES
from oncegate.inspection.records import _STATES

CSS = (Path(oncegate.console.__file__).parent / "static/console.css").read_text()
TONES = ("good", "info", "neutral", "busy", "warn", "bad", "person")
SURFACES = ("back", "panel", "raised")
TEXT_PAIRS = [
    *((text, surface) for text in ("text", "soft", "accent", *TONES) for surface in SURFACES),
    *((tone, f"{tone}-back") for tone in TONES),
    *(("text", f"{tone}-back") for tone in ("good", "info", "warn", "bad")),
    ("text", "accent-back"),
    ("soft", "accent-back"),
    ("on-accent", "accent"),
    ("on-danger", "danger"),
]
# The edge of a field and the focus ring must be seen, but are not read.
EDGE_PAIRS = [(edge, surface) for edge in ("edge", "accent") for surface in SURFACES]


def variables() -> dict[str, dict[str, str]]:
    """The colours by theme. The dark theme replaces some variables of the light theme."""
    blocks = re.findall(r":root \{([^}]*)\}", CSS)
    assert len(blocks) == 2
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in blocks)
    return {"light": light, "dark": light | dark}


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_enough_contrast(theme: str) -> None:
    colours = variables()[theme]
    ratios = {(text, surface): contrast(colours[text], colours[surface]) for text, surface in TEXT_PAIRS}

    assert {pair: ratio for pair, ratio in ratios.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_edges_of_fields_and_the_focus_ring_have_enough_contrast(theme: str) -> None:
    colours = variables()[theme]
    ratios = {(edge, surface): contrast(colours[edge], colours[surface]) for edge, surface in EDGE_PAIRS}

    assert {pair: ratio for pair, ratio in ratios.items() if ratio < 3} == {}


def test_contrast_is_computed_as_in_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("status", [*STATUSES, *_STATES.values(), "operator"])
def test_every_status_has_a_colour(status: str) -> None:
    """A status without a class would have the colours of a duplicate."""
    status_class = re.search(r"status-[\w-]+", str(badge(status)))

    assert status_class is not None
    assert re.search(rf"\.{status_class[0]}[,\s]", CSS)


def test_both_themes_have_all_colours_that_a_tone_needs() -> None:
    for colours in variables().values():
        assert {*TONES, *(f"{tone}-back" for tone in TONES)} <= set(colours)
    light, dark = re.findall(r":root \{([^}]*)\}", CSS)
    assert set(re.findall(r"--([\w-]+): #", dark)) == set(re.findall(r"--([\w-]+): #", light))


def test_colours_are_written_only_in_the_variables() -> None:
    rules = re.sub(r":root \{[^}]*\}", "", CSS)

    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|\brgb\(|\bhsl\(", rules) == []


def test_nothing_is_loaded_from_elsewhere() -> None:
    assert "url(" not in CSS
    assert "@import" not in CSS
