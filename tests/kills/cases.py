"""Cases: what is struck with one rule taken out, and the complaint that must come of it."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from tests.kills.crew import Stuck
from tests.kills.kills import Run, poison, strike
from tests.kills.points import Strike
from tests.kills.zombies import Rising, rise


class Case(NamedTuple):
    """`instead` says what is done in place of the rule; `sign` is in the complaint that must come of it."""

    name: str
    instead: str
    sign: str
    run: Callable[[], Run | Rising]

    def complaints(self) -> list[str]:
        try:
            return self.run().complaints
        except Stuck as stuck:
            return [str(stuck)]


def _killed(way: Any, point: str, **changes: Any) -> Callable[[], Run]:
    return partial(strike, way, Strike(point), **changes)


KILLED: Final = (
    Case(
        "no gate",
        "the handler is called without the gate, and its worker is killed before the acknowledgement",
        "doubled: event-0",
        _killed("bare", "before the ack"),
    ),
    Case(
        "mark first",
        "an event is completed before its effect",
        "lost: event-0",
        _killed("run", "before the effect", mode="mark_first"),
    ),
    Case(
        "mark a batch first",
        "a whole batch is completed before its effects",
        "lost: event-0, event-1",
        _killed("batch", "before the effect", mode="mark_first"),
    ),
    Case(
        "fence as key",
        "the sink uses the fence as the key of an effect",
        "doubled: event-0",
        _killed("run", "settle called", sink_key="fence"),
    ),
    Case(
        "separate commit",
        "an effect is committed before its completion, in a separate transaction",
        "doubled: event-0",
        _killed("transaction", "settle called", ablation="committed apart"),
    ),
    Case(
        "poison event in a batch",
        "an event that was tried before runs together with its batch",
        "buried for nothing: event-0, event-2",
        partial(poison, "batch", ("event-1",), max_attempts=3, ablation="in company"),
    ),
    Case(
        "uncounted attempts",
        "a poison event is retried without a limit",
        "event-1 killed 12 workers and was never buried",
        partial(poison, "run", ("event-1",), lease="50ms"),
    ),
)
STOPPED: Final = (
    Case(
        "unfenced completion",
        "neither owner nor fence is compared",
        "the record of event-0 was changed",
        partial(rise, "run", "half-way", 2, ablation="unfenced"),
    ),
    Case(
        "unfenced release",
        "neither owner nor fence is compared, and the zombie fails",
        "the record of event-0 was changed",
        partial(rise, "run", "half-way", 2, ablation="unfenced", fails=True),
    ),
    Case(
        "unfenced batch",
        "neither owner nor fence is compared in a batch",
        "zombie-0 has event-0 processed",
        partial(rise, "batch", "settle called", 2, ablation="unfenced"),
    ),
    Case(
        "unfenced transaction",
        "neither owner nor fence is compared in a transaction",
        "zombie-0 wrote a row of event-0",
        partial(rise, "transaction", "transact called", 2, ablation="unfenced"),
    ),
    Case(
        "late start",
        "an effect starts without a check of the lease",
        "an effect of event-0 began after its lease",
        partial(rise, "run", "claim written", 2, ablation="started late"),
    ),
    Case(
        "running worker abandoned",
        "the claim of a stopped worker is abandoned",
        "two owners at once",
        partial(rise, "run", "half-way", 2, ablation="abandons the living"),
    ),
)
CASES: Final = KILLED + STOPPED
