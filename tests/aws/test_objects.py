"""Recordings in S3, in the emulator `ministack`."""

import gzip
import json
from typing import Any

import pytest

from oncegate.aws.clients import create_client
from oncegate.aws.objects import list_objects, read_place
from oncegate.cli.main import run
from oncegate.errors import AwsError, SettingError
from tests.stores.dynamo_server import REGION, DynamoServer

BUCKET = "recordings"


@pytest.fixture
def bucket(dynamo_server: DynamoServer) -> Any:
    client = create_client("s3", REGION, dynamo_server.endpoint, "S3")
    client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    return client


def event(number: int) -> str:
    return json.dumps({"id": f"e-{number}", "type": "call.ended", "conversationId": "c-1", "state": "ended"})


def test_a_prefix(dynamo_server: DynamoServer, bucket: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """The objects below a prefix are one recording: plain, compressed, and documents in a row as Firehose writes them.
    Other objects and empty objects are left out. An example is read again from its object."""
    objects = {
        "2026/01/05/a.json": "".join(map(event, range(3))).encode(),
        "2026/01/05/b.json.gz": gzip.compress(f"{event(1)}\n{event(3)}\n".encode()),
        "2026/01/06/": b"",
        "other/c.json": event(9).encode(),
    }
    for key, body in objects.items():
        bucket.put_object(Bucket=BUCKET, Key=key, Body=body)
    place = f"s3://{BUCKET}/2026/01?region={REGION}&endpoint={dynamo_server.endpoint}"
    assert [each.key for each in list_objects(read_place(place))] == ["2026/01/05/a.json", "2026/01/05/b.json.gz"]
    assert run(["analyze", place, "--output", "json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["deliveries"], found["certain_copies"], found["recommended"]["key"]) == (5, 1, "auto")
    lost = {each["strategy"]: each["lost_example"] for each in found["types"][0]["strategies"]}["entity"]
    assert lost["first"] == f"s3://{BUCKET}/2026/01/05/a.json at byte 0"
    assert lost["members"] == [{"path": "id", "first": None, "second": None}]


def test_no_bucket(dynamo_server: DynamoServer, capfd: pytest.CaptureFixture[str]) -> None:
    """A bucket that does not exist is one sentence."""
    place = f"s3://no-such-bucket/x?region={REGION}&endpoint={dynamo_server.endpoint}"
    with pytest.raises(AwsError, match=r"cannot list s3://no-such-bucket/x: .*NoSuchBucket"):
        list_objects(read_place(place))
    assert run(["analyze", place]) == 1
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "s3://bucket/prefix?regoin=x"])
def test_invalid_places(url: str) -> None:
    """A URL without a bucket, or with an unknown option, is refused."""
    with pytest.raises(SettingError, match="is not a place in S3"):
        read_place(url)
