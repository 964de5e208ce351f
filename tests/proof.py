"""The long proofs: `python -m tests.proof`, or `make prove`, runs them and writes docs/proof.md.

Each layer is a function that says on the way what it finds and returns its section of the page. A layer that
finds something broken raises, and the page stays as it was. With names, as in `python -m tests.proof network history`,
only these layers are run, and the other sections stay.
"""

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.faults import report as faults
from tests.kills import report
from tests.model.ablation import Ablation, attempt
from tests.model.ablations import ABLATIONS
from tests.model.explore import Report
from tests.model.parts import INVARIANTS
from tests.model.run import explore_all
from tests.model.settings import LARGE
from tests.model.trace import Counterexample

PAGE: Final = Path(__file__).parent.parent / "docs" / "proof.md"
_SHOWN: Final = "payload expires after a claim"  # the ablation whose trace the page shows

_INTRODUCTION: Final = """\
# What was proved, and how

`make prove` (`python -m tests.proof`) ran the checks below and wrote this page, on {machine}.
`make test` runs them too, with smaller bounds.
"""

_MODEL: Final = """\
## The claim protocol, in every state of a small world

`oncegate.claims.step` is the function that judges every claim. Here it runs in a model of the rest: three workers
that follow the gate's steps, a queue that delivers again whatever was not acknowledged, a network, a clock and an
operator. As a world has it, workers claim what they receive and run it, or have it admitted for whoever takes it, or
mark it first and run it. The records are real and only the shipped function changes them. From the beginning, every
possible next step is tried, and so on from each state that is found, the nearest first. States that differ only in
which worker is which, in the names of owners, in the height of fences or in the time of day are one state.

These invariants are checked in every state and at every step (a number that is missing is of none of them):

{invariants}

Number 8 is checked from every state found by stopping the faults and driving the workers to the end, once with
handlers that succeed and once with handlers that fail. There are four exceptions, none of them the protocol's to
prevent: after a jump of the store's clock or a reset by an operator two workers may trust their claims on a key at
once, and an effect that starts after such a jump under a claim that was given up as lost is not counted; after a reset
the attempts of the key are not counted any more; a key that was forgotten may take effect again, its attempts counted
anew; and a dead letter may be lost to its own retention.

A fault is a crash, a stop past the lease, a lost request, a lost answer, or a request that arrives late; it may
strike at any step. Beside its faults a world may have an event delivered once more, a jump of the store's clock, an
act of an operator, or outages of what the handler calls, after which an attempt is given back. In the worlds with
abandoned claims it becomes known at any later step that a worker has crashed. A lease lasts two ticks and is renewed
for at most three; an event is tried twice at most, not counting what is forgiven. Time itself has no bound, but only
the worlds with expiry run on until records expire, and at most one late request of each worker is under way at a time.

| world | faults | states | steps | explored | seconds |
|---|--:|--:|--:|---|--:|
{settings}
| **together** | | **{states:,}** | **{steps:,}** | | **{seconds:.0f}** |

No invariant was broken. The seconds of the last line are by the clock on the wall, on {processors} processors.

### Ablations

A check that cannot fail proves nothing. Each of these takes one rule away, from the text of the function or from
what a worker does around it. Each was caught, by this invariant, after this many steps.

| ablation | what is done instead | taken from | invariant | steps |
|---|---|---|--:|--:|
{ablations}

The trace of *{shown}*, as the check prints it:

```text
{trace}
```
"""

Layer = Callable[[], str]


class Broken(Exception):
    """A proof has failed; the page is not written."""


def model() -> str:
    """The bounded model check and its ablations."""
    began = time.perf_counter()
    faults = {setting.name: setting.faults for setting, _ in LARGE}
    reports = [_sound(report) for report in explore_all(LARGE)]
    seconds = time.perf_counter() - began
    found = {ablation.name: _caught(ablation) for ablation in ABLATIONS}
    return _MODEL.format(
        invariants="\n".join(f"- **{number}.** {sentence}" for number, sentence in INVARIANTS.items()),
        settings="\n".join(_row(report, faults[report.setting]) for report in _largest_first(reports)),
        states=sum(report.states for report in reports),
        steps=sum(report.transitions for report in reports),
        seconds=seconds,
        processors=os.cpu_count(),
        ablations="\n".join(_ablation_row(ablation, found[ablation.name]) for ablation in ABLATIONS),
        shown=_SHOWN,
        trace=found[_SHOWN],
    )


