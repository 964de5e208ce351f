"""The engine takes identified events from the claim to the outcome. An engine has one store and one configuration."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from oncegate.clocks import Clock
from oncegate.errors import SettingError, StoreError, StoreUnavailable
from oncegate.gate.claimer import Claimer, guarded
from oncegate.gate.completion_cache import CompletionCache
from oncegate.gate.dead_letters import DeadLetters
from oncegate.gate.handlers import AsyncHandler, Handler, TransactionHandler
from oncegate.gate.job import Batch, Identified, Job, RejectedEvent, storable
from oncegate.gate.leases import Heartbeat, Lease
from oncegate.gate.observers import Observers
from oncegate.gate.options import GateConfig
from oncegate.gate.outcome import Outcome
from oncegate.gate.settlement import CLOSE_WITHIN, SettlementPlanner, SettlementRetrier
from oncegate.gate.state_changes import StateChangeResolver
from oncegate.gate.sync_runner import RunContext, SyncRunner, refuse_unguarded
from oncegate.sources import NO_HINTS, Hints
from oncegate.stores.base import Inbox, JoinsTransactions, Store
from oncegate.stores.circuit_breaker import CircuitBreaker

_SAMPLE: Final = 100

if TYPE_CHECKING:
    from oncegate.gate.async_runner import AsyncRunner
    from oncegate.previous.lookup import PreviousPlace


class Engine:
    def __init__(
        self,
        store: Store,
        config: GateConfig,
        boot: Clock,
        observers: Observers,
        hints: Hints = NO_HINTS,
        cache: CompletionCache | None = None,
        retrier: SettlementRetrier | None = None,
        heartbeat: Heartbeat | None = None,
        previous: "PreviousPlace | None" = None,
    ) -> None:
        self.config = config
        self.boot = boot
        self._observers = observers
        self.breaker: CircuitBreaker | None = None
        if config.breaker is not None and getattr(store, "remote", False):
            self.breaker = CircuitBreaker(config.breaker, boot, self._notify_breaker)
            store = guarded(store, self.breaker)
        self._store = store
        self._hints = hints
        self._cache = cache or CompletionCache(None if config.sliding else config.remember, config.retention, boot)
        self._heartbeat = heartbeat or Heartbeat(store, config.lease, config.max_hold, boot, self._notify_lost)
        self._retrier = retrier or SettlementRetrier(store, boot, self._cache.add_settled)
        self.dead_letters = DeadLetters(store, config, self._cache, observers, hints)
        self._previous = previous or self._open_previous()
        self.claimer = Claimer(
            store, config, boot, self._cache, observers, hints, self._heartbeat, self.dead_letters, self._previous
        )
        self.state_changes = StateChangeResolver(store, config, self.claimer, self.dead_letters, observers)
        self._context = RunContext(
            store,
            config,
            boot,
            self.claimer,
            self.dead_letters,
            SettlementPlanner(config, boot),
            self._heartbeat,
            self._cache,
            self._retrier,
            observers,
        )
        self.runner = SyncRunner(self._context)

    def under(self, **changes: Any) -> "Engine":
        """Returns a second engine for the same store, with a changed configuration. The two engines share the
        completion cache, the settlements to retry and the circuit breaker. If `lease` and `max_hold` do not change,
        they also share the heartbeat."""
        config = replace(self.config, **changes, breaker=None)  # the store is already behind a circuit breaker
        same_leases = (config.lease, config.max_hold) == (self.config.lease, self.config.max_hold)
        return Engine(
            self._store,
            config,
            self.boot,
            self._observers,
            self._hints,
            self._cache,
            self._retrier,
            self._heartbeat if same_leases else None,
            self._previous,
        )

    def run(self, item: Identified, handler: Handler) -> Outcome:
        """Claim one event, run its handler and settle the event."""
        if type(item) is not Job or item.key.change is not None:
            return self.run_batch([item], handler)[0]
        jobs = [item]
        if self._previous is not None:
            self.claimer.look_up(jobs)
            if item.answered:
                return item.outcome
        self.claimer.claim(jobs)
        self.runner.run(jobs, handler)
        if item.unguarded is not None:
            self.runner.run_unguarded(jobs, handler)
        return item.outcome

    def run_batch(self, identified: Sequence[Identified], handler: Handler) -> list[Outcome]:
        """Claim all events with one write, run their handlers and settle them. Returns one outcome for each event, in
        order."""
        if self._previous is not None:
            self.claimer.look_up([item for item in identified if type(item) is Job])
        batch = Batch(identified, self.state_changes.resolve)
        self.claimer.claim(batch.jobs)
        self.runner.run(batch.jobs, handler)
        self.runner.run_unguarded([*batch.jobs, *batch.unclaimed], handler)
        if batch.state_changes:
            self.state_changes.confirm(batch.items)
        return batch.outcomes

    async def arun(self, item: Identified, handler: AsyncHandler | Handler) -> Outcome:
        """Claim one event, run its handler and settle the event, from a coroutine. Concurrent coroutines share their
        writes."""
        if not isinstance(item, RejectedEvent):
            await self.async_runner.run(item, handler)
        return item.outcome

    def transact(self, job: Job, handler: TransactionHandler, connection: Any) -> None:
        """Claim one event and run it in a transaction. Sets `job.outcome`. No event runs unguarded here."""
        if connection is not None:
            try:
                cast(JoinsTransactions, self._store).check_connection(connection)  # the gate has checked the type
            except StoreError as error:
                job.outcome = job.failed(str(error))
                return
        self.claimer.look_up([job])
        self.state_changes.resolve([job])
        if not job.answered:
            self.claimer.claim([job])
            if job.held:
                self.runner.transact(job, handler, connection)
        refuse_unguarded([job])
        self.state_changes.confirm([job])

    def admit(self, identified: Sequence[Identified]) -> list[Outcome]:
        """Store all events until they are taken. Returns one outcome for each event, in order."""
        items = storable(identified)
        jobs = [item for item in items if isinstance(item, Job)]
        self.claimer.look_up(jobs)
        self.state_changes.resolve(jobs)
        batch = Batch(items)
        if call := self.runner.admit_call(batch.jobs):
            call.execute(self.boot)
        refuse_unguarded(jobs)
        self.state_changes.confirm(batch.items)
        return batch.outcomes

    def kept(self, limit: int) -> int:
        """Returns how many events the inbox holds; `limit` if it holds more. Raises StoreError."""
        return cast(Inbox, self._store).kept(self.config.namespace, limit)

    def has_published(self, destination: str) -> bool:
        """Look at 100 records, and return whether one of them says that a gate of this namespace has published its
        event to this destination. The keys of records are digests, so this is a random sample. Raises StoreError."""
        page = self._store.browse(self.config.namespace, limit=_SAMPLE)
        return any(entry.record.handed_to == destination for entry in page)

    def mark(self, job: Job) -> bool:
        """Mark one event as done without running a handler. Returns False if the event was already known, is skipped or
        is buried. Raises StoreError."""
        self.claimer.look_up([job])
        self.state_changes.place([job])
        if job.marked_for is not None and not job.answered:
            self.claimer.claim([job])
            job.answered = True
        if job.answered and not job.outcome.acked:
            raise StoreUnavailable(job.outcome.reason)
        if job.answered:
            return False
        marked = self.claimer.mark(job)
        if job.emission is not None:
            self.claimer.mark(Job(job.event, job.emission, job.payload_hash))
        return marked

    def close(self) -> None:
        if "async_runner" in self.__dict__:
            self.async_runner.close()
        else:
            self._retrier.flush(CLOSE_WITHIN)

    def give_up(self) -> None:
        """Stop retrying settlements, and close the old place. To be called before the store is closed."""
        self._retrier.give_up()
        if self._previous is not None:
            self._previous.close()

    @property
    def hung(self) -> int:
        """The number of plain handlers that have run for longer than `handler_timeout`; longer than `max_hold` if there
        is no `handler_timeout`."""
        return self.async_runner.threads.hung if "async_runner" in self.__dict__ else 0

    @property
    def threads_left(self) -> int:
        """The number of threads that can still run plain handlers."""
        return self.async_runner.threads.left if "async_runner" in self.__dict__ else self.config.threads

    @cached_property
    def async_runner(self) -> "AsyncRunner":
        """Created at the first use. Importing asyncio would slow down the cold start of programs that do not need
        it."""
        from oncegate.gate.async_runner import AsyncRunner

        return AsyncRunner(self._context, self.runner, self.state_changes)

    def _open_previous(self) -> "PreviousPlace | None":
        """Open the place of the option `previous`. It has a circuit breaker of its own, like a remote store."""
        config = self.config
        if config.previous is None:
            return None
        from oncegate.previous.lookup import open_previous

        breaker = None if config.breaker is None else CircuitBreaker(config.breaker, self.boot, self._notify_breaker)
        try:
            return open_previous(config.previous, self._observers.wall, breaker)
        except SettingError as error:
            raise SettingError(f"previous: {error.text}", settings=["previous"]) from error

    def _notify_breaker(self, name: str, why: str) -> None:
        self._observers.notify(name, detail=why)

    def _notify_lost(self, lease: Lease) -> None:
        self._observers.notify("lease.lost", detail=lease.key.hex())
