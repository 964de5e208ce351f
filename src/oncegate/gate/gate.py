"""The gate: every event through a claim, one handler at a time for each key.

read ─▶ key ─▶ coalesce ─▶ claim ─▶ run the handler ─▶ settle ─▶ outcome
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
from oncegate.gate.job import ANYWHERE, Identifier, Job, RejectedEvent, UnguardedEvent, handed_to
from oncegate.gate.observers import Observer, Observers
from oncegate.gate.options import GateConfig, GateOptions, check_inbox, validate
from oncegate.gate.outcome import Outcome
from oncegate.ingress.worker import Worker, WorkerContext
from oncegate.sources import NO_HINTS, Hints, read
from oncegate.stores import open_store
from oncegate.stores.base import Inbox, JoinsTransactions, Store, Transactional
from oncegate.stores.deferred import open_or_defer

if TYPE_CHECKING:
    from oncegate.gate.once import OnceFunctions
    from oncegate.ingress.inbox import InboxWorker
    from oncegate.signatures import Verifier

_CLOSE_WITHIN = 2.0

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Gate:
    """Runs a handler once for each event, whatever is delivered how often.

    `store` is a URL or a store, `key` the strategy by which events are told apart, `observers` are called with a
    `Notice` of what the gate does, and `hints` say what payloads do not say themselves: see `oncegate.sources.Hints`.
    All else has a default:

    How long. `retention` is how long a completed key is remembered (with `sliding=True` from its latest copy on, for at
    most `sliding_limit`), `lease` how long a claim lasts unrenewed and `max_hold` how long one is renewed at most.
    `dead_letter_retention` is how long a dead letter is kept. What the store holds and failed is left alone for
    `backoff`, twice as long after each further attempt, and for `backoff_limit` at most. If it failed because something
    that its handler calls is unavailable (`RetryLater`, ConnectionError, TimeoutError), it is tried for `retry_for`
    without using up attempts; None has it count like any failure. For `remember`, at most 60 s,
    this process answers copies of what it saw completed by itself; None has it ask the store every time.
    A store over a network that answered five times in a row with an error, or later than `breaker` and than ten times
    the median of its last answers, is left alone for a while, and events are refused at once; None has it asked
    whatever it does.

    How often. `max_attempts=None` leaves the counting to the platform that delivers again, such as a queue with a
    redrive policy; no failing event is buried then.

    `mode="mark_first"` marks an event as done in the one write that claims it, and then runs it: at most once, for
    effects that are better lost than doubled. What fails is kept as a dead letter; results are not kept.

    What if. `on_missing_key="unguarded"` runs events without a key instead of refusing them;
    `on_store_error="unguarded"` runs those of the `unguarded_types` when the store cannot be asked for a claim, also if
    a store over a network is away when the gate is made.
    `on_conflict` says what becomes of other content under a known key: "bury" keeps it as a dead letter, "run" runs it
    as an event of its own, "duplicate" drops it. `on_replay="run"` runs a replayed event once more for each replay's
    name. Events that happened more than `max_age` ago are counted, and with `on_too_old="bury"` buried.

    How much. A result of more than `max_result` bytes is not kept for the duplicates. `arun` takes `max_in_hand` events
    at a time and runs plain handlers in as many `threads`; other callers wait. With a `handler_timeout`, a handler of
    `arun`, of a worker or of the inbox that runs for longer fails its event. An async one is cancelled. A plain one
    cannot be stopped: it runs on in its thread, and another thread takes its place, for up to `threads` of them.

    `namespace` keeps events of several users of one store apart.
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
        **wishes: Unpack[GateOptions],
    ) -> None:
        self._config = config = validate(wishes)
        self._observers = Observers(observers, config.namespace, wall)
        self._wall = wall
        self._identify = Identifier(key, config, wall, self._observers)
        self._hints = _checked(hints)
        self.store = _opened(store, config)
        self._engine = Engine(self.store, config, boot, self._observers, hints)

    def run(self, payload: Any, handler: Handler) -> Outcome:
        """Take one event through the gate. The payload is an Event, or bytes, text or parsed JSON that holds one."""
        return self._through([self._only_event(payload)], handler)[0]

    def run_batch(self, payloads: Iterable[Any], handler: Handler) -> list[Outcome]:
        """Take all the events of these payloads through the gate: one outcome each, in order.

        They are claimed with one write and settled with few, so the lease must cover the whole batch."""
        return self._through(self._all_events(payloads, "run_batch"), handler)

    def _through(self, events: Iterable[Event], handler: Handler) -> list[Outcome]:
        check_handler(handler)
        identified = handed_to(publish_target_of(handler), [self._identify(event) for event in events])
        return self._told(self._engine.through(identified, handler))

    async def arun(self, payload: Any, handler: AsyncHandler | Handler, *, wait: Duration | Literal[0] = 0) -> Outcome:
        """Take one event through the gate, from a coroutine; the handler may be async or plain.

        While another is at the event, its copy waits for the end of that for up to `wait`, and is in flight only then.
        Half of `max_in_hand` may wait at a time; the others do not.

        Callers that ask at the same time share their writes. A plain handler runs in a thread. An async one
        is cancelled when the claim is lost, and when the caller is cancelled: then the event is released. A plain one
        cannot be stopped; it runs on, and is settled when it is done."""
        check_handler(handler, may_await=True)
        longest = microseconds(wait, "wait", or_none=True) if wait else 0
        event, place = self._only_event(payload), publish_target_of(handler)

        def ask() -> Awaitable[Outcome]:
            (item,) = handed_to(place, [self._identify(event)])
            return self._engine.athrough(item, handler)

        outcome = await ask()
        if longest and outcome.status == "in_flight":
            outcome = await self._engine.concurrent.copies.waited(outcome, ask, longest)
        return self._told([outcome])[0]

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

        A further call returns the first one's result, as JSON gives it back. While another is at it, a call waits for
        up to `wait`, with 0 not at all, and then raises InFlight; it raises Conflict and Buried where an outcome would
        say so.

        `name` is what the calls are known by: by default the function's module and own name, so that renaming it makes
        all its calls new; a name that is given stays. `key` is a strategy, or any function of an Event whose body is
        the arguments by name: by default all arguments count, but for the object of a method."""
        longest = microseconds(wait, "wait", or_none=True)
        if self._config.marks_first:
            raise SettingError("once() gives back results, and mode='mark_first' keeps none")

        def guard(function: Callable[..., Any]) -> Callable[..., Any]:
            return self._calls.guard(function, name, key, longest)

        return guard if function is None else guard(function)

    @cached_property
    def _calls(self) -> "OnceFunctions":
        """Made when first used: what it imports would cost every cold start that does without it."""

        def identifier(key: Callable[[Event], Any]) -> Identifier:
            return Identifier(key, self._config, self._wall, self._observers)

        from oncegate.gate.once import OnceFunctions

        return OnceFunctions(self._engine, self._observers, identifier)

    def transaction(self, payload: Any, handler: TransactionHandler, *, connection: Any = None) -> Outcome:
        """Take one event through the gate, its effect and its completion in one transaction: exactly once.

        The handler gets the event and a connection to the store's database, or on DynamoDB what collects its writes;
        what it writes with that is committed together with the completion or not at all. It must neither commit nor
        keep it, and should be quick: on SQLite nobody else can write meanwhile. On Postgres, `connection` may be one of
        your own to the same database, psycopg's or a session or connection of SQLAlchemy, in no transaction yet: it is
        committed here. Nothing runs unguarded, whatever the policies say."""
        check_handler(handler, given=2)
        if not isinstance(self.store, Transactional):
            raise SettingError("transaction() needs a store with transactions, such as sqlite:///oncegate.db")
        if self._config.marks_first:
            raise SettingError("transaction() completes with the effect; mode='mark_first' would complete before it")
        if connection is not None and not isinstance(self.store, JoinsTransactions):
            raise SettingError("connection= is for Postgres; on this store the handler is given what it writes with")
        item = self._identify(self._only_event(payload))
        if isinstance(item, UnguardedEvent):
            item.outcome = item.refusal
        elif isinstance(item, Job):
            self._engine.transact(item, handler, connection)
        return self._told([item.outcome])[0]

    def lambda_handler(
        self,
        function: AsyncHandler | Handler,
        *,
        reserve: Duration = "1s",
        signature: "Verifier | None" = None,
        report_failures: bool | None = None,
        allow_unknown_sources: bool = False,
    ) -> Callable[[Any, Any], dict[str, Any]]:
        """The handler of an AWS Lambda function that runs `function` once for each event.

        It finds out by itself what it is invoked with, and answers each as it must be: the failed records of a batch
        from SQS, Kinesis, Kafka or a pipe, an HTTP response, a result, or NotTaken to have an event delivered again. An
        async function runs in an event loop that is kept from one invocation to the next.

        `reserve` is how much time of an invocation is left for its end: no handler starts in it, and what is then left
        is delivered again. It should be a little longer than the function takes for one event; it is never more than
        half of the time there is. Where the platform delivers again it also counts how often, and `max_attempts` does
        not matter; for requests by HTTP it does.

        With a `signature`, such as `oncegate.signatures.cxone(secret)`, requests by HTTP that were not signed so are
        refused before anything of them is read. Nothing else is asked for one.

        An event source mapping without ReportBatchItemFailures takes every answer for success. With
        `report_failures=False` a batch of which a record failed raises NotTaken instead of naming the record. By
        default the records of SQS and of streams are named, and a batch of Kafka raises: its mappings read the report
        in provisioned mode only. `report_failures=True` names the records of Kafka, too.

        What AWS invokes the function with and no carrier reads, such as a Cognito trigger, raises UnknownSource;
        `allow_unknown_sources=True` runs it as one plain event."""
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
    ) -> Worker:
        """A worker of an SQS queue: `sqs://NAME?region=eu-central-1`, or the URL that AWS shows for it.

        Its `run()` takes the queue's messages through the gate until `stop()`, SIGTERM or Ctrl-C; then it has `drain`
        to end what runs. A message is deleted when all the events in it are acknowledged; else it becomes visible
        again. The queue counts how often: nothing that fails is buried here, whatever `max_attempts` says.

        It polls for up to `batch` messages, `wait` long, with up to `receivers` polls at a time, and has at most about
        `in_hand` events in hand. A message is kept from others for `visibility`, again and again for up to the gate's
        `max_hold`. Events of one entity, and those of one group of a FIFO queue, run one after the other."""
        check_handler(handler, may_await=True)
        from oncegate.ingress.sqs import SqsWorker, validate

        options = validate(
            batch=batch, wait=wait, visibility=visibility, in_hand=in_hand, receivers=receivers, drain=drain
        )
        engine = self._engine.under(max_attempts=None)
        identify = partial(self._identify, trusted=True)
        context = WorkerContext(engine, self._events, identify, self._observers, engine.boot)
        return SqsWorker(queue, handler, options, context)

    def seen(self, payload: Any) -> bool:
        """Whether this event was seen before; from now on it was. The `is_duplicate` of many tutorials.

        At most once: if what follows a False fails, or the process dies, the event counts as seen all the same and
        is lost. Use `run` unless that is what you want. Raises for a payload that is no event or has no key, and
        when the store does not answer, unless a policy lets such events run unguarded."""
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
        """Have the store keep all the events of these payloads until they are run: one outcome each, in order.

        What is "accepted" is durable, and is run by whoever works off the `inbox`, here or in another process. All else
        is answered as `run_batch` would: a copy of what is kept or done is a duplicate."""
        self._check_inbox("admit()")
        identified = [self._identify(event) for event in self._all_events(payloads, "admit")]
        return self._told(self._engine.admit(handed_to(ANYWHERE, identified)))

    async def aadmit(self, payload: Any) -> list[Outcome]:
        """The same for one payload, from a coroutine. Callers that ask at the same time share their writes."""
        self._check_inbox("aadmit()")
        identified = handed_to(ANYWHERE, [self._identify(event) for event in self._events(payload)])
        items = await self._engine.aadmit(identified)
        return self._told([item.outcome for item in items])

    def inbox(
        self,
        handler: AsyncHandler | Handler,
        *,
        at_work: int = 64,
        look: Duration = "250ms",
        drain: Duration = "25s",
    ) -> "InboxWorker":
        """A worker that runs the events that were admitted, or redriven, once each.

        Its `run()` does so until `stop()`, SIGTERM or Ctrl-C; then it has `drain` to end what runs. `await work()` is
        the same in an event loop that there is.

        Events of one entity run one at a time, in the order in which they happened; those of others beside them, up to
        `at_work` of them. One that fails is tried again after a pause, `backoff` at first and then ever longer, and
        holds up its entity until it is processed or, after `max_attempts`, buried. The store is looked at every so
        often, and at once after `worker.wake()`. Any number of processes may do this at once."""
        self._check_inbox("inbox()")
        check_handler(handler, may_await=True)
        from oncegate.ingress.inbox import InboxWorker

        return InboxWorker(
            self._engine.under(),  # its handlers may outlast the gate, if they do not end in time
            self._identify,
            handler,
            self._observers,
            at_work=at_work,
            look=microseconds(look, "look"),
            drain=microseconds(drain, "drain"),
        )

    @cached_property
    def _keeps(self) -> bool:
        """Asked once: to look for the verbs of a store takes longer than to make a key."""
        return isinstance(self.store, Inbox)

    def _check_inbox(self, what: str) -> None:
        check_inbox(what, keeps=self._keeps, marks_first=self._config.marks_first)

    def run_waiting(self, handler: Handler, limit: int = 100) -> list[Outcome]:
        """Run events that the store holds with their payload, such as redriven dead letters.

        They run here and now, one after the other, in the order in which they were let go, each once."""
        check_handler(handler)
        outcomes: dict[bytes, Outcome] = {}
        place = publish_target_of(handler)
        while len(outcomes) < limit and (waiting := self._next_waiting(place, outcomes)):
            (job,) = waiting
            if job.key.digest in outcomes:
                self._engine.runner.give_back([job])
                break
            ran = self._engine.runner.run_taken(job, handler, partial(self._next_waiting, place, {job.key.digest}))
            outcomes.update((each.key.digest, each.outcome) for each in ran)
            if not ran:
                break
        return self._told(list(outcomes.values()))

    def _next_waiting(self, place: str | None, before: Collection[bytes]) -> list[Job]:
        """One that waits, to be run by a handler that publishes to this place. If the store fails after some have run,
        they are told of first."""
        try:
            jobs = self._engine.claimer.take()
        except StoreError:
            if not before:
                raise
            return []
        handed_to(place, jobs)
        return jobs

    def keep(self, refused: Sequence[Outcome]) -> list[Outcome]:
        """Keep dead letters of events that were refused as invalid, before their senders are told so."""
        return self._engine.claimer.keep(refused)

    @property
    def counts(self) -> dict[str, int]:
        """How often the gate did what, since it was made: by the names of notices."""
        return self._observers.counts

    @property
    def hung(self) -> int:
        """How many plain handlers of `arun` have run for longer than `handler_timeout`, or `max_hold` without one."""
        return self._engine.hung

    @property
    def threads_left(self) -> int:
        """How many of the `threads` can still run handlers; 0 if handlers that hang have taken all."""
        return self._engine.threads_left

    def drain(self) -> None:
        """Let handlers in threads end and be recorded: all gates of one store, before one of them closes it."""
        self._engine.close()

    def close(self) -> None:
        """Drain, tell the observers what is left, and let go of the store."""
        self.drain()
        self._engine.give_up()
        self._observers.flush(_CLOSE_WITHIN)
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

    def _told(self, outcomes: list[Outcome]) -> list[Outcome]:
        self._observers.outcomes(outcomes)
        return outcomes


def _opened(store: str | Store, config: GateConfig) -> Store:
    if isinstance(store, str) and config.on_store_error == "unguarded":
        return open_or_defer(store)
    if isinstance(store, str):
        return open_store(store)
    if isinstance(store, type) or not hasattr(store, "claim"):
        kind = type(store).__name__  # what it says may be a password
        raise SettingError(
            f"a store is a URL, such as sqlite:///oncegate.db, or what open_store() gives, and no {kind}"
        )
    return store


def _checked(hints: Hints) -> Hints:
    if not isinstance(hints, Hints):
        raise SettingError(f"hints={hints!r} must be oncegate.sources.Hints(…)")
    return hints
