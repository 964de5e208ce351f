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
## Killed workers

Real processes share one SQLite file and one list of events. Each event is delivered until it is acknowledged. SIGKILL
ends a worker at one of these moments:

- at a named point: before an operation of the store is called, after it is written but before its answer is used,
  before, during and after an effect, before a commit, before the acknowledgement
- before each single SQL statement
- at a random moment, while two workers run

Then a worker that is not killed processes the remaining events. An effect is *attempted* when it starts; a file
records every start. An effect is *applied* when it is permanent: in a transaction as two rows in the store's own file,
otherwise in a sink that is idempotent on the event's key.

| how | killed | kills | events | attempted | applied | redone | lost | doubled |
|---|---|--:|--:|--:|--:|--:|--:|--:|
{rows}

Through the gate, every event was completed and took effect once. Without the gate, {doubled:,} of {control:,} events
took effect twice; that run used one worker at a time, so only the kills could cause this. An event that kills its
worker became a dead letter after {attempts} attempts that count, in each of the {ways} modes, and every other event
was completed, including the other events of its batch. The random moments came from seed {seed}. The run took
{seconds:.0f} s.

### Ablations

Each ablation removes one rule from the gate, the store or the sink. The check detected each of them, with the
complaint in the table.

{ablations}
"""

_STOPPED: Final = """\
## Stopped workers

SIGSTOP stops a worker at a named point until its lease is over. Another worker takes over and completes the event.
Then the first worker, now a *zombie*, continues. None of its writes may be accepted: the record must stay exactly as
the successor wrote it, no row of the zombie may be permanent, its outcome must report the lost claim, and no effect
may start after the lease.

| how | stopped | zombies | events | attempted | applied | stale writes accepted |
|---|---|--:|--:|--:|--:|--:|
{rows}
| **total** | | **{zombies:,}** | **{events:,}** | **{attempted:,}** | **{applied:,}** | **{stale:,}** |

A worker that is stopped inside a transaction is not a zombie: its lock keeps all other workers out, and it continues
where it stopped. The run took {seconds:.0f} s.

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
    head = "| ablation | behaviour without the rule | complaint |\n|---|---|---|\n"
    return head + "\n".join(f"| {case.name} | {case.instead} | {_caught(case, say)} |" for case in cases)


def _caught(case: Case, say: Say) -> str:
    complaint = next((each for each in case.complaints() if case.sign in each), None)
    if complaint is None:
        raise Wrong(f"{case.name} is not caught")
    say(f"  {case.name}: {complaint}")
    return complaint
