"""The long figures of faults on all stores, each as a section of docs/proof.md."""

import random
import time
from collections.abc import Iterable, Iterator
from typing import Final

from tests.faults import grounds
from tests.faults.grounds import GROUNDS, Ground
from tests.faults.pipelines import BUSES, through
from tests.faults.restarts import restart
from tests.faults.rough import KINDS
from tests.faults.storms import Storm, storm
from tests.faults.stress import stressed
from tests.kills.checker import Check
from tests.kills.kills import Run, at_random, strike_at, sweep
from tests.kills.points import points_of
from tests.kills.report import NAMES, Say, Wrong, figures, sound, total
from tests.kills.worker import WAYS, Way
from tests.kills.zombies import STOPS, Rising, rise

_BY_CHANGES: Final[Way] = "change"
_KILLS: Final = 400
_ZOMBIES: Final = 20
_CUTS: Final = 500
_RESTARTS: Final = 20
_PROMOTIONS: Final = 50
_LAGGING: Final = 10
_PROMOTIONS_OF_A_WORLD: Final = 10  # no worker lives longer
_LAG: Final = 0.2
_OPERATIONS: Final = 250_000
_BUS_EVENTS: Final = 50_000
_BUS_KILLS: Final = 20
_OPERATIONS_OF_A_WORLD: Final = 25_000

_SERVER_KILLS: Final = """\
## Killed workers, server stores

The same test on stores over a network. Here there is one more point: the bytes of a request are sent, and no byte of
the answer was read. Workers are killed at every named point, after each of their requests was sent and before it was
answered (including the requests that create the store), and at random moments. The history of their calls and answers
is checked as described below.

| store | how | killed | kills | events | attempted | applied | redone | lost | doubled |
|---|---|---|--:|--:|--:|--:|--:|--:|--:|
{rows}

Every event was completed and took effect once. The random moments came from seed {seed}. The run took {seconds:.0f} s.
"""

_BUSES: Final = """\
## Message buses

`oncegate simulate` sends webhooks with every kind of duplicate to `oncegate serve`, which publishes each new event to a
bus. `oncegate work` runs the messages, and its handler writes to Postgres in a transaction that is idempotent on the
key. Claims are in Postgres, too. Each part is killed with SIGKILL {kills} times and started again: the service, the
worker, Postgres and the bus (the mock broker of Kafka has its messages in memory, so it is not killed). At the end
`oncegate verify` compares the rows in Postgres with the events that were sent. *Repeated* attempts found their effect
committed: the worker was killed after the transaction, and before the completion of the claim.

| bus | mode of the worker | kills of each part | events | effects | repeated | lost | doubled | seconds |
|---|---|--:|--:|--:|--:|--:|--:|--:|
{rows}

The last row is the control: a worker that marks an event as done before its effect loses events when it is killed. The
kills came from seed {seed}.
"""

_SERVER_ZOMBIES: Final = """\
## Stopped workers, server stores

| store | how | zombies | events | attempted | applied | stale writes accepted |
|---|---|--:|--:|--:|--:|--:|
{rows}

Workers were stopped at the points named above. The run took {seconds:.0f} s.

### Ablations

| store | behaviour without the rule | complaint |
|---|---|---|
{ablations}
"""

_NETWORK: Final = """\
## Network faults

Three workers connect to their store through a proxy that disturbs requests at random. The proxy closes or resets the
connection before it passes a request on, or after the request was executed but before its answer is passed back. Or it
delays the answer for longer than the client waits.

| store | how | cuts | {kinds} | events | attempted | applied | unanswered | lost | doubled |
|---|---|--:|{lines}--:|--:|--:|--:|--:|--:|
{rows}

Every event was completed and took effect once. *Unanswered* operations ended in an error for the caller; the Redis
store retries by itself where it can. The faults came from seed {seed}. The run took {seconds:.0f} s.
"""

