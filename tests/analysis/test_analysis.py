"""The whole analysis: sample payloads of all sources, the stability of a key, and types that need different keys."""

import json
from pathlib import Path
from typing import Any

import pytest

from oncegate.analysis.judgement import best
from oncegate.errors import OncegateError
from tests.analysis import analyzed

SHAPES = json.loads((Path(__file__).parents[1] / "data" / "events.json").read_text())


def test_sample_payloads(tmp_path: Path) -> None:
    """Of the sample payloads of all sources, each delivered three times, the recommended key merges no two events and
    catches every certain copy. Two samples contain nothing that distinguishes a copy from a later event."""
    samples = [shape["document"] for shape in SHAPES]
    analysis = analyzed([*samples, *samples, *samples], tmp_path)
    assert analysis.recommended.name == "auto"
    assert analysis.recommended.wrong == analysis.recommended.missed == 0
    assert analysis.recommended.doubtful == 2 * 2
    assert analysis.traffic.duplicates >= 2 * (len(samples) - 2)
    assert analysis.of("entity").wrong > 5


def ticket(number: int, sent: int) -> dict[str, Any]:
    """An event without an id, whose copies differ in the time of sending."""
    body = {"ticket": number // 2, "status": "open" if number % 2 else "new", "sentAt": 1_770_091_506_000 + sent}
    return {"type": "ticket", "conversationId": f"c-{number}", "timestamp": 1_770_091_500_000 + number, **body}


def test_copies_that_differ_in_a_time(tmp_path: Path) -> None:
    """If copies differ only in a time, the content misses all of them. The analysis recommends a key that catches
    them, and names the fields that identify such an event."""
    documents = [ticket(number, sent) for number in range(60) for sent in (0, 700)]
    analysis = analyzed(documents, tmp_path)
    assert (analysis.traffic.inferred, analysis.of("content").inferred) == (60, 0)
    assert analysis.recommended.name == 'first(state_change("500ms"), auto)'
    assert analysis.recommended.inferred == 60
    (kind,) = analysis.types
    found = {each.name: each.inferred for each in kind.judgements if each.origin == "fields"}
    assert found == {'fields("timestamp")': 60, 'fields("conversationId")': 60}


def test_the_halves(tmp_path: Path) -> None:
    """A key that loses events only in the second half of the recording shows this."""
    first = [{"id": f"a-{number}", "order": number} for number in range(20)]
    second = [{"id": f"b-{number}", "order": 100 + number // 2} for number in range(20)]
    analysis = analyzed([*first, *second], tmp_path, own=('fields("order")',))
    early, late = analysis.of('fields("order")').halves
    assert (early.wrong, late.wrong) == (0, 10)


def test_the_current_key(tmp_path: Path) -> None:
    """The key of the settings is judged too; events without a key count as lost."""
    documents = [{"id": 1, "order": 5}, {"id": 2, "order": 5}, {"id": 3}]
    analysis = analyzed(documents, tmp_path, current='fields("order")')
    assert analysis.would_lose == 2
    assert best(analysis.totals).name == "auto"


def test_no_event(tmp_path: Path) -> None:
    """A recording without events is an error that says how many documents cannot be read."""
    with pytest.raises(OncegateError, match="no event in the recording; unreadable documents: 1"):
        analyzed([b"{broken"], tmp_path)
