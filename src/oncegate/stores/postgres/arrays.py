"""Read the statements of store.sql, encode batches as Postgres arrays, and decode rows as records."""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, TypeVar

from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

from oncegate.claims import (
    Address,
    Admit,
    Bury,
    Claim,
    Complete,
    EventSummary,
    Forget,
    Record,
    Release,
    Renew,
    Reset,
    Settlement,
)
from oncegate.stores.base import Change
from oncegate.stores.sql_file import read_sql, sections

SCHEMA: Final = "oncegate"
Item = TypeVar("Item", bound=Address)


_TEXT: Final = read_sql("oncegate.stores.postgres")


def statements(schema: str) -> dict[str, bytes]:
    """Return the statements by name, with the name of the schema filled in.

    The statements are bytes, because psycopg's types accept only literals or bytes as SQL. The settings have validated
    the name of the schema as a plain identifier. The name is quoted because it may be an SQL keyword."""
    text = _TEXT.replace(f"{SCHEMA}.", f'"{schema}".').replace(f"SCHEMA {SCHEMA}", f'SCHEMA "{schema}"')
    text = text.replace(f"'{SCHEMA}'", f"'\"{schema}\"'")
    return {name: statement.encode() for name, statement in sections(text).items()}


# ── arrays ────────────────────────────────────────────────────────────────────────────────────────────────


class Array:
    """A one-dimensional array in the binary format of Postgres.

    psycopg's adapters are not used: to encode a batch, they take as long as the server takes to write the batch."""

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


_HEADER: Final = Struct("!iiIii")  # number of dimensions, has nulls, element type, length, lower bound
_LENGTH: Final = Struct("!i").pack
_NUMBER: Final = Struct("!iq").pack
_NULL: Final = _LENGTH(-1)
_FLAG: Final = {False: b"\0\0\0\1\0", True: b"\0\0\0\1\1"}
_BOOL_OID, _BYTEA_OID, _INT8_OID, _TEXT_OID = 16, 17, 20, 25
_T = TypeVar("_T")


def _array(oid: int, items: Sequence[_T], write: Callable[[_T], bytes]) -> bytes:
    """Encode the items. In most columns of a batch all items are equal: the first item is encoded once and repeated."""
    count = len(items)
    all_equal = items.count(items[0]) == count
    body = write(items[0]) * count if all_equal else b"".join([write(item) for item in items])
    return _HEADER.pack(1, 1, oid, count, 1) + body


def texts(items: Sequence[str | None]) -> Texts:
    return Texts(_array(_TEXT_OID, items, _text))


def blobs(items: Sequence[bytes | None]) -> Blobs:
    return Blobs(_array(_BYTEA_OID, items, _blob))


def numbers(items: Sequence[int | None]) -> Numbers:
    return Numbers(_array(_INT8_OID, items, _number))


def flags(items: Sequence[bool]) -> Flags:
    return Flags(_array(_BOOL_OID, items, _FLAG.__getitem__))


def _text(item: str | None) -> bytes:
    """Encode a text. NUL and lone surrogates are replaced: a Postgres text cannot hold these characters, but the event
    must be stored."""
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


def split_rounds(batch: Sequence[Item]) -> list[list[int]]:
    """Split a batch into rounds. A round is a list of indexes of the batch, sorted by address, in which every address
    occurs once.

    There is more than one round only if the batch repeats an address. Each round is a separate statement: one
    transaction over all rounds would wait for the locks of a later round while it holds the locks of the first."""
    batch_addresses = [(item.namespace, item.key) for item in batch]
    if len(set(batch_addresses)) == len(batch_addresses):
        return [sorted(range(len(batch)), key=batch_addresses.__getitem__)] if batch else []
    rounds: list[dict[tuple[str, bytes], int]] = []
    last_round: dict[tuple[str, bytes], int] = {}
    for index, address in enumerate(batch_addresses):
        number = last_round[address] = last_round.get(address, -1) + 1
        if number == len(rounds):
            rounds.append({})
        rounds[number][address] = index
    return [[indexes[address] for address in sorted(indexes)] for indexes in rounds]


