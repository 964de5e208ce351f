"""The long figures of kills and zombies, each as a section of docs/proof.md."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import add
from typing import Final, TypeVar

from tests.kills.cases import KILLED, STOPPED, Case
from tests.kills.checker import Check
from tests.kills.kills import Run, at_random, poison, strike_at, sweep
from tests.kills.points import points_of
from tests.kills.worker import WAYS, Way
from tests.kills.zombies import STOPS, Rising, rise

_KILLS: Final = 2_000
_CONTROL: Final = 200
_ZOMBIES: Final = 500
_AT_A_TIME: Final = 12
_ATTEMPTS: Final = 3
NAMES: Final[dict[Way, str]] = {
    "run": "`run`",
    "batch": "`run_batch`",
    "transaction": "`transaction`",
    "change": "`run` by `state_change`",
}

_KILLED: Final = """\
## Workers that are killed

Real processes share one SQLite file and one list of events. Each event is delivered until it is acknowledged. SIGKILL
strikes a worker at a named point (before a verb of the store is called, after it is written but before its answer is
used, before, half-way through and after an effect, before a commit, before the acknowledgement), before each single
SQL statement, or at a random moment, two workers being at it; then one whom nothing befalls brings all to its end. An
effect is *attempted* when it is begun, in a file that keeps every one. It is *applied* when it stands: in a
transaction as two rows of the store's own file, otherwise in a sink that is idempotent on the event's key.

| how | struck | kills | events | attempted | applied | redone | lost | doubled |
|---|---|--:|--:|--:|--:|--:|--:|--:|
{rows}

Through the gate every event was completed and took effect once. Without it, one worker at a time so that only kills
can do harm, they doubled {doubled:,} events of {control:,}. An event that kills whoever runs it was a dead letter after
{attempts} attempts that count, in each of the {ways} ways, and every other event was completed, those of its batch
included. The random moments came of seed {seed}. All of it took {seconds:.0f} s.

### Ablations

Each of these takes one rule away from the gate, the store or the sink. Each was caught, by this complaint.

{ablations}
"""

_STOPPED: Final = """\
## Workers that are stopped

A worker is stopped with SIGSTOP at a named point, past the end of its lease. Another takes over and completes. Then
the first goes on as if nothing had been. Whatever it still tries must not be accepted: the record must stay its
successor's to the last bit, no row of its own may stand, its outcome must say so, and no effect may begin after the
lease.

| how | stopped | zombies | events | attempted | applied | stale writes accepted |
|---|---|--:|--:|--:|--:|--:|
{rows}
| **together** | | **{zombies:,}** | **{events:,}** | **{attempted:,}** | **{applied:,}** | **{stale:,}** |

A worker that is stopped within a transaction is no zombie: it keeps everybody else out, and goes on where it was. All
of it took {seconds:.0f} s.

### Ablations

{ablations}
"""

Say = Callable[[str], None]
_Found = TypeVar("_Found", Run, Rising, Check)


class Wrong(Exception):
    """The judge has complained, or has not when it should."""


def kills(say: Say) -> str:
    began, seed = time.perf_counter(), random.getrandbits(32)
    say(f"  seed {seed}")
    rows = [_kill_row(NAMES[way], where, run) for way, where, run in _kills(seed, say)]
    _poisoned(say)
    control = _control(seed)
    return _KILLED.format(
        rows="\n".join([*rows, _kill_row("without the gate", "at random", control)]),
        doubled=len(control.finding.doubled),
        control=control.finding.events,
        attempts=_ATTEMPTS,
        ways=len(WAYS),
        seed=seed,
        seconds=time.perf_counter() - began,
        ablations=_ablations(KILLED, say),
    )


def _kills(seed: int, say: Say) -> Iterator[tuple[Way, str, Run]]:
    for number, way in enumerate(WAYS):
        share = _KILLS // len(WAYS) + (number < _KILLS % len(WAYS))
        struck = {
            "at named points": total(strike_at(way, point) for point in points_of(way)),
            "at every statement": total(sweep(way, events=2)),
            "at random": at_random(way, share, seed),
        }
        for where, run in struck.items():
            sound(f"{way} {where}, seed {seed}", run)
            say(f"  {way} {where}: {run.kills:,} kills, {run.finding.redos:,} redone")
            yield way, where, run


def _kill_row(how: str, where: str, run: Run) -> str:
    found = run.finding
    counts = (run.kills, found.events, found.attempted, found.applied, found.redos, len(found.lost), len(found.doubled))
    return f"| {how} | {where} | {figures(counts)} |"


def _control(seed: int) -> Run:
    run = at_random("bare", _CONTROL, seed, workers=1)
    if not run.finding.doubled:
        raise Wrong(f"without the gate nothing was doubled (seed {seed}): the kills fall where they do no harm")
    return run


def _poisoned(say: Say) -> None:
    for way in WAYS:
        run = poison(way, ("event-1",), max_attempts=_ATTEMPTS)
        sound(f"{way} with poison", run)
        if run.finding.buried != ("event-1",) or run.kills != _ATTEMPTS + 1:
            raise Wrong(f"{way}: poison killed {run.kills} workers, and {run.finding.buried} were buried")
        say(f"  {way} with poison: buried after {run.kills} kills")


def zombies(say: Say) -> str:
    began = time.perf_counter()
    risings = {(way, point): _rise(way, point, say) for way, points in STOPS.items() for point in points}
    together = total(risings.values())
    return _STOPPED.format(
        rows="\n".join(_zombie_row(way, point, rising) for (way, point), rising in risings.items()),
        zombies=together.zombies,
        events=together.finding.events,
        attempted=together.finding.attempted,
        applied=together.finding.applied,
        stale=len(together.stale),
        seconds=time.perf_counter() - began,
        ablations=_ablations(STOPPED, say),
    )


def _rise(way: Way, point: str, say: Say) -> Rising:
    """A share of all the zombies, a few at a time."""
    share = -(-_ZOMBIES // sum(map(len, STOPS.values())))
    rising = total(rise(way, point, min(_AT_A_TIME, share - done)) for done in range(0, share, _AT_A_TIME))
    if rising.complaints:
        raise Wrong(f"{way} stopped at {point}: {rising.complaints}")
    say(f"  {way} stopped at {point}: {rising.zombies} zombies")
    return rising


def _zombie_row(way: Way, point: str, rising: Rising) -> str:
    found = rising.finding
    counts = (rising.zombies, found.events, found.attempted, found.applied, len(rising.stale))
    return f"| {NAMES[way]} | {point} | {figures(counts)} |"


# ── both ──────────────────────────────────────────────────────────────────────────────────────────────────


def figures(counts: Iterable[int]) -> str:
    return " | ".join(f"{count:,}" for count in counts)


def total(found: Iterable[_Found]) -> _Found:
    return reduce(add, found)


def sound(what: str, run: Run) -> None:
    if run.complaints:
        raise Wrong(f"{what}: {run.complaints}")
    if not run.finding.redos:
        raise Wrong(f"{what}: nothing was begun twice, so no kill fell between an effect and its completion")


def _ablations(cases: Iterable[Case], say: Say) -> str:
    head = "| ablation | what is done instead | complaint |\n|---|---|---|\n"
    return head + "\n".join(f"| {case.name} | {case.instead} | {_caught(case, say)} |" for case in cases)


def _caught(case: Case, say: Say) -> str:
    complaint = next((each for each in case.complaints() if case.sign in each), None)
    if complaint is None:
        raise Wrong(f"{case.name} is not caught")
    say(f"  {case.name}: {complaint}")
    return complaint
