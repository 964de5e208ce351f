"""Batches: which jobs of one call stand for others."""

from hypothesis import given
from hypothesis import strategies as st

from oncegate.events import Event, Key
from oncegate.gate.job import Batch, Identified, InBatchDuplicate, Item, Job, RejectedEvent, UnguardedEvent
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
def test_the_short_way_is_the_long_way(identified: list[Identified]) -> None:
    """A batch in which every job is the first of its key is put together as one that has to be sorted out."""
    short, long = Batch(identified), Batch(identified)
    long.unclaimed = []
    long._coalesce(identified)
    assert [*map(first_of, short.items)] == [*map(first_of, long.items)]
    assert (short.jobs, short.unclaimed) == (long.jobs, long.unclaimed)
