"""The sentences of an answer."""

from pathlib import Path

import pytest

from oncegate.analysis.answer import (
    counted,
    current_sentence,
    facts,
    settings_text,
    short_type,
    size_text,
    spoken_name,
    time_sentences,
    total_sentence,
    type_sentence,
)
from oncegate.simulate.copies import CopyOptions
from oncegate.simulate.traffic import Plan, deliveries
from tests.analysis import analyzed

PLAN = Plan(events=150, seed=3, untimed=0.5, copy_options=CopyOptions(echo=0.3, conflict=0.3))


def test_an_answer(tmp_path: Path) -> None:
    """The answer says what is certain and what is inferred, what to use, what it costs, and why echoes are not caught
    if that would drop other deliveries."""
    analysis = analyzed([each.copy.raw for each in deliveries(PLAN)], tmp_path, current="content")
    known = facts(analysis)
    assert "certain" in str(known["copies"])
    assert "by inference: the same state within 5 s" in str(known["probable"])
    assert "may be a copy or a different event" in str(known["possible"])
    assert "other content" in str(known["conflicts"])
    assert known["unreadable"] is None
    said = total_sentence(analysis)
    assert said.startswith("For all types together, use auto: it catches")
    assert "would be dead letters (conflicts)." in said
    assert 'first(state_change("500ms"), auto) would also catch' in said
    assert (current_sentence(analysis) or "").startswith("The current key content loses no event; it catches")
    times = time_sentences(analysis)
    assert times[0].startswith("Retention 7d: the longest gap between copies is")
    assert "Genesys and EventBridge can repeat an event for 5 days" in times[0]
    assert any(sentence.startswith("DynamoDB costs about $") for sentence in times)
    assert settings_text(analysis).splitlines()[1:] == ["key = 'auto'", 'retention = "7d"']
    assert all("merges nothing else" in type_sentence(each) for each in analysis.types)


@pytest.mark.parametrize(
    ("count", "noun", "text"), [(1, "copy", "1 copy"), (1_204, "copy", "1,204 copies"), (0, "event", "0 events")]
)
def test_numbers(count: int, noun: str, text: str) -> None:
    """A number has its noun in the right form."""
    assert counted(count, noun) == text


def test_names() -> None:
    """Keys of tutorials have the names that tutorials use, topics are short, and sizes have units."""
    call = "v2.detail.events.conversation.{id}.acd.end"
    assert spoken_name("entity + type + time", "genesys", call) == "conversationId + type + timestamp"
    assert spoken_name("entity + time to the minute", "genesys", call) == "conversationId + minute"
    assert spoken_name("entity + state", "genesys", "v2.users.{id}.presence") == "the entity + state"
    assert spoken_name("entity", "plain") == "the entity"
    assert spoken_name("envelope id", "genesys") == "the envelope id"
    assert spoken_name("auto", "genesys") == "auto"
    assert short_type("v2.detail.events.conversation.{id}.acd.end") == "acd.end"
    assert short_type("CaseCreated") == "CaseCreated"
    assert [size_text(size) for size in (999, 1_500, 2_000_000_000)] == ["999 bytes", "1.5 kB", "2.0 GB"]
