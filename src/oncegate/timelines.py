"""Timelines: which emissions of a state change are one event.

One timeline for each entity keeps anchors: a time, a state and a key. An emission joins the nearest anchor of its state
that is no further away than the window (of two equally near, the earlier), unless the time of a different state lies
strictly between the two. States of the same time never separate emissions; rank only orders them. Otherwise it becomes
an anchor itself. Anchors never move, so whatever order emissions arrive in

- those of one state within one window, with no other state among them and no other such cluster near, are one event;
- those further than the window from every anchor are never merged.

A→B→A within one window stays three events, unless both A's arrive before B: then it is too late, and B splits what was
joined. That is told, so that it can be counted. An anchor remembers the times of the emissions that joined it, so a
redelivery of one of them has the anchor's key after a split too.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct, msgpack
from msgspec.structs import replace

from oncegate.events import StateChange

MOST_ANCHORS: Final = 64
MOST_JOINED: Final = 16  # remembered for each anchor; a change is emitted a few times, not dozens


class Anchor(Struct, frozen=True, array_like=True, gc=False):
    """`first` and `last` are the times of the earliest and the latest emission that have joined it, `joined` those of
    the first MOST_JOINED. Timelines of older versions have no `joined`."""

    at: int
    rank: int
    state: str
    key: bytes
    first: int
    last: int
    joined: tuple[int, ...] = ()


class Timeline(Struct, frozen=True, array_like=True):
    """Anchors in the order of time and rank."""

    anchors: tuple[Anchor, ...] = ()


class Placed(Struct, frozen=True):
    """Where an emission belongs, in which timeline. `splits`: it lies between emissions that are joined already.
    `stale`: a later state is known."""

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
    """Place an emission whose own key is this one. The timeline is the same object if nothing has changed.

    What claims to be of after `until`, a time that has not come, makes nothing stale."""
    anchors = timeline.anchors
    joined = _joined_before(anchors, change) or _joined(anchors, change)
    others = [anchor for anchor in anchors if anchor is not joined]
    come = others if until is None else [anchor for anchor in others if anchor.at <= until]
    # A joined emission is the anchor's event, so the anchor's place in the order counts.
    position = (change.at, change.rank) if joined is None else (joined.at, joined.rank)
    stale = any((anchor.at, anchor.rank) > position for anchor in come)
    if joined is not None:
        return Placed(_widened(timeline, joined, change.at), joined.key, False, stale)
    fresh = Anchor(change.at, change.rank, change.state, key, change.at, change.at)
    splits = any(anchor.first < change.at < anchor.last for anchor in others if anchor.state != change.state)
    kept = sorted([*anchors, fresh], key=_position)[-MOST_ANCHORS:]
    return Placed(Timeline(tuple(kept)), key, splits, stale)


def _joined_before(anchors: Sequence[Anchor], change: StateChange) -> Anchor | None:
    """The anchor that an emission of this state and time is known to have joined."""
    return next((a for a in anchors if change.at in a.joined and a.state == change.state), None)


def _joined(anchors: Sequence[Anchor], change: StateChange) -> Anchor | None:
    near = [a for a in anchors if a.state == change.state and abs(a.at - change.at) <= change.window]
    if not near:
        return None
    nearest = min(near, key=lambda anchor: (abs(anchor.at - change.at), anchor.at))
    low, high = sorted((nearest.at, change.at))
    between = any(low < a.at < high for a in anchors if a.state != change.state)
    return None if between else nearest


def _widened(timeline: Timeline, joined: Anchor, at: int) -> Timeline:
    remembered = at == joined.at or at in joined.joined or len(joined.joined) == MOST_JOINED
    if remembered and joined.first <= at <= joined.last:
        return timeline
    times = joined.joined if remembered else (*joined.joined, at)
    wider = replace(joined, first=min(joined.first, at), last=max(joined.last, at), joined=times)
    return Timeline(tuple(wider if anchor is joined else anchor for anchor in timeline.anchors))


def _position(anchor: Anchor) -> tuple[int, int, str]:
    return anchor.at, anchor.rank, anchor.state
