"""Rows of deliveries: what makes two deliveries certainly one event."""

from typing import Any

import pytest

from oncegate import read
from oncegate.analysis.delivery_rows import RecordedDelivery, Rows, without_times

TOPIC = "v2.routing.queues.{id}.users"


def rows_of(*documents: Any, rows: Rows | None = None) -> list[dict[str, str]]:
    """The rows of the events of documents, by column."""
    made = rows or Rows()
    found = [event for document in documents for event in read(document)]
    lines = [made.line(RecordedDelivery(place, 0, 0, 0, 0, event)) for place, event in enumerate(found)]
    return [dict(zip(made.columns, line.split(","), strict=True)) for line in lines]


def member(number: str, sent: str = "2026-02-03T04:05:06.300Z", **body: Any) -> dict[str, Any]:
    """An event without an event time: a user joins a queue."""
    body = {"id": "u", "queueId": "q", "joined": True, **body}
    detail = {"topicName": "v2.routing.queues.q-1.users", "eventBody": body, "timestamp": sent}
    return {"id": number, "detail-type": TOPIC, "source": "aws.partner/genesys.com/x", "detail": detail}


def ended(number: str, **members: Any) -> dict[str, Any]:
    return {"id": number, "type": "call.ended", "conversationId": "c", "timestamp": 1_770_091_506_123, **members}


def test_the_same_body_without_a_time() -> None:
    """Without an event time, the same body is certainly one event only under the same id."""
    first, again, other = rows_of(member("1"), member("1"), member("2"))
    assert first["is_own"] == "0"
    assert first["certain"] == again["certain"] != other["certain"]
    assert first["body"] == other["body"]
    assert first["sent_at"] == other["sent_at"] == "1770091506300000"


def test_the_same_body_with_a_time() -> None:
    """A body that contains the time of the event is the same event in any envelope, also without one."""
    body = {"eventTime": 1_770_091_506_123, "conversationId": "c", "sessionId": "s", "participantId": "p"}
    detail = {"topicName": "v2.detail.events.conversation.c-1.acd.start", "eventBody": body}
    envelope = {"detail-type": detail["topicName"], "source": "aws.partner/genesys.com/x", "detail": detail}
    found = rows_of({"id": "1", **envelope}, {"id": "2", **envelope}, detail)
    assert {row["is_own"] for row in found} == {"1"}
    assert len({row["certain"] for row in found}) == 1
    assert [row["id"] != "" for row in found] == [True, True, False]


def test_a_time_with_another_meaning() -> None:
    """A time in the body that is not the time of the event does not identify it."""
    (row,) = rows_of(member("1", dateJoined="2025-01-01T00:00:00Z"))
    assert row["is_own"] == "0"


def test_without_any_id() -> None:
    """A body without a time, an id and an envelope is certainly the same event as no other delivery."""
    first, second = rows_of({"value": 1}, {"value": 1})
    assert first["certain"] != second["certain"]
    assert first["body"] == second["body"]


def test_a_message_of_a_queue() -> None:
    """Two receipts of one message are certainly one event; two messages with one body are not."""
    records = [
        {"messageId": id_, "receiptHandle": "r", "body": '{"value": 1}', "eventSource": "aws:sqs"} for id_ in "112"
    ]
    first, again, other = rows_of({"Records": records})
    assert first["certain"] == again["certain"] != other["certain"]


def test_the_same_data_of_two_cloud_events() -> None:
    """The id of a CloudEvent is outside its data: the same data under another id is another event."""
    documents = [{"specversion": "1.0", "id": id_, "source": "/s", "type": "t", "data": {"x": 1}} for id_ in "12"]
    first, second = rows_of(*documents)
    assert first["certain"] != second["certain"]


def test_echoes() -> None:
    """Two emissions of one state change have the same skeleton if they differ only in times."""
    first, later, other = (
        rows_of(ended("1", updatedAt=1_770_091_500_000))[0],
        rows_of(ended("1", timestamp=1_770_091_506_400, updatedAt=1_770_091_501_000))[0],
        rows_of(ended("1", agent="a"))[0],
    )
    assert first["timeline"] == later["timeline"] == other["timeline"]
    assert first["skeleton"] == later["skeleton"] != other["skeleton"]
    assert first["emission"] != later["emission"]
    assert rows_of({"value": 1})[0]["timeline"] == ""


def test_times_in_a_body() -> None:
    """A member is a time if a word of its name means a time, and its value is a time."""
    at = 1_770_091_500_000
    times = {
        "eventTime": at,
        "date_created": "2026-01-05T09:00:00Z",
        "statusUpdatedAt": at,
        "LastStateChangeTimeUTC": at,
    }
    others = {"update": at, "sentiment": at, "createdBy": "Ada", "candidate": at, "id": 5}
    assert without_times({**times, **others, "inner": times}) == {**others, "inner": {}}


def test_own_strategies() -> None:
    """A strategy of the user has columns for its key, and for the state change if it has a timeline."""
    own = ('fields("conversationId")', 'state_change("2s")')
    (row,) = rows_of(ended("1"), rows=Rows({}, ("auto", *own)))
    assert row["o_0"]
    assert not row["o_0_timeline"]
    assert (row["o_1"], row["o_1_timeline"], row["o_1_window"]) == (row["emission"], row["timeline"], "2000000")


@pytest.mark.parametrize("replay", ["archive", None])
def test_replays(replay: str | None) -> None:
    """A delivery with a `replay-name` is a replay."""
    document = member("1") | ({} if replay is None else {"replay-name": replay})
    assert rows_of(document)[0]["is_replay"] == ("0" if replay is None else "1")
