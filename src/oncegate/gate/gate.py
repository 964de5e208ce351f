"""The public API of the gate. Every event needs a claim, and for each key only one handler runs at a time.

read ─▶ key ─▶ merge copies in the batch ─▶ claim ─▶ run the handler ─▶ settle ─▶ outcome
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, overload

from oncegate import keys
from oncegate.clocks import Clock, since_boot, wall
from oncegate.durations import Duration, microseconds
from oncegate.errors import SettingError, SeveralEvents, StoreError, Unreadable
from oncegate.events import Event
from oncegate.gate.engine import Engine
from oncegate.gate.handlers import AsyncHandler, Handler, TransactionHandler, check_handler, publish_target_of
from oncegate.gate.job import ANY_DESTINATION, Identifier, Job, RejectedEvent, UnguardedEvent, set_destination
from oncegate.gate.observers import Observer, Observers
from oncegate.gate.options import GateConfig, GateOptions, check_inbox, validate
from oncegate.gate.outcome import Outcome
from oncegate.sources import NO_HINTS, Hints, read
from oncegate.stores import open_store
from oncegate.stores.base import Inbox, JoinsTransactions, Store, Transactional
from oncegate.stores.deferred import open_or_defer

if TYPE_CHECKING:
    from oncegate.gate.once import OnceFunctions
    from oncegate.ingress.inbox import InboxWorker
    from oncegate.ingress.worker import Worker
    from oncegate.signatures import Verifier

_CLOSE_WITHIN = 2.0

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Gate:
    """Runs a handler once for each event, however often the event is delivered.

    `store` is a URL or a store. `key` is the strategy that identifies events. Each of the `observers` is called with a
    `Notice` for everything that the gate does. `hints` give facts that payloads do not contain: see
    `oncegate.sources.Hints`. All other options have defaults:

    Times. `retention` is how long a completed key is remembered. With `sliding=True`, the retention is counted from the
    latest copy of the event, and a key is remembered for at most `sliding_limit`. `lease` is how long a claim lasts
    without renewal, and `max_hold` is the longest time for which a claim is renewed. `dead_letter_retention` is how
    long a dead letter is stored.

    A failed event whose payload is stored waits for `backoff` before it is retried. The pause doubles after each
    further attempt, up to `backoff_limit`. A handler may fail because a service that it calls is unavailable
    (`RetryLater`, ConnectionError, TimeoutError). If its payload is stored, or if it comes from a message bus, such an
    event is retried for `retry_for` without using up attempts.
    With `retry_for=None`, such a failure counts like any other failure.

    For the duration `remember` (at most 60 s), this process answers copies of events that it has seen completed from
    its own memory, without a call to the store. With `remember=None`, every copy is sent to the store. `breaker` sets a
    circuit breaker for remote stores. The breaker opens after five failures in a row. It also opens after five answers
    in a row that took longer than `breaker` and longer than ten times the median of the last answers. While the breaker
    is open, the store is not called for new claims, and events fail at once. `breaker=None` switches the breaker off.

    Attempts. With `max_attempts=None`, attempts are counted by the platform that redelivers events, such as a queue
    with a redrive policy. In this case the gate does not bury a failing event.

    `mode="mark_first"` marks an event as done in the same write that claims it, and runs the handler after that write.
    So the effect happens at most once. Use this mode if a lost effect is better than a repeated effect. An event that
    fails becomes a dead letter. Results are not stored.

    Policies. `on_missing_key="unguarded"` runs events without a key instead of refusing them.
    `on_store_error="unguarded"` runs events of the `unguarded_types` without a claim when the store does not answer. It
    also allows the gate to be created while a remote store cannot be reached.
    `on_conflict` applies to an event whose key is known with different content. "bury" stores the event as a dead
    letter, "run" runs it as a separate event, and "duplicate" drops it. `on_replay="run"` runs a replayed event once
    more for each replay name. Events that happened more than `max_age` ago are counted. With `on_too_old="bury"` they
    are also buried.

    Limits. A result of more than `max_result` bytes is not stored for duplicates. `arun` processes up to `max_in_hand`
    events at a time and runs plain handlers in up to `threads` threads; other callers wait. `handler_timeout` applies
    to the handlers of `arun`, of a worker and of the inbox: a handler that runs longer than this fails its event. An
    async handler is then cancelled. A plain handler cannot be stopped. It keeps its thread, and a new thread replaces
    that thread; at most `threads` threads are replaced in this way.

    `namespace` separates the users of one store. `previous` is the URL of a table, or of keys in Redis, in which
    earlier code has marked processed events. The gate looks up each event there before it claims the event. An event
    that is marked there is a duplicate. If that place does not answer, the event fails.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        key: Callable[[Event], Any] = keys.auto,
        observers: Sequence[Observer] = (),
        hints: Hints = NO_HINTS,
        boot: Clock = since_boot,
        wall: Clock = wall,
        **options: Unpack[GateOptions],
    ) -> None:
        self._config = config = validate(options)
        self._observers = Observers(observers, config.namespace, wall)
        self._wall = wall
        self._identify = Identifier(key, config, wall, self._observers)
        self._hints = _checked(hints)
        self.store = _opened(store, config)
        self._engine = Engine(self.store, config, boot, self._observers, hints)

    def run(self, payload: Any, handler: Handler) -> Outcome:
        """Take one event through the gate. The payload is an Event, or bytes, text or parsed JSON that contains exactly
        one event."""
        check_handler(handler)
        item = self._identify(self._only_event(payload))
        if (destination := publish_target_of(handler)) is not None:
            set_destination(destination, [item])
        outcome = self._engine.run(item, handler)
        self._observers.outcomes([outcome])
        return outcome

    def run_batch(self, payloads: Iterable[Any], handler: Handler) -> list[Outcome]:
        """Take all events of these payloads through the gate. Returns one outcome for each event, in order.

        The events are claimed with one write and settled with a few writes, so the lease must cover the whole batch."""
        events = self._all_events(payloads, "run_batch")
        check_handler(handler)
        identified = set_destination(publish_target_of(handler), [self._identify(event) for event in events])
        return self._observed(self._engine.run_batch(identified, handler))

    async def arun(self, payload: Any, handler: AsyncHandler | Handler, *, wait: Duration | Literal[0] = 0) -> Outcome:
        """Take one event through the gate, from a coroutine; the handler may be async or plain.

        While another worker runs the event, a copy waits up to `wait` for that run to end. If the run has not ended
        after `wait`, the outcome of the copy is `in_flight`. Up to half of `max_in_hand` copies wait at a time; further
        copies do not wait.

        Concurrent callers share their writes. A plain handler runs in a thread. An async handler is cancelled when its
        lease is lost or the caller is cancelled, and its event is released. A plain handler cannot be stopped. It runs
        to its end, and its event is settled after that."""
        check_handler(handler, may_await=True)
        longest = microseconds(wait, "wait", or_none=True) if wait else 0
        event, destination = self._only_event(payload), publish_target_of(handler)

        def attempt() -> Awaitable[Outcome]:
            (item,) = set_destination(destination, [self._identify(event)])
            return self._engine.arun(item, handler)

        outcome = await attempt()
        if longest and outcome.status == "in_flight":
            outcome = await self._engine.async_runner.in_flight_waiters.wait(outcome, attempt, longest)
        return self._observed([outcome])[0]

    @overload
    def once(self, function: Callable[_P, _R]) -> Callable[_P, _R]: ...

    @overload
    def once(
        self, *, name: str | None = None, key: Callable[[Event], Any] | None = None, wait: Duration | Literal[0] = "10s"
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...

    def once(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        key: Callable[[Event], Any] | None = None,
        wait: Duration | Literal[0] = "10s",
    ) -> Callable[..., Any]:
        """Make a function, plain or async, or a method take effect once for each set of arguments.

        A further call with the same arguments returns the result of the first call, as decoded from JSON. While another
        call with the same arguments runs, a call waits for up to `wait` and then raises InFlight. With `wait=0` it does
        not wait. A call raises Conflict or Buried if its outcome has that status.

        `name` identifies the function. The default is the module and the qualified name of the function. If you rename
        a function and have not passed a name, all its calls count as new. `key` is a strategy, or any function that
        takes an Event; the body of this Event has the arguments by name. By default all arguments are part of the key,
        except for the object of a method."""
        longest = microseconds(wait, "wait", or_none=True)
        if self._config.marks_first:
            raise SettingError("once() returns stored results, and mode='mark_first' stores none; use mode='lease'")

        def guard(function: Callable[..., Any]) -> Callable[..., Any]:
            return self._once_functions.guard(function, name, key, longest)

        return guard if function is None else guard(function)

    @cached_property
    def _once_functions(self) -> "OnceFunctions":
        """Created at the first use. The imports of this module would slow down the cold start of programs that do not
        use `once`."""

        def identifier(key: Callable[[Event], Any]) -> Identifier:
            return Identifier(key, self._config, self._wall, self._observers)

        from oncegate.gate.once import OnceFunctions

        return OnceFunctions(self._engine, self._observers, identifier)

    def transaction(self, payload: Any, handler: TransactionHandler, *, connection: Any = None) -> Outcome:
        """Take one event through the gate. Its effect and its completion are committed in one transaction, so the
        effect happens exactly once.

        The handler gets the event and a connection to the store's database. On DynamoDB, it gets an object that
        collects its writes. The writes of the handler are committed together with the completion, or not at all. The
        handler must not commit and must not keep the connection. It should be fast: on SQLite, no other process or
        thread can write while the handler runs. On Postgres, `connection` may be your own connection to the same
        database: a psycopg connection, or a session or connection of SQLAlchemy. It must not be in a transaction yet,
        and it is committed here. No event runs unguarded in this mode."""
        check_handler(handler, arguments=2)
        if not isinstance(self.store, Transactional):
            raise SettingError("transaction() needs a store with transactions, such as sqlite:///oncegate.db")
        if self._config.marks_first:
            raise SettingError(
                "transaction() completes an event with its effect; mode='mark_first' completes it before its effect"
            )
        if connection is not None and not isinstance(self.store, JoinsTransactions):
            raise SettingError("connection= is for Postgres; with this store, the handler gets its connection from us")
        item = self._identify(self._only_event(payload))
        if isinstance(item, UnguardedEvent):
            item.outcome = item.refusal
        elif isinstance(item, Job):
            self._engine.transact(item, handler, connection)
        return self._observed([item.outcome])[0]

    def lambda_handler(
        self,
        function: AsyncHandler | Handler,
        *,
        reserve: Duration = "1s",
        signature: "Verifier | None" = None,
        report_failures: bool | None = None,
        allow_unknown_sources: bool = False,
    ) -> Callable[[Any, Any], dict[str, Any]]:
        """Returns the handler of an AWS Lambda function. The handler runs `function` once for each event.

        The handler detects the kind of each invocation and answers accordingly. For a batch from SQS, Kinesis, Kafka or
        a pipe, it returns the failed records. For other invocations, it returns an HTTP response or a result, or raises
        NotTaken, so that the event is delivered again. An async function runs in an event loop that is reused by all
        invocations.

        `reserve` is the time at the end of an invocation in which no handler starts. Events that have not started
        before this time are delivered again. `reserve` should be a little longer than the function needs for one event.
        At most half of the invocation's time is reserved. If the platform redelivers events, the platform also counts
        the attempts, and `max_attempts` has no effect. For HTTP requests, `max_attempts` applies.

        With a `signature`, such as `oncegate.signatures.cxone(secret)`, HTTP requests without a valid signature are
        refused before they are read. Other invocations need no signature.

        An event source mapping without ReportBatchItemFailures treats every answer as success. With
        `report_failures=False`, a batch with a failed record raises NotTaken, and the failed record is not reported. By
        default the failed records of SQS and of streams are reported. A Kafka batch with a failed record raises
        NotTaken by default, because Kafka mappings read the report only in provisioned mode. With
        `report_failures=True`, the failed records of Kafka are reported, too.

        An AWS invocation of a kind that Oncegate cannot read, such as a Cognito trigger, raises UnknownSource. With
        `allow_unknown_sources=True`, such an invocation runs as one plain event."""
        if self._identify.by_webhook_id and not getattr(signature, "signs_id", False):
            raise SettingError("key=keys.webhook_id needs signature=oncegate.signatures.standard_webhooks(secret)")
        from oncegate.ingress.lambda_handler import LambdaHandler

        return LambdaHandler(
            function,
            microseconds(reserve, "reserve"),
            engine=self._engine,
            read=self._events,
            identify=self._identify,
            observers=self._observers,
            wall=self._wall,
            signature=signature,
            report_failures=report_failures,
            allow_unknown_sources=allow_unknown_sources,
        )

    def worker(
        self,
        queue: str,
        handler: AsyncHandler | Handler,
        *,
        batch: int = 10,
        wait: Duration = "20s",
        visibility: Duration = "30s",
        in_hand: int = 100,
        receivers: int = 4,
        drain: Duration = "25s",
    ) -> "Worker":
        """Returns a worker for a queue or a bus. `queue` is `sqs://NAME?region=eu-central-1`, the queue URL that AWS
        shows, `kafka://HOST/TOPIC?group=NAME`, `nats://HOST/STREAM?consumer=NAME`, or `amqp://HOST/QUEUE`.

        `run()` takes the queue's messages through the gate until `stop()`, SIGTERM or Ctrl-C. Handlers that run at this
        time have up to `drain` to end. A message is acknowledged (SQS: deleted) when all its events are acknowledged.
        Otherwise the message is delivered again. SQS counts the attempts: a failing event is not buried here, and
        `max_attempts` has no effect. Kafka, NATS and RabbitMQ do not: a failing event becomes a dead letter after
        `max_attempts`, and so does an invalid event. With `dead_letters=queue` in its URL, a RabbitMQ queue counts.
        Kafka cannot deliver one message again: the worker runs a failing event again itself, and after some attempts
        moves it to the inbox of the store, which it also runs, or to a retry topic.

        Each long poll waits up to `wait` for up to `batch` messages, and up to `receivers` polls run at a time. The
        worker has at most about `in_hand` events in flight. A message is hidden from other workers for `visibility`.
        This time is extended while the message is in flight, for up to the gate's `max_hold`. Events of the same entity
        run one after the other. Events of the same message group of a FIFO queue also run one after the other. A worker
        of RabbitMQ has no polls: only `in_hand` and `drain` have an effect."""
        check_handler(handler, may_await=True)
        from oncegate.ingress import counts_attempts, open_worker
        from oncegate.ingress.worker import WorkerContext

        options = {
            "batch": batch,
            "wait": wait,
            "visibility": visibility,
            "in_hand": in_hand,
            "receivers": receivers,
            "drain": drain,
        }
        counted = counts_attempts(queue)
        engine = self._engine.under(max_attempts=None) if counted else self._engine.under(owns_retries=True)
        identify = partial(self._identify, trusted=True)
        inbox = self.inbox if self._has_inbox and not self._config.marks_first else None
        context = WorkerContext(engine, self._events, identify, self._observers, engine.boot, self.keep, inbox)
        return open_worker(queue, handler, options, context)

    def seen(self, payload: Any) -> bool:
        """Mark this event as seen, and return whether it was seen before. Many tutorials call this `is_duplicate`.

        The event takes effect at most once. If `seen` returns False and then your code fails or the process dies, the
        event counts as seen and is lost. If you do not want this, use `run`. Raises if the payload is not an event, if
        the event has no key, or if the store does not answer. If a policy lets such events run unguarded, `seen`
        returns False instead."""
        item = self._identify(self._only_event(payload))
        if isinstance(item, RejectedEvent):
            raise Unreadable(item.outcome.reason)
        if isinstance(item, UnguardedEvent):
            return False
        try:
            return not self._engine.mark(item)
        except StoreError:
            if not self._config.unguarded(item.event):
                raise
            self._observers.notify("policy.store_error", item.event, item.key, detail="unguarded")
            return False

    def admit(self, payloads: Iterable[Any]) -> list[Outcome]:
        """Store all events of these payloads until they are run. Returns one outcome for each event, in order.

        An "accepted" event is durable. An `inbox` worker, in this process or another, runs it. The other outcomes are
        the same as those of `run_batch`. A copy of an event that is stored or processed is a duplicate."""
        self._check_inbox("admit()")
        identified = [self._identify(event) for event in self._all_events(payloads, "admit")]
        return self._observed(self._engine.admit(set_destination(ANY_DESTINATION, identified)))

    async def aadmit(self, payload: Any) -> list[Outcome]:
        """Store all events of one payload until they are run, from a coroutine. Returns one outcome for each event, in
        order. Concurrent callers share their writes."""
        self._check_inbox("aadmit()")
        identified = set_destination(ANY_DESTINATION, [self._identify(event) for event in self._events(payload)])
        items = await self._engine.async_runner.admit(identified)
        return self._observed([item.outcome for item in items])

    def inbox(
        self,
        handler: AsyncHandler | Handler,
        *,
        at_work: int = 64,
        look: Duration = "250ms",
        drain: Duration = "25s",
    ) -> "InboxWorker":
        """Returns a worker that runs admitted and redriven events, each of them once.

        `run()` runs events until `stop()`, SIGTERM or Ctrl-C. Handlers that run at this time have up to `drain` to end.
        `await work()` does the same in the current event loop.

        Events of the same entity run one at a time, in the order in which they happened. Up to `at_work` events of
        different entities run concurrently. A failed event is retried after `backoff`, and the pause becomes longer
        after each attempt. The later events of the entity wait until the failed event is processed or, after
        `max_attempts`, buried. The worker polls the store every `look`, and at once after `worker.wake()`. Any number
        of processes may run inbox workers for the same store at the same time."""
        self._check_inbox("inbox()")
        check_handler(handler, may_await=True)
        from oncegate.ingress.inbox import InboxWorker

        return InboxWorker(
            self._engine.under(),  # a separate engine: handlers that do not end in time may run longer than the gate
            self._identify,
            handler,
            self._observers,
            at_work=at_work,
            look=microseconds(look, "look"),
            drain=microseconds(drain, "drain"),
        )

    @cached_property
    def _has_inbox(self) -> bool:
        """Cached because isinstance() with a protocol takes longer than the computation of a key."""
        return isinstance(self.store, Inbox)

    def _check_inbox(self, what: str) -> None:
        check_inbox(what, has_inbox=self._has_inbox, marks_first=self._config.marks_first)

    def run_waiting(self, handler: Handler, limit: int = 100) -> list[Outcome]:
        """Run events that the store holds with their payload, such as redriven dead letters.

        The events run one after the other before this method returns, each of them once, in the order in which they
        were released."""
        check_handler(handler)
        outcomes: dict[bytes, Outcome] = {}
        destination = publish_target_of(handler)
        while len(outcomes) < limit and (waiting := self._next_waiting(destination, outcomes)):
            (job,) = waiting
            if job.key.digest in outcomes:
                self._engine.runner.release_unstarted([job])
                break
            take = partial(self._next_waiting, destination, {job.key.digest})
            ran = self._engine.runner.run_taken(job, handler, take)
            outcomes.update((each.key.digest, each.outcome) for each in ran)
            if not ran:
                break
        return self._observed(list(outcomes.values()))

    def _next_waiting(self, destination: str | None, already_run: Collection[bytes]) -> list[Job]:
        """Take one waiting event. If the store fails and some events have already run, returns an empty list, so that
        the caller can return the outcomes of those events."""
        try:
            jobs = self._engine.claimer.take()
        except StoreError:
            if not already_run:
                raise
            return []
        set_destination(destination, jobs)
        return jobs

    def keep(self, refused: Sequence[Outcome]) -> list[Outcome]:
        """Store events that were refused as invalid as dead letters. Call this before you answer the senders of the
        events."""
        return self._engine.dead_letters.keep(refused)

    @property
    def counts(self) -> dict[str, int]:
        """The number of notices since the gate was created, by notice name."""
        return self._observers.counts

    @property
    def hung(self) -> int:
        """The number of plain handlers of `arun` that have run longer than `handler_timeout`; longer than `max_hold` if
        there is no `handler_timeout`."""
        return self._engine.hung

    @property
    def threads_left(self) -> int:
        """The number of `threads` that can still run handlers; 0 if hung handlers occupy all threads."""
        return self._engine.threads_left

    def drain(self) -> None:
        """Wait until the handlers in threads have ended and their events are settled. If several gates share a store,
        drain all of them before you close one of them."""
        self._engine.close()

    def close(self) -> None:
        """Drain the gate, deliver the remaining notices to observers, and close the store."""
        self.drain()
        self._engine.give_up()
        self._observers.close(_CLOSE_WITHIN)
        self.store.close()

    def _events(self, payload: Any) -> list[Event]:
        return [payload] if isinstance(payload, Event) else read(payload, hints=self._hints)

    def _all_events(self, payloads: Iterable[Any], name: str) -> list[Event]:
        if isinstance(payloads, bytes | str | dict | Event):
            raise SettingError(f"{name}() takes several payloads in a list; for one, use [payload]")
        return [event for payload in payloads for event in self._events(payload)]

    def _only_event(self, payload: Any) -> Event:
        events = self._events(payload)
        if len(events) != 1:
            raise SeveralEvents(len(events))
        return events[0]

    def _observed(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Notify the observers of these outcomes, and return the outcomes."""
        self._observers.outcomes(outcomes)
        return outcomes


def _opened(store: str | Store, config: GateConfig) -> Store:
    if isinstance(store, str) and config.on_store_error == "unguarded":
        return open_or_defer(store)
    if isinstance(store, str):
        return open_store(store)
    if isinstance(store, type) or not hasattr(store, "claim"):
        kind = type(store).__name__  # the message does not show the value, which may contain a password
        raise SettingError(
            f"store must be a URL, such as sqlite:///oncegate.db, or a store of open_store(), not {kind}"
        )
    return store


def _checked(hints: Hints) -> Hints:
    if not isinstance(hints, Hints):
        raise SettingError(f"hints={hints!r} must be oncegate.sources.Hints(…)")
    return hints
