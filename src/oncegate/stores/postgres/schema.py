"""The schema: whether the place will do, whether what is there is ours, and bringing it up to date."""

from typing import Any, Final

from oncegate.errors import NoStore, StoreRefused
from oncegate.stores.postgres.arrays import statements
from oncegate.stores.postgres.connections import Connection
from oncegate.stores.postgres.settings import PostgresSettings

_OLDEST: Final = 14  # scans of a range of pages; to_regclass and the rest are older
_LOOKED: Final = ("version", "encoding", "read_only", "ours", "taken", "there", "isolation")


def migrations(sql: dict[str, bytes]) -> list[bytes]:
    return [statement for name, statement in sql.items() if name.startswith("schema ")]


def prepare(db: Connection, settings: PostgresSettings, *, create: bool) -> None:
    """See that the store's tables are there and those of this version; refuse what they cannot be."""
    sql = statements(settings.schema)
    known = migrations(sql)
    if _version(db, sql, settings, create=create) == len(known):
        return
    with db.transaction():
        db.execute(sql["lock"], (settings.schema,))
        version = _version(db, sql, settings, create=create)  # another process may have been here before us
        if version == 0 and not _look(db, sql)["there"]:
            db.execute(sql["create"])
        for migration in known[version:]:
            db.execute(migration)
        db.execute(sql["set version"], (len(known),))


def _version(db: Connection, sql: dict[str, bytes], settings: PostgresSettings, *, create: bool) -> int:
    """The version of the schema, 0 if there is none yet."""
    found = _look(db, sql)
    _check_server(found, settings)
    if not found["ours"]:
        _check_free(found, settings, create=create)
        return 0
    (version,) = db.execute(sql["version"]).fetchone() or (0,)
    known = len(migrations(sql))
    if version > known:
        raise StoreRefused(
            f"the schema {settings.schema} in {settings.place} was written by a newer Oncegate"
            f" (schema {version}, this one knows {known}); upgrade"
        )
    return int(version)


def _look(db: Connection, sql: dict[str, bytes]) -> dict[str, Any]:
    return dict(zip(_LOOKED, db.execute(sql["look"]).fetchone() or (), strict=True))


def _check_server(found: dict[str, Any], settings: PostgresSettings) -> None:
    major, place = found["version"] // 10_000, settings.place
    if major < _OLDEST:
        raise StoreRefused(f"{place} is version {major}, which is too old; {_OLDEST} or newer is needed")
    if found["read_only"]:
        raise StoreRefused(
            f"{place} is a replica or read-only; name the primary, or all hosts with target_session_attrs=read-write"
        )
    if found["encoding"] != "UTF8":
        raise StoreRefused(f"{place} is encoded in {found['encoding']}; use a database that is encoded in UTF8")
    if found["isolation"] != "read committed":
        raise StoreRefused(
            f"transactions of {place} are {found['isolation']} for this role; give Oncegate a role of its own with"
            " ALTER ROLE … SET default_transaction_isolation = 'read committed'"
        )


def _check_free(found: dict[str, Any], settings: PostgresSettings, *, create: bool) -> None:
    where = f"the schema {settings.schema} of {settings.place}"
    if found["taken"]:
        raise StoreRefused(f"{where} is another program's; name one of its own for Oncegate by oncegate_schema")
    if not create:
        raise NoStore(f"there is no store in {where}; name the right database, or the schema by oncegate_schema")
