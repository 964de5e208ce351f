"""Many copies of one event become one row with a count."""

from msgspec.structs import replace

from oncegate.events import Event, Evidence, Key
from oncegate.gate.outcome import Outcome, Status
from oncegate.journal import storms
from oncegate.journal.base import MINUTE, NewRow
from oncegate.journal.rows import fields_of, label_of
from oncegate.journal.storms import StormFilter

START = 1_790_000_000_000_000


def outcome(
    status: Status = "duplicate", *, key: str = "k", took: int | None = None, error: str | None = None
) -> Outcome:
    made = None if key == "" else Key(key.encode() * 16, "event_id", (key,))
    return Outcome(status, Event(source="plain", body={}, id=key), made, took=took, error=error)


class Feed:
    """Passes outcomes to a filter, and collects the rows."""

    def __init__(self) -> None:
        self.filter = StormFilter()
        self.rows: list[NewRow] = []

    def add(self, each: Outcome, at: int, place: str = "a") -> None:
        label = label_of(place, "crm", each, named_type=None)
        window = self.filter.window(place, each, at)
        if self.filter.is_separate(window, each):
            self.rows.append(NewRow(label, fields_of(each, at, "w")))
        else:
            self.filter.collapse(window, each, label, at, "w")

    def end(self, now: int, *, all_of_them: bool = False) -> None:
        self.rows += self.filter.ended(now, all_of_them=all_of_them)

    @property
    def counts(self) -> list[tuple[str, int]]:
        return [(row.label[4], row.fields.count) for row in self.rows]


def test_the_first_copies_are_separate() -> None:
    """The first five copies of a minute are separate. The rest becomes one row when the minute ends, not before."""
    feed = Feed()
    for number in range(100):
        feed.add(outcome(), START + number)
    feed.end(START + MINUTE - 1)
    assert feed.counts == [("duplicate", 1)] * 5
    feed.end(START + MINUTE)
    assert feed.counts == [("duplicate", 1)] * 5 + [("duplicate", 95)]
    fields = feed.rows[-1].fields
    assert (fields.since, fields.at) == (START + 5, START + 99)
    feed.end(START + 2 * MINUTE, all_of_them=True)
    assert len(feed.rows) == 6


def test_the_next_minute_starts_again() -> None:
    """A storm that lasts three minutes has six rows for each minute."""
    feed = Feed()
    for second in range(180):
        feed.end(START + second * 1_000_000)
        feed.add(outcome(), START + second * 1_000_000)
    feed.end(START, all_of_them=True)
    assert sum(count for _, count in feed.counts) == 180
    assert len(feed.rows) == 18


def test_runs_are_never_collapsed() -> None:
    """Every attempt and every new event has its row, however often a sender repeats the event."""
    feed = Feed()
    for number in range(20):
        feed.add(outcome("failed", took=5), START + number)
    feed.add(outcome("processed", took=5), START + 30)
    feed.end(START, all_of_them=True)
    assert feed.counts == [("failed", 1)] * 20 + [("processed", 1)]


def test_runs_are_no_copies() -> None:
    """A new event and its runs do not count as copies: five copies of it have a row each."""
    feed = Feed()
    feed.add(outcome("accepted"), START)
    feed.add(outcome("failed", took=5), START + 1)
    feed.add(outcome("processed", took=5), START + 2)
    for number in range(8):
        feed.add(outcome(), START + 3 + number)
    feed.end(START, all_of_them=True)
    own = [("accepted", 1), ("failed", 1), ("processed", 1)]
    assert feed.counts == [*own, *[("duplicate", 1)] * 5, ("duplicate", 3)]


def test_statuses_and_places_are_counted_apart() -> None:
    """A collapsed row has one status, one kind and one place."""
    feed = Feed()
    for number in range(10):
        feed.add(outcome("in_flight"), START + number)
        feed.add(outcome("duplicate"), START + number)
        feed.add(outcome("duplicate"), START + number, place="b")
    feed.end(START, all_of_them=True)
    collapsed = [(row.label[0], row.label[4], row.fields.count) for row in feed.rows if row.fields.count > 1]
    assert collapsed == [("a", "duplicate", 8), ("a", "in_flight", 7), ("b", "duplicate", 5)]


def test_a_single_copy_is_an_ordinary_row() -> None:
    """A collapsed row that stands for one copy looks like any other row."""
    feed = Feed()
    for number in range(6):
        feed.add(outcome(), START + number)
    feed.end(START, all_of_them=True)
    assert (feed.rows[-1].fields.count, feed.rows[-1].fields.since, feed.rows[-1].fields.at) == (1, None, START + 5)


