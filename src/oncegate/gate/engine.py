"""The engine: what takes identified events from a claim to an outcome, put together for one store and its config."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from oncegate.clocks import Clock
from oncegate.errors import StoreError, StoreUnavailable
from oncegate.gate.admitter import Admitter
from oncegate.gate.claimer import Claimer
from oncegate.gate.completion_cache import CompletionCache
from oncegate.gate.handlers import AsyncHandler, Handler, TransactionHandler
from oncegate.gate.job import Batch, Identified, Job, RejectedEvent
from oncegate.gate.leases import Heartbeat, Lease
from oncegate.gate.observers import Observers
from oncegate.gate.options import GateConfig
from oncegate.gate.outcome import Outcome
from oncegate.gate.settlement import CLOSE_WITHIN, SettlementPlanner, SettlementRetrier
from oncegate.gate.state_changes import StateChangeResolver
from oncegate.gate.sync_runner import RunContext, SyncRunner
from oncegate.sources import NO_HINTS, Hints
from oncegate.stores.base import JoinsTransactions, Store
from oncegate.stores.circuit_breaker import CircuitBreaker, GuardedStore

if TYPE_CHECKING:
    from oncegate.gate.async_runner import AsyncRunner


class Engine:
    def __init__(
        self,
        store: Store,
        config: GateConfig,
        boot: Clock,
        observers: Observers,
        hints: Hints = NO_HINTS,
        memory: CompletionCache | None = None,
        unsettled: SettlementRetrier | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self.config = config
        self.boot = boot
        self._observers = observers
        if config.breaker is not None and getattr(store, "remote", False):
            store = cast(Store, GuardedStore(store, CircuitBreaker(config.breaker, boot, self._breaker_told)))
        self._store = store
        self._hints = hints
        self._memory = memory = memory or CompletionCache(
            None if config.sliding else config.remember, config.retention, boot
        )
        self._heartbeat = heartbeat = heartbeat or Heartbeat(store, config.lease, config.max_hold, boot, self._lost)
        self.claimer = Claimer(store, config, boot, memory, observers, hints, heartbeat)
        self.state_changes = StateChangeResolver(store, config, self.claimer, observers)
        self._unsettled = unsettled = unsettled or SettlementRetrier(store, boot, memory.settled)
        self._context = RunContext(
            store, config, boot, self.claimer, SettlementPlanner(config, boot), heartbeat, memory, unsettled, observers
        )
        self.runner = SyncRunner(self._context)

    def under(self, **changes: Any) -> "Engine":
        """Another engine for the same store, with these config changed. What one learns the other knows: what is
        completed, what is not yet confirmed, and whether the store answers; and, if their leases are alike, what is
        held."""
        config = replace(self.config, **changes, breaker=None)  # the store is behind its breaker already
        alike = (config.lease, config.max_hold) == (self.config.lease, self.config.max_hold)
        return Engine(
            self._store,
            config,
            self.boot,
            self._observers,
            self._hints,
            self._memory,
            self._unsettled,
            self._heartbeat if alike else None,
        )

    def through(self, identified: Sequence[Identified], handler: Handler) -> list[Outcome]:
        """Claim all, run what is granted or may run unguarded, settle it; one outcome for each, in order."""
        if len(identified) == 1 and type(only := identified[0]) is Job and only.key.change is None:
            return [self._one_through(only, handler)]
        batch = Batch(identified, self.state_changes.resolve)
        self.claimer.claim(batch.jobs)
        self.runner.run(batch.jobs, handler)
        self.runner.run_unguarded([*batch.jobs, *batch.bare], handler)
        if batch.echoing:
            self.state_changes.confirm(batch.items)
        return batch.outcomes

    def _one_through(self, job: Job, handler: Handler) -> Outcome:
        """The same for one job alone, without what only several need."""
        jobs = [job]
        self.claimer.claim(jobs)
        self.runner.run(jobs, handler)
        if job.unguarded is not None:
            self.runner.run_unguarded(jobs, handler)
        return job.outcome

    def transact(self, job: Job, handler: TransactionHandler, connection: Any) -> None:
        """Claim one and run it in a transaction; it has its outcome afterwards. Nothing runs unguarded here."""
        if connection is not None:
            try:
                cast(JoinsTransactions, self._store).check_connection(connection)  # the gate has asked whether it can
            except StoreError as error:
                job.outcome = Outcome("failed", job.event, job.key, error=str(error))
                return
        self.state_changes.resolve([job])
        if not job.answered:
            self.claimer.claim([job])
            if job.held:
                self.runner.transact(job, handler, connection)
        if job.unguarded is not None:
            job.outcome = Outcome("failed", job.event, job.key, error=job.unguarded)
        self.state_changes.confirm([job])

    def admit(self, identified: Sequence[Identified]) -> list[Outcome]:
        """Have the store keep all, to be taken later; one outcome for each, in order."""
        return self.admitter.through(identified)

    async def aadmit(self, identified: Sequence[Identified], run_now: int = 0) -> list[Job | RejectedEvent]:
        """The same, beside others that come at the same time: all have their outcome. Up to so many may come back held,
        to be run here at once."""
        items = self.admitter.keyed(identified)
        jobs = [item for item in items if isinstance(item, Job)]
        for job in jobs[:run_now]:
            job.run_now = True
        await self.concurrent.admit(jobs)
        return items

    def mark(self, job: Job) -> bool:
        """Mark one as done without running anything; False if it was known. Raises StoreError."""
        self.state_changes.place([job])
        if job.answered and job.outcome.status == "skipped":
            return False
        if job.answered:
            raise StoreUnavailable(job.outcome.reason)
        marked = self.claimer.mark(job)
        if job.emission is not None:
            self.claimer.mark(Job(job.event, job.emission, job.payload_hash))
        return marked

    async def athrough(self, item: Identified, handler: AsyncHandler | Handler) -> Outcome:
        """The same for one, beside others that come at the same time."""
        if not isinstance(item, RejectedEvent):
            await self.concurrent.run(item, handler)
        return item.outcome

    def close(self) -> None:
        if "concurrent" in self.__dict__:
            self.concurrent.close()
        else:
            self._unsettled.flush(CLOSE_WITHIN)

    def give_up(self) -> None:
        """What is not confirmed by now will not be: the store is about to be closed."""
        self._unsettled.give_up()

    @property
    def hung(self) -> int:
        """How many plain handlers have run for longer than `handler_timeout`, or `max_hold` without one."""
        return self.concurrent.threads.hung if "concurrent" in self.__dict__ else 0

    @property
    def threads_left(self) -> int:
        """How many threads can still run plain handlers."""
        return self.concurrent.threads.left if "concurrent" in self.__dict__ else self.config.threads

    @cached_property
    def concurrent(self) -> "AsyncRunner":
        """Made when first used: asyncio would cost every cold start that does without it."""
        from oncegate.gate.async_runner import AsyncRunner

        return AsyncRunner(self._context, self.runner, self.state_changes, self.admitter)

    @cached_property
    def admitter(self) -> Admitter:
        return Admitter(
            self._store, self.config, self.boot, self.claimer, self.runner, self.state_changes, self._observers
        )

    def _breaker_told(self, name: str, why: str) -> None:
        self._observers.notify(name, detail=why)

    def _lost(self, lease: Lease) -> None:
        self._observers.notify("lease.lost", detail=lease.key.hex())
