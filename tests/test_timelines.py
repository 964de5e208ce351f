"""Timelines: which emissions of a state change are one event, in any order of arrival."""

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from oncegate.events import StateChange
from oncegate.timelines import MOST_ANCHORS, MOST_JOINED, Placed, Timeline, place, read, written

WINDOW = 500
RANKS = {"alerting": 1, "connected": 2, "held": 3, "disconnected": 4}

Emission = tuple[str, int]

STATES = st.sampled_from(sorted(RANKS))
EMISSIONS = st.lists(st.tuples(STATES, st.integers(0, 3_000)), max_size=25)


def change(state: str, at: int, window: int = WINDOW) -> StateChange:
    return StateChange(b"t" * 16, state, at, RANKS[state], window)


def own_key(state: str, at: int) -> bytes:
    return f"{state}@{at}".encode()


def placed_all(emissions: Sequence[Emission], timeline: Timeline | None = None) -> list[Placed]:
    placed: list[Placed] = []
    timeline = timeline or Timeline()
    for state, at in emissions:
        placed.append(place(timeline, change(state, at), own_key(state, at)))
        timeline = placed[-1].timeline
    return placed


def keys_of(emissions: Sequence[Emission]) -> list[str]:
    return [each.key.decode() for each in placed_all(emissions)]


class TestRule:
    def test_within_the_window(self) -> None:
        """An emission exactly one window away joins, before or after the anchor. One microsecond further, it does
        not."""
        assert keys_of([("held", 1000), ("held", 1500), ("held", 500)]) == ["held@1000"] * 3
        assert keys_of([("held", 1000), ("held", 1501), ("held", 499)]) == ["held@1000", "held@1501", "held@499"]

    def test_the_nearest(self) -> None:
        """Of two anchors within the window, the nearer is joined. Of two equally near, the earlier."""
        assert keys_of([("held", 0), ("held", 800), ("held", 450)])[2] == "held@800"
        assert keys_of([("held", 0), ("held", 800), ("held", 350)])[2] == "held@0"
        assert keys_of([("held", 800), ("held", 0), ("held", 400)])[2] == "held@0"

    def test_another_state_between(self) -> None:
        """A different state separates two emissions only if its time lies strictly between theirs. Ranks never
        separate."""
        assert keys_of([("held", 0), ("connected", 100), ("held", 200)]) == ["held@0", "connected@100", "held@200"]
        for other in ("connected", "disconnected"):
            for tie in (0, 200):
                assert keys_of([("held", 0), (other, tie), ("held", 200)])[2] == "held@0"
                assert keys_of([("held", 200), (other, tie), ("held", 0)])[2] == "held@200"

    def test_a_blocked_nearest_is_not_passed_over(self) -> None:
        """If another state lies before the nearest anchor, the emission becomes an anchor. It does not join a more
        distant one."""
        assert keys_of([("held", 0), ("held", 600), ("connected", 100), ("held", 250)])[3] == "held@250"

    def test_equal_times(self) -> None:
        """Different states at the same time stay apart, in any order of arrival."""
        for order in permutations([("connected", 5), ("held", 5), ("disconnected", 5)]):
            assert keys_of(order) == [own_key(*emission).decode() for emission in order]

    @pytest.mark.parametrize("order", list(permutations([("held", 0), ("connected", 200), ("held", 400)])))
    def test_there_and_back(self, order: tuple[Emission, ...]) -> None:
        """A→B→A in one window stays three events, unless both A's arrive before B. Then B splits them, which is
        reported."""
        placed = placed_all(order)
        late = order[2][0] == "connected"
        assert len({each.key for each in placed}) == (2 if late else 3)
        assert [each.splits for each in placed] == [False, False, late]

    def test_stale(self) -> None:
        """An emission is stale if a later state is known, or a state of higher rank at the same time."""
        placed = placed_all([("connected", 100), ("held", 100), ("connected", 100), ("alerting", 0), ("held", 700)])
        assert [each.stale for each in placed] == [False, False, True, True, False]

    def test_a_joined_emission_is_as_stale_as_its_anchor(self) -> None:
        """A joined emission is the event of its anchor: a state after the anchor makes it stale."""
        assert placed_all([("held", 0), ("disconnected", 0), ("held", 1)])[2].stale
        assert placed_all([("held", 0), ("connected", 1), ("held", 1)])[2].stale
        assert not placed_all([("held", 1), ("connected", 1), ("held", 0)])[2].stale

    def test_a_copy_after_a_split(self) -> None:
        """An emission that joined an anchor keeps its key when its copy arrives later."""
        split = [("held", 0), ("held", 400), ("connected", 200)]
        assert keys_of([*split, ("held", 400)])[3] == "held@0"
        assert keys_of([*split, ("held", 401)])[3] == "held@401"
        assert keys_of([("held", 0), ("held", 400), ("held", 600), ("held", 400)])[3] == "held@0"

    def test_joined_times_are_bounded(self) -> None:
        """A timeline stores a limited number of joined times for each anchor, the first ones. Further emissions still
        join."""
        timeline = placed_all([("held", at) for at in range(MOST_JOINED + 10)])[-1].timeline
        (anchor,) = timeline.anchors
        assert anchor.joined == tuple(range(1, MOST_JOINED + 1))
        assert (anchor.first, anchor.last) == (0, MOST_JOINED + 9)
        assert place(timeline, change("held", anchor.last), b"own").timeline is timeline

    def test_a_timeline_of_an_older_version(self) -> None:
        """A timeline of an older version, without joined times, is read and extended."""
        anchor = [0, RANKS["held"], "held", b"held@0", 0, 100]
        (kept,) = place(read(msgpack.encode([[anchor]])), change("held", 200), b"own").timeline.anchors
        assert (kept.key, kept.last, kept.joined) == (b"held@0", 200, (200,))


