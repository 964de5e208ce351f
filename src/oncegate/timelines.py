"""Timelines: decide which emissions of a state change are one event.

Each entity has a timeline of anchors. An anchor is a time, a state and a key. An emission joins the nearest anchor with
the same state, if the anchor is at most one window away and no different state lies strictly between the two times. Of
two equally near anchors, it joins the earlier. A different state with exactly the time of the emission or of the anchor
does not separate them; rank only orders states with equal times. An emission that joins no anchor becomes an anchor.
Anchors never move. So, in any order of arrival:

- emissions of one state within one window are one event, if no other state lies among them and no other group of
  emissions of this state is near;
- emissions further than the window from every anchor are never merged.

A→B→A within one window stays three events, unless both A's arrive before B. If both A's arrive before B, they are
joined already and B splits them. `splits` reports this case, so that it can be counted. An anchor stores the times of
the emissions that joined it, so a redelivery of such an emission gets the anchor's key even after a split.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct, msgpack
from msgspec.structs import replace

from oncegate.events import StateChange

MOST_ANCHORS: Final = 64
MOST_JOINED: Final = 16  # times stored for each anchor; a state change is emitted a few times, not dozens of times


class Anchor(Struct, frozen=True, array_like=True, gc=False):
    """`first` and `last` are the times of the earliest and the latest emission that joined the anchor. `joined` holds
    the times of the first MOST_JOINED emissions that joined. Timelines that older versions wrote have no `joined`."""

    at: int
    rank: int
    state: str
    key: bytes
    first: int
    last: int
    joined: tuple[int, ...] = ()


class Timeline(Struct, frozen=True, array_like=True):
    """Anchors, ordered by time and rank."""

    anchors: tuple[Anchor, ...] = ()


class Placed(Struct, frozen=True):
    """The key of an emission, and the timeline after the emission was placed. `splits` means that the emission lies
    between emissions that are joined already. `stale` means that a later state is known."""

    timeline: Timeline
    key: bytes
    splits: bool
    stale: bool


_decode = msgpack.Decoder(Timeline).decode
_encode = msgpack.Encoder().encode


def read(body: bytes | None) -> Timeline:
    return Timeline() if body is None else _decode(body)


def written(timeline: Timeline) -> bytes:
    return _encode(timeline)


def place(timeline: Timeline, change: StateChange, key: bytes, *, until: int | None = None) -> Placed:
    """Place an emission on the timeline. `key` is the key that the emission has if it joins no anchor. The timeline of
    the result is the same object if nothing changed.

    `until` is usually the current time. An anchor later than `until` makes no other emission stale, because the time of
    such an anchor is in the future."""
    anchors = timeline.anchors
    joined = _joined_before(anchors, change) or _nearest_anchor(anchors, change)
    others = [anchor for anchor in anchors if anchor is not joined]
    past = others if until is None else [anchor for anchor in others if anchor.at <= until]
    # An emission that joins an anchor is the same event as the anchor, so the position of the anchor counts.
    position = (change.at, change.rank) if joined is None else (joined.at, joined.rank)
    stale = any((anchor.at, anchor.rank) > position for anchor in past)
    if joined is not None:
        return Placed(_widened(timeline, joined, change.at), joined.key, False, stale)
    fresh = Anchor(change.at, change.rank, change.state, key, change.at, change.at)
    splits = any(anchor.first < change.at < anchor.last for anchor in others if anchor.state != change.state)
    newest = sorted([*anchors, fresh], key=_position)[-MOST_ANCHORS:]
    return Placed(Timeline(tuple(newest)), key, splits, stale)


def _joined_before(anchors: Sequence[Anchor], change: StateChange) -> Anchor | None:
    """The anchor that an earlier delivery of this emission has joined. The anchor stores the time of the emission."""
    return next((a for a in anchors if change.at in a.joined and a.state == change.state), None)


def _nearest_anchor(anchors: Sequence[Anchor], change: StateChange) -> Anchor | None:
    near = [a for a in anchors if a.state == change.state and abs(a.at - change.at) <= change.window]
    if not near:
        return None
    nearest = min(near, key=lambda anchor: (abs(anchor.at - change.at), anchor.at))
    low, high = sorted((nearest.at, change.at))
    between = any(low < a.at < high for a in anchors if a.state != change.state)
    return None if between else nearest


def _widened(timeline: Timeline, joined: Anchor, at: int) -> Timeline:
    no_new_time = at == joined.at or at in joined.joined or len(joined.joined) == MOST_JOINED
    if no_new_time and joined.first <= at <= joined.last:
        return timeline
    times = joined.joined if no_new_time else (*joined.joined, at)
    wider = replace(joined, first=min(joined.first, at), last=max(joined.last, at), joined=times)
    return Timeline(tuple(wider if anchor is joined else anchor for anchor in timeline.anchors))


def _position(anchor: Anchor) -> tuple[int, int, str]:
    return anchor.at, anchor.rank, anchor.state
