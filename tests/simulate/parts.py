"""Helpers for tests of simulated traffic."""

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from oncegate import Event
from oncegate.simulate.copies import CopyOptions
from oncegate.simulate.sender import Sender, Summary, Target
from oncegate.simulate.targets import File
from oncegate.simulate.traffic import Plan, deliveries
from oncegate.simulate.truth import Delivered, Truth, TruthFile, load
from oncegate.simulate.verification import EffectComparison, compare, effects

Effects = list[str]


def plan(events: int = 200, **copy_options: float) -> Plan:
    return Plan(events=events, rate=1_000, seed=5, copy_options=CopyOptions(**copy_options))  # type: ignore[arg-type]


def sent(target: Target, plan: Plan, truth: Path, **options: float) -> Summary:
    """Send all deliveries, and write the truth file."""
    with closing(target), truth.open("w") as stream:
        return Sender(target, TruthFile(stream, plan), **options).send(deliveries(plan))  # type: ignore[arg-type]


def into_file(folder: Path, plan: Plan) -> list[bytes]:
    """The lines of a traffic file; the truth file is written beside it."""
    sent(File(str(folder / "traffic.jsonl")), plan, folder / "truth.jsonl")
    return (folder / "traffic.jsonl").read_bytes().splitlines()


def noting(effects: Effects) -> Callable[[Event], None]:
    """A handler that appends one line per effect."""

    def handle(event: Event) -> None:
        effects.append(json.dumps({"key": str(event.key), "event_id": event.id}))

    return handle


def truth_in(folder: Path) -> Truth:
    return load((folder / "truth.jsonl").read_bytes().splitlines(), "truth.jsonl")


def judged(folder: Path, lines: Iterable[str]) -> EffectComparison:
    return compare(truth_in(folder), effects((line.encode() for line in lines), "effects.jsonl"))


def delivered(folder: Path) -> list[Delivered]:
    """All deliveries in the truth file."""
    return [each for deliveries in truth_in(folder).deliveries.values() for each in deliveries]
