"""Comparing effects with the truth, by keys, by ids and by the log of the service."""

import io
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from oncegate import Gate, keys, read
from oncegate.errors import OncegateError
from oncegate.gate import JsonLog
from oncegate.simulate.verification import effects
from tests.simulate.parts import Effects, into_file, judged, noting, plan, truth_in


def through_a_gate(folder: Path, lines: list[bytes], gate: Gate | None = None) -> Effects:
    """The effects of all lines, run in batches, on SQLite unless another gate is given."""
    done: Effects = []
    gate = gate or Gate(f"sqlite:///{folder}/claims.db")
    for start in range(0, len(lines), 40):
        gate.run_batch(lines[start : start + 40], noting(done))
    gate.close()
    return done


class TestVerdicts:
    def test_exactly_once(self, tmp_path: Path) -> None:
        """A gate on SQLite runs each event once, and in order."""
        lines = into_file(tmp_path, plan(conflict=0.2, invalid=0.1))
        comparison = judged(tmp_path, through_a_gate(tmp_path, lines))
        assert (comparison.once, comparison.ordered, comparison.findings) == (True, True, [])
        assert (comparison.events, comparison.effects) == (200, 200)
        assert len(lines) > 400

    def test_without_the_gate(self, tmp_path: Path) -> None:
        """Without a gate effects are doubled, and each doubled event is found."""
        lines = into_file(tmp_path, plan())
        done: Effects = []
        for line in lines:
            for event in read(line):
                noting(done)(replace(event, key=keys.auto(event)))
        comparison = judged(tmp_path, done)
        sent = truth_in(tmp_path).deliveries
        assert {finding.event.name for finding in comparison.of("doubled") if finding.event} == {
            name for name, deliveries in sent.items() if len(deliveries) > 1
        }
        assert {finding.what for finding in comparison.findings} == {"doubled"}
        assert not any(finding.by_echo for finding in comparison.findings)

    def test_lost(self, tmp_path: Path) -> None:
        """An event without an effect is lost, and is named."""
        done = through_a_gate(tmp_path, into_file(tmp_path, plan()))
        dropped = done.pop(100)
        (finding,) = judged(tmp_path, done).findings
        assert (finding.what, finding.effects) == ("lost", 0)
        assert finding.event
        assert finding.event.keys["auto"] == json.loads(dropped)["key"]

    def test_lost_at_most_once(self, tmp_path: Path) -> None:
        """A worker that ends between the mark and the handler loses the event. Later copies are duplicates, but the
        event is lost: the other events took effect in the same log."""
        lines, log = into_file(tmp_path, plan(echo=0)), io.StringIO()
        copied = next(line for line in lines if lines.count(line) > 1)
        gate = Gate("memory://", mode="mark_first", observers=[JsonLog(log)])
        assert not gate.seen(copied)  # the mark without the handler
        through_a_gate(tmp_path, lines[lines.index(copied) + 1 :] + lines[: lines.index(copied)], gate)
        comparison = judged(tmp_path, log.getvalue().splitlines())
        assert not comparison.already_processed
        (finding,) = comparison.findings
        assert (finding.what, finding.effects, finding.only_duplicates) == ("lost", 0, True)

    def test_extra(self, tmp_path: Path) -> None:
        """An effect of an unknown event is named by its key or id."""
        done = through_a_gate(tmp_path, into_file(tmp_path, plan(20)))
        comparison = judged(tmp_path, [*done, '{"key": "f00"}', '{"event_id": 7}', '{"key": "f00"}'])
        assert [(each.what, each.called, each.effects) for each in comparison.findings] == [
            ("extra", "f00", 2),
            ("extra", "7", 1),
        ]

    def test_order(self, tmp_path: Path) -> None:
        """A wrong order within an entity is reported, and does not change the result."""
        done = through_a_gate(tmp_path, into_file(tmp_path, plan()))
        comparison = judged(tmp_path, reversed(done))
        assert (comparison.once, comparison.ordered) == (True, False)
        alone = [event.entity for event in truth_in(tmp_path).events.values()]
        assert set(comparison.unordered) == {entity for entity in alone if alone.count(entity) > 1}

    def test_echoes(self, tmp_path: Path) -> None:
        """A key without state_change doubles echoes, which are reported as such; state_change does not."""
        lines = into_file(tmp_path, plan(echo=0.3))
        found = judged(tmp_path, through_a_gate(tmp_path, lines)).findings
        assert found
        assert all(finding.what == "doubled" and finding.by_echo for finding in found)
        knowing = Gate("memory://", key=keys.first(keys.state_change("500ms"), keys.auto))
        assert judged(tmp_path, through_a_gate(tmp_path, lines, knowing)).once

    def test_what_was_not_taken(self, tmp_path: Path) -> None:
        """An event without an accepted delivery may take effect at most once."""
        done = through_a_gate(tmp_path, into_file(tmp_path, plan(20)))
        path = tmp_path / "truth.jsonl"
        path.write_text(path.read_text().replace('"fate":"taken"', '"fate":"gave up"'))
        assert judged(tmp_path, []).once
        assert judged(tmp_path, done).once
        assert [finding.what for finding in judged(tmp_path, [*done, done[3]]).findings] == ["doubled"]


