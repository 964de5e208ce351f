"""Old tables in DynamoDB."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from oncegate.errors import StoreRefused, StoreUnavailable
from oncegate.previous.base import OldMark, OldRow, read_place_url
from oncegate.previous.dynamodb import DynamoPlace
from tests.previous.old_places import OldDynamo, OldDynamoText
from tests.stores.dynamo_server import DynamoServer
from tests.stores.servers import free_port

NOON = 1_796_126_400


@pytest.fixture
def old(dynamo_server: DynamoServer) -> OldDynamo:
    return OldDynamo(dynamo_server)


def opened(url: str) -> DynamoPlace:
    return DynamoPlace(read_place_url(url))


@pytest.fixture
def place(old: OldDynamo) -> Iterator[DynamoPlace]:
    with closing(opened(old.previous)) as place:
        yield place


def put(old: OldDynamo, conversation: str, time: str, **more: dict[str, str]) -> None:
    old.put(conversationId={"S": conversation}, timestamp={"N": time}, **more)


def test_the_key_of_the_table(place: DynamoPlace) -> None:
    """The parts of the key are the key attributes of the table."""
    assert [(part.column, part.template.text) for part in place.parts()] == [
        ("conversationId", "{conversationId}"),
        ("timestamp", "{timestamp}"),
    ]
    assert place.key_columns() == ["conversationId", "timestamp"]


def test_find(old: OldDynamo, place: DynamoPlace) -> None:
    """Keys are found in the order of the request, several hundred at a time, with equal keys and other forms of
    numbers. A value that no key attribute can have is not found."""
    put(old, "a", "1", expiresAt={"N": str(NOON)})
    put(old, "b", "2.5")
    put(old, "c", "3", expiresAt={"S": "soon"})
    strange = [("x" * 3_000, 1), ("a", "word"), ("a", "9" * 60), ("a", 1e300), ("a", float("nan"))]
    many = [(f"x{number}", number) for number in range(250)]
    found = place.find([("b", 2.5), *strange, *many, ("a", "1"), ("a", 1.0), ("c", 3)])
    assert found[0] == OldMark()
    assert found[-3:] == [OldMark(NOON * 1_000_000), OldMark(NOON * 1_000_000), OldMark()]
    assert set(found[1:-3]) == {None}


@pytest.mark.parametrize("text", ["1_000", " 1000 ", "+1000", "1e3", "1000.", "\u0661\u0660\u0660\u0660", "\uff11"])
def test_a_text_that_is_no_number(text: str, old: OldDynamo, place: DynamoPlace) -> None:
    """Only a plain decimal number finds a number: another text never finds the mark of another event."""
    put(old, "a", "1000")
    put(old, "a", "1")
    assert place.find([("a", text), ("a", "1000"), ("a", "1000.0")]) == [None, OldMark(), OldMark()]


def test_rows(old: OldDynamo, place: DynamoPlace) -> None:
    """All items are read. Only texts, numbers and booleans are columns. An expiry that is not a time is marked as
    such."""
    put(old, "a", "1", expiresAt={"N": str(NOON)}, data={"M": {"x": {"S": "y"}}}, note={"S": "z"})  # type: ignore[dict-item]
    put(old, "b", "2", expiresAt={"S": "soon"})
    found = sorted(place.rows(), key=lambda row: row.position)
    assert found == [
        OldRow(
            "conversationId='a', timestamp=1",
            {"conversationId": "a", "timestamp": 1, "expiresAt": NOON, "note": "z"},
            NOON * 1_000_000,
        ),
        OldRow(
            "conversationId='b', timestamp=2",
            {"conversationId": "b", "timestamp": 2, "expiresAt": "soon"},
            has_invalid_expiry=True,
        ),
    ]


def test_several_pages(old: OldDynamo, place: DynamoPlace) -> None:
    """A table of more than one page is read to its end."""
    for number in range(40):
        put(old, f"c{number}", "1", padding={"S": "x" * 60_000})
    assert len(list(place.rows())) == 40


def test_the_attribute_of_the_expiry(dynamo_server: DynamoServer) -> None:
    """Without time to live, an attribute with a usual name is the expiry; `expires` names another one."""
    old = OldDynamoText(dynamo_server)
    item = {"pk": {"S": "a#1"}, "ttl": {"N": str(NOON)}, "until2": {"N": str(NOON + 5)}}
    old.client.put_item(TableName=old.table, Item=item)
    with closing(opened(old.previous)) as place:
        assert place.find([("a#1",)]) == [OldMark(NOON * 1_000_000)]
    with closing(opened(f"{old.previous}&expires=until2")) as place:
        assert place.find([("a#1",)]) == [OldMark((NOON + 5) * 1_000_000)]


def test_what_cannot_be_read(dynamo_server: DynamoServer, old: OldDynamo) -> None:
    """A missing table, another key and a binary key are refused. A server that does not answer is unavailable."""
    other_key = opened(f"{old.previous}&key=pk:{{id}}")
    with closing(other_key), pytest.raises(StoreRefused, match="is conversationId, timestamp, but the URL names pk"):
        other_key.parts()
    with closing(opened(dynamo_server.url("NoSuchTable"))) as place:
        with pytest.raises(StoreRefused, match="NoSuchTable"):
            place.find([("a", 1)])
        with pytest.raises(StoreRefused, match="NoSuchTable"):
            list(place.rows())
    away = opened(dynamo_server.url("Dedup", port=free_port(), timeout="500ms"))
    with closing(away), pytest.raises(StoreUnavailable):
        away.find([("a", 1)])
    table = f"{old.table}Binary"
    old.client.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "B"}],
        BillingMode="PAY_PER_REQUEST",
    )
    with closing(opened(dynamo_server.url(table))) as place, pytest.raises(StoreRefused, match="is binary"):
        place.parts()
