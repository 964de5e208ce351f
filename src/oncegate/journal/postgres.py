"""The journal in a schema of a Postgres database, in partitions by day. See postgres.sql for the tables."""

import os
import time
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from oncegate.errors import NoStore, StoreRefused, StoreUnavailable
from oncegate.journal.base import (
    ALL_ROWS,
    MINUTE,
    PAGE,
    SHAPE_AGE,
    AllExcept,
    BatchId,
    JournalBounds,
    NewRow,
    NewRows,
    Page,
    RowFilter,
    Total,
    matching,
    totals_of,
)
from oncegate.journal.leaves import SECRET_SIZE, Shape, packed_shape, unpacked_shape
from oncegate.journal.rows import ID_BITS, Label, Row, RowErasure, Term, packed, shapes_of, term_hashes, unpacked
from oncegate.stores.postgres.arrays import blobs, numbers
from oncegate.stores.postgres.connections import Connection, Connections
from oncegate.stores.postgres.settings import PostgresSettings
from oncegate.stores.sql_file import read_sql, sections

_SCHEMA: Final = "oncegate_journal"
_TEXT: Final = read_sql("oncegate.journal", "postgres.sql")
_DAY: Final = 86_400_000_000 << ID_BITS  # ids of one day
_BLOCK: Final = 512  # rows of one block of terms
_PRUNE_ROWS: Final = 5_000  # rows that one step deletes
_FULL: Final = 0.9  # the share of the largest size at which the oldest partition is dropped
_PARTS: Final = 8  # a partition is split if it is larger than this part of the largest size
_MOST_SHAPES: Final = 5_000
_HIGHEST: Final = 2**63 - 1
_TERMS_PAGE: Final = 200  # blocks of terms to read at a time
_NO_NUMBER: Final = 0  # labels are numbered from 1
_NO_LABEL: Final[Label] = ("", "", "", "", "", "")


