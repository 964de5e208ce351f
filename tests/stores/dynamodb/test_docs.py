"""The page on the DynamoDB store is correct."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec

from oncegate import open_store
from oncegate.stores.base import Change
from oncegate.stores.dynamodb import DynamoStore
from oncegate.stores.dynamodb.settings import OPTIONS
from oncegate.testing import ManualClock
from oncegate.testing.requests import KEY, NAMESPACE, RETENTION, bury, claim, complete, granted, redrive, reset, take
from tests.stores.dynamo_server import DynamoServer, Wire

PAGE = (Path(__file__).parents[3] / "docs" / "stores" / "dynamodb.md").read_text()


def test_the_code_runs(dynamo_server: DynamoServer) -> None:
    """The Python code of the page runs from top to bottom, and its handler's write is made."""
    client = dynamo_server.client
    client.create_table(
        TableName="Cases",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    code = "\n".join(re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL))
    environment = os.environ | {"AWS_ENDPOINT_URL_DYNAMODB": dynamo_server.endpoint}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert client.scan(TableName="Cases")["Items"] == [{"id": {"S": "evt-1"}}]


def test_the_table_of_the_page(dynamo_server: DynamoServer) -> None:
    """The store accepts a table that was created with the command of the page."""
    (command,) = re.findall(r"aws (dynamodb create-table .+?)\n    aws", PAGE, re.DOTALL)
    words = dict(re.findall(r"--(\S+) (.+?)(?= --|$)", command.replace("\\\n", ""), re.DOTALL))
    attributes = [dict(part.split("=") for part in word.split(",")) for word in words["attribute-definitions"].split()]
    (index,) = shlex.split(words["global-secondary-indexes"])
    pairs = re.findall(r"{AttributeName=(\w+),KeyType=(\w+)}", index)
    keys = [{"AttributeName": name, "KeyType": kind} for name, kind in pairs]
    table = dynamo_server.new_table()
    dynamo_server.client.create_table(
        TableName=table,
        BillingMode=words["billing-mode"].strip(),
        AttributeDefinitions=attributes,
        KeySchema=[dict(part.split("=") for part in words["key-schema"].strip().split(","))],
        GlobalSecondaryIndexes=[
            {
                "IndexName": re.findall(r"IndexName=(\w+)", index)[0],
                "KeySchema": keys,
                "Projection": {"ProjectionType": re.findall(r"ProjectionType=(\w+)", index)[0]},
            }
        ],
    )
    open_store(dynamo_server.url(table), create=False).close()


def test_the_permissions_of_the_page(dynamo_server: DynamoServer) -> None:
    """The policy of the page allows exactly the actions that the store uses."""
    (policy,) = re.findall(r"```json\n(.+?)```", PAGE, re.DOTALL)
    (statement,) = msgspec.json.decode(policy)["Statement"]
    table = dynamo_server.new_table()
    open_store(dynamo_server.url(table)).close()
    with closing(open_store(dynamo_server.url(table), create=False, clock=ManualClock())) as store:
        assert isinstance(store, DynamoStore)
        wire = Wire(store)
        assert complete(store, granted(store))
        claim(store, "bob")
        other = b"o" * 16
        assert bury(store, granted(store, key=other), key=other)
        assert len(store.dead_letters()) == 1
        assert redrive(store, other)
        assert take(store) is not None
        assert store.swap([Change(NAMESPACE, KEY, 0, b"{}", RETENTION)]) == [True]
        assert len(store.browse()) == 2
        assert reset(store)
    used = {"DescribeTable", *wire.sent}
    assert {f"dynamodb:{action}" for action in used} == set(statement["Action"])


def test_the_options_of_the_page() -> None:
    """The page lists every option of the URL."""
    (table,) = re.findall(r"^\| option .+?\n\n", PAGE, re.DOTALL | re.MULTILINE)
    assert tuple(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == OPTIONS
