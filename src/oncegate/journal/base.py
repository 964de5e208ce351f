"""The interface of a journal: what the recorder writes, and what commands read."""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr

from oncegate.journal.leaves import Shape, differing
from oncegate.journal.rows import ID_BITS, OPERATOR, Fields, Label, Row, RowErasure, Term, label_text, short_label_text

MINUTE: Final = 60_000_000  # microseconds
MAX_AGE: Final = 14 * 86_400_000_000
SHAPE_AGE: Final = 86_400_000_000  # microseconds; a recorder writes a shape that it uses again after this time
MAX_SIZE: Final = 1024 * 1024 * 1024
LEAST_SIZE: Final = 10 * 1024 * 1024
PAGE: Final = 50  # rows
MOST_READS: Final = 25
_HIGHEST: Final = 2**63 - 1  # of all ids
MOST_COMPARED: Final = 20_000  # rows that one read compares with a term; more would take over 100 ms


class NewRow(Struct, frozen=True, gc=False):
    """A row to write. `payload` is stored for as long as `journal_payloads` says."""

    label: Label
    fields: Fields
    payload: bytes | None = None


class BatchId(Struct, frozen=True):
    """Identifies a batch: the numbers of a writer rise. `writer` has 8 random bytes."""

    writer: bytes
    number: int


class NewRows(Struct, frozen=True):
    """Rows to write with one transaction. `counts` has the number of events by minute and label; it also counts events
    that have no row. `shapes` has the shapes of these rows by their id. With an `id`, the batch is written once, even
    if it is appended again because the reply of the server was late."""

    rows: Sequence[NewRow]
    counts: Mapping[tuple[int, Label], int]
    shapes: Mapping[bytes, Shape]
    id: BatchId | None = None


class RowFilter(Struct, frozen=True):
    """Which rows to read. A field that is None matches every row. `since` and `until` are times in microseconds since
    1970; `until` is not included. `term` is an event id, an entity, a delivery id, or a key (32 hexadecimal digits) of
    an event or a dead letter. `entity` matches entities only, and `key` matches keys only: a sender can use a key as
    the id of another event. Totals have no terms, so `totals` ignores `term`, `entity`, `key`, `since` and `until`.
    Rows with the status `operator` match only if `status` is `operator`, or with `operators`."""

    place: str | None = None
    namespace: str | None = None
    source: str | None = None
    type: str | None = None
    status: str | None = None
    kind: str | None = None
    since: int | None = None
    until: int | None = None
    term: str | None = None
    entity: str | None = None
    key: bytes | None = None
    operators: bool = False

    def __post_init__(self) -> None:
        """Write the parts of the label as labels have them: see `rows.label_of`."""
        for name in ("place", "namespace", "status", "kind"):
            if (value := getattr(self, name)) is not None:
                force_setattr(self, name, label_text(value))
        for name in ("source", "type"):
            if (value := getattr(self, name)) is not None:
                force_setattr(self, name, short_label_text(value))

    @property
    def terms(self) -> list[Term]:
        """The terms that a row must have. The first term is looked up in the index of terms."""
        terms = [] if self.key is None else [Term(self.key.hex(), "key")]
        terms += [] if self.term is None else [Term(self.term)]
        return terms if self.entity is None else [*terms, Term(self.entity, "entity")]

    @property
    def label(self) -> dict[str, str]:
        """The parts of the label that the filter names."""
        parts = {
            "place": self.place,
            "namespace": self.namespace,
            "source": self.source,
            "type": self.type,
            "status": self.status,
            "kind": self.kind,
        }
        return {name: value for name, value in parts.items() if value is not None}

    def ids(self, before: int | None, after: int | None) -> tuple[int, int]:
        """Returns the range of ids to read: above the first number and below the second number."""
        lowest = max(0 if self.since is None else (self.since << ID_BITS) - 1, after or 0)
        highest = min(_HIGHEST if self.until is None else self.until << ID_BITS, _HIGHEST if before is None else before)
        return min(max(lowest, 0), _HIGHEST), min(max(highest, 0), _HIGHEST)

    def matches(self, label: Label) -> bool:
        if label[4] == OPERATOR != self.status and not self.operators:
            return False
        wanted = (self.place, self.namespace, self.source, self.type, self.status, self.kind)
        return all(value is None or value == part for value, part in zip(wanted, label, strict=True))