class PostgresJournal:
    """A journal in the schema `SCHEMA_journal`, where SCHEMA is the schema of the store. With `create=False`, the
    journal must exist."""

    def __init__(self, settings: PostgresSettings, *, create: bool = True) -> None:
        self._schema = f"{settings.schema[:55]}_journal"
        self._place = settings.place
        text = _TEXT.replace(f"{_SCHEMA}.", f'"{self._schema}".').replace(
            f"EXISTS {_SCHEMA};", f'EXISTS "{self._schema}";'
        )
        text = text.replace(f"'{_SCHEMA}'", f"'\"{self._schema}\"'")
        self._sql = {name: statement.encode() for name, statement in sections(text).items()}
        self._connections = Connections(settings)
        self._numbers: dict[Label, int] = {}
        self._labels: dict[int, Label] = {}
        self._partitions: list[tuple[int, int]] = []
        self._secret: bytes | None = None
        try:
            with self._connections.borrow() as db:
                self._prepare(db, create=create)
        except BaseException:
            self.close()
            raise

    def _prepare(self, db: Connection, *, create: bool) -> None:
        exists, is_journal, has_tables = db.execute(self._sql["exists"]).fetchone() or (False, False, False)
        if is_journal:
            return
        if not create:
            raise NoStore(f"there is no journal in the schema {self._schema} of {self._place}")
        if has_tables:
            raise StoreRefused(
                f"the schema {self._schema} of {self._place} belongs to another program; name another schema with"
                " oncegate_schema"
            )
        with db.transaction():
            db.execute(self._sql["lock"])
            _, is_journal, _ = db.execute(self._sql["exists"]).fetchone() or (False, False, False)
            if not is_journal:  # another process may have created it
                if not exists:
                    db.execute(self._sql["create"])
                db.execute(self._sql["schema 1"])
                db.execute(self._sql["set secret"], (os.urandom(SECRET_SIZE),))

    def close(self) -> None:
        self._connections.close()

    def secret(self) -> bytes:
        with self._connections.borrow() as db:
            (secret,) = db.execute(self._sql["secret"]).fetchone() or (b"",)
        self._secret = bytes(secret)
        return self._secret

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────

    def append(self, batch: NewRows) -> bool:
        try:
            with self._connections.borrow() as db:
                self._add_labels(db, {*(row.label for row in batch.rows), *(label for _, label in batch.counts)})
                with db.transaction():
                    last = self._lock(db)
                    if not self._is_written(db, batch.id):
                        self._append(db, batch, last)
        except BaseException:
            # A new partition was rolled back, or the schema was dropped and made again with other numbers.
            self._partitions, self._numbers = [], {}
            raise
        return True

    def _lock(self, db: Connection) -> int:
        """Lock the journal for this transaction. Returns the highest id. The numbers of the labels are those of the
        journal with the known secret; another journal has other numbers."""
        last, secret = db.execute(self._sql["last"]).fetchone() or (0, b"")
        if self._secret is not None and self._secret != bytes(secret):
            raise StoreUnavailable(f"the journal in {self._place} was replaced; nothing was written")
        self._secret = bytes(secret)
        return int(last)

    def _is_written(self, db: Connection, batch_id: BatchId | None) -> bool:
        if batch_id is None:
            return False
        values = (batch_id.writer, batch_id.number, int(time.time()))
        return db.execute(self._sql["add batch"], values).rowcount == 0

    def _append(self, db: Connection, batch: NewRows, last: int) -> None:
        if batch.rows:
            last = self._append_rows(db, batch.rows, last)
            db.execute(self._sql["set last"], (last,))
        self._add_counts(db, batch.counts)
        for shape, paths in sorted(batch.shapes.items()):
            db.execute(self._sql["add shape"], (shape, packed_shape(paths), int(time.time())))

    def _append_rows(self, db: Connection, rows: Sequence[NewRow], last: int) -> int:
        ids: list[int] = []
        for row in rows:
            last = max(row.fields.at << ID_BITS, last + 1)
            ids.append(last)
        data = [packed(row.fields) for row in rows]
        self._add_partitions(db, ids)
        labels = [self._numbers[row.label] for row in rows]
        db.execute(self._sql["append"], (numbers(ids), numbers(labels), blobs(data)))
        payloads = [
            (row_id, zlib.compress(row.payload, 1))
            for row_id, row in zip(ids, rows, strict=True)
            if row.payload is not None
        ]
        if payloads:
            known, contents = zip(*payloads, strict=True)
            db.execute(self._sql["append payloads"], (numbers(known), blobs(contents)))
        for start in range(0, len(rows), _BLOCK):
            block = ids[start : start + _BLOCK]
            hashes = array("I", term_hashes(data[start : start + _BLOCK])).tobytes()
            db.execute(self._sql["append terms"], (block[-1], block[0], hashes))
        return last

    def _add_partitions(self, db: Connection, ids: Sequence[int]) -> None:
        """Create the partitions for these ids, if they are missing: one for each day that has rows, or for what is left
        of it. The ids rise."""
        index = 0
        while index < len(ids):
            at = ids[index]
            known = next((part for part in self._partitions if part[0] <= at < part[1]), None)
            if known is None:
                self._partitions = [(first, after) for first, after in db.execute(self._sql["partitions"])]
                known = next((part for part in self._partitions if part[0] <= at < part[1]), None)
            if known is None:
                day = at // _DAY * _DAY
                first = max([day, *(after for _, after in self._partitions if after <= at)])
                known = (first, min([day + _DAY, *(start for start, _ in self._partitions if start > at)]))
                self._create(db, *known)
                self._partitions.append(known)
            index = bisect_left(ids, known[1])

    def _create(self, db: Connection, first: int, after: int) -> None:
        for table in ("rows", "payloads"):
            name = f'"{self._schema}".{table}'
            db.execute(
                f"CREATE TABLE {name}_{first} PARTITION OF {name} FOR VALUES FROM ({first}) TO ({after})".encode()
            )
        db.execute(self._sql["add partition"], (first, after))

    def _add_counts(self, db: Connection, counts: Mapping[tuple[int, Label], int]) -> None:
        if counts:
            ordered = sorted((self._numbers[label], minute, count) for (minute, label), count in counts.items())
            db.execute(self._sql["count"], tuple(map(numbers, zip(*ordered, strict=True))))

    def _add_labels(self, db: Connection, labels: set[Label]) -> None:
        """Number new labels, before the transaction of the rows: a label stays even if the rows are rolled back."""
        if missing := sorted(labels - self._numbers.keys()):
            for label in missing:
                db.execute(self._sql["add label"], label)
            self._read_labels(db)

    def _read_labels(self, db: Connection) -> dict[int, Label]:
        self._labels = {number: tuple(parts) for number, *parts in db.execute(self._sql["labels"])}
        self._numbers = {label: number for number, label in self._labels.items()}
        return self._labels

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────

    def rows(
        self,
        where: RowFilter = ALL_ROWS,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int = PAGE,
    ) -> Page:
        lowest, highest = where.ids(before, after)
        with self._connections.borrow() as db:
            hidden = [number for number, label in self._read_labels(db).items() if not where.matches(label)]
            wanted = self._labels.keys() - hidden
            if where.label and not wanted:
                return Page()
            if terms := where.terms:
                entries = self._entries_with(db, terms[0], lowest, highest)
            elif not where.label:
                entries = db.execute(self._sql["rows"], (lowest, highest, numbers([_NO_NUMBER, *hidden]), limit))
            else:
                entries = db.execute(self._sql["rows by label"], (numbers(list(wanted)), lowest, highest, limit, limit))
            found, cursor = matching(entries, limit, wanted if where.label else AllExcept(hidden), terms)
            return Page(self._made(db, found), cursor)

    def _entries_with(self, db: Connection, term: Term, lowest: int, highest: int) -> Iterator[Any]:
        """Yields the rows between these two ids of each block that has a hash of the term, newest first."""
        needles = [array("I", [each]).tobytes() for each in term.hashes]
        for first, last in db.execute(self._sql["blocks"], (highest, lowest, needles[0], needles[-1])).fetchall():
            yield from db.execute(
                self._sql["rows"],
                (max(first - 1, lowest), min(last + 1, highest), numbers([_NO_NUMBER]), last - first + 1),
            ).fetchall()

    def _made(self, db: Connection, found: Sequence[Any]) -> list[Row]:
        if any(number not in self._labels for _, number, _ in found):
            self._read_labels(db)
        return [unpacked(row_id, self._labels.get(number, _NO_LABEL), bytes(data)) for row_id, number, data in found]

    def totals(self, where: RowFilter, start: int, end: int, every: int = MINUTE) -> list[Total]:
        step, counts = max(1, every // MINUTE), {}
        with self._connections.borrow() as db:
            labels = {number: label for number, label in self._read_labels(db).items() if where.matches(label)}
            if not labels:
                return []
            values = (step, step, numbers(list(labels)), start // MINUTE, (end - 1) // MINUTE)
            for minute, number, events in db.execute(self._sql["totals"], values):
                counts[minute, labels[number]] = events
        return totals_of(counts, every)

    def payload(self, row_id: int) -> bytes | None:
        with self._connections.borrow() as db:
            found = db.execute(self._sql["payload"], (row_id,)).fetchone()
        return None if found is None else zlib.decompress(found[0])

    def shape(self, shape_id: bytes) -> Shape:
        with self._connections.borrow() as db:
            found = db.execute(self._sql["shape"], (shape_id,)).fetchone()
        return () if found is None else unpacked_shape(bytes(found[0]))

    # ── erasure ───────────────────────────────────────────────────────────────────────────────────────────

    def erase(self, erasure: RowErasure, *, dry_run: bool = False) -> int:
        """See `oncegate.journal.base.Journal`. Each block is one transaction."""
        count, before = 0, _HIGHEST
        with self._connections.borrow() as db:
            self._read_labels(db)
            while page := db.execute(self._sql["terms"], (before, _TERMS_PAGE)).fetchall():
                for first, last, hashes in page:
                    if erasure.may_be_among(array("I", bytes(hashes)), first, last):
                        with db.transaction():
                            count += self._erase_block(db, erasure, first, last, dry_run=dry_run)
                before = page[-1][1]
        return count

    def _erase_block(self, db: Connection, erasure: RowErasure, first: int, last: int, *, dry_run: bool) -> int:
        if not dry_run:
            db.execute(self._sql["lock terms"], (last,))
        found = db.execute(self._sql["rows of block"], (first, last)).fetchall()
        rows = [(row_id, self._labels.get(number, _NO_LABEL), bytes(data)) for row_id, number, data in found]
        erased = {row_id: data for row_id, label, data in rows if erasure.includes(row_id, label, data)}
        if dry_run:
            return len(erased)
        if erased:
            db.execute(self._sql["erase rows"], (numbers(list(erased)),))
            db.execute(self._sql["erase payloads"], (numbers(list(erased)),))
        hashes = array("I", term_hashes([data for row_id, _, data in rows if row_id not in erased])).tobytes()
        db.execute(self._sql["set terms"], (hashes, last))
        for shape in shapes_of(erased.values()):
            stored = db.execute(self._sql["shape"], (shape,)).fetchone()
            if stored is not None and erasure.names(unpacked_shape(bytes(stored[0]))):
                db.execute(self._sql["delete shape"], (shape,))
        return len(erased)

    # ── pruning ───────────────────────────────────────────────────────────────────────────────────────────

    def size(self) -> int:
        with self._connections.borrow() as db:
            return self._size(db)

    def _size(self, db: Connection) -> int:
        (others,) = db.execute(self._sql["other sizes"]).fetchone() or (0,)
        return int(others) + sum(int(size) for _, _, size in db.execute(self._sql["sizes"]))

    def prune(self, bounds: JournalBounds, now: int) -> bool:
        """Drop partitions and delete rows that exceed the bounds. A partition is split if it is larger than an eighth
        of the largest size, so that enough is left when the oldest partition is dropped."""
        oldest = max(0, now - bounds.max_age) << ID_BITS
        payloads = oldest if bounds.payload_age is None else max(0, now - bounds.payload_age) << ID_BITS
        with self._connections.borrow() as db:
            for first, after, _ in db.execute(self._sql["sizes"]).fetchall():
                if after <= oldest:
                    self._drop(db, first)
            deleted = db.execute(self._sql["delete rows"], (oldest, _PRUNE_ROWS)).rowcount
            deleted += db.execute(self._sql["delete payloads"], (max(oldest, payloads), _PRUNE_ROWS)).rowcount
            db.execute(self._sql["delete terms"], (oldest,))
            db.execute(self._sql["delete counts"], ((now - bounds.max_age) // MINUTE,))
            unused_since = (now - bounds.max_age - SHAPE_AGE) // 1_000_000
            db.execute(self._sql["delete shapes"], (unused_since, _MOST_SHAPES))
            db.execute(self._sql["delete batches"], (unused_since,))
            return self._shrink(db, bounds.max_size) or deleted >= _PRUNE_ROWS

    def _shrink(self, db: Connection, max_size: int) -> bool:
        """Split the newest partition if it is large, and drop the oldest partition if the journal is too large. Returns
        whether it is still too large."""
        sizes = db.execute(self._sql["sizes"]).fetchall()
        if sizes and sizes[-1][2] > max_size / _PARTS:
            self._split(db, *sizes[-1][:2])
            sizes = db.execute(self._sql["sizes"]).fetchall()
        if self._size(db) <= max_size * _FULL or len(sizes) < 2:
            return False
        first, after, _ = sizes[0]
        self._drop(db, first)
        db.execute(self._sql["delete terms"], (after,))
        return self._size(db) > max_size * _FULL

    def _drop(self, db: Connection, first: int) -> None:
        self._partitions = []
        with db.transaction():
            db.execute(self._sql["last"])  # no writer may use the partition now
            for table in ("rows", "payloads"):
                db.execute(f'DROP TABLE IF EXISTS "{self._schema}".{table}_{first}'.encode())
            db.execute(self._sql["drop partition"], (first,))

    def _split(self, db: Connection, first: int, after: int) -> None:
        """End the newest partition at the highest id. The rest of its range becomes a new partition."""
        self._partitions = []
        with db.transaction():
            last, _ = db.execute(self._sql["last"]).fetchone() or (0, b"")
            cut = last + 1
            if not first < cut < after:
                return
            for table in ("rows", "payloads"):
                name = f'"{self._schema}".{table}'
                db.execute(f"ALTER TABLE {name} DETACH PARTITION {name}_{first}".encode())
                attach = f"ALTER TABLE {name} ATTACH PARTITION {name}_{first} FOR VALUES FROM ({first}) TO ({cut})"
                db.execute(attach.encode())
            db.execute(self._sql["cut partition"], (cut, first))
            self._create(db, cut, after)
