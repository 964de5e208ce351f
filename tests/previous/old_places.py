"""Old places on real servers, written in the way of the tutorials."""

import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import redis

from tests.stores.dynamo_server import REGION, DynamoServer
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisServer

DAY = 86_400
CREATE = "CREATE TABLE dedup (conversation_id text, event_time bigint, expires_at bigint)"


def conversation(number: int) -> str:
    return f"5d1f0a52-3c1e-4f57-9a6e-{number:012d}"


def at(number: int) -> int:
    return 1_770_091_506_000 + number


def payload(number: int) -> dict[str, Any]:
    """An event of a tutorial, in the envelope of EventBridge."""
    detail = {"conversationId": conversation(number), "timestamp": at(number), "eventType": "call.ended"}
    return {
        "id": f"evt-{number}",
        "source": "aws.partner/genesys.com/cloud/x",
        "detail-type": "call.ended",
        "detail": detail,
    }


class OldCode(ABC):
    """The place of an earlier guard. `previous` is its URL for a gate, `arguments` are those of `oncegate seed`."""

    previous: str
    arguments: list[str]
    key = 'fields("conversationId", "timestamp")'

    @abstractmethod
    def mark(self, numbers: Sequence[int], ttl: int | None = DAY) -> None:
        """OldMark events as processed, as the tutorials do. `ttl` is in seconds."""


class OldRedis(OldCode):
    """`redis.set(f"event:dedup:{event['id']}", "1", nx=True, ex=ttl)`"""

    key = 'fields("id")'

    def __init__(self, server: RedisServer) -> None:
        server.client.flushall()
        self.client: redis.Redis = server.client
        self.previous = f"{server.url}/0?key=event:dedup:{{id}}"
        self.arguments = [f"{server.url}/0", "--match", "event:dedup:*"]

    def mark(self, numbers: Sequence[int], ttl: int | None = DAY) -> None:
        for number in numbers:
            assert self.client.set(f"event:dedup:evt-{number}", "1", nx=True, ex=ttl)


class OldRedisPairs(OldCode):
    """`redis.setex(f"event:{conversation_id}:{timestamp}", ttl, "1")`"""

    def __init__(self, server: RedisServer) -> None:
        server.client.flushall()
        self.client: redis.Redis = server.client
        self.previous = f"{server.url}/0?key=event:{{conversationId}}:{{timestamp}}"
        template = "event:{conversationId}:{timestamp:int}"
        self.arguments = [f"{server.url}/0", "--match", "event:*", "--template", template]

    def mark(self, numbers: Sequence[int], ttl: int | None = DAY) -> None:
        for number in numbers:
            self.client.set(f"event:{conversation(number)}:{at(number)}", "1", ex=ttl)


class OldDynamo(OldCode):
    """`table.put_item(Item={"conversationId", "timestamp", "expiresAt"}, ConditionExpression=…)`"""

    def __init__(self, server: DynamoServer, table: str | None = None) -> None:
        self.table = table or server.new_table().replace("Claims", "GenesysEventDedup")
        self.client: Any = server.client
        self.client.create_table(
            TableName=self.table,
            KeySchema=[
                {"AttributeName": "conversationId", "KeyType": "HASH"},
                {"AttributeName": "timestamp", "KeyType": "RANGE"},
            ],
            AttributeDefinitions=[
                {"AttributeName": "conversationId", "AttributeType": "S"},
                {"AttributeName": "timestamp", "AttributeType": "N"},
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        self.client.update_time_to_live(
            TableName=self.table, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expiresAt"}
        )
        self.previous = f"dynamodb://{self.table}?region={REGION}&endpoint={server.endpoint}"
        self.arguments = [self.previous]

    def mark(self, numbers: Sequence[int], ttl: int | None = DAY) -> None:
        for number in numbers:
            self.put(conversationId={"S": conversation(number)}, timestamp={"N": str(at(number))}, **_expiry(ttl))

    def put(self, **item: Any) -> None:
        condition = "attribute_not_exists(conversationId)"
        self.client.put_item(TableName=self.table, Item=item, ConditionExpression=condition)


def _expiry(ttl: int | None) -> dict[str, Any]:
    return {} if ttl is None else {"expiresAt": {"N": str(int(time.time()) + ttl)}}


class OldDynamoText(OldDynamo):
    """`table.put_item(Item={"pk": f"{conversation_id}#{timestamp}", "ttl": …}, ConditionExpression=…)`"""

    def __init__(self, server: DynamoServer) -> None:
        self.table = server.new_table().replace("Claims", "Dedup")
        self.client = server.client
        self.client.create_table(
            TableName=self.table,
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        url = f"dynamodb://{self.table}?region={REGION}&endpoint={server.endpoint}"
        self.previous = f"{url}&key=pk:{{conversationId}}%23{{timestamp}}"
        self.arguments = [url, "--template", "pk:{conversationId}#{timestamp:int}"]

    def mark(self, numbers: Sequence[int], ttl: int | None = DAY) -> None:
        for number in numbers:
            expiry = {} if ttl is None else {"ttl": {"N": str(int(time.time()) + ttl)}}
            item = {"pk": {"S": f"{conversation(number)}#{at(number)}"}, **expiry}
            self.client.put_item(TableName=self.table, Item=item, ConditionExpression="attribute_not_exists(pk)")


_MAP = ("--map", "conversationId=conversation_id", "--map", "timestamp=event_time")
_KEY = "key=conversation_id:{conversationId}&key=event_time:{timestamp}"
_INSERT = "INSERT INTO dedup VALUES"


class OldSqlite(OldCode):
    """`INSERT INTO dedup (conversation_id, event_time, expires_at) VALUES (?, ?, ?)`"""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "old.db"
        with closing(sqlite3.connect(self.file)) as db:
            db.execute(CREATE.replace(")", ", PRIMARY KEY (conversation_id, event_time))"))
        url = f"sqlite:///{self.file}"
        self.previous = f"{url}?table=dedup&{_KEY}"
        self.arguments = [url, "--table", "dedup", *_MAP]

    def mark(self, numbers: Sequence[int], ttl: int | None = DAY) -> None:
        with closing(sqlite3.connect(self.file)) as db, db:
            db.executemany(f"{_INSERT} (?, ?, ?)", _rows(numbers, ttl))


class OldPostgres(OldCode):
    """`INSERT INTO dedup (conversation_id, event_time, expires_at) VALUES (%s, %s, %s)`"""

    def __init__(self, server: PostgresServer) -> None:
        self.connect: Callable[[], psycopg.Connection[Any]] = server.connect
        with self.connect() as db:
            db.execute("DROP TABLE IF EXISTS dedup")
            db.execute(CREATE.replace(")", ", PRIMARY KEY (conversation_id, event_time))").encode())
        self.previous = f"{server.url()}?table=public.dedup&{_KEY}"
        self.arguments = [server.url(), "--table", "dedup", *_MAP]

    def mark(self, numbers: Sequence[int], ttl: int | None = DAY) -> None:
        with self.connect() as db, db.cursor() as cursor:
            cursor.executemany(f"{_INSERT} (%s, %s, %s)", _rows(numbers, ttl))


def _rows(numbers: Sequence[int], ttl: int | None) -> list[tuple[str, int, int | None]]:
    expires = None if ttl is None else int(time.time()) + ttl
    return [(conversation(number), at(number), expires) for number in numbers]
