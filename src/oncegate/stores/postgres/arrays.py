"""Batches as arrays and records as rows: the statements of store.sql, and how they are filled and read."""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, TypeVar

from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

from oncegate.claims import Address, Admit, Bury, Claim, Complete, EventSummary, Record, Release, Renew, Settlement
from oncegate.stores.sql_file import read_sql, sections

SCHEMA: Final = "oncegate"
Item = TypeVar("Item", bound=Address)


_TEXT: Final = read_sql("oncegate.stores.postgres")


def statements(schema: str) -> dict[str, bytes]:
    """The statements for the schema that was chosen. As bytes, which psycopg takes for SQL that no user has put
    together; the name is a plain one and in quotes, so that it may also be a word of SQL."""
    text = _TEXT.replace(f"{SCHEMA}.", f'"{schema}".').replace(f"SCHEMA {SCHEMA}", f'SCHEMA "{schema}"')
    text = text.replace(f"'{SCHEMA}'", f"'\"{schema}\"'")
    return {name: statement.encode() for name, statement in sections(text).items()}


# ── arrays ────────────────────────────────────────────────────────────────────────────────────────────────


class Array:
    """A one-dimensional array as Postgres reads it. Made here because psycopg's way through its adapters takes as
    long for a batch as the server does to write it."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class Texts(Array):
    pass


class Blobs(Array):
    pass


class Numbers(Array):
    pass


class Flags(Array):
    pass


_HEAD: Final = Struct("!iiIii")  # dimensions, whether there are nulls, element type, length, lower bound
_LENGTH: Final = Struct("!i").pack
_NUMBER: Final = Struct("!iq").pack
_NULL: Final = _LENGTH(-1)
_FLAG: Final = {False: b"\0\0\0\1\0", True: b"\0\0\0\1\1"}
_BOOL_OID, _BYTEA_OID, _INT8_OID, _TEXT_OID = 16, 17, 20, 25
_T = TypeVar("_T")


def _array(oid: int, items: Sequence[_T], write: Callable[[_T], bytes]) -> bytes:
    """Most of what a batch is told with it is the same for all of it, and then is written once."""
    count = len(items)
    same = items.count(items[0]) == count
    body = write(items[0]) * count if same else b"".join([write(item) for item in items])
    return _HEAD.pack(1, 1, oid, count, 1) + body


def texts(items: Sequence[str | None]) -> Texts:
    return Texts(_array(_TEXT_OID, items, _text))


def blobs(items: Sequence[bytes | None]) -> Blobs:
    return Blobs(_array(_BYTEA_OID, items, _blob))


def numbers(items: Sequence[int | None]) -> Numbers:
    return Numbers(_array(_INT8_OID, items, _number))


def flags(items: Sequence[bool]) -> Flags:
    return Flags(_array(_BOOL_OID, items, _FLAG.__getitem__))


def _text(item: str | None) -> bytes:
    """Postgres keeps no NUL in a text, nor what is no character; neither may stop an event that has one in a field."""
    if item is None:
        return _NULL
    data = item.encode("utf-8", "backslashreplace")
    if b"\0" in data:
        data = data.replace(b"\0", "\N{SYMBOL FOR NULL}".encode())
    return _LENGTH(len(data)) + data


def _blob(item: bytes | None) -> bytes:
    return _NULL if item is None else _LENGTH(len(item)) + item


def _number(item: int | None) -> bytes:
    return _NULL if item is None else _NUMBER(8, item)


def _dumper(array_oid: int) -> type[Dumper]:
    class ArrayDumper(Dumper):
        format = Format.BINARY
        oid = array_oid

        def dump(self, obj: Array) -> bytes:
            return obj.data

    return ArrayDumper


def register(adapters: AdaptersMap) -> None:
    for kind, oid in ((Flags, 1000), (Blobs, 1001), (Numbers, 1016), (Texts, 1009)):
        adapters.register_dumper(kind, _dumper(oid))


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────────


def rounds(batch: Sequence[Item]) -> list[list[int]]:
    """The places of a batch in parts that have no address twice, each sorted by address. There is a second part only
    if an address was named twice; it is asked as a statement of its own, since a transaction over both would go on to
    wait for locks with the first part's in hand."""
    where = [(item.namespace, item.key) for item in batch]
    if len(set(where)) == len(where):
        return [sorted(range(len(batch)), key=where.__getitem__)] if batch else []
    parts: list[dict[tuple[str, bytes], int]] = []
    seen: dict[tuple[str, bytes], int] = {}
    for place, address in enumerate(where):
        turn = seen[address] = seen.get(address, -1) + 1
        if turn == len(parts):
            parts.append({})
        parts[turn][address] = place
    return [[part[address] for address in sorted(part)] for part in parts]


def addresses(batch: Sequence[Address]) -> tuple[Texts, Blobs]:
    return texts([item.namespace for item in batch]), blobs([item.key for item in batch])


def claims_of(batch: Sequence[Claim]) -> tuple[Array, ...]:
    return (
        *addresses(batch),
        blobs([claim.owner for claim in batch]),
        blobs([claim.payload_hash for claim in batch]),
        numbers([claim.lease for claim in batch]),
        numbers([claim.retention for claim in batch]),
        flags([claim.binds for claim in batch]),
        flags([claim.marks for claim in batch]),
        numbers([claim.slides for claim in batch]),
        *_abouts(batch),
    )


def admissions_of(batch: Sequence[Admit], behind: Sequence[int]) -> tuple[Array, ...]:
    return (
        *addresses(batch),
        blobs([admit.owner for admit in batch]),
        blobs([admit.payload_hash for admit in batch]),
        blobs([admit.payload for admit in batch]),
        flags([admit.binds for admit in batch]),
        *_abouts(batch),
        numbers(behind),
    )


def _abouts(batch: Sequence[Claim | Admit]) -> tuple[Array, ...]:
    about = [each.about for each in batch]
    return (
        texts([each.source for each in about]),
        texts([each.type for each in about]),
        texts([each.entity for each in about]),
        numbers([each.occurred_at for each in about]),
        texts([each.delivery_id for each in about]),
    )


def settlements_of(batch: Sequence[Settlement | Renew]) -> tuple[Array, ...]:
    endings, spans, bodies, errors, unstarted, unavailable, handed = zip(
        *[_ENDINGS[type(each)](each) for each in batch], strict=True
    )
    return (
        texts(endings),
        *addresses(batch),
        blobs([each.owner or None for each in batch]),  # an empty owner proves nothing, and null equals nothing
        numbers([each.fence for each in batch]),
        numbers(spans),
        blobs(bodies),
        texts(errors),
        flags(unstarted),
        flags(unavailable),
        texts(handed),
    )


_Ending = tuple[str, int, bytes | None, str | None, bool, bool, str | None]


def _complete(complete: Complete) -> _Ending:
    return "C", complete.retention, complete.result, complete.error, False, False, complete.handed_to


def _release(release: Release) -> _Ending:
    return "R", release.delay, None, release.error, release.unstarted, release.unavailable, None


def _bury(bury: Bury) -> _Ending:
    return "D", bury.retention, bury.payload, bury.error, False, False, None


def _renew(renew: Renew) -> _Ending:
    return "P", renew.lease, None, None, False, False, None


_ENDINGS: Final[dict[type, Callable[[Any], _Ending]]] = {
    Complete: _complete,
    Release: _release,
    Bury: _bury,
    Renew: _renew,
}


def record_of(row: Sequence[Any]) -> Record:
    return Record(*row[:7], EventSummary(*row[7:12]), *row[12:])  # type: ignore[call-arg]  # mypy cannot count a slice
