"""How an outcome becomes a row."""

from datetime import UTC, datetime

import pytest

from oncegate.claims import COMPLETED, EventSummary, Record
from oncegate.events import Event, Evidence, Key
from oncegate.gate.outcome import Outcome
from oncegate.journal.rows import (
    Fields,
    Term,
    fields_of,
    group_of,
    label_of,
    packed,
    reason_of,
    term_hashes,
    unpacked,
)
from tests.journal.contract import HOSTILE

AT = 1_790_000_000_000_000
KEY = Key(b"k" * 16, "auto", ("x",))


def event(**changes: object) -> Event:
    return Event(**{"source": "plain", "body": {}, "id": "evt-1", **changes})  # type: ignore[arg-type]


def test_fields_of_an_outcome() -> None:
    """A row has the event, the delivery, the key, the original and the times."""
    occurred = datetime.fromtimestamp((AT - 5_000_000) / 1e6, UTC)
    one = event(
        entity="c-1", part="p-1", state="held", attempt=2, occurred_at=occurred, evidence=Evidence(message_id="m-1")
    )
    about = EventSummary("plain", delivery_id="evt-0")
    original = Record(COMPLETED, b"o" * 16, 7, AT, 1, b"h" * 16, None, about, AT - 9, AT - 7)
    fields = fields_of(Outcome("failed", one, KEY, error="x", original=original, kept=KEY, took=1_000_000), AT, "w")
    assert (fields.key, fields.strategy, fields.kept) == (b"k" * 16, "auto", b"k" * 16)
    assert (fields.event_id, fields.entity, fields.part, fields.state) == ("evt-1", "c-1", "p-1", "held")
    assert (fields.delivery_id, fields.attempt, fields.worker, fields.at) == ("m-1", 2, "w", AT)
    assert (fields.took, fields.lag) == (1_000_000, 4_000_000)
    assert (fields.original, fields.original_at) == ("evt-0", AT - 7)


@pytest.mark.parametrize(
    ("evidence", "webhook_id", "expected"),
    [
        (Evidence(message_id="m-1", request_id="r-1"), "msg_1", "m-1"),
        (Evidence(request_id="r-1"), "msg_1", "msg_1"),
        (Evidence(request_id="r-1"), None, "r-1"),
        (Evidence(), None, None),
    ],
)
def test_the_id_of_a_delivery(evidence: Evidence, webhook_id: str | None, expected: str | None) -> None:
    """A delivery is found by the id that the sender knows: of the message, of the webhook, or of the request."""
    one = event(evidence=evidence, webhook_id=webhook_id)
    assert fields_of(Outcome("processed", one, KEY), AT, "w").delivery_id == expected


def test_an_outcome_with_little() -> None:
    """An outcome without a key, an original or a time has a row, too."""
    fields = fields_of(Outcome("invalid", Event(source="unknown", body=None), error="it is not JSON"), AT, "w")
    assert (fields.key, fields.strategy, fields.event_id, fields.lag, fields.original) == (b"", "", None, None, None)
    assert fields.reason == "Refused: it is not JSON."
    row = unpacked(1, ("a", "b", "unknown", "", "invalid", ""), packed(fields))
    assert (row.type, row.kind, row.key_text) == (None, None, None)


def test_long_texts_are_cut() -> None:
    """No text of a sender makes a row large."""
    long = "x" * 100_000
    one = event(id=long, entity=long, part=long, state=long, type=long, evidence=Evidence(request_id=long))
    outcome = Outcome("failed", one, KEY, error=long, raised=long)
    assert len(packed(fields_of(outcome, AT, "w"))) < 2_500
    assert all(len(part) <= 256 for part in label_of("a", "b", outcome, named_type=long))


def test_reasons() -> None:
    """The reason is the sentence for a log. Sentences that are often the same are made once."""
    outcome = Outcome("failed", event(attempt=1), KEY, error="a secret", raised="ValueError")
    assert reason_of(outcome) == "Failed at attempt 1: ValueError; deliver it again."
    for attempt, text in ((1, "Processed at the first attempt."), (2, "Processed at attempt 2.")):
        for _ in range(2):
            assert reason_of(Outcome("processed", event(attempt=attempt), KEY)) == text
    problem = Outcome("processed", event(attempt=1), KEY, error="its result was not stored")
    assert reason_of(problem) == "Processed at the first attempt, but its result was not stored."


def test_labels_are_text_that_every_database_takes() -> None:
    """A label has no NUL and no half of a surrogate pair."""
    label = label_of(HOSTILE, HOSTILE, Outcome("failed", event(source=HOSTILE)), named_type=HOSTILE)
    assert not any("\0" in part or "\ud800" in part for part in label)


def test_what_a_row_with_a_count_stands_for() -> None:
    """A row that identifies no event stands for different events, not for copies."""
    label = ("a", "b", "plain", "", "invalid", "")
    assert unpacked(1, label, packed(Fields(event_id="evt-1", count=1_200))).counted == "1,200 copies"
    assert unpacked(1, label, packed(Fields(count=20))).counted == "20 events"


def test_terms() -> None:
    """A packed row is found by each of its terms, and only by these."""
    data = packed(Fields(b"k" * 16, "evt-1", "c-1", "m-1", b"d" * 16, AT, reason="evt-2"))
    hashes = term_hashes([data])
    for text in ("evt-1", "c-1", "m-1", "6b" * 16, "64" * 16, ("6B" * 16)):
        assert Term(text).is_in(data), text
        assert hashes.intersection(Term(text).hashes), text
    for text in ("evt-2", "evt", "", "k" * 16, "zz" * 16, HOSTILE):
        assert not Term(text).is_in(data), text
    long = "x" * 1_000
    stored = packed(fields_of(Outcome("invalid", event(id=long)), AT, "w"))
    assert Term(long).is_in(stored)


def test_copies_of_one_event_have_a_common_group() -> None:
    """Events with a key are grouped by their key, others by their error and document."""
    assert group_of(Outcome("duplicate", event(), KEY)) == KEY.digest
    assert group_of(Outcome("invalid", event(), error="a\ud800")) == group_of(Outcome("invalid", event(), error="a?"))
    assert group_of(Outcome("invalid", event(raw=b"1"), error="a")) != group_of(
        Outcome("invalid", event(raw=b"2"), error="a")
    )