_RESTARTS_PAGE: Final = """\
## Server restarts

The server is killed while two workers use it, and starts again after a moment. The workers must continue without help.
Redis runs with `appendfsync always` and is killed with SIGKILL; Postgres is stopped by an immediate shutdown.

| store | how | restarts | events | attempted | applied | unanswered | lost | doubled |
|---|---|--:|--:|--:|--:|--:|--:|--:|
{rows}

Every acknowledged event had taken effect, exactly once. The moments came from seed {seed}. The run took {seconds:.0f}
s.
"""

_PROMOTIONS_PAGE: Final = """\
## Replica promotion

In a cluster of six Redis nodes, a primary is killed while two workers use it. Its replica takes over, and the old
primary joins again as a replica; each of the three primaries in turn. Redis answers before a replica has the write, so
an answered completion may be *forgotten*: its event runs again if it is delivered again. Where the replica *lags*, it
was disconnected for {lag:g} s before, to show that such a loss is possible and that the check detects it. With
`wait_replicas=1`, the store answers after the replica has the write.

| `wait_replicas` | replica | promotions | events | attempted | applied | unanswered | forgotten | lost | doubled |
|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|
{rows}

The workers continued without help each time. *Lost* events have no effect. *Doubled* events are in the sink twice,
although the sink is idempotent on the key. The moments came from seed {seed}. The run took {seconds:.0f} s.
"""

_HISTORY: Final = """\
## Operation history

In all runs above, every worker records its calls to the store and the answers, with the time before and after. A
checker searches the history of each key for violations of the protocol: two owners at the same time, a fence that
decreases, a write that was accepted without a grant or after a later grant was known, a completed or buried record
that changed or ended twice, a refused owner although no other grant was possible in between, an owner that never made
a request. A call without an answer may have been executed or not, at any time.

In this run three workers call all operations on shared keys: they claim, claim again, renew, complete, release and
bury, in time, late and twice. Every call is answered, so the check is stricter: for each key there must be an order of
the operations that agrees with real time and in which `oncegate.claims.step` gives every observed answer. Two
additional answers are allowed, both on Postgres, which first writes absent rows, then reads the whole batch, and does
not wait for locks. A claim that meets another operation on its key may be answered as in flight. A claim that takes
longer than its own lease may take over from itself, which counts as a lost attempt.

| store | operations | keys | grants | takeovers | refused | broken rules |
|---|--:|--:|--:|--:|--:|--:|
{rows}
| **total** | {together} |

The calls came from seed {seed}. The run took {seconds:.0f} s.

### Ablations

| store | behaviour without the rule | complaint |
|---|---|---|
{ablations}
"""


def server_kills(say: Say) -> str:
    began, seed, rows = time.perf_counter(), random.getrandbits(32), []
    for ground in _servers(say, seed):
        for way in (*_ways(ground), _BY_CHANGES):
            for where, run in _kills(ground, way, seed):
                _unbroken(f"{ground.place.name} {way} {where}, seed {seed}", run.complaints)
                say(f"  {ground.place.name} {way} {where}: {run.kills:,} kills, {run.finding.redos:,} redone")
                counts = figures((run.kills, *_counts(run), run.finding.redos, *_wrong(run)))
                rows.append(f"| {ground.place.name} | {NAMES[way]} | {where} | {counts} |")
    return _page(_SERVER_KILLS, began, rows, seed=seed)


def _kills(ground: Ground, way: Way, seed: int) -> Iterator[tuple[str, Run]]:
    place = ground.place
    named = total(strike_at(way, point, place=place) for point in points_of(way, remote=True))
    sound(f"{place.name} {way} at named points", named)
    yield "at named points", named
    if way == _BY_CHANGES:
        return
    yield "at every request", total(sweep(way, "sent", events=1, place=place))
    if place.name != "Redis Cluster":
        yield "at random", at_random(way, _KILLS, seed, place=place)


