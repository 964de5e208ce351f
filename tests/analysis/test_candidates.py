"""The candidates: which there are, and what their keys are made of."""

from pathlib import Path

import pytest

from oncegate import keys, read
from oncegate.analysis.candidates import TUTORIALS, candidates, strategy_digest
from oncegate.errors import MissingKey
from oncegate.settings.parsing import parsed
from tests.analysis import analyzed

(EVENT,) = read(
    {"id": "1", "type": "call.ended", "conversationId": "c", "state": "ended", "timestamp": 1_770_091_506_123}
)
(LATER,) = read(
    {"id": "2", "type": "call.ended", "conversationId": "c", "state": "ended", "timestamp": 1_770_091_507_123}
)
(BARE,) = read({"value": 1})


def test_columns() -> None:
    """Each candidate has a column of its own, except the combinations of fields of different types."""
    found = candidates({1: ['fields("a")', 'fields("b")'], 2: ['fields("c")']}, ["auto", "module:function"])
    assert len({each.column for each in found}) == len(found)
    (first, second) = (each for each in found if each.origin == "fields")
    assert (first.name_for(1), first.name_for(2), second.names) == ('fields("a")', 'fields("c")', {1: 'fields("b")'})
    assert [each.name for each in found if each.origin == "yours"] == ["module:function"]


@pytest.mark.parametrize("name", ["auto", "event_id", "content", 'fields("conversationId", "timestamp")'])
def test_the_keys_are_those_of_oncegate(name: str) -> None:
    """The key of a strategy is the start of the key that a gate uses."""
    made = strategy_digest(name)(EVENT)
    assert made is not None
    assert keys.strategy(parsed(name))(EVENT).digest.startswith(made.digest)


def test_without_a_key() -> None:
    """An event that lacks a part has no key, and so does an event for which a function of the user raises an error."""
    assert strategy_digest("event_id")(BARE) is None
    assert strategy_digest("tests.analysis.test_candidates:broken")(BARE) is None


def broken(_event: object) -> object:
    raise ZeroDivisionError


def test_the_function_is_called() -> None:
    """The check above would also pass if the function was never called."""
    with pytest.raises(ZeroDivisionError):
        broken(BARE)
    with pytest.raises(MissingKey):
        keys.event_id(BARE)


def test_keys_of_tutorials(tmp_path: Path) -> None:
    """Two events of one conversation, a second apart: some keys merge them. An event without the parts has no key."""
    analysis = analyzed([EVENT.raw, LATER.raw, BARE.raw], tmp_path)
    merging = {name for name in TUTORIALS if analysis.of(name).wrong + analysis.of(name).doubtful}
    assert merging == {"entity", "entity + time to the minute", "entity + state"}
    assert {name for name in TUTORIALS if analysis.of(name).keyless != 1} == {"md5 of the document"}
