"""Send deliveries in batches when they are due, and retry deliveries that the target does not accept."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol, TypeAlias, assert_never

from msgspec import Struct, field

from oncegate.backoff import Backoff
from oncegate.simulate.traffic import PlannedDelivery
from oncegate.simulate.truth import Fate, TruthFile

_FIRST_PAUSE: Final = 0.05  # seconds
_LONGEST_PAUSE: Final = 5.0


class Accepted(Struct, frozen=True):
    """The target accepted the delivery. `event_id` is the id that the target assigned, if any."""

    event_id: str | None = None


class Rejected(Struct, frozen=True):
    """The target rejected the delivery, and a retry cannot help. `detail` is the reason in the answer, if any."""

    why: str
    detail: str | None = None


class Retry(Struct, frozen=True):
    """The target did not accept the delivery now. `after` is the pause in seconds that the target asks for, if any.
    `detail` is the reason in the answer, if any."""

    why: str
    after: float | None = None
    detail: str | None = None


Answer: TypeAlias = Accepted | Rejected | Retry


class Target(Protocol):
    """The receiver of deliveries. `most` is the maximum size of a batch. A `paced` target gets each delivery when the
    delivery is due. Any other target gets all deliveries at once."""

    most: int
    paced: bool

    def send(self, batch: Sequence[PlannedDelivery]) -> list[Answer]: ...

    def close(self) -> None: ...


class Summary(Struct):
    """The number of deliveries by kind and fate, the number of retries (`again`), and the reasons for deliveries that
    were not accepted. `examples` has the place and the detail of the first delivery with each reason."""

    fates: Counter[tuple[str, Fate]] = field(default_factory=Counter)
    again: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    seconds: float = 0.0

    def count(self, kind: str | None = None, fate: Fate | None = None) -> int:
        return sum(number for (k, f), number in self.fates.items() if kind in (None, k) and fate in (None, f))


class Sender:
    """Sends each delivery and records its fate. If `parallel` is greater than 1, batches may arrive in another
    order."""

    def __init__(
        self,
        target: Target,
        truth: TruthFile,
        *,
        patience: float = 60.0,
        parallel: int = 1,
        on_settled: Callable[[PlannedDelivery], object] = lambda _delivery: None,
    ) -> None:
        self._target = target
        self._truth = truth
        self._patience = patience
        self._parallel = parallel
        self._on_settled = on_settled
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self.summary = Summary()

    def send(self, deliveries: Iterable[PlannedDelivery]) -> Summary:
        begun = time.monotonic()
        try:
            batches = self._batches(deliveries, begun)
            if self._parallel == 1:
                for batch in batches:
                    self._deliver(batch)
            else:
                self._deliver_in_parallel(batches)
        finally:
            self._stopped.set()
            self.summary.seconds = time.monotonic() - begun
        return self.summary

    def _batches(self, deliveries: Iterable[PlannedDelivery], begun: float) -> Iterator[list[PlannedDelivery]]:
        """Wait until deliveries are due, and yield them in batches of at most `target.most`."""
        batch: list[PlannedDelivery] = []
        for delivery in deliveries:
            due = begun + delivery.due / 1e6 if self._target.paced else begun
            if batch and (len(batch) == self._target.most or due > time.monotonic()):
                yield batch
                batch = []
            time.sleep(max(0.0, due - time.monotonic()))
            self._truth.announce(delivery)
            batch.append(delivery)
        if batch:
            yield batch

    def _deliver_in_parallel(self, batches: Iterable[list[PlannedDelivery]]) -> None:
        slots = threading.BoundedSemaphore(self._parallel)
        with ThreadPoolExecutor(self._parallel) as executor:
            futures: set[Future[None]] = set()
            try:
                for batch in batches:
                    slots.acquire()
                    future = executor.submit(self._deliver, batch)
                    future.add_done_callback(lambda _future: slots.release())
                    futures = {each for each in (*futures, future) if not _ended(each)}
            except BaseException:
                self._stopped.set()  # ends the pauses between retries
                raise
        for future in futures:
            future.result()

    def _deliver(self, batch: list[PlannedDelivery]) -> None:
        """Send a batch. A delivery that the target does not accept is retried until it is accepted or rejected, or
        until the deadline."""
        left, tries, backoff = batch, 0, Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        deadline = time.monotonic() + self._patience
        while left:
            tries += 1
            again = self._try(left, tries)
            if not again:
                return
            pause = max([backoff.next_pause(), *(answer.after for _, answer in again if answer.after is not None)])
            if time.monotonic() + pause > deadline or self._stopped.wait(pause):
                for delivery, answer in again:
                    self._settle(delivery, "gave up", tries, why=answer.why, detail=answer.detail)
                return
            left = [delivery for delivery, _ in again]
            with self._lock:
                self.summary.again += len(left)

    def _try(self, batch: list[PlannedDelivery], tries: int) -> list[tuple[PlannedDelivery, Retry]]:
        """Send a batch once; returns the deliveries to retry."""
        try:
            answers = self._target.send(batch)
        except BaseException as error:  # the target may have accepted the batch, so the fate is not "refused"
            for delivery in batch:
                self._settle(delivery, "gave up", tries, why=type(error).__name__)
            raise
        again = []
        for delivery, answer in zip(batch, answers, strict=True):
            match answer:
                case Accepted(event_id):
                    self._settle(delivery, "taken", tries, event_id=event_id)
                case Rejected(why, detail):
                    self._settle(delivery, "refused", tries, why=why, detail=detail)
                case Retry():
                    again.append((delivery, answer))
                case _:
                    assert_never(answer)
        return again

    def _settle(
        self,
        delivery: PlannedDelivery,
        fate: Fate,
        tries: int,
        *,
        why: str | None = None,
        detail: str | None = None,
        event_id: str | None = None,
    ) -> None:
        self._truth.settle(delivery, fate, tries, event_id)
        with self._lock:
            self.summary.fates[delivery.copy.kind, fate] += 1
            if why is not None:
                self.summary.reasons[why] += 1
                self.summary.examples.setdefault(why, (delivery.copy.place, detail))
        self._on_settled(delivery)


def _ended(future: Future[None]) -> bool:
    """Whether the future is done. Raises the exception of a failed future."""
    if future.done():
        future.result()
        return True
    return False