def test_events_without_a_key() -> None:
    """Refused events without a key are copies of each other if they have the same error and document."""
    feed = Feed()
    for number in range(50):
        feed.add(outcome("invalid", key="", error="it is not JSON"), START + number)
    feed.add(outcome("invalid", key="", error="no id"), START)
    feed.end(START, all_of_them=True)
    assert feed.counts == [("invalid", 1)] * 6 + [("invalid", 45)]


def refused(number: int, error: str = "it has no id") -> Outcome:
    event = Event(
        source="plain",
        body={},
        raw=b"%d" % number,
        entity=f"c-{number}",
        part="p",
        state="held",
        evidence=Evidence(message_id=f"m-{number}"),
    )
    return Outcome("invalid", event, error=error, kept=Key(b"k" * 16, "content", ()))


def test_different_events_without_a_key() -> None:
    """Different refused events are not copies of each other. After 20 rows of one error in a minute, one row counts the
    further events, and identifies none of them."""
    feed = Feed()
    for number in range(40):
        feed.add(refused(number), START + number)
    feed.add(refused(99, "it is empty"), START + 50)
    feed.add(refused(99), START + 50, place="b")
    feed.end(START, all_of_them=True)
    assert feed.counts == [("invalid", 1)] * 22 + [("invalid", 20)]
    assert [row.fields.entity for row in feed.rows[:20]] == [f"c-{number}" for number in range(20)]
    fields = feed.rows[-1].fields
    assert (fields.event_id, fields.entity, fields.delivery_id, fields.key, fields.kept) == (None, None, None, b"", b"")
    assert (fields.part, fields.state, fields.lag) == (None, None, None)
    assert (fields.since, fields.at) == (START + 20, START + 39)
    assert fields.reason == "Refused: it has no id."


def test_copies_of_an_event_without_a_key_in_a_flood() -> None:
    """Copies of one refused document have their own count, if it began before the flood. A flood does not make many
    windows, and each minute has few rows."""
    feed = Feed()
    for number in range(8):
        feed.add(refused(0), START + number)
    for number in range(1_000):
        feed.add(refused(number), START + 10 + number)
    feed.add(refused(0), START + 2_000)
    assert len(feed.filter._windows) + len(feed.filter._storms) < 30
    feed.end(START + MINUTE)
    assert feed.counts == [("invalid", 1)] * 20 + [("invalid", 5), ("invalid", 984)]
    assert (feed.rows[-2].fields.entity, feed.rows[-1].fields.entity) == ("c-0", None)
    for number in range(40):
        feed.add(refused(2_000 + number), START + MINUTE + number)
    feed.end(START, all_of_them=True)
    assert feed.counts[22:] == [("invalid", 1)] * 20 + [("invalid", 20)]


def test_runs_without_a_key_are_never_collapsed() -> None:
    """Every run of a handler has its row with its entity, also if the event has no key."""
    feed = Feed()
    for number in range(30):
        feed.add(replace(refused(number), status="unguarded", took=5, kept=None), START + number)
    feed.end(START, all_of_them=True)
    assert feed.counts == [("unguarded", 1)] * 30
    assert [row.fields.entity for row in feed.rows] == [f"c-{number}" for number in range(30)]


def test_a_clock_that_is_set_back() -> None:
    """Windows that start in the future end: their rows are written, and later copies get rows again."""
    feed = Feed()
    for number in range(8):
        feed.add(outcome(), START + number)
    feed.end(START - 60 * MINUTE)
    assert feed.counts[-1] == ("duplicate", 3)
    feed.add(outcome(), START - 60 * MINUTE)
    assert feed.counts[-1] == ("duplicate", 1)


def test_the_memory_is_bounded() -> None:
    """With too many events in a minute the oldest windows end early, but not those of storms."""
    feed = Feed()
    for number in range(10):
        feed.add(outcome(key="s"), START + number)
    for number in range(storms._MOST_WINDOWS + 100):
        feed.add(outcome("processed", key=chr(1_000 + number)), START + 20 + number)
    feed.end(START + 100)
    assert len(feed.filter._windows) == storms._MOST_WINDOWS
    for number in range(10):
        feed.add(outcome(key="s"), START + 30 + number)
    feed.end(START, all_of_them=True)
    assert feed.counts[-1] == ("duplicate", 15)
