"""Read the objects of an S3 bucket, for recordings that EventBridge, Firehose or CloudWatch Logs have written there."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from oncegate.aws.clients import create_client
from oncegate.aws.failures import FAILURES
from oncegate.errors import AwsError, SettingError

_ATTEMPTS: Final = 5
_OPTIONS: Final = frozenset({"region", "endpoint"})


class S3Place(Struct, frozen=True):
    """A bucket and a prefix, as `s3://BUCKET/PREFIX?region=NAME&endpoint=URL` names them."""

    bucket: str
    prefix: str
    region: str | None = None
    endpoint: str | None = None

    def client(self) -> Any:
        return create_client("s3", self.region, self.endpoint, f"s3://{self.bucket}", attempts=_ATTEMPTS)


class S3Object(Struct, frozen=True):
    place: S3Place
    key: str
    size: int

    @property
    def name(self) -> str:
        return f"s3://{self.place.bucket}/{self.key}"

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The bytes of the object. They are read while they arrive."""
        try:
            answer = self.place.client().get_object(Bucket=self.place.bucket, Key=self.key)
            with io.BufferedReader(_Body(answer["Body"]), 1024 * 1024) as stream:
                yield stream
        except FAILURES as error:
            raise AwsError(f"cannot read {self.name}: {error}") from error


class _Body(io.RawIOBase):
    """The body of an answer as a raw stream, so that it can be buffered."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._body.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


def read_place(url: str) -> S3Place:
    """Parse the URL of a bucket and a prefix."""
    parts = urlsplit(url)
    options = parse_qs(parts.query)
    if not parts.netloc or options.keys() - _OPTIONS:
        raise SettingError(
            f"{url!r} is not a place in S3; write it like s3://BUCKET/PREFIX or s3://BUCKET/?region=NAME"
        )
    given = {name: values[-1] for name, values in options.items()}
    return S3Place(parts.netloc, parts.path.lstrip("/"), given.get("region"), given.get("endpoint"))


def list_objects(place: S3Place) -> list[S3Object]:
    """The objects below a prefix, in the order of their names. Empty objects, such as folders, are left out."""
    try:
        pages = place.client().get_paginator("list_objects_v2").paginate(Bucket=place.bucket, Prefix=place.prefix)
        found = [each for page in pages for each in page.get("Contents", ())]
    except FAILURES as error:
        raise AwsError(
            f"cannot list s3://{place.bucket}/{place.prefix}: {str(error).rstrip('.')}; check the bucket, the"
            " AWS credentials and the region (?region=NAME)"
        ) from error
    objects = [S3Object(place, each["Key"], each["Size"]) for each in found if each["Size"]]
    return sorted(objects, key=lambda each: each.key)