class Model:
    """The rule stated independently: a list of anchors, and the place of each emission."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.anchors: list[Emission] = []
        self.went: dict[Emission, Emission] = {}

    def place(self, state: str, at: int) -> Emission:
        if (state, at) not in self.went:
            self.went[state, at] = self._joined(state, at) or (state, at)
            if self.went[state, at] == (state, at):
                self.anchors.append((state, at))
        return self.went[state, at]

    def _joined(self, state: str, at: int) -> Emission | None:
        near = sorted((abs(when - at), when) for other, when in self.anchors if other == state)
        if not near or near[0][0] > self.window:
            return None
        low, high = sorted((near[0][1], at))
        apart = any(other != state and low < when < high for other, when in self.anchors)
        return None if apart else (state, near[0][1])


# Few times in a short window, so that ties, separations and copies are frequent.
CROWDED = st.lists(st.tuples(STATES, st.integers(0, 12)), max_size=25)


class TestGuarantees:
    @settings(max_examples=400)
    @given(CROWDED, st.integers(0, 6), st.permutations(range(len(RANKS))))
    def test_against_a_model(self, emissions: list[Emission], window: int, order: list[int]) -> None:
        """In any order, with ties and copies and any ranks, emissions are placed as the rule says."""
        model, timeline = Model(window), Timeline()
        ranks = dict(zip(RANKS, order, strict=True))
        for state, at in emissions:
            emitted = StateChange(b"t" * 16, state, at, ranks[state], window)
            placed = place(timeline, emitted, own_key(state, at))
            timeline = placed.timeline
            assert placed.key == own_key(*model.place(state, at))
        assert {(anchor.state, anchor.at) for anchor in timeline.anchors} == set(model.anchors)

    @given(
        st.lists(st.integers(0, WINDOW), min_size=1, max_size=8),
        st.lists(st.tuples(STATES, st.integers(2 * WINDOW + 1, 9_000)), max_size=8),
        st.randoms(use_true_random=False),
    )
    def test_an_isolated_cluster_is_one_event(
        self, cluster: list[int], elsewhere: list[Emission], chance: object
    ) -> None:
        """Emissions of one state within one window, away from all others, have one key in any order of arrival."""
        emissions = [("held", at) for at in cluster] + elsewhere
        chance.shuffle(emissions)  # type: ignore[attr-defined]
        keys = keys_of(emissions)
        assert len({key for key, (_, at) in zip(keys, emissions, strict=True) if at <= WINDOW}) == 1

    @given(EMISSIONS)
    def test_nothing_further_away_is_merged(self, emissions: list[Emission]) -> None:
        """Emissions with the same key have one state and lie within the window of the anchor."""
        for (state, at), key in zip(emissions, keys_of(emissions), strict=True):
            joined, _, when = key.partition("@")
            assert joined == state
            assert abs(int(when) - at) <= WINDOW

    @given(EMISSIONS)
    def test_anchors_never_move(self, emissions: list[Emission]) -> None:
        """An anchor keeps its time, state and key, and anchors stay in order."""
        before: set[tuple[int, str, bytes]] = set()
        for placed in placed_all(emissions):
            anchors = placed.timeline.anchors
            assert list(anchors) == sorted(anchors, key=lambda anchor: (anchor.at, anchor.rank))
            now = {(anchor.at, anchor.state, anchor.key) for anchor in anchors}
            assert before <= now
            before = now

    @given(EMISSIONS)
    def test_the_same_again_changes_nothing(self, emissions: list[Emission]) -> None:
        """A copy of the last emission changes nothing, so nothing is written."""
        timeline = Timeline()
        for state, at in emissions:
            first = place(timeline, change(state, at), own_key(state, at))
            again = place(first.timeline, change(state, at), own_key(state, at))
            assert (again.key, again.timeline is first.timeline) == (first.key, True)
            timeline = first.timeline

    @given(EMISSIONS)
    def test_written_and_read(self, emissions: list[Emission]) -> None:
        """A timeline is the same after encoding and decoding."""
        for placed in placed_all(emissions):
            assert read(written(placed.timeline)) == placed.timeline

    def test_bounded(self) -> None:
        """The number of anchors is limited, and the oldest are removed first."""
        placed = placed_all([("held", 1_000 * number) for number in range(MOST_ANCHORS + 10)])
        anchors = placed[-1].timeline.anchors
        assert len(anchors) == MOST_ANCHORS
        assert anchors[0].at == 10_000
        assert len(written(placed[-1].timeline)) < 5_000
