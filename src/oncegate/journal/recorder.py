"""The recorder writes the outcomes of gates to a journal, in a thread of its own.

The recorder never delays, fails or loses an event. A gate only appends its outcomes to a queue. If the queue is full,
if the journal cannot be written, or if the thread would use too much processor time, the recorder drops rows, counts
them and logs a warning. It leaves out the details of rows before it drops rows. Events without a row are still counted
in the totals, unless the queue was full, or the journal could not be written for days.

If the process is killed, the rows of the last 250 ms and the counts of storms that have not ended are lost.
"""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from oncegate import forks
from oncegate.clocks import Clock, wall
from oncegate.durations import times
from oncegate.errors import OncegateError, StoreReadOnly
from oncegate.events import Event
from oncegate.gate.observers import OutcomeQueue, PlaceObserver, QueuedOutcomes
from oncegate.gate.outcome import Outcome
from oncegate.journal.base import MINUTE, SHAPE_AGE, BatchId, Journal, JournalBounds, NewRow, NewRows
from oncegate.journal.budget import SHARE, CpuBudget
from oncegate.journal.leaves import LeafHasher, Shape, body_of, digests_of, has_details, shape_id
from oncegate.journal.rows import Fields, Label, fields_of, label_of
from oncegate.journal.storms import StormFilter, Window

_log = logging.getLogger("oncegate.journal")

_MOST_QUEUED: Final = 10_000  # rows
_MOST_BYTES: Final = 64 * 1024 * 1024
_CROWDED: Final = _MOST_QUEUED // 2  # rows; if more are queued and the processor time is used up, rows are dropped
_BATCH: Final = 2_000  # rows of one transaction
_WRITE_EVERY: Final = 0.25  # seconds between two transactions
# Rows are made more often than they are written, because an outcome occupies far more memory than its row. If events
# stayed in memory until the transaction, the processor's caches would hold less of what the handlers need.
_GATHER: Final = 0.05  # seconds
_SHORT: Final = 0.01  # seconds, while many rows are queued
_FEW: Final = 20  # rows of one round that always have their details, which take a tenth of a millisecond
_YIELD_EVERY: Final = 32  # rows; then the thread offers the interpreter lock to other threads
_PRUNE_EVERY: Final = 10.0  # seconds
_PRUNE_AFTER: Final = 50_000  # rows
_PRUNE_PART: Final = 50  # rows are written, and old rows are deleted, after this part of the largest size
_ROW_SIZE: Final = 400  # bytes of a row without its payload, about
_PRUNE_STEPS: Final = 20
_RETRY_AFTER: Final = (0.5, 1.0, 2.0, 5.0)  # seconds
_CALM: Final = 10.0  # seconds without a dropped row, after which the recorder keeps up again
_MOST_TYPES: Final = 1_000
_OTHER_TYPES: Final = "(other)"
_MOST_LABELS: Final = 20_000
_MOST_COUNTS: Final = 20_000
_MOST_SHAPES: Final = 1_000
_BODY_BITS: Final = 0xFFFFFFFF  # of a hash in a row
_LARGEST_PAYLOAD: Final = 256 * 1024  # bytes
_CLOSE_WITHIN: Final = 2.0  # seconds


