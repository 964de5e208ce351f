"""Sending: deliveries when they are due, in batches, and again for as long as they are not taken."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol, TypeAlias, assert_never

from msgspec import Struct, field

from oncegate.simulate.traffic import PlannedDelivery
from oncegate.simulate.truth import Fate, TruthFile

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0


class Accepted(Struct, frozen=True):
    """It is where it should be. `event_id` is the one that it was given there, if it was."""

    event_id: str | None = None


class Rejected(Struct, frozen=True):
    """It will not be taken, however often it is sent."""

    why: str


class Retry(Struct, frozen=True):
    """It was not taken this time; `after` so many seconds it may be, if that was said."""

    why: str
    after: float | None = None


Answer: TypeAlias = Accepted | Rejected | Retry


class Target(Protocol):
    """Where deliveries go. `most` are sent together; a target that is `paced` gets each when it is due."""

    most: int
    paced: bool

    def send(self, batch: Sequence[PlannedDelivery]) -> list[Answer]: ...

    def close(self) -> None: ...


class Summary(Struct):
    """What became of deliveries, by their kind; how often one was sent again, and the reasons of those not taken."""

    fates: Counter[tuple[str, Fate]] = field(default_factory=Counter)
    again: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def count(self, kind: str | None = None, fate: Fate | None = None) -> int:
        return sum(number for (k, f), number in self.fates.items() if kind in (None, k) and fate in (None, f))


class Sender:
    """Sends each delivery and writes down what became of it. With `parallel` more than one, batches overtake others."""

    def __init__(
        self,
        target: Target,
        truth: TruthFile,
        *,
        patience: float = 60.0,
        parallel: int = 1,
        told: Callable[[PlannedDelivery], object] = lambda _delivery: None,
    ) -> None:
        self._target = target
        self._truth = truth
        self._patience = patience
        self._parallel = parallel
        self._told = told
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
                self._side_by_side(batches)
        finally:
            self._stopped.set()
            self.summary.seconds = time.monotonic() - begun
        return self.summary

    def _batches(self, deliveries: Iterable[PlannedDelivery], begun: float) -> Iterator[list[PlannedDelivery]]:
        """Those that are due together, as many as the target takes."""
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

    def _side_by_side(self, batches: Iterable[list[PlannedDelivery]]) -> None:
        room = threading.BoundedSemaphore(self._parallel)
        with ThreadPoolExecutor(self._parallel) as executor:
            futures: set[Future[None]] = set()
            try:
                for batch in batches:
                    room.acquire()
                    future = executor.submit(self._deliver, batch)
                    future.add_done_callback(lambda _future: room.release())
                    futures = {each for each in (*futures, future) if not _ended(each)}
            except BaseException:
                self._stopped.set()  # so that those who wait to try again do not
                raise
        for future in futures:
            future.result()

    def _deliver(self, batch: list[PlannedDelivery]) -> None:
        """Send a batch, and what is not taken of it again until it is, or for as long as patience lasts."""
        left, tries, pauses = batch, 0, _pauses()
        deadline = time.monotonic() + self._patience
        while left:
            tries += 1
            again = self._tried(left, tries)
            if not again:
                return
            pause = max([next(pauses), *(answer.after for _, answer in again if answer.after is not None)])
            if time.monotonic() + pause > deadline or self._stopped.wait(pause):
                for delivery, answer in again:
                    self._settle(delivery, "gave up", tries, why=answer.why)
                return
            left = [delivery for delivery, _ in again]
            with self._lock:
                self.summary.again += len(left)

    def _tried(self, batch: list[PlannedDelivery], tries: int) -> list[tuple[PlannedDelivery, Retry]]:
        """Send a batch once; what of it is to be sent again."""
        try:
            answers = self._target.send(batch)
        except BaseException as error:  # it may have been taken all the same
            for delivery in batch:
                self._settle(delivery, "gave up", tries, why=type(error).__name__)
            raise
        again = []
        for delivery, answer in zip(batch, answers, strict=True):
            match answer:
                case Accepted(event_id):
                    self._settle(delivery, "taken", tries, event_id=event_id)
                case Rejected(why):
                    self._settle(delivery, "refused", tries, why=why)
                case Retry():
                    again.append((delivery, answer))
                case _:
                    assert_never(answer)
        return again

    def _settle(
        self, delivery: PlannedDelivery, fate: Fate, tries: int, *, why: str | None = None, event_id: str | None = None
    ) -> None:
        self._truth.settle(delivery, fate, tries, event_id)
        with self._lock:
            self.summary.fates[delivery.copy.kind, fate] += 1
            if why is not None:
                self.summary.reasons[why] += 1
        self._told(delivery)


def _ended(future: Future[None]) -> bool:
    """What it raised is raised here."""
    if future.done():
        future.result()
        return True
    return False


def _pauses() -> Iterator[float]:
    longest = _FIRST_PAUSE
    while True:
        yield random.uniform(longest / 2, longest)  # noqa: S311  # no secret
        longest = min(2 * longest, _LONGEST_PAUSE)
