"""Lifecycles: the states of the known shapes, and their order at the same time."""

import json
from pathlib import Path

import pytest

from oncegate.lifecycles import RANKS, UNKNOWN, States

SHAPES = json.loads((Path(__file__).parent / "data" / "events.json").read_text())
# Of wrap-up codes, of topics that are unknown and of senders that are unknown there is no list.
FREE = {"out-busy", "gone", "paid"}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape["name"]))
def test_every_known_shape_has_a_rank(shape: dict[str, dict[str, str | None]]) -> None:
    """The state of each shape of Genesys, CXone and the tutorials is in the table."""
    state = shape["read"]["state"]
    assert state is None or state.casefold() in RANKS.keys() | FREE


@pytest.mark.parametrize(
    "order",
    [
        ("none", "scheduled", "queued", "offering", "alerting", "accepted", "connected", "disconnected", "terminated"),
        ("waiting", "accepted", "connected", "held", "ended"),
        ("incoming", "active", "holding", "disconnected", "disconnected (final)", "endcontact"),
        ("new", "open", "pending", "escalated", "resolved", "closed", "trashed"),
        ("published", "sent", "delivered", "read"),
        ("session_started", "session_ongoing", "session_ended"),
        ("pending", "inprogress", "finished"),
        ("connected", "peer", "acw", "wrapup"),
    ],
    ids=lambda order: str(order[0]),
)
def test_order(order: tuple[str, ...]) -> None:
    """The states of each lifecycle are in the order in which they come about."""
    ranks = [RANKS[state] for state in order]
    assert ranks == sorted(set(ranks))


def test_no_order_among_presences() -> None:
    """A user goes from any presence to any other: none of them makes another stale."""
    assert {RANKS[state] for state in ("available", "busy", "meal", "off_queue", "on_queue", "idle")} == {UNKNOWN}


def test_words_that_are_no_state_of_a_type() -> None:
    """How something ended, or that it was updated, is a state where a member says so, not at the end of a type."""
    states = States()
    for word in ("client", "update", "typing"):
        assert states.told(f"case.{word}", None) is None
        said = states.told("case", word)
        assert said is not None
        assert (said.family, said.state) == ("case", word)
    told = States(rank=["Client", "server"]).told("session.client", None)
    assert told is not None
    assert (told.family, told.state, told.rank) == ("session", "client", 0)
