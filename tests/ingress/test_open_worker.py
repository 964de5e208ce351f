"""Queue URLs and options that `Gate.worker` rejects."""

from typing import Any

import pytest

from oncegate import Gate
from oncegate.errors import SettingError
from oncegate.ingress import check_queue


@pytest.mark.parametrize(
    ("url", "options", "problem"),
    [
        ("inbox", {}, "'inbox' is not a queue URL; use sqs, "),
        ("sqs://a queue", {}, "is not the URL of a queue; write 'sqs://NAME"),
        ("ftp://q", {}, "unknown queue scheme 'ftp'; use sqs, "),
        ("sqs://q?colour=red", {}, "unknown option 'colour' in a queue URL; use region or endpoint"),
        ("sqs://q?endpoint=here", {}, "endpoint='here' is not a valid URL"),
        ("https://sqs.eu-central-1.amazonaws.com/1/", {}, "does not end with the name of a queue"),
        ("sqs://q", {"batch": 11}, "batch=11 must be a whole number from 1 to 10"),
        ("sqs://q", {"wait": "21s"}, "wait='21s' is too long; the maximum of SQS is 20s"),
        ("sqs://q", {"visibility": "13h"}, "visibility='13h' is too long; the maximum of SQS is 12h"),
        ("sqs://q", {"in_hand": 0}, "in_hand=0 must be a whole number"),
        ("sqs://q", {"drain": 5}, "drain=5 is not a duration"),
    ],
)
def test_invalid(url: str, options: dict[str, Any], problem: str) -> None:
    """An invalid URL or option is rejected when the worker is created, with the reason and what to write."""
    with pytest.raises(SettingError) as rejected:
        Gate("memory://").worker(url, print, **options)
    assert problem in str(rejected.value)


@pytest.mark.parametrize(
    "url", ["sqs://q", "https://sqs.eu-central-1.amazonaws.com/123456789012/q", "http://127.0.0.1:4566/000000000000/q"]
)
def test_queue_urls(url: str) -> None:
    """`sqs://` URLs and the URLs that AWS or an emulator shows for a queue are accepted."""
    check_queue(url)
