"""The tests that every journal passes. A journal joins them in a few lines: see test_sqlite.py."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing

import pytest
from msgspec.structs import replace

from oncegate.claims import EventSummary
from oncegate.events import Event
from oncegate.gate.outcome import Outcome
from oncegate.journal import base
from oncegate.journal.base import (
    MINUTE,
    Journal,
    JournalBounds,
    NewRow,
    NewRows,
    RowFilter,
    all_rows,
    differing_paths,
    row_with_details,
    rows_after,
)
from oncegate.journal.leaves import LeafHasher, shape_id
from oncegate.journal.operators import OPERATOR_ACTIONS, ChangedEvent, OperatorLog
from oncegate.journal.rows import ID_BITS, Fields, Label, Row, RowErasure, fields_of, label_of

START = 1_790_000_000_000_000  # microseconds since 1970, at the start of a second
HOSTILE = "\x00\x1b[2J\n'; DROP TABLE rows; --\u202e\U0001f4a5\ud800 %s {} \\" + "x" * 300
_SECOND = 1_000_000


def label(
    place: str = "default", status: str = "processed", kind: str = "", named: str = "call.ended", source: str = "plain"
) -> Label:
    return place, "crm", source, named, status, kind


def new_row(number: int, of: Label | None = None, *, at: int | None = None, payload: bytes | None = None) -> NewRow:
    """A row of the event with this number, one second after the row of the event before it."""
    at = START + number * _SECOND if at is None else at
    key = number.to_bytes(16, "big")
    return NewRow(of or label(), Fields(key, f"evt-{number}", f"conversation-{number % 10}", at=at), payload)


def batch(*rows: NewRow) -> NewRows:
    counts = Counter((row.fields.at // MINUTE, row.label) for row in rows)
    return NewRows(rows, counts, {})


def ids(rows: list[Row]) -> list[str | None]:
    return [row.event_id for row in rows]


class JournalContract:
    def open(self) -> Journal:
        raise NotImplementedError

    @pytest.fixture
    def journal(self) -> Iterator[Journal]:
        with closing(self.open()) as journal:
            yield journal

    # ── rows ──────────────────────────────────────────────────────────────────────────────────────────────

    def test_every_field_survives(self, journal: Journal) -> None:
        """A row is read as it was written."""
        fields = Fields(
            key=bytes(range(16)),
            event_id="evt-1",
            entity="conversation-1",
            delivery_id="message-1",
            kept=bytes(range(16, 32)),
            at=START,
            strategy="auto",
            part="participant-1",
            state="connected",
            attempt=3,
            lag=-12,
            took=34,
            reason="Processed at attempt 3.",
            original="evt-0",
            original_at=START - 5,
            worker="host:1",
            count=7,
            since=START - 9,
            shape=b"shape-id",
            leaves=b"\x00\xff" * 6,
            digests=b"\x01" * 24,
            same=True,
            named_type="call.unlisted",
            stale=True,
            body=2**32 - 1,
        )
        journal.append(batch(NewRow(label("calls", "duplicate", "replay", "(other)", "genesys"), fields)))
        (row,) = journal.rows()
        assert {name: getattr(row, name) for name in Fields.__struct_fields__} == {
            name: getattr(fields, name) for name in Fields.__struct_fields__
        }
        assert (row.place, row.namespace, row.source, row.type) == ("calls", "crm", "genesys", "call.unlisted")
        assert (row.status, row.kind, row.key_text) == ("duplicate", "replay", bytes(range(16)).hex())

    def test_pages(self, journal: Journal) -> None:
        """The newest rows come first, and the cursor leads through all rows once."""
        for start in range(0, 60, 20):
            journal.append(batch(*map(new_row, range(start, start + 20))))
        found: list[Row] = []
        while page := journal.rows(before=found[-1].id if found else None, limit=7):
            assert len(page) <= 7
            found += page
        assert ids(found) == [f"evt-{number}" for number in reversed(range(60))]
        assert [row.id for row in found] == sorted({row.id for row in found}, reverse=True)

    def test_new_rows_can_be_followed(self, journal: Journal) -> None:
        """A row that is written late still gets an id above all known ids, so a reader that follows misses no row."""
        journal.append(batch(new_row(5)))
        newest = journal.rows()[0].id
        journal.append(batch(new_row(1), new_row(2)))
        assert ids(journal.rows(after=newest)) == ["evt-2", "evt-1"]
        assert journal.rows(after=journal.rows()[0].id) == []
        assert [row.at for row in journal.rows(after=newest)] == [START + 2 * _SECOND, START + _SECOND]

    def test_an_empty_journal(self, journal: Journal) -> None:
        """Every question to an empty journal has an empty answer."""
        assert journal.rows() == journal.rows(RowFilter(status="failed")) == journal.rows(RowFilter(term="evt-1")) == []
        assert journal.totals(RowFilter(), 0, START) == []
        assert journal.payload(1) is None
        assert journal.shape(b"nothing!") == ()
        assert journal.prune(JournalBounds(), START) is False
        journal.append(batch())

    @pytest.mark.parametrize(
        ("where", "expected"),
        [
            (RowFilter(status="failed"), [9, 4]),
            (RowFilter(place="calls"), [9, 8, 7, 6, 5]),
            (RowFilter(place="calls", status="failed"), [9]),
            (RowFilter(place="calls", status="duplicate"), []),
            (RowFilter(kind="redelivery"), [3, 2]),
            (RowFilter(type="call.ended", kind="redelivery"), [3]),
            (RowFilter(source="genesys"), [2]),
            (RowFilter(namespace="crm", source="genesys"), [2]),
            (RowFilter(namespace="other"), []),
            (RowFilter(since=START + 7 * _SECOND), [9, 8, 7]),
            (RowFilter(until=START + 2 * _SECOND), [1, 0]),
            (RowFilter(status="failed", since=START + 5 * _SECOND), [9]),
            (RowFilter(status="failed", until=START + 5 * _SECOND), [4]),
        ],
    )
    def test_filters(self, journal: Journal, where: RowFilter, expected: list[int]) -> None:
        """Each part of a filter selects rows."""
        labels = {
            2: label(status="duplicate", kind="redelivery", named="call.held", source="genesys"),
            3: label(status="duplicate", kind="redelivery"),
            4: label(status="failed"),
            9: label("calls", "failed"),
        }
        rows = [
            new_row(number, labels.get(number, label("calls" if number > 4 else "default"))) for number in range(10)
        ]
        journal.append(batch(*rows))
        assert ids(journal.rows(where)) == [f"evt-{number}" for number in expected]

    @pytest.mark.parametrize("more", [{}, {"status": "processed"}, {"entity": "conversation-1"}])
    @pytest.mark.parametrize("far", [{"since": 2**53}, {"since": 2**70}, {"until": -1}, {"until": -(2**70)}])
    def test_far_times(self, journal: Journal, far: dict[str, int], more: dict[str, str]) -> None:
        """No row is found after a time in the far future, or before a time before 1970. Nothing is raised."""
        journal.append(batch(new_row(1)))
        assert journal.rows(RowFilter(**far, **more)) == []  # type: ignore[arg-type]
        far = {"until" if name == "since" else "since": value for name, value in far.items()}
        assert ids(journal.rows(RowFilter(**far, **more))) == ["evt-1"]  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", ["place", "namespace", "source", "type", "status", "kind"])
    def test_hostile_filters(self, journal: Journal, name: str) -> None:
        """Text that no label can have finds nothing and raises nothing."""
        journal.append(batch(new_row(1)))
        assert journal.rows(RowFilter(**{name: "\udcff\0"})) == []  # type: ignore[arg-type]
        assert journal.totals(RowFilter(**{name: HOSTILE}), 0, 2 * START) == []  # type: ignore[arg-type]

    def test_a_long_type(self, journal: Journal) -> None:
        """A type that is cut in the label is found by its whole text."""
        outcome = Outcome("processed", Event(source="plain", body={}, id="evt-1", type="x" * 1_000))
        row = NewRow(label_of("a", "crm", outcome, named_type=outcome.event.type), fields_of(outcome, START, "w"))
        journal.append(batch(row, new_row(2)))
        assert ids(journal.rows(RowFilter(type="x" * 1_000))) == ["evt-1"]

    def test_pages_of_a_filter(self, journal: Journal) -> None:
        """The cursor leads through all rows of a filter that matches several labels."""
        kinds = ("redelivery", "re-emission", "replay")
        journal.append(
            batch(*(new_row(number, label(status="duplicate", kind=kinds[number % 3])) for number in range(30)))
        )
        journal.append(batch(*map(new_row, range(30, 40))))
        found: list[Row] = []
        while page := journal.rows(RowFilter(status="duplicate"), before=found[-1].id if found else None, limit=4):
            found += page
        assert ids(found) == [f"evt-{number}" for number in reversed(range(30))]

    # ── terms ─────────────────────────────────────────────────────────────────────────────────────────────

    def test_terms(self, journal: Journal) -> None:
        """A row is found by its event id, entity, delivery id, key or dead letter, old or new, and by nothing else."""
        fields = Fields(b"k" * 16, "evt-x", "entity-x", "message-x", b"d" * 16, at=START + 100 * _SECOND)
        journal.append(batch(*map(new_row, range(100)), NewRow(label(), fields)))
        for start in range(101, 1_300, 400):
            journal.append(batch(*map(new_row, range(start, start + 400))))
        for term in ("evt-x", "entity-x", "message-x", (b"k" * 16).hex(), (b"d" * 16).hex()):
            assert ids(journal.rows(RowFilter(term=term))) == ["evt-x"], term
        assert ids(journal.rows(RowFilter(term="evt-1290"))) == ["evt-1290"]
        assert ids(journal.rows(RowFilter(term=(1_290).to_bytes(16, "big").hex()))) == ["evt-1290"]
        for absent in ("evt", "", "k" * 32):
            assert journal.rows(RowFilter(term=absent)) == [], absent

    def test_keys_only(self, journal: Journal) -> None:
        """A search by key finds rows with this key or this dead letter. A sender can use a key as an id: such rows are
        not found."""
        key, other = b"k" * 16, b"o" * 16
        journal.append(
            batch(
                NewRow(label(), Fields(key, "event", at=START)),
                NewRow(label(), Fields(other, "dead letter", kept=key, at=START)),
                NewRow(label(), Fields(other, key.hex(), at=START)),
                NewRow(label(), Fields(other, "entity", key.hex(), at=START)),
                NewRow(label(), Fields(other, "delivery", None, key.hex(), at=START)),
            )
        )
        assert ids(journal.rows(RowFilter(key=key))) == ["dead letter", "event"]
        assert ids(journal.rows(RowFilter(key=key, term="event"))) == ["event"]
        assert ids(journal.rows(RowFilter(key=b"k"))) == []
        assert len(journal.rows(RowFilter(term=key.hex()))) == 5

    def test_pages_of_a_term(self, journal: Journal) -> None:
        """The cursor leads through all rows of an entity, newest first."""
        for start in range(0, 1_200, 300):
            journal.append(batch(*map(new_row, range(start, start + 300))))
        found: list[Row] = []
        while page := journal.rows(RowFilter(term="conversation-3"), before=found[-1].id if found else None, limit=50):
            found += page
        assert ids(found) == [f"evt-{number}" for number in reversed(range(3, 1_200, 10))]

    @pytest.mark.parametrize(
        ("where", "before", "after", "expected"),
        [
            (RowFilter(entity="conversation-3"), None, None, range(1_193, 0, -10)),
            (RowFilter(entity="conversation-3", status="duplicate"), None, None, range(1_183, 0, -20)),
            (RowFilter(entity="conversation-3", type="call.held"), None, None, [1_183, 603, 3]),
            (RowFilter(entity="conversation-3", type="call.held", status="processed"), None, None, []),
            (RowFilter(entity="conversation-3", since=START + 600 * _SECOND), None, None, range(1_193, 600, -10)),
            (RowFilter(entity="conversation-3", until=START + 23 * _SECOND), None, None, [13, 3]),
            (RowFilter(entity="conversation-3", kind="redelivery"), 63, 3, [43, 23]),
            (RowFilter(entity="conversation-3", term="evt-13"), None, None, [13]),
            (RowFilter(entity="conversation-4", term="evt-13"), None, None, []),
            (RowFilter(entity="evt-13"), None, None, []),
            (RowFilter(term="evt-13", status="failed"), None, None, []),
            (RowFilter(term="conversation-3"), 33, 3, [23, 13]),
        ],
    )
    def test_filters_with_terms(
        self, journal: Journal, where: RowFilter, before: int | None, after: int | None, expected: Iterable[int]
    ) -> None:
        """A term and an entity narrow every other filter, on each page. `before` and `after` are numbers of rows."""
        duplicate = label(status="duplicate", kind="redelivery")
        labels = dict.fromkeys(range(3, 1_200, 20), duplicate)
        labels |= dict.fromkeys((3, 603, 1_183), label(status="duplicate", kind="redelivery", named="call.held"))
        for start in range(0, 1_200, 300):
            journal.append(batch(*(new_row(number, labels.get(number)) for number in range(start, start + 300))))
        id_of = {row.event_id: row.id for row in journal.rows(limit=1_200)}
        lower, found = None if after is None else id_of[f"evt-{after}"], list[Row]()
        cursor = None if before is None else id_of[f"evt-{before}"]
        while True:
            page = journal.rows(where, before=cursor, after=lower, limit=7)
            found += page
            cursor = page.next
            if cursor is None:
                break
        assert ids(found) == [f"evt-{number}" for number in expected]

    def test_a_search_is_bounded(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        """A search that has compared enough rows returns what it found, and the cursor at which it goes on."""
        monkeypatch.setattr(base, "MOST_COMPARED", 100)
        last = label(status="failed")
        journal.append(batch(*(new_row(number, last if number == 3 else None) for number in range(1_300))))
        where = RowFilter(entity="conversation-3", status="failed")
        first = journal.rows(where)
        assert (first, first.next) == ([], journal.rows(limit=100)[-1].id)
        assert ids(all_rows(journal, where, 10)) == ["evt-3"]
        assert all_rows(journal, where, 10).next is None
        assert len(all_rows(journal, RowFilter(entity="conversation-3"), 120)) == 120
        assert all_rows(journal, RowFilter(entity="conversation-3"), 120).next is not None

    def test_a_burst_is_followed(self, journal: Journal) -> None:
        """All rows above an id are read, oldest first, however many pages they fill."""
        journal.append(batch(new_row(0)))
        newest = journal.rows()[0].id
        journal.append(batch(*map(new_row, range(1, 41))))
        assert ids(list(rows_after(journal, RowFilter(), newest, limit=7))) == [f"evt-{n}" for n in range(1, 41)]
        entity = RowFilter(entity="conversation-3")
        assert ids(list(rows_after(journal, entity, newest, limit=2))) == ["evt-3", "evt-13", "evt-23", "evt-33"]
        assert list(rows_after(journal, RowFilter(), journal.rows()[0].id)) == []

    # ── totals ────────────────────────────────────────────────────────────────────────────────────────────

    def test_totals(self, journal: Journal) -> None:
        """Totals count events by minute and label; they add up over several writes, and count events without a row."""
        minute = START // MINUTE
        for _ in range(2):
            journal.append(
                NewRows(
                    [],
                    {(minute, label()): 3, (minute + 1, label()): 4, (minute, label(status="failed")): 5},
                    {},
                )
            )
        start, end = minute * MINUTE, (minute + 2) * MINUTE
        totals = journal.totals(RowFilter(), start, end)
        assert [(each.start, each.status, each.count) for each in totals] == [
            (start, "failed", 10),
            (start, "processed", 6),
            (start + MINUTE, "processed", 8),
        ]
        assert (totals[0].place, totals[0].namespace, totals[0].source, totals[0].type, totals[0].kind) == (
            "default",
            "crm",
            "plain",
            "call.ended",
            None,
        )
        assert [each.count for each in journal.totals(RowFilter(status="failed"), start, end)] == [10]
        assert [each.count for each in journal.totals(RowFilter(), start, start + MINUTE)] == [10, 6]
        assert [each.count for each in journal.totals(RowFilter(), start, end, 3_600_000_000)] == [10, 14]
        assert journal.rows() == []

    @pytest.mark.parametrize("step", [1, 2, 7, 30, 720])
    def test_totals_of_intervals(self, journal: Journal, step: int) -> None:
        """Totals of any interval are the sums of its minutes, also if the range cuts the first and the last."""
        first = START // MINUTE
        labels = [label(), label(status="failed"), label(place="calls")]
        minutes = [0, 1, 5, 6, 7, 8, 13, 29, 30, 31, 59, 60, 61, 100, 719, 720, 1_500]
        counts = {(first + minute, each): 1 + minute + place for minute in minutes for place, each in enumerate(labels)}
        journal.append(NewRows([], counts, {}))
        start, end = (first + 5) * MINUTE, (first + 720) * MINUTE
        expected: Counter[tuple[int, str, str]] = Counter()
        for (minute, (place, _, _, _, status, _)), number in counts.items():
            if start <= minute * MINUTE < end:
                expected[minute // step * step * MINUTE, place, status] += number
        totals = journal.totals(RowFilter(), start, end, step * MINUTE)
        assert {(each.start, each.place, each.status): each.count for each in totals} == expected
        assert len(totals) == len(expected)
        assert journal.totals(RowFilter(place="absent"), start, end, step * MINUTE) == []

    # ── details and payloads ──────────────────────────────────────────────────────────────────────────────

    def test_differing_paths(self, journal: Journal) -> None:
        """Which paths differ is known from the hashes alone, also for a row whose details are in an earlier row."""
        hasher = LeafHasher(journal.secret())
        rows, shapes = [], {}
        for number, body in enumerate([{"a": 1, "b": {"c": "x"}}, {"a": 1, "b": {"c": "y"}, "d": None}]):
            paths, leaves = hasher.leaves(body)
            shapes[shape_id(paths)] = paths
            row = new_row(number)
            rows.append(NewRow(row.label, replace(row.fields, shape=shape_id(paths), leaves=leaves)))
        copy = NewRow(label(status="duplicate"), replace(new_row(1, at=START + 99).fields, same=True))
        plain = new_row(7)
        journal.append(NewRows([*rows, copy, plain], {}, shapes))
        without, again, second, first = journal.rows()
        assert differing_paths(journal, first, second) == ["b.c", "d"]
        assert differing_paths(journal, first, again) == ["b.c", "d"]
        assert differing_paths(journal, second, again) == []
        assert differing_paths(journal, first, without) is None
        assert (found := row_with_details(journal, again)) is not None
        assert found.id == second.id

    def test_a_shape_that_is_not_stored(self, journal: Journal) -> None:
        """Without the paths of a body, it is not known where two bodies differ."""
        paths, leaves = LeafHasher(journal.secret()).leaves({"a": 1})
        detailed = {"shape": shape_id(paths), "leaves": leaves}
        for number in range(2):
            journal.append(batch(NewRow(label(), replace(new_row(number).fields, **detailed))))
        second, first = journal.rows()
        assert differing_paths(journal, first, second) is None

    def test_the_row_with_the_same_body(self, journal: Journal) -> None:
        """The details of a copy are in a row of the same worker with the same body, not in a row of another worker."""
        rows = []
        for number, (worker, body, shape) in enumerate(
            [
                ("a:1", 1, b"shape--1"),
                ("a:1", 2, b"shape--2"),
                ("a:2", 1, b"shape--3"),
                ("a:1", 1, b""),
                ("a:3", 1, b""),
            ]
        ):
            fields = new_row(7, at=START + number).fields
            rows.append(NewRow(label(), replace(fields, worker=worker, body=body, shape=shape, same=not shape)))
        journal.append(batch(*rows))
        unknown, copy = journal.rows()[:2]
        assert (found := row_with_details(journal, copy)) is not None
        assert found.shape == b"shape--1"
        assert row_with_details(journal, unknown) is None

    def test_shapes_are_kept_for_as_long_as_their_rows(self, journal: Journal) -> None:
        """A recorder writes a shape once a day, so a shape is kept for a day longer than a row, also if the largest age
        is less than a day."""
        journal.append(NewRows([], {}, {b"shape--1": ("a", "b")}))
        hour = 3_600_000_000
        journal.prune(JournalBounds(max_age=hour), time.time_ns() // 1_000 + 24 * hour)
        assert journal.shape(b"shape--1") == ("a", "b")

    def test_payloads(self, journal: Journal) -> None:
        """A payload is read as it was written, and is deleted before its row. A recorder without payloads deletes it
        with its row only, because another recorder may have stored it."""
        journal.append(batch(new_row(1, payload=b"one" * 1_000), new_row(2), new_row(3, payload=b"")))
        three, two, one = journal.rows()
        assert journal.payload(one.id) == b"one" * 1_000
        assert (journal.payload(two.id), journal.payload(three.id)) == (None, b"")
        day = 86_400_000_000
        journal.prune(JournalBounds(payload_age=day), START + day + 2 * _SECOND)
        assert journal.payload(one.id) is None
        assert journal.payload(three.id) == b""
        journal.prune(JournalBounds(), START + day)
        assert journal.payload(three.id) == b""
        assert len(journal.rows()) == 3
        journal.prune(JournalBounds(max_age=day), START + day + 4 * _SECOND)
        assert journal.payload(three.id) is None
        assert journal.rows() == []

    def test_hostile_text(self, journal: Journal) -> None:
        """Text of senders cannot change another field, break a query or prevent a row."""
        text = HOSTILE
        fields = Fields(b"k" * 16, text, text, text, b"", START, text, text, text, 1, None, None, text, text, 1, text)
        outcome = Outcome("failed", Event(source=text, body={}))
        hostile = label_of(text, text, outcome, named_type=text)
        journal.append(batch(NewRow(hostile, replace(fields, named_type=text)), new_row(2)))
        other, row = journal.rows()
        assert (row.place, row.namespace, row.source) == hostile[:3]
        assert journal.rows(RowFilter(place=hostile[0], type=hostile[3])) == [row]
        shown = text.encode(errors="replace").decode()
        for name in ("event_id", "entity", "delivery_id", "strategy", "part", "state", "reason", "original", "worker"):
            assert getattr(row, name) == shown, name
        assert other.event_id == "evt-2"
        assert journal.rows(RowFilter(status=text.replace("\ud800", "").replace("\0", ""))) == []
        assert journal.rows(RowFilter(term="'; DROP TABLE rows; --")) == []

    # ── erasure ───────────────────────────────────────────────────────────────────────────────────────────

    def test_erase(self, journal: Journal) -> None:
        """All rows of an entity are deleted, with payloads and terms. Other rows, the counts and the ids stay."""
        for start in range(0, 1_300, 650):
            rows = [new_row(number, payload=b"body %d" % number) for number in range(start, start + 650)]
            journal.append(batch(*rows))
        before = {row.event_id: row.id for row in journal.rows(limit=1_300)}
        totals = journal.totals(RowFilter(), 0, 2 * START)
        erasure = RowErasure("conversation-3")
        assert journal.erase(erasure, dry_run=True) == 130
        assert len(journal.rows(limit=1_300)) == 1_300
        assert journal.erase(erasure) == 130
        after = {row.event_id: row.id for row in journal.rows(limit=1_300)}
        assert after == {name: row_id for name, row_id in before.items() if not (name or "").endswith("3")}
        for term in ("conversation-3", "evt-3", "evt-1293", (1_293).to_bytes(16, "big").hex()):
            assert journal.rows(RowFilter(term=term)) == [], term
            assert journal.erase(RowErasure(term)) == 0
        assert ids(journal.rows(RowFilter(term="evt-1292"))) == ["evt-1292"]
        assert len(journal.rows(RowFilter(term="conversation-4"), limit=200)) == 130
        assert journal.payload(before["evt-3"]) is journal.payload(before["evt-1293"]) is None
        assert journal.payload(before["evt-1292"]) == b"body 1292"
        assert journal.totals(RowFilter(), 0, 2 * START) == totals
        journal.append(batch(new_row(1_400)))
        assert ids(journal.rows(limit=2)) == ["evt-1400", "evt-1299"]
        assert journal.erase(erasure) == journal.erase(erasure, dry_run=True) == 0

    def test_erase_every_row(self, journal: Journal) -> None:
        """A journal whose rows are all erased can be written and read as before, and ids still rise."""
        journal.append(batch(*(new_row(number * 10, payload=b"x") for number in range(30))))
        newest = journal.rows()[0].id
        assert journal.erase(RowErasure("conversation-0")) == 30
        assert journal.rows() == journal.rows(RowFilter(term="conversation-0")) == []
        journal.append(batch(new_row(1, at=START, payload=b"new")))
        (row,) = journal.rows(after=newest)
        assert journal.payload(row.id) == b"new"

    def test_erase_by_key(self, journal: Journal) -> None:
        """A row without an entity is erased by its key or its dead letter. A row of another entity with this key
        stays."""
        key, other = b"k" * 16, b"o" * 16
        rows = [
            Fields(key, "by key", at=START),
            Fields(other, "by dead letter", kept=key, at=START + 1),
            Fields(key, "of another", "conversation-2", at=START + 2),
            Fields(other, "other", at=START + 3),
            Fields(b"", "operator", reason="dropped 1 dead letter of conversation-1", at=START + 4),
        ]
        journal.append(batch(*(NewRow(label(), fields) for fields in rows)))
        operator = journal.rows()[0].id
        assert journal.erase(RowErasure("conversation-1", {key}), dry_run=True) == 2
        assert journal.erase(RowErasure("conversation-1", {key}, ids={operator})) == 3
        assert ids(journal.rows()) == ["other", "of another"]

    def test_erase_in_a_namespace(self, journal: Journal) -> None:
        """With a namespace, the rows of other namespaces stay."""
        rows = [NewRow(("p", name, "s", "t", "processed", ""), new_row(1).fields) for name in ("a", "b")]
        journal.append(batch(*rows))
        assert journal.erase(RowErasure("conversation-1", namespace="a")) == 1
        assert [row.namespace for row in journal.rows()] == ["b"]

    @pytest.mark.parametrize("entity", [HOSTILE, "x" * 1_000])
    def test_erase_hostile_and_long_entities(self, journal: Journal, entity: str) -> None:
        """Rows of an entity with hostile or very long text are erased."""
        outcome = Outcome("processed", Event(source="plain", body={}, entity=entity))
        journal.append(batch(NewRow(label(), fields_of(outcome, START, "w")), new_row(1)))
        assert journal.erase(RowErasure(entity)) == 1
        assert ids(journal.rows()) == ["evt-1"]

    def test_erase_shapes(self, journal: Journal) -> None:
        """A shape is deleted if the entity is the name of a member. Other shapes stay, because other rows use them."""
        rows, shapes = [], {}
        for number, body in enumerate([{"people": {"conversation-1": 1}}, {"people": 1}]):
            paths, leaves = LeafHasher(b"s" * 32).leaves(body)
            shapes[shape_id(paths)] = paths
            fields = Fields(entity="conversation-1", at=START + number, shape=shape_id(paths), leaves=leaves)
            rows.append(NewRow(label(), fields))
        journal.append(NewRows(rows, {}, shapes))
        assert journal.erase(RowErasure("conversation-1")) == 2
        assert [journal.shape(shape) for shape in shapes] == [(), ("people",)]

    # ── pruning ───────────────────────────────────────────────────────────────────────────────────────────

    def prune_all(self, journal: Journal, bounds: JournalBounds, now: int) -> None:
        for _ in range(200):
            if not journal.prune(bounds, now):
                return
        raise AssertionError("pruning does not end")

    def test_old_rows_and_counts_are_deleted(self, journal: Journal) -> None:
        """Rows and counts older than the bound go, younger ones stay, and terms find no deleted row."""
        journal.append(batch(*map(new_row, range(5_000))))
        now = START + 4_000 * _SECOND
        self.prune_all(journal, JournalBounds(max_age=1_000 * _SECOND), now)
        left = journal.rows(limit=5_000)
        assert [row.at for row in left][-1] >= START + 2_940 * _SECOND
        assert len(left) <= 2_060
        assert ids(left)[:1_999] == [f"evt-{number}" for number in range(4_999, 3_000, -1)]
        assert journal.rows(RowFilter(term="evt-10")) == []
        assert ids(journal.rows(RowFilter(term="evt-3500"))) == ["evt-3500"]
        totals = journal.totals(RowFilter(), 0, 2 * START)
        assert min(each.start for each in totals) >= now - 1_000 * _SECOND - 2 * MINUTE

    def test_history_outlives_a_restart(self, journal: Journal) -> None:
        """A journal that is opened again has the rows, the counts and the secret of before."""
        journal.append(batch(new_row(1), new_row(2, label(status="failed"))))
        secret = journal.secret()
        journal.close()
        with closing(self.open()) as again:
            again.append(batch(new_row(3)))
            assert ids(again.rows()) == ["evt-3", "evt-2", "evt-1"]
            assert again.rows()[2].id >> ID_BITS >= START
            assert again.secret() == secret
            assert sum(each.count for each in again.totals(RowFilter(), 0, 2 * START)) == 3

    def test_two_writers(self, journal: Journal) -> None:
        """Two writers share a journal: no row is lost, and every id is unique."""
        with closing(self.open()) as other:
            for number in range(0, 100, 2):
                journal.append(batch(new_row(number)))
                other.append(batch(new_row(number + 1, label(status="failed"))))
            rows = journal.rows(limit=200)
        assert len({row.id for row in rows}) == len(rows) == 100
        assert sum(each.count for each in journal.totals(RowFilter(), 0, 2 * START)) == 100

    # ── operators ─────────────────────────────────────────────────────────────────────────────────────────

    def test_actions_of_operators(self, journal: Journal) -> None:
        """Lists and totals of deliveries leave out the rows of operators, unless the filter asks for them."""
        journal.append(batch(*(new_row(number) for number in range(3))))
        log = OperatorLog(lambda: journal, "ada", lambda: START + 3 * _SECOND)
        events = [ChangedEvent("crm", number.to_bytes(16, "big"), EventSummary("plain", "call")) for number in range(2)]
        log.add_events("drop", "Dropped with another dead letter.", events)
        log.add("drop", "Dropped 2 dead letters.", namespace="crm")
        journal.append(batch(new_row(4)))
        for where in (RowFilter(), RowFilter(namespace="crm"), RowFilter(term="evt-2"), RowFilter(kind="drop")):
            assert "operator" not in {row.status for row in journal.rows(where)}
        assert ids(journal.rows(limit=2)) == ["evt-4", "evt-2"]
        assert ids(journal.rows(before=journal.rows(limit=2).next, limit=2)) == ["evt-1", "evt-0"]
        assert {total.status for total in journal.totals(RowFilter(), START, START + MINUTE)} == {"processed"}
        assert journal.totals(RowFilter(status="operator"), START, START + MINUTE) == []
        rows = journal.rows(RowFilter(status="operator"))
        assert [(row.kind, row.worker, row.key_text, row.type) for row in rows] == [
            ("drop", "ada", None, None),
            ("drop", "ada", events[1].key.hex(), "call"),
            ("drop", "ada", events[0].key.hex(), "call"),
        ]
        assert [row.reason for row in journal.rows(OPERATOR_ACTIONS)] == ["Dropped 2 dead letters."]
        history = journal.rows(RowFilter(term=events[1].key.hex(), operators=True))
        assert [row.status for row in history] == ["operator", "processed"]
        assert len(journal.rows(RowFilter(operators=True))) == 7
