"""Which deliveries are one event: certain, probable and possible copies, and conflicts."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncegate.analysis.database import RecordingDatabase, quoted
from oncegate.analysis.judgement import Traffic, read_traffic
from oncegate.analysis.recording import RowOptions, write_rows
from tests.analysis import analyzed, batch_of
from tests.analysis.test_delivery_rows import member

AT = 1_770_091_506_000


def call(number: str, state: str, at: int, **members: Any) -> dict[str, Any]:
    """A state change of a call, `at` milliseconds after the first."""
    return {"id": number, "type": "call", "conversationId": "c", "state": state, "timestamp": AT + at, **members}


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([call("1", "held", 0), call("1", "held", 0)], Traffic(2, duplicates=1)),
        ([call("1", "held", 0), call("1", "held", 900)], Traffic(2, inferred=1)),
        ([call("1", "held", 0), call("1", "held", 5_001)], Traffic(2, conflicts=1)),
        ([call("1", "held", 0), call("2", "held", 900)], Traffic(2, possible=1)),
        ([call("1", "held", 0), call("2", "held", 5_001)], Traffic(2)),
        ([call("1", "held", 0), call("2", "held", 900), call("3", "talking", 500)], Traffic(3)),
        ([call("1", "held", 0), call("2", "held", 900), call("3", "talking", 900)], Traffic(3, possible=1)),
        ([call("1", "held", 0), call("1", "held", 0, note="x")], Traffic(2, conflicts=1)),
        ([call("1", "held", 0), call("1", "talking", 0)], Traffic(2)),
        ([member("1"), member("1")], Traffic(2, duplicates=1)),
        ([member("1"), member("2")], Traffic(2, inferred=1)),
        ([member("1"), member("2", "2026-02-03T05:05:06Z")], Traffic(2, possible=1)),
        ([member("1"), member("2", "2026-02-03T04:05:07Z")], Traffic(2, possible=1)),
        ([member("1"), member("2", joined=False)], Traffic(2)),
    ],
    ids=[
        *("a copy", "an echo", "the same id later", "a similar emission", "a later one", "another state between"),
        *("another state at the end", "a conflict", "an id that is used twice", "the same envelope"),
        *("published with the same timestamp", "published an hour later", "published a second later", "another body"),
    ],
)
def test_groups(documents: list[dict[str, Any]], expected: Traffic, tmp_path: Path) -> None:
    """What two or three deliveries are to each other. The order of arrival does not matter."""
    assert grouped(documents, tmp_path / "a") == expected
    assert grouped(documents[::-1], tmp_path / "b") == expected


def grouped(documents: list[dict[str, Any]], folder: Path) -> Traffic:
    """The traffic of a recording, without the judgement of keys."""
    folder.mkdir()
    write_rows([batch_of(documents)], RowOptions(), folder, size=0)
    with closing(RecordingDatabase(folder)) as database:
        database.load(RowOptions().rows().columns)
        database.group()
        (traffic,) = read_traffic(database).values()
        return traffic


def test_a_chain_of_conflicts(tmp_path: Path) -> None:
    """Different content under ids that lead from one to the next is one group of conflicts."""
    body = {"eventTime": AT, "conversationId": "c", "participantId": "p"}

    def update(number: str, **attributes: str) -> dict[str, Any]:
        topic = "v2.detail.events.conversation.c-1.attributes"
        detail = {"topicName": topic, "eventBody": body | {"attributes": attributes}}
        return {"id": number, "detail-type": topic, "source": "aws.partner/genesys.com/x", "detail": detail}

    chain = [update(str(each + side), a=str(each)) for each in range(40) for side in (0, 1)]
    assert grouped(chain, tmp_path / "a") == Traffic(80, duplicates=40, conflicts=39)


def test_state_changes_join_as_in_a_gate(tmp_path: Path) -> None:
    """The judgement of state_change places emissions as a gate does: A, B, A in one window are three events."""
    there_and_back = [call("1", "held", 0), call("2", "talking", 100), call("3", "held", 200)]
    own = 'state_change("1s")'
    assert analyzed(there_and_back, tmp_path / "a", own=(own,)).of(own).wrong == 0
    repeated = [call("1", "held", 0), call("2", "held", 200), call("3", "talking", 9_000)]
    assert analyzed(repeated, tmp_path / "b", own=(own,)).of(own).doubtful == 1


def test_names_in_sql() -> None:
    """A quote in the name of a file stays part of the name."""
    assert quoted("it's") == "'it''s'"