def server_zombies(say: Say) -> str:
    began, rows, caught = time.perf_counter(), [], []
    for ground in _servers(say):
        for way in _ways(ground):
            rising: Rising = total(rise(way, point, _ZOMBIES, place=ground.place) for point in STOPS[way])
            _unbroken(f"{ground.place.name} {way}", rising.complaints)
            say(f"  {ground.place.name} {way}: {rising.zombies} zombies")
            counts = figures((rising.zombies, *_counts(rising), len(rising.stale)))
            rows.append(f"| {ground.place.name} | {NAMES[way]} | {counts} |")
        unfenced = rise("run", "half-way", 2, place=ground.place, ablation="unfenced")
        caught.append(_caught(ground, "neither owner nor fence is compared", unfenced.complaints, "event-0"))
    return _page(_SERVER_ZOMBIES, began, rows, ablations="\n".join(caught))


def network(say: Say) -> str:
    began, seed, rows = time.perf_counter(), random.getrandbits(32), []
    for ground in _servers(say, seed, without="redis-cluster"):
        for way in _ways(ground):
            run: Storm = storm(ground, way, _CUTS, seed)
            _unbroken(f"{ground.place.name} {way}, seed {seed}", run.complaints)
            say(f"  {ground.place.name} {way}: {run.cuts} cuts, {run.history.unanswered} unanswered")
            struck = [run.struck.get(kind, 0) for kind in KINDS]
            counts = figures((run.cuts, *struck, *_counts(run), run.history.unanswered, *_wrong(run)))
            rows.append(f"| {ground.place.name} | {NAMES[way]} | {counts} |")
    return _page(_NETWORK, began, rows, seed=seed, kinds=" | ".join(KINDS), lines="--:|" * len(KINDS))


