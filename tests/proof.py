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
_SHOWN: Final = "taken-over event expires"  # the ablation whose trace the page shows

_INTRODUCTION: Final = """\
# What was proved, and how

`make prove` (`python -m tests.proof`) ran the checks below and wrote this page, on {machine}.
`make test` runs the same checks with smaller bounds.
"""

_MODEL: Final = """\
## The claim protocol: bounded model check

`oncegate.claims.step` is the function that decides every claim. Here it runs inside a model of its environment: three
workers that follow the steps of the gate, a queue that redelivers every unacknowledged event, a network, a clock and
an operator. A *world* is one configuration of this model. Depending on the world, a worker claims a delivery and runs
it, admits it for a dispatcher, or marks it first and then runs it. The records are real, and only the shipped function
changes them. The search starts at the initial state, tries every possible next step, and continues breadth-first from
each new state. States that differ only in the numbering of workers, in the names of owners, in the value of fences or
in the time of day count as one state.

These invariants are checked in every state and at every step (the missing numbers are not used here):

{invariants}

Invariant 8 is checked from every state found: the faults stop, and the workers run to the end, once with handlers that
succeed and once with handlers that fail. There are four exceptions, which the protocol cannot prevent:

- After a jump of the store's clock or a reset by an operator, two workers may trust their claims on the same key. An
  effect that starts after such a jump, under a claim that was given up as lost, is not counted.
- After a reset, the attempts of the key are no longer counted.
- A forgotten key may take effect again, and its attempts are counted from the start.
- A dead letter may be deleted at the end of its own retention.

A fault is a crash, a stop past the lease, a lost request, a lost answer, or a request that arrives late. It can occur
at any step. In addition to its faults a world may have one more delivery of an event, a jump of the store's clock, an
action of an operator, or outages of a service that the handler calls, after which the attempt is given back. In the
worlds with abandoned claims, the crash of a worker becomes known at any later step. A lease lasts two ticks and is
renewed for at most three. An event is tried at most twice; attempts that are given back and the first of several lost
attempts in a row do not count. Time is not bounded, but only the worlds with expiry continue until records expire. Each
worker has at most one late request at a time.

| world | faults | states | steps | explored | seconds |
|---|--:|--:|--:|---|--:|
{settings}
| **total** | | **{states:,}** | **{steps:,}** | | **{seconds:.0f}** |

No invariant was violated. The seconds in the last line are elapsed time on {processors} processors.

### Ablations

A check that cannot fail proves nothing. Each ablation removes one rule, from the text of the function or from the
behaviour of the worker. The check detected each of them, by the invariant and after the number of steps in the table.

| ablation | behaviour without the rule | removed from | invariant | steps |
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
    explored = "completely" if report.complete else "up to the limit"
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


def buses() -> str:
    """Webhooks through every message bus, with kills of every part."""
    return faults.buses(_say)


def history() -> str:
    """A million operations, key by key."""
    return faults.history(_say)


# ── the page ──────────────────────────────────────────────────────────────────────────────────────────────

# By the heading of the section.
LAYERS: Final[dict[str, Layer]] = {
    "The claim protocol: bounded model check": model,
    "Killed workers": kills,
    "Stopped workers": zombies,
    "Killed workers, server stores": server_kills,
    "Stopped workers, server stores": server_zombies,
    "Network faults": network,
    "Server restarts": restarts,
    "Replica promotion": promotions,
    "Message buses": buses,
    "Operation history": history,
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
