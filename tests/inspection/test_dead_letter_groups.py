"""Groups of dead letters by their error."""

from collections.abc import Iterator

import pytest

from oncegate import Event, Gate
from oncegate.claims import DEAD, EventSummary, Record
from oncegate.inspection.dead_letter_groups import group_dead_letters, group_id, normal_error
from oncegate.inspection.operators import all_dead_letters
from oncegate.inspection.record_filter import RecordFilter
from oncegate.stores.base import Entry


def entry(error: str | None, event_id: str | None = None, entity: str | None = None) -> Entry:
    about = EventSummary("plain", "call", entity, None, event_id)
    return Entry("default", b"k" * 16, Record(DEAD, b"", 1, 0, 1, b"", None, about, 0, error=error))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("TimeoutError: no answer within 3012 ms", "TimeoutError: no answer within … ms"),
        ("KeyError: '9f8a1c2e-1111-4222-8333-444455556666'", "KeyError: '…'"),
        ("no case evt-17 in 10.0.0.1:5432", "no case … in …"),
        ("ValueError: 0xdeadbeef01 at 2026-11-18T02:58:44.605Z", "ValueError: … at …"),
        ("it answered 503: try again in 12 s", "it answered 503: try again in … s"),
        ("HTTP 404 for order 404", "HTTP 404 for order …"),
        ("first line\nTraceback of 17 lines", "first line"),
        ("", "(no error)"),
        (None, "(no error)"),
    ],
)
def test_the_variable_parts(error: str | None, expected: str) -> None:
    """Ids and numbers are replaced, and status codes stay."""
    assert normal_error(entry(error)) == expected


def test_control_characters() -> None:
    """Control characters are escaped, also those that change the direction of text."""
    assert normal_error(entry("\x1b[31mred\u202e\0")).isprintable()


def test_the_ids_of_the_event() -> None:
    """The id and the entity of the event are replaced, also if they have no digit. A short id is not."""
    assert normal_error(entry("no case alpha of omega", "alpha", "omega")) == "no case … of …"
    assert normal_error(entry("a case", "a")) == "a case"


def test_long_errors() -> None:
    """A long error has a bounded name, and errors that differ only later are one group."""
    one, other = entry("x" * 10_000), entry("x" * 10_000 + "y")
    assert len(normal_error(one)) == 200
    assert group_id(one) == group_id(other)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate("memory://", max_attempts=1, remember=None)
    yield gate
    gate.close()


def test_groups(gate: Gate) -> None:
    """500 timeouts are one group, with its types, namespaces and times. The largest group is first."""

    def time_out(event: Event) -> None:
        raise TimeoutError(f"{event.id}: no answer within {len(event.raw)} ms")

    gate.run({"id": "1", "type": "chat"}, lambda event: 1 / 0)
    gate.run_batch([{"id": f"evt-{number}", "type": f"call.{number % 4}"} for number in range(500)], time_out)
    Gate(gate.store, namespace="crm", max_attempts=1).run({"id": "evt-x9", "type": "call.0"}, time_out)
    found = group_dead_letters(all_dead_letters(gate.store, None), RecordFilter(), 10_000)
    assert [(group.error, group.count) for group in found.groups] == [
        ("TimeoutError: …: no answer within … ms", 501),
        ("ZeroDivisionError: division by zero", 1),
    ]
    assert (found.count, found.scanned) == (502, None)
    timeouts = found.groups[0]
    assert timeouts.types == {"call.0": 126, "call.1": 125, "call.2": 125, "call.3": 125}
    assert timeouts.namespaces == {"default", "crm"}
    assert 0 < timeouts.first <= timeouts.last


def test_the_bound(gate: Gate) -> None:
    """Only a bounded number of dead letters is read, and the result says so."""
    gate.run_batch([{"id": number} for number in range(10)], lambda event: 1 / 0)
    found = group_dead_letters(all_dead_letters(gate.store, None), RecordFilter(), 4)
    assert (found.count, found.scanned) == (4, 4)
    assert group_dead_letters(all_dead_letters(gate.store, None), RecordFilter(), 10).scanned is None
