"""The journal in streams of a Redis server. See append.lua for the keys.

An entry of the stream is a block of up to 200 rows. One entry for each row would take the server ten times as long, and
the claims of the store would wait for it."""

import hashlib
import os
import pkgutil
import zlib
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec import Struct

from oncegate.errors import NoStore, StoreUnavailable
from oncegate.journal.base import (
    ALL_ROWS,
    MINUTE,
    PAGE,
    AllExcept,
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
from oncegate.stores.redis.checks import LAYOUT_TAG, parse_info
from oncegate.stores.redis.connection import Command, RedisServer, Reply
from oncegate.stores.redis.errors import CommandFailed, store_error
from oncegate.stores.redis.servers import Cluster
from oncegate.stores.redis.settings import RedisSettings

_APPEND: Final = (pkgutil.get_data("oncegate.journal", "append.lua") or b"").decode()
_REWRITE: Final = (pkgutil.get_data("oncegate.journal", "rewrite.lua") or b"").decode()
_COPIED: Final = 20  # entries that one call of the script copies
_LOCKED_FOR: Final = "600000"  # milliseconds
_SEQUENCES: Final = 1_000 << ID_BITS  # ids in a millisecond
_BLOCK: Final = 200  # rows of one entry
_READ: Final = 20  # entries of one read
_READ_TERMS: Final = 500
_MINUTES: Final = 50  # minutes of each label to read at a time
_HOUR: Final = 60  # minutes
_MOST_HOURS: Final = 1_000  # hours whose sums are remembered
_MOST_SUMS: Final = 2_000  # labels of such an hour
_LABEL_SIZE: Final = 8
_MOST_SHAPES: Final = 5_000
_FULL: Final = 0.9  # the share of the largest size at which the oldest rows are deleted
_PART_OF_MEMORY: Final = 10  # the journal uses at most this fraction of the server's maxmemory
_STEP: Final = 0.95  # the share of the rows that is left after a step
_HIGHEST: Final = 2**63 - 1
_NO_LABEL: Final[Label] = ("", "", "", "", "", "")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_label: Final = msgspec.msgpack.Decoder(Label).decode

_Entry = tuple[int, bytes, bytes]  # id of the row, id of its label, fields
_decode_block: Final = msgspec.msgpack.Decoder(list[_Entry]).decode  # with the distance from the first row as the id


class _Collected(Struct):
    """What an erasure changes. `erased` has the erased rows by id. `rows` and `terms` have the fields of the entries
    that replace entries of these streams, by id."""

    erased: dict[int, bytes] = {}
    rows: dict[int, Sequence[bytes]] = {}
    terms: dict[int, Sequence[bytes]] = {}


class RedisJournal:
    """A journal on a Redis server, or on one primary of a cluster. With `create=False`, the journal must exist."""

    def __init__(self, settings: RedisSettings, *, create: bool = True) -> None:
        self._prefix = settings.prefix.encode() + b"-journal{" + LAYOUT_TAG + b"}:"
        self._settings = settings
        self._labels: dict[bytes, Label] = {}
        self._ids: dict[Label, tuple[bytes, bytes]] = {}  # the id and the packed label
        self._secret = self._shapes_value = b""
        self._hour_sums: dict[bytes, tuple[int, dict[bytes, int]]] = {}  # the number of events, and the sums by label
        self._cluster = Cluster(settings) if settings.cluster else None
        self._server = RedisServer(settings, settings.host, settings.port)
        try:
            if self._cluster is not None:
                self._cluster.connect()
            if not create:
                self._check_exists()
        except BaseException:
            self.close()
            raise

    def _check_exists(self) -> None:
        if not self._execute(("EXISTS", self._key(b"secret")))[0]:
            name, place = self._settings.prefix, self._settings.place
            raise NoStore(f"there is no journal {name} at {place}; check the setting journal")

    def _key(self, name: bytes) -> bytes:
        return self._prefix + name

    def _execute(self, *commands: Command) -> list[Reply]:
        """Execute the commands and return their replies. Raises StoreError if any command failed."""
        server = self._server if self._cluster is None else self._cluster.layout_server()
        replies = server.execute(commands)
        for reply in replies:
            if isinstance(reply, CommandFailed):
                if self._cluster is not None and reply.server_may_have_changed:
                    self._cluster.refresh()
                raise store_error(reply.error, server.name)
        return replies

    def close(self) -> None:
        self._server.close()
        if self._cluster is not None:
            self._cluster.close()

    def secret(self) -> bytes:
        key = self._key(b"secret")
        _, secret = self._execute(("SET", key, os.urandom(SECRET_SIZE), "NX"), ("GET", key))
        self._secret = bytes(secret)
        return self._secret

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────

    def append(self, batch: NewRows) -> bool:
        """See `oncegate.journal.base.Journal`. The labels are written with every batch, because the server can lose its
        data."""
        labels: dict[bytes, bytes] = {}
        values: list[str | bytes] = []
        starts = range(0, len(batch.rows), _BLOCK)
        for start in starts:
            values += self._block(batch.rows[start : start + _BLOCK], labels)
        for (minute, label), count in batch.counts.items():
            values += (str(minute // _HOUR), b"%d:%b" % (minute, self._label_id(label, labels)), str(count))
        for item in labels.items():
            values += item
        for shape, paths in batch.shapes.items():
            values += (shape, packed_shape(paths))
        writer, number = (b"", 0) if batch.id is None else (batch.id.writer, batch.id.number)
        head = (self._prefix, self._secret, writer, str(number), os.urandom(8))
        numbers = (len(starts), len(batch.counts), len(labels), len(batch.shapes))
        keys = [self._key(name) for name in (b"rows", b"terms", b"payloads", b"labels", b"shapes", b"hours", b"secret")]
        (value,) = self._execute(("EVAL", _APPEND, str(len(keys)), *keys, *head, *map(str, numbers), *values))
        if value is None:
            raise StoreUnavailable(f"the journal at {self._settings.place} was replaced; nothing was written")
        are_stored = self._shapes_value in (b"", value)
        self._shapes_value = value
        return are_stored

    def _block(self, rows: Sequence[NewRow], labels: dict[bytes, bytes]) -> list[str | bytes]:
        """Returns the arguments of the script for one block."""
        first = row_id = rows[0].fields.at << ID_BITS
        entries: list[_Entry] = []
        payloads: list[str | bytes] = []
        for row in rows:
            row_id = max(row.fields.at << ID_BITS, row_id + bool(entries))
            entries.append((row_id - first, self._label_id(row.label, labels), packed(row.fields)))
            if row.payload is not None:
                payloads += (str(row_id - first), zlib.compress(row.payload, 1))
        ms, sequence = divmod(first, _SEQUENCES)
        hashes = array("I", term_hashes([fields for _, _, fields in entries])).tobytes()
        used = {label_id for _, label_id, _ in entries}
        head = (str(ms), str(sequence), str(row_id - first), _encode(entries), hashes)
        return [*head, str(len(used)), str(len(payloads) // 2), *used, *payloads]

    def _label_id(self, label: Label, labels: dict[bytes, bytes]) -> bytes:
        """Returns the id of a label, and adds the packed label to `labels`."""
        found = self._ids.get(label)
        if found is None:
            data = _encode(label)
            found = self._ids[label] = hashlib.blake2b(data, digest_size=_LABEL_SIZE).digest(), data
        label_id, labels[found[0]] = found
        return label_id

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
        if highest <= lowest + 1:  # no id is between them, and Redis refuses a range that ends before 0
            return Page()
        hidden = [label_id for label_id, label in self._all_labels().items() if not where.matches(label)]
        wanted = self._labels.keys() - hidden
        if terms := where.terms:
            entries = self._entries_with(terms[0], lowest, highest)
        elif not where.label:
            entries = self._between(lowest, highest, lowest, _HIGHEST)
        else:
            entries = self._labelled(wanted, lowest, highest)
        found, cursor = matching(entries, limit, wanted if where.label else AllExcept(hidden), terms)
        return Page(self._made(found), cursor)

    def _labelled(self, labels: Collection[bytes], lowest: int, highest: int) -> Iterator[_Entry]:
        """Yields the rows with ids between these two, newest first, of the minutes that have one of the labels."""
        (page,) = self._execute(("XRANGE", self._key(b"terms"), _stream_id(highest), "+", "COUNT", "1"))
        end = _row_id(page[0][0]) if page else highest  # the block of the newest row that is wanted may end later
        for minute in self._minutes_with(labels, lowest, end):
            start, after = minute * MINUTE << ID_BITS, (minute + 1) * MINUTE << ID_BITS
            yield from self._between(lowest, highest, start - 1, after)

    def _between(self, lowest: int, highest: int, ends_after: int, ends_before: int) -> Iterator[_Entry]:
        """Yields the rows with ids between `lowest` and `highest`, newest first, of the blocks that end between
        `ends_after` and `ends_before`."""
        key, end = self._key(b"rows"), _stream_id(ends_before)
        if ends_before > highest:  # the first block may end after `highest`
            (page,) = self._execute(("XRANGE", key, _stream_id(max(highest, ends_after + 1)), f"({end}", "COUNT", "1"))
            end = min(end, _stream_id(highest), key=_row_id_of_text)
        else:
            page = []
        while True:
            for _, values in page:
                yield from self._rows_of(values, lowest, highest)
            (page,) = self._execute(
                ("XREVRANGE", key, f"({end}", _stream_id(max(lowest, ends_after) + 1), "COUNT", str(_READ))
            )
            if not page:
                return
            end = page[-1][0].decode()

    def _rows_of(self, values: Sequence[bytes], lowest: int, highest: int) -> list[_Entry]:
        """Returns the rows of a block with ids between these two, newest first."""
        first = _row_id(values[1])
        rows = [(first + distance, label_id, fields) for distance, label_id, fields in _decode_block(values[3])]
        return [row for row in reversed(rows) if lowest < row[0] < highest]

    def _minutes_with(self, labels: Collection[bytes], lowest: int, highest: int) -> Iterator[int]:
        """Yields the minutes that have rows with these labels, newest first. The newest minutes of each label are read
        at a time. If a label may have more minutes, only minutes that are not older than the read ones are yielded."""
        oldest, newest = str(_minute_of(lowest)), _minute_of(highest)
        while labels:
            commands: list[Command] = [
                ("ZREVRANGEBYSCORE", self._key(b"minutes:" + label), str(newest), oldest, "LIMIT", "0", str(_MINUTES))
                for label in labels
            ]
            replies = [list(map(int, reply)) for reply in self._execute(*commands)]
            end = max((reply[-1] for reply in replies if len(reply) == _MINUTES), default=None)
            minutes = {minute for reply in replies for minute in reply if end is None or minute >= end}
            yield from sorted(minutes, reverse=True)
            if end is None:
                return
            newest = end - 1

    def _all_labels(self) -> dict[bytes, Label]:
        (reply,) = self._execute(("HGETALL", self._key(b"labels")))
        self._labels = {reply[at]: _decode_label(reply[at + 1]) for at in range(0, len(reply), 2)}
        return self._labels

    def _made(self, entries: Sequence[_Entry]) -> list[Row]:
        if any(label_id not in self._labels for _, label_id, _ in entries):
            self._all_labels()
        return [unpacked(row_id, self._labels.get(label_id, _NO_LABEL), data) for row_id, label_id, data in entries]

    def _entries_with(self, term: Term, lowest: int, highest: int) -> Iterator[_Entry]:
        """Yields the rows between these two ids of each block that has a hash of the term, newest first. Another block
        yields an entry without fields, because a journal with few events has about as many blocks as rows, and the
        number of blocks that one read searches must be bounded."""
        hashes = set(term.hashes)
        for first, last, known in self._blocks(lowest, highest):
            if hashes.isdisjoint(known):
                yield first, b"", b""
            else:
                (page,) = self._execute(("XRANGE", self._key(b"rows"), _stream_id(last), _stream_id(last)))
                for _, values in page:
                    yield from self._rows_of(values, lowest, highest)

    def _blocks(self, lowest: int, highest: int) -> Iterator[tuple[int, int, Sequence[int]]]:
        """Yields the first id, the last id and the hashes of each block with rows between these two ids, newest first.
        The first block may also have later rows, and the last block may have earlier rows."""
        key, end = self._key(b"terms"), _stream_id(highest)
        (page,) = self._execute(("XRANGE", key, end, "+", "COUNT", "1"))
        while True:
            for entry_id, values in page:
                yield _row_id(values[1]), _row_id(entry_id), array("I", values[3])
            (page,) = self._execute(("XREVRANGE", key, f"({end}", _stream_id(lowest + 1), "COUNT", str(_READ_TERMS)))
            if not page:
                return
            end = page[-1][0].decode()

    def totals(self, where: RowFilter, start: int, end: int, every: int = MINUTE) -> list[Total]:
        first, last = start // MINUTE, (end - 1) // MINUTE
        hours, kept_from = self._execute(
            ("ZRANGEBYSCORE", self._key(b"hours"), str(first // _HOUR), str(last // _HOUR)),
            ("GET", self._key(b"counted_from")),
        )
        first = max(first, int(kept_from or 0))
        labels = {label_id: label for label_id, label in self._all_labels().items() if where.matches(label)}
        counts: dict[tuple[int, Label], int] = {}
        whole: set[bytes] = set()
        if every % (_HOUR * MINUTE) == 0:
            whole = {hour for hour in hours if first <= int(hour) * _HOUR and (int(hour) + 1) * _HOUR <= last + 1}
            for hour, sums in self._sums_of(sorted(whole)):
                for label_id in sums.keys() & labels.keys():
                    counts[int(hour) * _HOUR, labels[label_id]] = sums[label_id]
        for hour in hours:
            if hour not in whole:
                for minute, label_id, number in self._counts_of(hour):
                    if label_id in labels and first <= minute <= last:
                        counts[minute, labels[label_id]] = number
        return totals_of(counts, every)

    def _counts_of(self, hour: bytes) -> Iterator[tuple[int, bytes, int]]:
        """Yields the minutes, labels and numbers of events of an hour."""
        (reply,) = self._execute(("HGETALL", self._key(b"counts:" + hour)))
        for at in range(0, len(reply), 2):
            minute, _, label_id = reply[at].partition(b":")
            if label_id:
                yield int(minute), label_id, int(reply[at + 1])

    def _sums_of(self, hours: Sequence[bytes]) -> Iterator[tuple[bytes, Mapping[bytes, int]]]:
        """Yields the number of events by label, for each hour. Two weeks can have a million counters, so the sums of
        hours that have ended are remembered. They are read again if the number of all events of the hour has changed,
        for example because a process could not write for some time."""
        commands = [("HGET", self._key(b"counts:" + hour), "all") for hour in hours]
        numbers = [int(reply or 0) for reply in self._execute(*commands)] if hours else []
        newest = int(hours[-1]) if hours else 0
        for hour, number_of_all in zip(hours, numbers, strict=True):
            known_number, sums = self._hour_sums.get(hour, (-1, {}))
            if known_number != number_of_all:
                sums = {}
                for _, label_id, number in self._counts_of(hour):
                    sums[label_id] = sums.get(label_id, 0) + number
                if int(hour) < newest - 1 and len(sums) <= _MOST_SUMS:
                    if len(self._hour_sums) >= _MOST_HOURS:
                        self._hour_sums.clear()
                    self._hour_sums[hour] = number_of_all, sums
            yield hour, sums

    def payload(self, row_id: int) -> bytes | None:
        wanted = _stream_id(row_id)
        (reply,) = self._execute(("XRANGE", self._key(b"payloads"), wanted, wanted))
        return zlib.decompress(reply[0][1][1]) if reply else None

    def shape(self, shape_id: bytes) -> Shape:
        (reply,) = self._execute(("HGET", self._key(b"shapes"), shape_id))
        return () if reply is None else unpacked_shape(reply)

    # ── erasure ───────────────────────────────────────────────────────────────────────────────────────────

    def erase(self, erasure: RowErasure, *, dry_run: bool = False) -> int:
        """See `oncegate.journal.base.Journal`.

        Redis cannot change an entry of a stream, and a deleted entry stays in memory beside its neighbours. So each
        stream is copied without the erased rows, and the copy then replaces the stream. The server needs memory for the
        copy. The payloads come first and the terms last: if the erasure is interrupted, the next one finds the rest."""
        if dry_run:
            return len(self._collect(erasure).erased)
        with self._rewriting() as token:
            collected = self._collect(erasure)
            self._rewrite(token, b"payloads", dict.fromkeys(self._with_payload(sorted(collected.erased)), ()))
            self._rewrite(token, b"rows", collected.rows)
            self._rewrite(token, b"terms", collected.terms)
            for shape in shapes_of(collected.erased.values()):
                if erasure.names(self.shape(shape)):
                    self._execute(("HDEL", self._key(b"shapes"), shape))
        return len(collected.erased)

    def _collect(self, erasure: RowErasure) -> _Collected:
        self._all_labels()
        collected = _Collected()
        for first, last, known in self._blocks(0, _HIGHEST):
            if not erasure.may_be_among(known, first, last):
                continue
            (page,) = self._execute(("XRANGE", self._key(b"rows"), _stream_id(last), _stream_id(last)))
            for _, (_, start, _, block) in page:
                found, rest = self._split(first, block, erasure)
                collected.erased |= found
                hashes = term_hashes([fields for _, _, fields in rest])
                if found:
                    collected.rows[last] = (b"a", start, b"r", _encode(rest))
                if hashes != set(known):
                    collected.terms[last] = (b"a", start, b"h", array("I", hashes).tobytes())
        return collected

    def _split(self, first: int, block: bytes, erasure: RowErasure) -> tuple[dict[int, bytes], list[_Entry]]:
        """Returns the rows of a block that are erased, by id, and the rest of the block in its stored form."""
        erased: dict[int, bytes] = {}
        rest: list[_Entry] = []
        for distance, label_id, fields in _decode_block(block):
            if erasure.includes(first + distance, self._labels.get(label_id, _NO_LABEL), fields):
                erased[first + distance] = fields
            else:
                rest.append((distance, label_id, fields))
        return erased, rest

    def _with_payload(self, ids: Sequence[int]) -> Iterator[int]:
        """Yields the ids of the rows that have a payload."""
        key = self._key(b"payloads")
        for start in range(0, len(ids), _READ):
            some = ids[start : start + _READ]
            replies = self._execute(*(("XRANGE", key, _stream_id(row_id), _stream_id(row_id)) for row_id in some))
            yield from (row_id for row_id, reply in zip(some, replies, strict=True) if reply)

    @contextmanager
    def _rewriting(self) -> Iterator[bytes]:
        """Lock the streams against other erasures. Writers of rows need no lock."""
        key, token = self._key(b"rewriting"), os.urandom(16)
        (is_locked,) = self._execute(("SET", key, token, "NX", "PX", _LOCKED_FOR))
        if not is_locked:
            place = self._settings.place
            raise StoreUnavailable(f"another erasure changes the journal at {place}; try again in 10 minutes")
        try:
            yield token
        finally:
            (holder,) = self._execute(("GET", key))
            self._execute(("UNLINK", self._key(b"copy:" + token), *([key] if holder == token else [])))

    def _rewrite(self, token: bytes, name: bytes, replaced: Mapping[int, Sequence[bytes]]) -> None:
        """Copy a stream with these entries replaced, in short steps, and replace the stream by the copy. An entry that
        is replaced by no fields is left out."""
        if not replaced:
            return
        keys = (self._key(b"rewriting"), self._key(name), self._key(b"copy:" + token))
        start = "-"
        for entry_id in [*sorted(replaced), None]:
            end = "+" if entry_id is None else f"({_stream_id(entry_id)}"
            fields: Sequence[bytes | str] = ()
            if entry_id is not None and replaced[entry_id]:
                fields = (_stream_id(entry_id), *replaced[entry_id])
            while True:
                (last,) = self._execute(
                    ("EVAL", _REWRITE, "3", *keys, token, _LOCKED_FOR, start, end, str(_COPIED), *fields)
                )
                if not last:
                    break
                start = f"({last.decode()}"
            start = "+" if entry_id is None else f"({_stream_id(entry_id)}"

    # ── pruning ───────────────────────────────────────────────────────────────────────────────────────────

    def size(self) -> int:
        """The memory of the streams. The counts and labels are small beside them."""
        names = (b"rows", b"terms", b"payloads")
        return sum(reply or 0 for reply in self._execute(*(("MEMORY", "USAGE", self._key(name)) for name in names)))

    def prune(self, bounds: JournalBounds, now: int) -> bool:
        oldest = now - bounds.max_age
        payloads_from = oldest if bounds.payload_age is None else now - bounds.payload_age
        self._trim(oldest, payloads_from)
        self._forget_counts(oldest // MINUTE)
        (shapes,) = self._execute(("HLEN", self._key(b"shapes")))
        if shapes > _MOST_SHAPES:
            self._execute(("DEL", self._key(b"shapes")))
        return self._shrink(bounds.max_size)

    def _trim(self, oldest: int, payloads_from: int) -> None:
        first = _stream_id(max(oldest, 0) << ID_BITS)
        first_payload = _stream_id(max(oldest, payloads_from, 0) << ID_BITS)
        self._execute(
            ("XTRIM", self._key(b"rows"), "MINID", first),
            ("XTRIM", self._key(b"terms"), "MINID", first),
            ("XTRIM", self._key(b"payloads"), "MINID", first_payload),
        )

    def _forget_counts(self, minute: int) -> None:
        """Delete the counts of old minutes. Whole hours are deleted; the first hour that is left is read from
        `counted_from` on."""
        key, hour = self._key(b"hours"), f"({minute // _HOUR}"
        (hours,) = self._execute(("ZRANGEBYSCORE", key, "-inf", hour))
        if hours:
            counts = [self._key(b"counts:" + hour) for hour in hours]
            self._execute(("UNLINK", *counts), ("ZREM", key, *hours))
        labels: list[Command] = [
            ("ZREMRANGEBYSCORE", self._key(b"minutes:" + label), "-inf", f"({minute}") for label in self._all_labels()
        ]
        self._execute(("SET", self._key(b"counted_from"), str(minute)), *labels)

    def _shrink(self, max_size: int) -> bool:
        """Delete a twentieth of the rows if the journal is too large. Returns whether it is still too large."""
        (info,) = self._execute(("INFO", "memory"))
        memory = int(parse_info(info).get("maxmemory", "0"))
        most = _FULL * (min(max_size, memory // _PART_OF_MEMORY) if memory else max_size)
        if self.size() <= most:
            return False
        (count,) = self._execute(("XLEN", self._key(b"rows")))
        self._execute(("XTRIM", self._key(b"rows"), "MAXLEN", str(int(count * _STEP))))
        (entry,) = self._execute(("XRANGE", self._key(b"rows"), "-", "+", "COUNT", "1"))
        if entry:
            first = entry[0][0]
            self._execute(
                ("XTRIM", self._key(b"terms"), "MINID", first), ("XTRIM", self._key(b"payloads"), "MINID", first)
            )
        return bool(count) and self.size() > most


def _stream_id(row_id: int) -> str:
    """Returns the id of a row in the form of a stream: milliseconds and a sequence number."""
    ms, sequence = divmod(row_id, _SEQUENCES)
    return f"{ms}-{sequence}"


def _row_id_of_text(stream_id: str) -> int:
    return _row_id(stream_id.encode())


def _row_id(stream_id: bytes) -> int:
    ms, _, sequence = stream_id.partition(b"-")
    return int(ms) * _SEQUENCES + int(sequence)


def _minute_of(row_id: int) -> int:
    return (row_id >> ID_BITS) // MINUTE
