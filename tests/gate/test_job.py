"""Jobs: when one may start, when it runs alone, and which jobs of a batch stand for others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.claims import IN_PROGRESS, EventSummary, Record
from oncegate.events import Event, Key
from oncegate.gate.job import (
    NO_TIME,
    TOO_LATE,
    Batch,
    Identified,
    InBatchDuplicate,
    Item,
    Job,
    RejectedEvent,
    UnguardedEvent,
)
from oncegate.gate.leases import Lease
from oncegate.gate.outcome import Outcome

_EVENT = Event(source="plain", body={})
_REFUSAL = Outcome("invalid", _EVENT)

jobs = st.builds(
    lambda key, content, binds, answered: Job(_EVENT, Key(key, "event_id", (), binds), content, answered=answered),
    st.binary(min_size=1, max_size=1),
    st.sampled_from([b"one", b"other"]),
    st.booleans(),
    st.just(False) | st.booleans(),
)
others = st.builds(lambda: RejectedEvent(_REFUSAL)) | st.builds(lambda: UnguardedEvent(_EVENT, "no key", _REFUSAL))


def first_of(item: Item) -> Item:
    return item._first if isinstance(item, InBatchDuplicate) else item


@given(st.lists(jobs | others, max_size=6) | st.lists(jobs, max_size=3))
def test_quick_path_of_a_batch(identified: list[Identified]) -> None:
    """The quick path, for a batch in which all keys differ, has the same result as coalescing."""
    short, long = Batch(identified), Batch(identified)
    long.unclaimed = []
    long._coalesce(identified)
    assert [*map(first_of, short.items)] == [*map(first_of, long.items)]
    assert (short.jobs, short.unclaimed) == (long.jobs, long.unclaimed)


NOW = 1_000_000


def held(valid_until: int = NOW + 1, start_by: int = NOW + 1, *, is_lost: bool = False, unsettled: int = 0) -> Job:
    """A held job. `unsettled` is the number of attempts in a row that were never settled."""
    record = Record(IN_PROGRESS, b"owner", 1, NOW, 1, b"", None, EventSummary("plain"), 0, lost=unsettled)
    lease = Lease("default", b"key", record, 0, 0, valid_until, lost=is_lost)
    return Job(_EVENT, Key(b"key", "event_id", ()), b"", held=True, start_by=start_by, lease=lease)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("start_by", [NOW - 1, NOW, NOW + 1])
@pytest.mark.parametrize("valid_until", [NOW - 1, NOW, NOW + 1])
def test_may_start(valid_until: int, start_by: int, is_lost: bool) -> None:
    """A handler may start before the end of the lease and before `start_by`, unless the lease is lost. Both times are
    exclusive. The reason of a job that may not start names the lease first."""
    job = held(valid_until, start_by, is_lost=is_lost)
    assert job.may_start(NOW) is (valid_until == NOW + 1 and start_by == NOW + 1 and not is_lost)
    assert job.late_reason(NOW) == (TOO_LATE if is_lost or valid_until <= NOW else NO_TIME)


def test_may_start_without_start_by() -> None:
    """A job without `start_by` may start as long as its lease lasts, however late that is."""
    lease = held(valid_until=2**62).lease
    job = Job(_EVENT, Key(b"key", "event_id", ()), b"", held=True, lease=lease)
    assert (job.may_start(2**62 - 1), job.may_start(2**62)) == (True, False)


@pytest.mark.parametrize(
    ("unsettled", "bury_reason", "alone"),
    [(0, None, False), (1, None, True), (2, None, True), (0, "too old", False), (1, "too old", False)],
)
def test_runs_alone(unsettled: int, bury_reason: str | None, alone: bool) -> None:
    """An event runs alone if its last attempt was never settled, unless it is buried instead of run."""
    job = held(unsettled=unsettled)
    job.bury_reason = bury_reason
    assert job.runs_alone is alone
