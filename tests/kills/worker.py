"""The worker: a process that runs the events of its world through a gate until all are acknowledged."""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from oncegate import Event, Gate, Outcome, keys, open_store, read
from oncegate.durations import Duration
from oncegate.errors import StoreUnavailable
from oncegate.stores.base import Store
from tests.kills.ablations import ablate
from tests.kills.history import Recorder
from tests.kills.places import SQLITE, Place
from tests.kills.points import Strike, Trap, at_rest, watch, watch_statements
from tests.kills.wire import watch_sending
from tests.kills.world import World

Way: TypeAlias = Literal["run", "batch", "transaction", "change", "bare"]
WAYS: Final[tuple[Way, ...]] = ("run", "batch", "transaction")

BATCH: Final = 4
_PAUSE: Final = 0.005
_LONGEST_LIFE: Final = 100  # seconds; no worker lives longer if its driver was killed


class Plan(Struct, frozen=True):
    """How a worker works, and what happens to it.

    An effect takes `pause` seconds. With a `breaker`, a failing store is left alone for a while. Without a seed the
    events are taken in order; `only` selects some. An event in `poison` kills its worker at each start. With `fails`,
    the effect in which the worker was stopped raises. The last three fields exist to be set to wrong values.
    """

    folder: str
    events: int
    way: Way
    place: Place = SQLITE
    name: str = "worker"
    seed: int | None = None
    lease: str = "150ms"
    max_attempts: int | None = None
    pause: float = 0.0
    breaker: Duration | None = None
    poison: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    strike: Strike | None = None
    fails: bool = False
    mode: Literal["lease", "mark_first"] = "lease"
    sink_key: Literal["key", "fence"] = "key"
    ablation: str | None = None

    @property
    def world(self) -> World:
        return World(self.folder, self.events, self.place)


class Worker:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._world = plan.world
        self._trap = Trap(plan.strike)
        self._random = random.Random(plan.seed)  # noqa: S311  # must be repeatable
        if plan.strike is not None and plan.strike.point == "statement":
            watch_statements(self._trap)
        if plan.strike is not None and plan.strike.point.endswith("sent"):
            watch_sending(plan.place.scheme, self._trap)
        store = _opened(self._world.url)
        Recorder(plan.folder, plan.name).watch(store)
        watch(store, self._trap)
        self._gate = Gate(
            store,
            key=keys.state_change() if plan.way == "change" else keys.auto,
            lease=plan.lease,
            max_attempts=plan.max_attempts,
            mode=plan.mode,
            breaker=plan.breaker,
        )

    def drain(self) -> None:
        """Take unacknowledged events until none is left. A worker that survived its strike reports the outcome of its
        current events, and ends."""
        take = self._ways()[self._plan.way]
        size = BATCH if self._plan.way == "batch" else 1
        while waiting := self._waiting():
            for start in range(0, len(waiting), size):
                self._answer(take(waiting[start : start + size]))
            if self._trap.sprung:
                return
            time.sleep(_PAUSE)

    def _waiting(self) -> list[str]:
        waiting = [event for event in self._world.waiting() if not self._plan.only or event in self._plan.only]
        if self._plan.seed is not None:
            self._random.shuffle(waiting)
        return waiting

    def _answer(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if self._trap.sprung:
                self._world.say(self._plan.name, f"{outcome.event.id} {outcome.status}")
            if outcome.acked and outcome.event.id is not None:
                self._trap("before the ack")
                self._world.acknowledge(outcome.event.id)

    # ── the ways ──────────────────────────────────────────────────────────────────────────────────────────

    def _ways(self) -> dict[Way, Callable[[Sequence[str]], list[Outcome]]]:
        return {
            "run": lambda events: [self._gate.run(_payload(event), self._effect) for event in events],
            "batch": lambda events: self._gate.run_batch([_payload(event) for event in events], self._effect),
            "transaction": lambda events: [self._gate.transaction(_payload(event), self._rows) for event in events],
            "change": lambda events: [self._gate.run(_change(event), self._effect) for event in events],
            "bare": lambda events: [self._bare(event) for event in events],
        }

    def _bare(self, name: str) -> Outcome:
        """The control: the same effect without a gate, acknowledged when it is done."""
        (event,) = read(_payload(name))
        event = replace(event, key=keys.auto(event))
        self._effect(event)
        return Outcome("processed", event)

    # ── the effects ───────────────────────────────────────────────────────────────────────────────────────

    def _effect(self, event: Event) -> str:
        """An attempt that is visible outside, a pause, and a write that is idempotent on the key."""
        name = self._begin(event)
        self._pause()
        with at_rest:
            self._world.keep_once(str(getattr(event, self._plan.sink_key)), name, self._plan.name)
        self._trap("after the effect")
        return self._plan.name

    def _rows(self, event: Event, connection: Any) -> str:
        """Two rows in the transaction of the store. The attempt is visible outside in any case."""
        name = self._begin(event)
        self._world.write_half(connection, name, 1, self._plan.name)
        self._pause()
        self._world.write_half(connection, name, 2, self._plan.name)
        self._trap("after the effect")
        return self._plan.name

    def _begin(self, event: Event) -> str:
        assert event.id is not None
        self._trap("before the effect")
        self._world.attempt(event.id)
        if event.id in self._plan.poison:
            os.kill(os.getpid(), signal.SIGKILL)
        return event.id

    def _pause(self) -> None:
        time.sleep(self._plan.pause)
        self._trap("half-way")
        if self._trap.sprung and self._plan.fails:
            raise ValueError("the world has changed meanwhile")


def _opened(url: str) -> Store:
    """The store, as soon as it can be reached."""
    while True:
        try:
            return open_store(url)
        except StoreUnavailable:
            time.sleep(_PAUSE)


def _payload(event: str) -> dict[str, str]:
    return {"id": event}


def _change(event: str) -> dict[str, str]:
    """An event that is identified by the state of its conversation."""
    at = "2026-01-01T00:00:00Z"
    return {"id": event, "conversationId": f"of {event}", "type": "call", "state": "connected", "timestamp": at}


def work(plan: Plan) -> None:
    """The main function of a worker process."""
    signal.alarm(_LONGEST_LIFE)
    if plan.ablation is not None:
        ablate(plan.ablation)
    plan.world.say(plan.name, "begun")
    Worker(plan).drain()
