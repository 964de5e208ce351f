"""The engine: what takes identified events from a claim to an outcome, put together for one store and its terms."""

from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from oncegate.clocks import Clock
from oncegate.gate.claiming import Claimer
from oncegate.gate.endings import Endings
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.jobs import Bare, Identified, Job, Refused, coalesce, only
from oncegate.gate.leases import Heartbeat, Lease
from oncegate.gate.observing import Observers
from oncegate.gate.outcome import Outcome
from oncegate.gate.remembering import Memory
from oncegate.gate.running import Runner
from oncegate.gate.terms import Terms
from oncegate.stores.base import Store

if TYPE_CHECKING:
    from oncegate.gate.concurrent import Concurrent


class Engine:
    def __init__(self, store: Store, terms: Terms, boot: Clock, observers: Observers) -> None:
        self._terms = terms
        self._boot = boot
        self._observers = observers
        self._endings = Endings(terms)
        memory = Memory(None if terms.sliding else terms.remember, terms.retention, boot)
        self.claimer = Claimer(store, terms, boot, memory, observers)
        self._heartbeat = Heartbeat(store, terms.lease, terms.max_hold, boot, self._lost)
        self.runner = Runner(store, terms, boot, self.claimer, self._endings, self._heartbeat, memory)

    def through(self, identified: Sequence[Identified], handler: Handler) -> list[Outcome]:
        items = coalesce(identified)
        jobs = only(Job, items)
        self.claimer.claim(jobs)
        self.runner.run(jobs, handler)
        self.runner.run_unguarded([*jobs, *only(Bare, items)], handler)
        return [answered(item.outcome) for item in items]

    async def athrough(self, item: Identified, handler: AsyncHandler | Handler) -> Outcome:
        if not isinstance(item, Refused):
            await self.concurrent.run(item, handler)
        return answered(item.outcome)

    @cached_property
    def concurrent(self) -> "Concurrent":
        """Made when first used: asyncio would cost every cold start that does without it."""
        concurrent: Concurrent = import_module("oncegate.gate.concurrent").Concurrent(
            self._terms, self._boot, self.claimer, self._endings, self.runner, self._heartbeat
        )
        return concurrent

    def _lost(self, lease: Lease) -> None:
        self._observers.tell("lease.lost", detail=lease.key.hex())


def answered(outcome: Outcome | None) -> Outcome:
    assert outcome is not None  # noqa: S101  # claiming or running has set it
    return outcome
