"""The states of contact-centre events: each has a rank, and ranks give the order of the lifecycle."""

import json
from pathlib import Path

import pytest

from oncegate.lifecycles import RANKS, UNKNOWN, States, is_same_state

SHAPES = json.loads((Path(__file__).parent / "data" / "events.json").read_text())
# States without a fixed list: wrap-up codes, and states of unknown topics and senders.
FREE = {"out-busy", "gone", "paid"}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape["name"]))
def test_every_known_shape_has_a_rank(shape: dict[str, dict[str, str | None]]) -> None:
    """The state of every sample event of Genesys, CXone and the tutorials has a rank."""
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
    """The ranks of each lifecycle increase in the order of its states."""
    ranks = [RANKS[state] for state in order]
    assert ranks == sorted(set(ranks))


def test_no_order_among_presences() -> None:
    """All presences have the same rank, so none of them makes another stale: users change from any to any other."""
    assert {RANKS[state] for state in ("available", "busy", "meal", "off_queue", "on_queue", "idle")} == {UNKNOWN}


def test_words_that_are_not_states_of_a_type() -> None:
    """Words such as `client` and `update` are states in a member of the body but not at the end of a type, unless
    `rank` names them."""
    states = States()
    for word in ("client", "update", "typing"):
        assert states.find(f"case.{word}", None) is None
        stated = states.find("case", word)
        assert stated is not None
        assert (stated.family, stated.state) == ("case", word)
    ranked = States(rank=["Client", "server"]).find("session.client", None)
    assert ranked is not None
    assert (ranked.family, ranked.state, ranked.rank) == ("session", "client", 0)


def test_names_of_one_state() -> None:
    """Names that senders use for one state have the same rank. States with one rank need not be one state."""
    for one, other in (("answered", "connected"), ("ringing", "alerting"), ("end", "disconnected")):
        assert is_same_state(one, other)
        assert RANKS[one] == RANKS[other]
    assert not is_same_state("success", "failure")
    assert not is_same_state("ringing", "connected")
