"""Lines and documents of CloudWatch Logs."""

import json

import pytest

from oncegate.analysis.log_lines import LoggedDocument, is_log_line, logged_documents

AT = 1_770_091_506_123_000  # 2026-02-03T04:05:06.123Z in microseconds


def test_a_line_of_an_export() -> None:
    """A time before the document is the time of logging."""
    line = b'2026-02-03T04:05:06.123Z {"id": 1}'
    assert is_log_line(line)
    assert list(logged_documents(line)) == [LoggedDocument(b'{"id": 1}', AT)]


@pytest.mark.parametrize("name", ["logEvents", "events"])
def test_an_answer_of_the_api(name: str) -> None:
    """Each line of a subscription or of an answer is a document, with its time."""
    found = {"logStreamName": "s", name: [{"timestamp": AT // 1_000, "message": ' {"id": 1}\n'}]}
    assert list(logged_documents(json.dumps(found).encode())) == [LoggedDocument(b'{"id": 1}', AT)]


@pytest.mark.parametrize(
    "raw",
    [
        b'{"id": 1}',
        b"2026-02-03T04:05:06Z START RequestId: 1",
        b'{"events": [{"Type": "CallContactEvent", "ingestionTime": 1}]}',
        b'{"logEvents": 5}',
        b'{"logEvents": [{"message": 5, "timestamp": 1}]}',
        b'{"logEvents": [',
        b"2026",
    ],
)
def test_other_documents(raw: bytes) -> None:
    """Everything else is returned unchanged; a time alone makes no log line."""
    assert list(logged_documents(raw)) == [LoggedDocument(raw)]
    assert not is_log_line(raw)