def address_arrays(batch: Sequence[Address]) -> tuple[Texts, Blobs]:
    return texts([item.namespace for item in batch]), blobs([item.key for item in batch])


def claim_arrays(batch: Sequence[Claim]) -> tuple[Array, ...]:
    return (
        *address_arrays(batch),
        blobs([claim.owner for claim in batch]),
        blobs([claim.payload_hash for claim in batch]),
        numbers([claim.lease for claim in batch]),
        numbers([claim.retention for claim in batch]),
        flags([claim.binds for claim in batch]),
        flags([claim.marks for claim in batch]),
        numbers([claim.slides for claim in batch]),
        *_summary_arrays(batch),
    )


def admission_arrays(batch: Sequence[Admit], behind: Sequence[int]) -> tuple[Array, ...]:
    return (
        *address_arrays(batch),
        blobs([admit.owner for admit in batch]),
        blobs([admit.payload_hash for admit in batch]),
        blobs([admit.payload for admit in batch]),
        flags([admit.binds for admit in batch]),
        *_summary_arrays(batch),
        numbers(behind),
    )


def _summary_arrays(batch: Sequence[Claim | Admit]) -> tuple[Array, ...]:
    summaries = [request.about for request in batch]
    return (
        texts([summary.source for summary in summaries]),
        texts([summary.type for summary in summaries]),
        texts([summary.entity for summary in summaries]),
        numbers([summary.occurred_at for summary in summaries]),
        texts([summary.delivery_id for summary in summaries]),
    )


def settlement_arrays(batch: Sequence[Settlement | Renew]) -> tuple[Array, ...]:
    endings, spans, bodies, errors, unstarted, unavailable, handed = zip(
        *[_SETTLEMENT_ROWS[type(settlement)](settlement) for settlement in batch], strict=True
    )
    return (
        texts(endings),
        *address_arrays(batch),
        # An empty owner proves no claim. It is sent as null, because a comparison with null is never true in SQL.
        blobs([settlement.owner or None for settlement in batch]),
        numbers([settlement.fence for settlement in batch]),
        numbers(spans),
        blobs(bodies),
        texts(errors),
        flags(unstarted),
        flags(unavailable),
        texts(handed),
    )


# The members are ending, span, body, error, unstarted, unavailable and handed: see settle_2 in store.sql.
_SettlementRow = tuple[str, int, bytes | None, str | None, bool, bool, str | None]


def _complete_row(complete: Complete) -> _SettlementRow:
    return "C", complete.retention, complete.result, complete.error, False, False, complete.handed_to


def _release_row(release: Release) -> _SettlementRow:
    return "R", release.delay, None, release.error, release.unstarted, release.unavailable, None


def _bury_row(bury: Bury) -> _SettlementRow:
    return "D", bury.retention, bury.payload, bury.error, False, False, None


def _renew_row(renew: Renew) -> _SettlementRow:
    return "P", renew.lease, None, None, False, False, None


_SETTLEMENT_ROWS: Final[dict[type, Callable[[Any], _SettlementRow]]] = {
    Complete: _complete_row,
    Release: _release_row,
    Bury: _bury_row,
    Renew: _renew_row,
}


def reset_arrays(batch: Sequence[Reset]) -> tuple[Array, ...]:
    return *address_arrays(batch), flags([reset.only_dead for reset in batch])


def forget_arrays(batch: Sequence[Forget]) -> tuple[Array, ...]:
    retentions = numbers([forget.retention for forget in batch])
    return *address_arrays(batch), retentions, flags([forget.waiting for forget in batch])


def change_arrays(batch: Sequence[Change]) -> tuple[Array, ...]:
    return (
        *address_arrays(batch),
        numbers([change.version for change in batch]),
        blobs([change.body for change in batch]),
        numbers([change.retention for change in batch]),
    )


def record_of(row: Sequence[Any]) -> Record:
    return Record(*row[:7], EventSummary(*row[7:12]), *row[12:])  # type: ignore[call-arg]  # mypy cannot count a slice