ALL_ROWS: Final = RowFilter()
OPERATOR_ROWS: Final = RowFilter(status=OPERATOR)


class Page(list[Row]):
    """Rows, newest first. `next` is the cursor of the next page: pass it as `before`. It is None if no older row can
    match. A page can have fewer rows than the limit, or none, although `next` is not None: a read compares at most
    20,000 rows with a term. The rows above `next` were then searched."""

    def __init__(self, rows: Iterable[Row] = (), next: int | None = None) -> None:  # noqa: A002  # as an attribute
        super().__init__(rows)
        self.next = next


class Total(Struct, frozen=True):
    """The number of events with one label in the interval that starts at `start` (microseconds since 1970)."""

    start: int
    place: str
    namespace: str
    source: str
    type: str | None
    status: str
    kind: str | None
    count: int


class JournalBounds(Struct, frozen=True):
    """What a journal may hold. `max_age` and `payload_age` are in microseconds, `max_size` is in bytes. With
    `payload_age` None, the recorder stores no payloads. Payloads that other recorders have stored are then deleted with
    their rows."""

    max_age: int = MAX_AGE
    max_size: int = MAX_SIZE
    payload_age: int | None = None


class Journal(Protocol):
    """A journal of decisions. All methods raise StoreError if the journal cannot be used now."""

    def secret(self) -> bytes:
        """Returns the secret of the leaf hashes. The first caller creates the secret."""

    def append(self, batch: NewRows) -> bool:
        """Write rows and counts in one transaction. Each row gets an id above all earlier ids. Returns False if the
        shapes of earlier batches are no longer stored, for example because the server lost its data. Raises StoreError
        if another journal has replaced this one since `secret` was called; nothing was written then."""

    def rows(
        self,
        where: RowFilter = ALL_ROWS,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int = PAGE,
    ) -> Page:
        """Returns the newest rows that match, newest first. `before` and `after` are ids; rows with these ids are not
        included. For the next page, pass `next` of this page as `before`. To follow new rows, pass the id of the newest
        known row as `after`, and read all pages: see `rows_after`."""

    def totals(self, where: RowFilter, start: int, end: int, every: int = MINUTE) -> list[Total]:
        """Returns the number of events by label, from `start` to `end` (microseconds since 1970), for each interval of
        `every` microseconds, a multiple of a minute. Intervals without events are left out."""

    def payload(self, row_id: int) -> bytes | None:
        """Returns the payload of a row; None if it is not stored."""

    def shape(self, shape_id: bytes) -> Shape:
        """Returns the leaf paths of a shape; an empty tuple if the shape is not stored."""

    def size(self) -> int:
        """Returns the size of the journal in bytes."""

    def prune(self, bounds: JournalBounds, now: int) -> bool:
        """Delete the oldest rows that exceed the bounds, in one short step. Returns whether more is left to delete."""

    def erase(self, erasure: RowErasure, *, dry_run: bool = False) -> int:
        """Delete rows with their payloads and terms, and the shapes that name the entity. The counts by minute stay:
        they have no entity. Returns the number of rows. With `dry_run`, the rows are only counted."""

    def close(self) -> None: ...