def _sound(report: Report) -> Report:
    _say(f"  {report.setting}: {report.states:,} states in {report.seconds:.0f} s")
    if report.broken is not None:
        raise Broken(f"{report.setting}\n{report.broken}")
    return report


def _caught(ablation: Ablation) -> Counterexample:
    broken = attempt(ablation).broken
    if broken is None or broken.invariant != ablation.invariant:
        raise Broken(f"{ablation.name} is not caught by invariant {ablation.invariant}\n{broken}")
    _say(f"  {ablation.name}: caught by invariant {broken.invariant} after {len(broken.steps)} steps")
    return broken


def _largest_first(reports: Iterable[Report]) -> list[Report]:
    return sorted(reports, key=lambda report: -report.states)


def _row(report: Report, faults: int) -> str:
    explored = "whole" if report.complete else "up to the limit"
    return (
        f"| {report.setting} | {faults} | {report.states:,} | {report.transitions:,} | {explored} |"
        f" {report.seconds:.0f} |"
    )


def _ablation_row(ablation: Ablation, broken: Counterexample) -> str:
    return f"| {ablation.name} | {ablation.instead} | {ablation.where} | {broken.invariant} | {len(broken.steps)} |"


def kills() -> str:
    """Workers killed at named points, at every statement and at random."""
    return report.kills(_say)


def zombies() -> str:
    """Workers stopped past their lease and let go on."""
    return report.zombies(_say)


def server_kills() -> str:
    """Workers killed while they ask a server."""
    return faults.server_kills(_say)


def server_zombies() -> str:
    """Workers of a server's store stopped past their lease and let go on."""
    return faults.server_zombies(_say)


def network() -> str:
    """Requests and answers cut off, reset and held up."""
    return faults.network(_say)


def restarts() -> str:
    """Servers killed and started again under load."""
    return faults.restarts(_say)


def promotions() -> str:
    """Primaries of a cluster killed under load, and their replicas promoted."""
    return faults.promotions(_say)


def history() -> str:
    """A million operations, key by key."""
    return faults.history(_say)


# ── the page ──────────────────────────────────────────────────────────────────────────────────────────────

# By the heading of the section.
LAYERS: Final[dict[str, Layer]] = {
    "The claim protocol, in every state of a small world": model,
    "Workers that are killed": kills,
    "Workers that are stopped": zombies,
    "Workers that are killed, on servers": server_kills,
    "Workers that are stopped, on servers": server_zombies,
    "A rough network": network,
    "Servers that are restarted": restarts,
    "Replicas that are promoted": promotions,
    "The history": history,
}


def main(names: Sequence[str]) -> None:
    known = {layer.__name__ for layer in LAYERS.values()}
    if unknown := set(names) - known:
        raise SystemExit(f"no layer is called {unknown.pop()}; there are {', '.join(sorted(known))}")
    sections = _sections(PAGE.read_text()) if names else {}
    for title, layer in LAYERS.items():
        if not names or layer.__name__ in names:
            _say(f"{layer.__name__}: {layer.__doc__}")
            sections[title] = layer()
    machine = f"Python {platform.python_version()} and {os.cpu_count()} processors"
    written = [sections[title] for title in LAYERS if title in sections]
    PAGE.write_text("\n".join([_INTRODUCTION.format(machine=machine), *written]))
    _say(f"written to {PAGE}")


def _sections(page: str) -> dict[str, str]:
    """The sections of a page that was written before."""
    _, *sections = re.split(r"\n(?=## )", page)
    return {section.partition("\n")[0].removeprefix("## "): section.rstrip("\n") + "\n" for section in sections}


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
