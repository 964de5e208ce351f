"""A table for the effects of handlers, and handlers that write to it."""

from typing import Any

import psycopg

from oncegate import Event
from tests.stores.postgres_server import PostgresServer

Connection = psycopg.Connection[Any]


def effects(server: PostgresServer) -> list[str]:
    with server.connect() as db:
        return [name for (name,) in db.execute("SELECT event FROM effects ORDER BY event")]


def write(event: Event, connection: Connection) -> str:
    connection.execute("INSERT INTO effects VALUES (%s)", (event.id,))
    return "written"
