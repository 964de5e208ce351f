"""Check the server and the schema, then create or migrate the schema."""

from typing import Any, Final

from oncegate.errors import NoStore, StoreRefused
from oncegate.stores.postgres.arrays import statements
from oncegate.stores.postgres.connections import Connection
from oncegate.stores.postgres.settings import PostgresSettings

_MIN_VERSION: Final = 14  # the first version that can scan a range of pages; the sweep does this
_INSPECTED: Final = ("version", "encoding", "read_only", "is_store", "has_tables", "exists", "isolation")


def migrations(sql: dict[str, bytes]) -> list[bytes]:
    return [statement for name, statement in sql.items() if name.startswith("schema ")]


def prepare(db: Connection, settings: PostgresSettings, *, create: bool) -> None:
    """Create the schema, or migrate an older schema to this version.

    Raises StoreRefused if the server or the schema is unsuitable. Raises NoStore if the schema does not exist and
    `create` is false."""
    sql = statements(settings.schema)
    known = migrations(sql)
    if _version(db, sql, settings, create=create) == len(known):
        return
    with db.transaction():
        db.execute(sql["lock"], (settings.schema,))
        version = _version(db, sql, settings, create=create)  # another process may have migrated the schema
        if version == 0 and not _inspect(db, sql)["exists"]:
            db.execute(sql["create"])
        for migration in known[version:]:
            db.execute(migration)
        db.execute(sql["set version"], (len(known),))


def _version(db: Connection, sql: dict[str, bytes], settings: PostgresSettings, *, create: bool) -> int:
    """Return the version of the schema, 0 if the schema does not exist. Raises as `prepare` does."""
    found = _inspect(db, sql)
    _check_server(found, settings)
    if not found["is_store"]:
        _check_free(found, settings, create=create)
        return 0
    (version,) = db.execute(sql["version"]).fetchone() or (0,)
    known = len(migrations(sql))
    if version > known:
        raise StoreRefused(
            f"the schema {settings.schema} in {settings.place} was written by a newer Oncegate"
            f" (schema {version}, this version knows {known}); upgrade Oncegate"
        )
    return int(version)


def _inspect(db: Connection, sql: dict[str, bytes]) -> dict[str, Any]:
    return dict(zip(_INSPECTED, db.execute(sql["inspect"]).fetchone() or (), strict=True))


def _check_server(found: dict[str, Any], settings: PostgresSettings) -> None:
    major, place = found["version"] // 10_000, settings.place
    if major < _MIN_VERSION:
        raise StoreRefused(f"{place} is version {major}, which is too old; use version {_MIN_VERSION} or newer")
    if found["read_only"]:
        raise StoreRefused(
            f"{place} is a replica or read-only; name the primary, or all hosts with target_session_attrs=read-write"
        )
    if found["encoding"] != "UTF8":
        raise StoreRefused(f"{place} has the encoding {found['encoding']}; use a database with the encoding UTF8")
    if found["isolation"] != "read committed":
        raise StoreRefused(
            f"the default isolation level of this role at {place} is {found['isolation']}; give Oncegate"
            " a separate role with ALTER ROLE … SET default_transaction_isolation = 'read committed'"
        )


def _check_free(found: dict[str, Any], settings: PostgresSettings, *, create: bool) -> None:
    schema = f"the schema {settings.schema} of {settings.place}"
    if found["has_tables"]:
        raise StoreRefused(f"{schema} belongs to another program; name another schema with oncegate_schema")
    if not create:
        raise NoStore(f"there is no store in {schema}; correct the database, or name the schema with oncegate_schema")
