"""The gate: every event through a claim, one handler at a time for each key.

read ─▶ key ─▶ coalesce ─▶ claim ─▶ run the handler ─▶ settle ─▶ outcome
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oncegate import keys
from oncegate.clocks import Clock, since_boot
from oncegate.durations import Duration
from oncegate.errors import MissingKey, SettingError, SeveralEvents, Unreadable
from oncegate.events import Event
from oncegate.gate.claiming import Claimer
from oncegate.gate.jobs import Job, Refused, coalesce, jobs_of
from oncegate.gate.outcome import Outcome
from oncegate.gate.running import Handler, Runner, TransactionHandler, check_handler
from oncegate.gate.terms import Mode, agree
from oncegate.sources import read
from oncegate.stores import open_store
from oncegate.stores.base import Store, Transactional


class Gate:
    """Runs a handler once for each event, whatever is delivered how often.

    `retention` is how long a completed key is remembered, `lease` how long a claim lasts unrenewed and
    `max_hold` how long one is renewed at most. `max_attempts=None` leaves the counting to the platform that
    delivers again, such as a queue with a redrive policy; no failing event is buried then. A result of more
    than `max_result` bytes is not kept for the duplicates.

    `mode="mark_first"` marks an event as done in the one write that claims it, and then runs it: at most once, for
    effects that are better lost than doubled. What fails is kept as a dead letter; results are not kept.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        key: Callable[[Event], Any] = keys.auto,
        namespace: str = "default",
        retention: Duration = "7d",
        lease: Duration = "30s",
        max_hold: Duration = "15m",
        dead_letter_retention: Duration = "30d",
        max_attempts: int | None = 5,
        max_result: int = 256 * 1024,
        mode: Mode = "lease",
        boot: Clock = since_boot,
    ) -> None:
        self._terms = terms = agree(
            namespace=namespace,
            retention=retention,
            lease=lease,
            max_hold=max_hold,
            dead_letter_retention=dead_letter_retention,
            max_attempts=max_attempts,
            max_result=max_result,
            mode=mode,
        )
        self.store = open_store(store) if isinstance(store, str) else store
        self._key = keys.strategy(key)
        self._claimer = Claimer(self.store, terms, boot)
        self._runner = Runner(self.store, terms, boot, self._claimer)

    def run(self, payload: Any, handler: Handler) -> Outcome:
        """Take one event through the gate. The payload is bytes, text or parsed JSON that holds one event."""
        return self._through([_only_event(payload)], handler)[0]

    def run_batch(self, payloads: Iterable[Any], handler: Handler) -> list[Outcome]:
        """Take all the events of these payloads through the gate: one outcome each, in order.

        They are claimed with one write and settled with few, so the lease must cover the whole batch. With
        `max_attempts=1` each is claimed and settled alone."""
        if isinstance(payloads, bytes | str | dict):
            raise SettingError("run_batch() takes several payloads in a list; for one, use run() or [payload]")
        return self._through([event for payload in payloads for event in read(payload)], handler)

    def _through(self, events: Sequence[Event], handler: Handler) -> list[Outcome]:
        check_handler(handler)
        items = coalesce(self._identified(event) for event in events)
        jobs = jobs_of(items)
        for together in [[job] for job in jobs] if self._terms.one_by_one else [jobs]:
            self._claimer.claim(together)
            self._runner.run(together, handler)
        return [_answered(item.outcome) for item in items]

    def transaction(self, payload: Any, handler: TransactionHandler) -> Outcome:
        """Take one event through the gate, its effect and its completion in one transaction: exactly once.

        The handler gets the event and a connection to the store's database; what it writes with that is committed
        together with the completion or not at all. It must neither commit nor keep the connection, and should be
        quick: nobody else can write meanwhile. For stores with transactions (SQLite)."""
        check_handler(handler)
        if not isinstance(self.store, Transactional):
            raise SettingError("transaction() needs a store with transactions, such as sqlite:///oncegate.db")
        if self._terms.marks_first:
            raise SettingError("transaction() completes with the effect; mode='mark_first' would complete before it")
        item = self._identified(_only_event(payload))
        if isinstance(item, Job):
            self._claimer.claim([item])
            if item.lease is not None:
                self._runner.transact(item, handler)
        return _answered(item.outcome)

    def seen(self, payload: Any) -> bool:
        """Whether this event was seen before; from now on it was. The `is_duplicate` of many tutorials.

        At most once: if what follows a False fails, or the process dies, the event counts as seen all the same and
        is lost. Use `run` unless that is what you want. Raises for a payload that is no event or has no key, and
        when the store does not answer."""
        item = self._identified(_only_event(payload))
        if isinstance(item, Refused):
            raise Unreadable(_answered(item.outcome).reason)
        return not self._claimer.mark(item)

    def run_waiting(self, handler: Handler, limit: int = 100) -> list[Outcome]:
        """Run events that the store holds with their payload, such as redriven dead letters.

        They run here and now, one after the other, in the order in which they were let go, each once."""
        check_handler(handler)
        outcomes: dict[bytes, Outcome] = {}
        while len(outcomes) < limit and (job := self._claimer.take()) is not None:
            if job.key.digest in outcomes:
                self._runner.give_back([job])
                break
            self._runner.run_alone(job, handler)
            outcomes[job.key.digest] = _answered(job.outcome)
        return list(outcomes.values())

    def keep(self, refused: Sequence[Outcome]) -> list[Outcome]:
        """Keep dead letters of events that were refused as invalid, before their senders are told so."""
        return self._claimer.keep(refused)

    def close(self) -> None:
        """Let go of the store."""
        self.store.close()

    def _identified(self, event: Event) -> Job | Refused:
        if event.problem is not None:
            return Refused(Outcome("invalid", event, error=event.problem))
        try:
            return Job(event, self._key(event), keys.content_hash(event))
        except MissingKey as error:
            return Refused(Outcome("invalid", event, error=str(error)))
        except Exception as error:  # noqa: BLE001  # the key function is the user's: refuse this event, not the batch
            return Refused(Outcome("invalid", event, error=f"its key function raised {type(error).__name__}: {error}"))


def _only_event(payload: Any) -> Event:
    events = read(payload)
    if len(events) != 1:
        raise SeveralEvents(len(events))
    return events[0]


def _answered(outcome: Outcome | None) -> Outcome:
    assert outcome is not None  # noqa: S101  # claiming or running has set it
    return outcome