def buses(say: Say) -> str:
    """Every bus between a service and a worker that are killed, and a control that must lose events."""
    seed, rows = random.SystemRandom().randrange(2**32), list[str]()
    for bus in BUSES:
        verdict = through(bus, events=_BUS_EVENTS, kills=_BUS_KILLS, seed=seed)
        if verdict.verified:
            raise Wrong(f"{bus}: {verdict}, seed {seed}")
        rows.append(_bus_row(bus, "`lease`", _BUS_EVENTS, verdict.effects, verdict.repeats, verdict.seconds))
        say(f"  {bus}: {verdict.effects:,} effects in {verdict.seconds:.0f} s")
    control = through("NATS", events=_BUS_EVENTS // 10, kills=_BUS_KILLS, seed=seed, mode="mark_first", patience=15)
    if not control.verified:
        raise Wrong("the control has lost no event")
    rows.append(_bus_row("NATS", "`mark_first`", _BUS_EVENTS // 10, control.effects, control.repeats, control.seconds))
    return _BUSES.format(kills=_BUS_KILLS, rows="\n".join(rows), seed=seed)


def _bus_row(bus: str, mode: str, events: int, effects: int, repeats: int, seconds: float) -> str:
    lost, doubled = max(0, events - effects), max(0, effects - events)
    return (
        f"| {bus} | {mode} | {_BUS_KILLS} | {events:,} | {effects:,} | {repeats} | {lost} | {doubled} | {seconds:.0f} |"
    )


def restarts(say: Say) -> str:
    began, seed, rows = time.perf_counter(), random.getrandbits(32), []
    say(f"  seed {seed}")
    for opened in (grounds.redis("--appendfsync", "always"), grounds.postgres()):
        with opened as ground:
            for way in _ways(ground):
                run = restart(ground, way, _RESTARTS, seed)
                _unbroken(f"{ground.place.name} {way}, seed {seed}", run.complaints)
                say(f"  {ground.place.name} {way}: {_RESTARTS} restarts")
                counts = (_RESTARTS, *_counts(run), run.history.unanswered, *_wrong(run))
                rows.append(f"| {ground.place.name} | {NAMES[way]} | {figures(counts)} |")
    return _page(_RESTARTS_PAGE, began, rows, seed=seed)


def promotions(say: Say) -> str:
    began, seed, rows = time.perf_counter(), random.getrandbits(32), []
    say(f"  seed {seed}")
    for wait, lag, times in ((0, 0.0, _PROMOTIONS), (0, _LAG, _LAGGING), (1, _LAG, _PROMOTIONS)):
        with grounds.promoting(wait, lag) as ground:
            worlds = range(seed, seed + times // _PROMOTIONS_OF_A_WORLD)
            run: Run = total(restart(ground, "run", _PROMOTIONS_OF_A_WORLD, each) for each in worlds)
        forgotten = len(run.finding.unsettled) + sum("ended under" in broken for broken in run.history.broken)
        _unbroken(f"wait_replicas={wait}, seed {seed}", run.complaints if wait else list(run.finding.lost))
        if lag and not wait and not forgotten:
            raise Wrong("a replica that lags has taken over, and nothing is forgotten: nothing was tested")
        say(f"  wait_replicas={wait}, {lag:g} s behind: {times} promotions, {forgotten} forgotten")
        counts = figures((times, *_counts(run), run.history.unanswered, forgotten, *_wrong(run)))
        rows.append(f"| {wait} | {'lags' if lag else 'follows'} | {counts} |")
    return _page(_PROMOTIONS_PAGE, began, rows, seed=seed, lag=_LAG)


def history(say: Say) -> str:
    began, seed, rows, caught = time.perf_counter(), random.getrandbits(32), [], []
    together = Check()
    for ground in _servers(say, seed, without=None):
        found = _stressed(ground, seed)
        _unbroken(f"{ground.place.name}, seed {seed}", found.complaints)
        say(f"  {ground.place.name}: {found.operations:,} operations on {found.keys:,} keys")
        rows.append(f"| {ground.place.name} | {_checked(found)} |")
        together += found
        for ablation, (instead, sign) in _ABLATIONS.items():
            broken = stressed(ground, 2_000, seed, ablation).broken
            caught.append(_caught(ground, instead, [f"history: {each}" for each in broken], sign))
    text = {"together": _checked(together), "ablations": "\n".join(caught)}
    return _page(_HISTORY, began, rows, seed=seed, **text)


_ABLATIONS: Final = {
    "unfenced": ("neither owner nor fence is compared", "was accepted after"),
    "settled once": ("a repeated settlement is refused", "was refused to its owner"),
}


def _stressed(ground: Ground, seed: int) -> Check:
    worlds = range(seed, seed + _OPERATIONS // _OPERATIONS_OF_A_WORLD)
    return total(stressed(ground, _OPERATIONS_OF_A_WORLD, each) for each in worlds)


def _checked(found: Check) -> str:
    counts = (found.operations, found.keys, found.grants, found.takeovers, found.refused, len(found.broken))
    return figures(counts)


# ── all ───────────────────────────────────────────────────────────────────────────────────────────────────


def _servers(say: Say, seed: int | None = None, without: str | None = "sqlite") -> Iterator[Ground]:
    """Start each server in turn. SQLite and the store `without` are left out; with None, no store is."""
    if seed is not None:
        say(f"  seed {seed}")
    left_out = () if without is None else ("sqlite", without)
    for name, opened in GROUNDS.items():
        if name not in left_out:
            with opened() as ground:
                yield ground


def _ways(ground: Ground) -> list[Way]:
    return [way for way in WAYS if way != "transaction" or ground.place.transacts]


def _counts(run: Run | Storm | Rising) -> tuple[int, int, int]:
    return run.finding.events, run.finding.attempted, run.finding.applied


def _wrong(run: Run | Storm) -> tuple[int, int]:
    return len(run.finding.lost), len(run.finding.doubled)


def _unbroken(what: str, complaints: list[str]) -> None:
    if complaints:
        raise Wrong(f"{what}: {complaints}")


def _caught(ground: Ground, instead: str, complaints: list[str], sign: str) -> str:
    complaint = next((each for each in complaints if sign in each), None)
    if complaint is None:
        raise Wrong(f"{ground.place.name}: {instead}, and it is not caught")
    return f"| {ground.place.name} | {instead} | {complaint} |"


def _page(page: str, began: float, rows: Iterable[str], **more: object) -> str:
    return page.format(rows="\n".join(rows), seconds=time.perf_counter() - began, **more)