class TestEffects:
    def test_by_id(self, tmp_path: Path) -> None:
        """Effects with a shared id match as many events as have that id: a message and its receipts."""
        lines = [line for line in into_file(tmp_path, plan()) if b"ContactID" not in line]
        done = [json.dumps({"event_id": json.loads(line)["event_id"]}) for line in through_a_gate(tmp_path, lines)]
        comparison = judged(tmp_path, done)
        assert {finding.event.type for finding in comparison.findings if finding.event} == {"CallContactEvent"}
        assert {finding.what for finding in comparison.findings} == {"lost"}, "what has no id cannot be told by it"
        again = [finding for finding in judged(tmp_path, [*done, done[0]]).findings if finding.what == "doubled"]
        assert len(again) == 1

    def test_the_log_of_outcomes(self, tmp_path: Path) -> None:
        """The log of a gate is a valid effects file: only run events count."""
        log = io.StringIO()
        gate = Gate("memory://", observers=[JsonLog(log)])
        lines = into_file(tmp_path, plan(invalid=0.1, conflict=0.1))
        through_a_gate(tmp_path, lines, gate)
        logged = log.getvalue().splitlines()
        assert len(logged) == len(lines)
        assert judged(tmp_path, logged).once

    @pytest.mark.parametrize("key", [keys.content, keys.first(keys.fields("eventTime"), keys.content)])
    def test_other_keys(self, tmp_path: Path, key: keys.Strategy) -> None:
        """Under another strategy effects match by that key, else by id."""
        lines = [line for line in into_file(tmp_path, plan(echo=0, rewrap=0)) if b"v2.detail" in line]
        log = io.StringIO()
        through_a_gate(tmp_path, lines, Gate("memory://", key=key, observers=[JsonLog(log)], on_conflict="run"))
        found = judged(tmp_path, log.getvalue().splitlines()).findings
        assert {finding.what for finding in found} == {"lost"}
        assert not any((finding.event.type or "").startswith("v2.") for finding in found if finding.event)

    def test_ids_are_no_keys(self, tmp_path: Path) -> None:
        """The key event_id doubles re-emissions and loses receipts."""
        lines = into_file(tmp_path, plan(rewrap=0, reemit=0.5))
        found = judged(tmp_path, through_a_gate(tmp_path, lines, Gate("memory://", key=keys.event_id))).findings
        doubled = {finding.event.name for finding in found if finding.event and finding.what == "doubled"}
        sent = truth_in(tmp_path).deliveries
        assert doubled == {name for name in sent if any(each.kind == "re-emission" for each in sent[name])}
        lost = {finding.event.type for finding in found if finding.event and finding.what == "lost"}
        assert lost == {"openmessaging.Receipt", "CallContactEvent"}

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("{", "effects.jsonl:2: invalid line in an effects file"),
            ('{"id": 1}', "effects.jsonl:2: the line has neither a key nor an event_id"),
            ('{"key": 5}', "effects.jsonl:2: invalid line in an effects file"),
        ],
    )
    def test_what_is_no_effect(self, line: str, said: str) -> None:
        """An invalid line is refused with its place."""
        with pytest.raises(OncegateError, match=said):
            list(effects([b'{"key": "a"}', line.encode(), b""], "effects.jsonl"))
