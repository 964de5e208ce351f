"""Opening the DynamoDB store: what cannot be meant or trusted is refused, in one sentence that says what to do."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from oncegate import open_store
from oncegate.errors import SettingError, StoreError, StoreRefused
from oncegate.stores.dynamodb import DynamoStore
from oncegate.stores.dynamodb import table as table_module
from oncegate.testing import ManualClock
from oncegate.testing.requests import (
    granted,
)
from tests.stores.dynamo_server import REGION, DynamoServer, Wire, reply

URL_ERRORS = [
    ("dynamodb://", "names no table; write dynamodb://Table?region=eu-central-1"),
    ("dynamodb://ab", "no table can be called 'ab'; its name has 3 to 255 letters"),
    ("dynamodb:///Table", "names no table"),
    ("dynamodb://Table/other", "names no table"),
    ("dynamodb://key:secret@Table", "credentials are not written in it"),
    ("dynamodb://Table?colour=red", "has no option 'colour'; it has region, endpoint, skew, timeout, parallel"),
    (
        "dynamodb://Table?endpoint=localhost:8000",
        "is not a valid URL; write it without credentials, such as endpoint=http://127.0.0.1:8000",
    ),
    ("dynamodb://Table?skew=2", "skew='2' is not a duration"),
    ("dynamodb://Table?timeout=never", "timeout='never' is not a duration"),
    ("dynamodb://Table?parallel=0", "is not a number from 1 to 256"),
    ("dynamodb://Table?region=not a region", "cannot create a client for the DynamoDB table Table"),
]


@pytest.mark.parametrize(("url", "said"), URL_ERRORS)
def test_urls_that_cannot_be_meant(url: str, said: str) -> None:
    """A URL that names no table or an unknown option is refused with what would do."""
    with pytest.raises(SettingError, match=re.escape(said)):
        open_store(url)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python process of its own, with no credentials but those that are given."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    nowhere = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull, "HOME": os.devnull}
    everything = bare | nowhere | {"AWS_SHARED_CREDENTIALS_FILE": os.devnull} | environment
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=everything)


def test_without_the_extra() -> None:
    """Without botocore the error has the line that installs it."""
    done = run("import sys; sys.modules['botocore'] = None; import oncegate; oncegate.open_store('dynamodb://Table')")
    assert (
        "MissingExtra: the DynamoDB store needs an optional dependency: pip install 'oncegate[dynamodb]'" in done.stderr
    )


def test_loaded_when_asked_for() -> None:
    """Nobody else's store loads botocore."""
    done = run("import sys, oncegate; oncegate.open_store('memory://'); print('botocore' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            {"AWS_DEFAULT_REGION": ""},
            "the DynamoDB table Table needs a region; write dynamodb://Table?region=eu-central-1 or set AWS_REGION",
        ),
        ({"AWS_REGION": REGION}, "no AWS credentials were found"),
        ({"AWS_DEFAULT_REGION": REGION}, "no AWS credentials were found"),
        ({"AWS_DEFAULT_REGION": REGION, "AWS_PROFILE": "nobody"}, "no AWS credentials were found"),
    ],
)
def test_without_what_aws_needs(environment: dict[str, str], said: str) -> None:
    """Without a region, credentials or the profile that is named, one sentence says what to set."""
    done = run("import oncegate; oncegate.open_store('dynamodb://Table')", **environment)
    assert re.search(f"StoreRefused: .*{re.escape(said)}", done.stderr.splitlines()[-1]), done.stderr


@pytest.fixture
def store(dynamo_server: DynamoServer, table: str) -> Iterator[DynamoStore]:
    with closing(open_store(dynamo_server.url(table, timeout="1s"), clock=ManualClock())) as opened:
        assert isinstance(opened, DynamoStore)
        yield opened


@pytest.fixture
def wire(store: DynamoStore) -> Wire:
    return Wire(store)


class TestTables:
    def create(self, server: DynamoServer, table: str, keys: dict[str, str], **more: Any) -> None:
        server.client.create_table(
            TableName=table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in keys],
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()],
            **more,
        )

    def test_none(self, dynamo_server: DynamoServer, table: str) -> None:
        """Whoever only looks is told that there is no table, and none is created."""
        with pytest.raises(StoreRefused, match=f"table {table} .* does not exist; check its name, region and endpoint"):
            open_store(dynamo_server.url(table), create=False)
        assert table not in dynamo_server.client.list_tables()["TableNames"]

    def test_there(self, store: DynamoStore, dynamo_server: DynamoServer, table: str) -> None:
        """A table that is there is opened without creating."""
        granted(store)
        with closing(open_store(dynamo_server.url(table), create=False)) as again:
            assert len(again.browse()) == 1

    def test_another_s(self, dynamo_server: DynamoServer, table: str) -> None:
        """A table with other keys is refused by their names."""
        self.create(dynamo_server, table, {"pk": "HASH", "sk": "RANGE"})
        with pytest.raises(StoreRefused, match="is no table of Oncegate: its key is pk, sk and not id; name another"):
            open_store(dynamo_server.url(table))

    def test_without_the_index(self, dynamo_server: DynamoServer, table: str) -> None:
        """A table that was made without the index is refused at once, and not when the first event fails."""
        self.create(dynamo_server, table, {"id": "HASH"})
        with pytest.raises(StoreRefused, match="lacks the index unfinished"):
            open_store(dynamo_server.url(table))

    def test_gone(self, store: DynamoStore, dynamo_server: DynamoServer, table: str) -> None:
        """A table that is deleted under a running store is told as such."""
        dynamo_server.client.delete_table(TableName=table)
        with pytest.raises(StoreRefused, match="does not exist"):
            granted(store)

    def test_made_by_several_at_once(self, dynamo_server: DynamoServer, table: str) -> None:
        """Processes that start together make one table."""
        errors: list[Exception] = []

        def opened() -> None:
            try:
                open_store(dynamo_server.url(table)).close()
            except StoreError as error:
                errors.append(error)

        threads = [threading.Thread(target=opened) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []

    def test_without_the_right_to_have_it_swept(self, store: DynamoStore, wire: Wire) -> None:
        """A table that would grow for ever because its sweep was not allowed is told of when it is created."""
        answers = {
            "DescribeTable": iter([reply(400, "ResourceNotFoundException")]),
            "UpdateTimeToLive": iter([reply(400, "AccessDeniedException")]),
        }
        wire.before = lambda action: next(answers.get(action, iter(())), None)
        with pytest.raises(StoreRefused, match="does not allow dynamodb:UpdateTimeToLive"):
            table_module.prepare(store._calls, create=True, sweeping=True)

    def test_being_created(self, store: DynamoStore, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
        """A table is used only once it is active."""
        monkeypatch.setattr(table_module, "_LOOK_EVERY", 0.01)
        looks = iter([reply(400, "ResourceNotFoundException"), None])
        wire.before = lambda action: next(looks, None) if action == "DescribeTable" else None
        table_module.prepare(store._calls, create=True, sweeping=True)
        assert wire.sent == ["DescribeTable", "CreateTable", "DescribeTable", "UpdateTimeToLive"]