class Recorder:
    """Writes outcomes to a journal. `open_journal` is called in the thread of the recorder, and again after a
    failure."""

    def __init__(
        self,
        open_journal: Callable[[], Journal],
        bounds: JournalBounds | None = None,
        *,
        share: float = SHARE,
        clock: Clock = wall,
    ) -> None:
        self._bounds = bounds or JournalBounds()
        self._clock = clock
        self._share = share
        self._writing = threading.Lock()
        self._open_journal = open_journal
        self._queue = OutcomeQueue(_MOST_QUEUED, _MOST_BYTES, self._start)
        self._written = 0
        self._dropped = 0
        self._unmade = 0  # rows that were dropped because they could not be made
        self._logged: set[type[Exception]] = set()
        self._reset()
        forks.watch(self)

    def _reset(self) -> None:
        self._queue.reset()
        self._writer = _Writer(self._open_journal, self._bounds, self._clock)
        self._maker = _RowMaker(self._bounds)
        self._health = _Health()
        self._write_at = 0.0
        self._taken = 0  # outcomes that the thread has taken from the queue, and that have no row yet
        self._appending = 0  # rows that the thread writes now
        self._has_given_up = False

    # ── for gates and commands ────────────────────────────────────────────────────────────────────────────

    def of(self, place: str, *, closes: bool = False, awaits_keep: bool = False) -> PlaceObserver:
        """Returns the observer for the gate of a route or a queue with this name. With `closes`, the recorder is closed
        when the gate is closed. With `awaits_keep`, the gate keeps all invalid events, and their rows are written after
        that."""
        return PlaceObserver(self._queue, place, self.close if closes else None, awaits_keep=awaits_keep)

    @property
    def written(self) -> int:
        """The number of rows that were written."""
        return self._written

    @property
    def dropped(self) -> int:
        """The number of rows that were dropped."""
        return self._dropped + self._unmade + self._queue.dropped

    def start(self) -> None:
        """Start the thread, so that old rows are deleted even if no event arrives."""
        with self._queue.lock:
            if not self._queue.is_started and not self._queue.is_closed:
                self._start()

    def _start(self) -> None:
        """Start the thread. If the system allows no new thread, the next outcome tries again. The caller holds the lock
        of the queue, so nothing is logged here: a fork locks the module `logging` first."""
        with suppress(RuntimeError, MemoryError):
            threading.Thread(target=self._run, name="oncegate-journal", daemon=True).start()
            self._queue.is_started = True

    def flush(self, within: float) -> bool:
        """Write all rows that were queued so far, also those of storms that have not ended. Returns False if this takes
        longer than `within` seconds."""
        return self._queue.flush(within)

    def close(self, within: float = _CLOSE_WITHIN) -> bool:
        """Write the queued rows and close the journal. Returns False if this takes longer than `within` seconds. The
        remaining rows are then counted as dropped, although the thread may still write the batch that it has begun."""
        flushed = self._queue.flush(within)
        with self._queue.lock:
            was_closed, self._queue.is_closed = self._queue.is_closed, True
        self._queue.hurry.set()
        self._queue.filled.set()
        if not flushed and not was_closed:
            self._give_up()
        elif flushed and self._writing.acquire(timeout=within):
            self._writer.close()
            self._writing.release()
        return flushed

    def _give_up(self) -> None:
        """Drop the queued rows, and count them together with the rows that the thread has not written yet."""
        left = sum(len(item.outcomes) for item in self._queue.take_all() if isinstance(item, QueuedOutcomes))
        lost = left + self._taken + max(len(self._maker.rows), self._appending)
        self._has_given_up = True
        self._dropped += lost
        if lost:
            _log.warning("the journal was closed before it could write all rows; it dropped %s", times(lost, "row"))

    def before_fork(self) -> None:
        """Block the queue. `_writing` is not acquired: its holder may wait for a slow journal, or for the lock of the
        module `logging`, which is locked during a fork. Journals make their connections safe across a fork."""
        self._queue.lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._writing = threading.Lock()  # the thread of the parent may hold the old lock
            self._reset()
        self._queue.lock.release()

    # ── in the thread ─────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        budget, queue = CpuBudget(self._share), self._queue
        while queue or not queue.is_closed:
            if not queue and not self._maker.rows:
                queue.filled.wait(_PRUNE_EVERY)
            # Gather outcomes, unless there are enough or a caller of `flush` waits.
            began, pause = time.monotonic(), _SHORT if queue.count >= _BATCH else _GATHER
            is_urgent = queue.waiters > 0 or queue.hurry.wait(pause)
            if not is_urgent:
                budget.note_wait(time.monotonic() - began - pause)
            queue.hurry.clear()
            queue.filled.clear()
            budget.update()
            if is_urgent or budget.allows_rows or queue.count >= _CROWDED:
                with self._writing:
                    if queue or not queue.is_closed:  # a round after close() would open the journal again
                        self._round(budget)
        with self._writing, suppress(Exception):
            self._writer.close()

    def _round(self, budget: CpuBudget) -> None:
        crowded = self._queue.count >= _CROWDED and not self._queue.waiters
        items = self._queue.take(_BATCH)
        waiters = [item for item in items if isinstance(item, threading.Event)]
        outcomes = [item for item in items if isinstance(item, QueuedOutcomes)]
        self._taken = sum(len(item.outcomes) for item in outcomes)
        try:
            self._make(outcomes, budget, crowded)
            if (
                self._queue.is_closed
                or waiters
                or len(self._maker.rows) >= _BATCH
                or time.monotonic() >= self._write_at
            ):
                self._write_at = time.monotonic() + _WRITE_EVERY
                self._write(is_flush=self._queue.is_closed or bool(waiters))
        except Exception:  # noqa: BLE001  # the thread goes on with the next batch
            self._drop(self._taken + self._maker.drop_rows())
            _log.exception("the journal dropped a batch of rows")
        finally:
            self._taken = 0
            budget.update()
            for waiter in waiters:
                waiter.set()

    def _make(self, items: list[QueuedOutcomes], budget: CpuBudget, crowded: bool) -> None:
        """Make rows. If the journal cannot be written, or the processor time is used up and the queue is long, only
        count the events."""
        maker, is_ready = self._maker, self._writer.is_ready()
        are_few = self._taken <= _FEW
        if is_ready and self._writer.is_new:
            maker.start_details(self._writer.secret)
            self._writer.is_new = False
        number = 0
        for item in items:
            for outcome in item.outcomes:
                is_row = is_ready and (not crowded or budget.allows_rows)
                self._add(item, outcome, is_row=is_row, details=are_few or budget.allows_details)
                self._taken -= 1
                if maker.size >= self._bounds.max_size // _PRUNE_PART:
                    self._write(is_flush=False)
                number += 1
                if not number % _YIELD_EVERY:
                    time.sleep(0)
                    budget.update()

    def _add(self, item: QueuedOutcomes, outcome: Outcome, *, is_row: bool, details: bool) -> None:
        """Make the row of an outcome, or only count its event. If this raises, only this row is dropped: a program can
        make an event whose fields have wrong types. Each type of error is logged once."""
        try:
            if is_row:
                self._maker.add(item, outcome, details=details)
            else:
                self._maker.count(item, outcome)
                self._drop(1)
        except Exception as error:  # noqa: BLE001  # the thread goes on with the next outcome
            self._unmade += 1
            if type(error) not in self._logged:
                self._logged.add(type(error))
                _log.exception("the journal cannot make the row of an event, and drops the row")

    def _write(self, *, is_flush: bool) -> None:
        self._maker.end_storms(self._clock(), all_of_them=is_flush)
        self._appending = len(self._maker.rows)
        try:
            written, dropped = self._writer.write(self._maker)
        finally:
            self._appending = 0
        self._written += written
        self._drop(dropped)
        if not self._has_given_up:
            self._health.report(self.dropped - self._unmade, self._writer.error)
            self._writer.prune()

    def _drop(self, number: int) -> None:
        """Count dropped rows, unless close() has counted them."""
        if not self._has_given_up:
            self._dropped += number


