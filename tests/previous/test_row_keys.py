"""Keys of a gate that are made from rows are the keys of the events."""

from typing import Any

import pytest

from oncegate import Event, keys, read
from oncegate.errors import MissingKey
from oncegate.events import Key
from oncegate.previous.base import KeyPart, OldRow
from oncegate.previous.row_keys import CONTENT, MappedColumn, RowKeys
from oncegate.previous.templates import Template

PAIR = keys.fields("conversationId", "timestamp")


def row(**columns: Any) -> OldRow:
    return OldRow("row 1", columns)


@pytest.mark.parametrize(
    ("strategy", "source", "payload", "columns"),
    [
        (PAIR, "plain", {"conversationId": "c", "timestamp": 5}, {"conversationId": "c", "timestamp": 5}),
        (keys.fields("data.case.id"), "plain", {"data": {"case": {"id": "c"}}}, {"id": "c"}),
        (keys.fields("data.case.id"), "plain", {"data": {"case": {"id": "c"}}}, {"data.case.id": "c", "id": "other"}),
        (keys.fields("items.0.id"), "plain", {"items": [{"id": "c"}]}, {"id": "c"}),
        (keys.once_per("survey", "conversationId"), "plain", {"conversationId": "c", "x": 1}, {"conversationId": "c"}),
        (
            keys.fields("time", round="1m"),
            "plain",
            {"time": "2026-02-03T04:05:06Z"},
            {"time": "2026-02-03T04:05:59Z"},
        ),
        (keys.auto, "plain", {"id": "evt-1", "x": 1}, {"id": "evt-1"}),
        (keys.auto, "plain", {"id": 17, "x": 1}, {"id": 17}),
        (keys.event_id, "plain", {"id": "evt-1", "x": 1}, {"id": "evt-1"}),
        (
            keys.first(keys.event_id, PAIR),
            "plain",
            {"id": "1", "x": 1},
            {"id": "1", "conversationId": "c", "timestamp": 5},
        ),
        (lambda event: event.body["a"], "plain", {"a": "x", "b": 1}, {"a": "x"}),
        (
            keys.event_id,
            "cloudevents",
            {"specversion": "1.0", "id": "1", "source": "/a", "type": "t", "data": {}},
            {"source": "/a", "id": "1"},
        ),
        (
            PAIR,
            "genesys",
            {
                "source": "aws.partner/genesys.com/x",
                "detail-type": "t",
                "detail": {"conversationId": "c", "timestamp": "t"},
            },
            {"conversationId": "c", "timestamp": "t"},
        ),
    ],
)
def test_the_key_of_the_event(strategy: Any, source: str, payload: Any, columns: dict[str, Any]) -> None:
    """A row has the same key as its event."""
    (event,) = read(payload)
    made = keys.strategy(strategy)
    key, about = RowKeys(made, source).key(row(**columns))
    assert (event.source, made(event).digest) == (source, key.digest)
    assert about.source == source


@pytest.mark.parametrize(
    ("strategy", "source", "columns", "missing"),
    [
        (PAIR, "plain", {"conversationId": "c"}, ["timestamp"]),
        (PAIR, "plain", {"x": "c"}, ["conversationId", "timestamp"]),
        (keys.fields("a.id", "b.id"), "plain", {"id": "c"}, ["a.id", "b.id"]),
        (keys.auto, "genesys", {"id": "c"}, [CONTENT]),
        (keys.auto, "cxone", {"id": "c"}, [CONTENT]),
        (keys.auto, "plain", {"x": "c"}, ["id"]),
        (keys.content, "plain", {"id": "c"}, [CONTENT]),
        (keys.content(exclude="a"), "plain", {"id": "c"}, [CONTENT]),
        (keys.first(keys.event_id, keys.content), "plain", {"id": "c"}, [CONTENT]),
        (keys.first(keys.event_id, PAIR), "plain", {"id": "c"}, ["conversationId", "timestamp"]),
        (keys.state_change(), "plain", {"id": "c"}, ["the timeline of state changes"]),
        (keys.event_id, "cloudevents", {"id": "c"}, ["source"]),
        (keys.webhook_id, "plain", {"id": "c"}, ["webhook_id"]),
    ],
)
def test_missing_parts(strategy: Any, source: str, columns: dict[str, Any], missing: list[str]) -> None:
    """The parts that the rows lack are named. A path is never taken from a column that fits two paths."""
    assert RowKeys(strategy, source).missing([row(**columns)]) == missing


def test_a_mapped_column() -> None:
    """A mapped column replaces the column of the same name, and may change the type."""
    mapped = {"timestamp": MappedColumn("time", "int"), "conversationId": MappedColumn("c", "text")}
    row_keys = RowKeys(PAIR, "plain", mapped=mapped)
    key, _ = row_keys.key(row(time="5", timestamp="6", c=7))
    assert key.parts[1:] == ("7", 5)
    assert row_keys.missing([row(timestamp=5, conversationId="c")]) == ["conversationId", "timestamp"]


def test_a_template() -> None:
    """A template reads columns from the text of a column."""
    templates = [KeyPart("pk", Template("{conversationId}#{timestamp:int}"))]
    row_keys = RowKeys(PAIR, "plain", templates)
    assert row_keys.missing([row(pk="c#5")]) == []
    assert row_keys.key(row(pk="c#5"))[0].parts[1:] == ("c", 5)
    for wrong in ("c", "c#x", 5):
        with pytest.raises(ValueError, match="its pk does not have the form"):
            row_keys.key(row(pk=wrong))


@pytest.mark.parametrize("value", ["", None, True, "\ud800"])
def test_a_row_without_a_value(value: Any) -> None:
    """A row that lacks a value has no key, and never the key of another row."""
    with pytest.raises(ValueError, match="the row has no timestamp"):
        RowKeys(PAIR, "plain").key(row(conversationId="c", timestamp=value))
    with pytest.raises(ValueError, match="the row has no id"):
        RowKeys(keys.auto, "plain").key(row(id=value))


def test_a_function_that_raises() -> None:
    """The error of a user's key function is the problem of the row."""

    def fails(event: Event) -> Key:
        raise KeyError("x")

    def lacks(event: Event) -> Key:
        raise MissingKey("mine", ("x",))

    with pytest.raises(ValueError, match="its key function raised KeyError"):
        RowKeys(fails, "plain").key(row(a=1))
    with pytest.raises(ValueError, match="the row has no x"):
        RowKeys(lacks, "plain").key(row(a=1))


def test_no_source() -> None:
    """Without a source, no row has a key."""
    with pytest.raises(ValueError, match="the source of its event is not known"):
        RowKeys(keys.event_id, "").key(row(id="1"))


def test_the_summary() -> None:
    """The summary of the event has what the row says about it."""
    columns = {"id": 5, "eventType": "call.ended", "conversationId": "c" * 300, "timestamp": 1_770_091_506_000}
    _, about = RowKeys(keys.event_id, "genesys").key(row(**columns))
    assert (about.source, about.type, about.entity, about.occurred_at, about.delivery_id) == (
        "genesys",
        "call.ended",
        "c" * 256,
        1_770_091_506_000_000,
        "5",
    )