def totals_of(counts: Mapping[tuple[int, Label], int], every: int) -> list[Total]:
    """Returns totals in order, from counts by minute and label."""
    sums: dict[tuple[int, Label], int] = {}
    for (minute, label), count in counts.items():
        group = (minute * MINUTE // every * every, label)
        sums[group] = sums.get(group, 0) + count
    return [
        Total(start, place, namespace, source, named or None, status, kind or None, count)
        for (start, (place, namespace, source, named, status, kind)), count in sorted(sums.items())
    ]


_LabelRef = TypeVar("_LabelRef")
_NO_TERMS: Final[Sequence[Term]] = ()


class AllExcept(Container[_LabelRef]):
    """The labels that are not among `hidden`. A label that is added during a read is included."""

    def __init__(self, hidden: Collection[_LabelRef]) -> None:
        self.hidden = hidden

    def __contains__(self, label: object) -> bool:
        return label not in self.hidden


def matching(
    entries: Iterable[tuple[int, _LabelRef, bytes]],
    limit: int,
    labels: Container[_LabelRef] | None = None,
    terms: Sequence[Term] = _NO_TERMS,
) -> tuple[list[tuple[int, _LabelRef, bytes]], int | None]:
    """Returns the first `limit` entries that have one of the labels and all terms, and the cursor of the next page. An
    entry is the id of a row, its label as the journal refers to it, and the packed fields. An entry without fields only
    says that there is no match down to its id. At most 20,000 entries are compared."""
    found: list[tuple[int, _LabelRef, bytes]] = []
    checks: list[Callable[[bytes], bool]] = [term.is_in for term in terms] or [bool]
    first, others = checks[0], checks[1:]  # `all` of one term takes as long as the term itself
    for compared, entry in enumerate(entries, 1):
        data = entry[2]
        is_labelled = data and (labels is None or entry[1] in labels)
        if is_labelled and first(data) and (not others or all(has(data) for has in others)):
            found.append(entry)
        if len(found) >= limit or compared >= MOST_COMPARED:
            return found, entry[0]
    return found, None


def rows_after(
    journal: Journal, where: RowFilter, after: int, *, before: int | None = None, limit: int = 1_000
) -> Iterator[Row]:
    """Yields all rows above the id `after` that match, and below the id `before` if it is given, oldest first. `limit`
    is the number of rows of one read. The cursors of all pages are found first, so that only one page is in memory."""
    cursors = [before]
    while (cursor := journal.rows(where, before=cursors[-1], after=after, limit=limit).next) is not None:
        cursors.append(cursor)
    for number in reversed(range(len(cursors))):
        first = after if number + 1 == len(cursors) else (cursors[number + 1] or 0) - 1
        page = every_row(journal, where, before=cursors[number], after=max(first, after), limit=limit)
        yield from reversed(list(page))


def every_row(
    journal: Journal,
    where: RowFilter,
    *,
    before: int | None = None,
    after: int | None = None,
    limit: int = 1_000,
) -> Iterator[Row]:
    """Yields all rows between two ids that match, newest first. `limit` is the number of rows of one read."""
    while True:
        page = journal.rows(where, before=before, after=after, limit=limit)
        yield from page
        before = page.next
        if before is None:
            return


def all_rows(
    journal: Journal, where: RowFilter, most: int, *, before: int | None = None, reads: int = MOST_READS
) -> Page:
    """Returns the newest rows that match, at most `most` of them, with at most `reads` reads. So at most 500,000 rows
    are compared with a term."""
    found = Page()
    for _ in range(reads):
        page = journal.rows(where, before=before, limit=most - len(found))
        found += page
        found.next = before = page.next
        if before is None or len(found) >= most:
            break
    return found


def row_with_details(journal: Journal, row: Row) -> Row | None:
    """Returns the row that has the leaves of this row's body: the row itself, or an earlier row with the same body.
    Returns None if no row has them, for example because the recorder had no time for details."""
    if row.shape:
        return row
    if not row.same or row.key_text is None:
        return None
    earlier = journal.rows(RowFilter(place=row.place, key=row.key), before=row.id)
    body = (row.worker, row.body)
    return next((each for each in earlier if each.shape and (each.worker, each.body) == body), None)


def differing_paths(journal: Journal, one: Row, other: Row) -> list[str] | None:
    """Returns the paths at which the bodies of two rows differ, from their leaf hashes; None if a row has no hashes, or
    if the paths of its hashes are not stored."""
    first, second = row_with_details(journal, one), row_with_details(journal, other)
    if first is None or second is None:
        return None
    paths, other_paths = journal.shape(first.shape), journal.shape(second.shape)
    if not paths or not other_paths:
        return None
    return differing((paths, first.leaves), (other_paths, second.leaves))