class _RowMaker:
    """Makes rows and counts of outcomes, until the writer takes them."""

    def __init__(self, bounds: JournalBounds) -> None:
        self._keeps_payloads = bounds.payload_age is not None
        self._worker = f"{os.uname().nodename}:{os.getpid()}"
        self._storms = StormFilter()
        self._hasher: LeafHasher | None = None
        self._types: set[str | None] = set()
        self._labels: dict[tuple[str, str, str, str | None, str, str | None], Label] = {}
        self._shapes_since = 0.0
        self._payload_size = 0
        self.rows: list[NewRow] = []
        self.counts: Counter[tuple[int, Label]] = Counter()
        self.shapes: dict[bytes, Shape] = {}
        self.known_shapes: dict[bytes, Shape] = {}

    def start_details(self, secret: bytes) -> None:
        """Hash leaves under this secret, and write all shapes again: the journal was opened."""
        self._hasher = LeafHasher(secret)
        self.known_shapes, self._shapes_since = {}, time.monotonic()
        self._storms.forget_bodies()

    def count(self, item: QueuedOutcomes, outcome: Outcome) -> Label:
        """Count an event. Returns its label. If the journal cannot be written for days, there are too many counts, and
        the event is not counted."""
        event = outcome.event
        name = (item.place, item.namespace, event.source, event.type, outcome.status, outcome.kind)
        label = self._labels.get(name)
        if label is None:
            label = self._new_label(item.place, item.namespace, outcome)
            if len(self._labels) >= _MOST_LABELS:
                self._labels.clear()
            self._labels[name] = label
        counted = (item.at // MINUTE, label)
        if len(self.counts) < _MOST_COUNTS or counted in self.counts:
            self.counts[counted] += 1
        return label

    def _new_label(self, place: str, namespace: str, outcome: Outcome) -> Label:
        """Returns the label of an outcome. A sender can use any number of types, so only the first 1,000 types get
        labels."""
        named = outcome.event.type
        if len(self._types) < _MOST_TYPES:
            self._types.add(named)
        return label_of(place, namespace, outcome, named_type=named if named in self._types else _OTHER_TYPES)

    def add(self, item: QueuedOutcomes, outcome: Outcome, *, details: bool) -> None:
        """Count an event, and make its row. With `details`, the row has digests and leaf hashes."""
        place, at, label = item.place, item.at, self.count(item, outcome)
        window = self._storms.window(place, outcome, at)
        if not self._storms.is_separate(window, outcome):
            self._storms.collapse(window, outcome, label, at, self._worker)
            return
        fields, event = fields_of(outcome, at, self._worker), outcome.event
        if label[3] == _OTHER_TYPES:
            fields = replace(fields, named_type=event.type and event.type[:256])
        if details and has_details(event):
            fields = self._with_details(fields, outcome, window)
        keeps = self._keeps_payloads and 0 < len(event.raw) <= _LARGEST_PAYLOAD and not fields.same
        self.rows.append(NewRow(label, fields, event.raw if keeps else None))
        self._payload_size += len(event.raw) if keeps else 0

    def _with_details(self, fields: Fields, outcome: Outcome, window: Window) -> Fields:
        body = hash(outcome.event.raw)
        short = body & _BODY_BITS
        if window.body == body:
            return replace(fields, same=True, body=short)
        try:
            event = replace(outcome.event, body=body_of(outcome.event))
        except ValueError:
            return fields
        shape, leaves = self._leaves(event)
        if shape:
            window.body = body
        return replace(fields, shape=shape, leaves=leaves, digests=digests_of(event, outcome.key), body=short)

    def _leaves(self, event: Event) -> tuple[bytes, bytes]:
        """Returns the id of the shape and the leaf hashes of a body. A sender can use any number of shapes, so a day
        has at most 1,000 new shapes; other bodies have no hashes."""
        if self._hasher is None:
            return b"", b""
        try:
            paths, hashes = self._hasher.leaves(event.body)
        except (TypeError, ValueError, RecursionError):
            return b"", b""
        shape = shape_id(paths)
        if time.monotonic() - self._shapes_since > SHAPE_AGE / 1e6:  # journals delete shapes that are not renewed
            self.known_shapes, self._shapes_since = {}, time.monotonic()
        if shape not in self.known_shapes:
            if len(self.known_shapes) >= _MOST_SHAPES:
                return b"", b""
            self.known_shapes[shape] = self.shapes[shape] = paths
        return shape, hashes

    def end_storms(self, now: int, *, all_of_them: bool) -> None:
        self.rows += self._storms.ended(now, all_of_them=all_of_them)

    @property
    def size(self) -> int:
        """The size of the rows in bytes, about. Journals compress payloads, so it is an upper bound."""
        return _ROW_SIZE * len(self.rows) + self._payload_size

    def take(self, batch_id: BatchId) -> NewRows:
        taken = NewRows(self.rows, self.counts, self.shapes, batch_id)
        self.rows, self.counts, self.shapes, self._payload_size = [], Counter(), {}, 0
        return taken

    def drop_rows(self) -> int:
        """Drop the rows, and keep the counts. Returns the number of rows."""
        dropped, self.rows, self._payload_size = len(self.rows), [], 0
        self._storms.forget_bodies()
        return dropped


class _Writer:
    """Writes rows to the journal, and deletes old rows. After a failure it waits before it tries again."""

    def __init__(self, open_journal: Callable[[], Journal], bounds: JournalBounds, clock: Clock) -> None:
        self._open = open_journal
        self._bounds = bounds
        self._clock = clock
        self._journal: Journal | None = None
        self._name = os.urandom(8)
        self._batches = 0
        self._unconfirmed: NewRows | None = None
        self._failures = self._unpruned = self._unpruned_size = 0
        self._retry_at = self._prune_at = 0.0
        self._is_full = self._is_prune_failing = False
        self.secret = b""
        self.is_new = False  # whether the journal was opened since the last round
        self.error: str | None = None

    def is_ready(self) -> bool:
        """Whether the journal is open. Opens the journal, unless the last failure was a moment ago."""
        if time.monotonic() < self._retry_at:
            return False
        if self._journal is None:
            try:
                journal = self._open()
                try:
                    self.secret = journal.secret()
                except BaseException:
                    journal.close()
                    raise
                self._journal, self.is_new = journal, True
            except (OncegateError, OSError) as error:
                self._failed(error)
        return self._journal is not None

    def write(self, maker: _RowMaker) -> tuple[int, int]:
        """Write what the maker has made. Returns the number of written rows and of dropped rows."""
        if self._journal is None or time.monotonic() < self._retry_at:
            return 0, maker.drop_rows()
        if self._is_full:
            self.prune()
        if self._unconfirmed is not None:
            if not self._append(self._journal, self._unconfirmed, maker.known_shapes):
                return 0, maker.drop_rows()
            self._unconfirmed = None
        if not maker.rows and not maker.counts:
            return 0, 0
        self._batches += 1
        size = maker.size
        batch = maker.take(BatchId(self._name, self._batches))
        if not self._append(self._journal, batch, maker.known_shapes):
            # The server may have written the batch although its reply was late. So the counts are appended again as
            # the same batch, and not added to the counts of the next batch.
            self._unconfirmed = NewRows((), batch.counts, {}, batch.id)
            maker.drop_rows()
            return 0, len(batch.rows)
        self._unpruned += len(batch.rows)
        self._unpruned_size += size
        return len(batch.rows), 0

    def _append(self, journal: Journal, batch: NewRows, known_shapes: Mapping[bytes, Shape]) -> bool:
        """Append a batch. Returns False if this failed. If the journal has lost its shapes, write the known shapes
        again. If the counts of an earlier batch cause an unexpected error, they are lost: the error would occur with
        every retry, and no later batch would be written."""
        try:
            if not journal.append(batch):
                with suppress(OncegateError, OSError):
                    journal.append(NewRows((), {}, known_shapes))
        except (OncegateError, OSError) as error:
            self._failed(error)
            return False
        except Exception as error:  # noqa: BLE001  # the thread goes on with the next batch
            _log.exception("the journal dropped a batch of rows")
            self._failed(error)
            if batch is self._unconfirmed:
                self._unconfirmed = None
            return False
        self._failures, self.error = 0, None
        return True

    def _failed(self, error: Exception) -> None:
        """Close the journal, and open it again after a delay: another journal may be in its place."""
        self.error = str(error) or type(error).__name__
        self._retry_at = time.monotonic() + _RETRY_AFTER[min(self._failures, len(_RETRY_AFTER) - 1)]
        self._failures += 1
        self._is_full = isinstance(error, StoreReadOnly)
        with suppress(Exception):
            self.close()

    def prune(self) -> None:
        """Delete old rows every 10 seconds, after 50,000 new rows or new rows of a fiftieth of the largest size, and if
        the journal is full."""
        now = time.monotonic()
        has_many = self._unpruned >= _PRUNE_AFTER or self._unpruned_size >= self._bounds.max_size // _PRUNE_PART
        is_due = now >= self._prune_at or has_many or self._is_full
        if self._journal is None or now < self._retry_at or not is_due:
            return
        self._prune_at, self._is_full = now + _PRUNE_EVERY, False
        self._unpruned = self._unpruned_size = 0
        try:
            for _ in range(_PRUNE_STEPS):
                if not self._journal.prune(self._bounds, self._clock()):
                    break
                time.sleep(0)
            else:
                self._prune_at = 0.0
            self._is_prune_failing = False
        except (OncegateError, OSError) as error:  # rows can still be written
            if not self._is_prune_failing:
                _log.warning("the journal cannot delete old rows, and tries again every 10 seconds: %s", error)
            self._is_prune_failing = True

    def close(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()


class _Health:
    """Logs one warning when the recorder begins to drop rows, and one when it writes all rows again."""

    def __init__(self) -> None:
        self._reported = 0
        self._last = 0
        self._last_at = 0.0
        self._is_dropping = False

    def report(self, dropped: int, error: str | None) -> None:
        now = time.monotonic()
        if dropped > self._last or error is not None:
            self._last, self._last_at = dropped, now
            if not self._is_dropping:
                self._is_dropping = True
                why = "it cannot keep up with the events" if error is None else error
                _log.warning("the journal drops rows; events are not affected: %s", why)
        elif self._is_dropping and now - self._last_at >= _CALM:
            _log.warning("the journal writes all rows again; it dropped %s", times(dropped - self._reported, "row"))
            self._is_dropping, self._reported = False, dropped
