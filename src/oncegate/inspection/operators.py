"""Redrive and drop dead letters, and reset keys: what the commands and the console share."""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, Literal, TypeAlias

from oncegate import keys
from oncegate.carriers import delivery
from oncegate.claims import DEAD, IN_PROGRESS, Address, EventSummary, Redrive, Reset
from oncegate.clocks import wall
from oncegate.durations import spoken, times
from oncegate.errors import SettingError
from oncegate.gate.job import is_call_reason
from oncegate.inspection.explanations import origin
from oncegate.inspection.record_filter import Newest, RecordFilter
from oncegate.inspection.records import sentence, stage_records, state_name
from oncegate.journal import MOST_EVENT_ROWS, ChangedEvent, OperatorLog
from oncegate.settings import Settings
from oncegate.sources import Hints, understood
from oncegate.stores.base import Entry, Store

BulkKind: TypeAlias = Literal["redrive", "drop"]

_PAGE: Final = 100
_EXAMPLES: Final = 10
_MOST_KEYS: Final = 3  # in a warning
CACHED: Final = "Running processes may cache its completion for up to a minute."


def all_dead_letters(store: Store, namespace: str | None) -> Iterator[Entry]:
    after = None
    while page := store.dead_letters(namespace, after=after, limit=_PAGE):
        yield from page
        after = address_of(page[-1])


def address_of(entry: Entry) -> Address:
    return Address(entry.namespace, entry.key)


def settings_of_namespace(settings: Settings, namespace: str) -> Settings | None:
    """The settings of the route that has this namespace; None if the settings do not name the namespace."""
    return next((each for each in (*settings.routes.values(), settings) if each["namespace"] == namespace), None)


class Selection:
    """The dead letters that an action changes. `newest` are the newest 10 of them. `abouts` describes the first 1,001
    of them. `namespaces` also has the namespaces of events that were redriven before and still wait."""

    def __init__(self, time_of: Callable[[Entry], int]) -> None:
        self.addresses: list[Address] = []
        self.abouts: dict[Address, EventSummary] = {}
        self.namespaces: set[str] = set()
        self._newest = Newest(_EXAMPLES, time_of)

    @property
    def newest(self) -> list[Entry]:
        return self._newest.entries

    def add(self, entry: Entry) -> None:
        self.namespaces.add(entry.namespace)
        if entry.record.state == DEAD:
            self.addresses.append(address := address_of(entry))
            if len(self.abouts) <= MOST_EVENT_ROWS:
                self.abouts[address] = entry.record.about
            self._newest.add(entry)


def change_dead_letters(store: Store, kind: BulkKind, addresses: Sequence[Address]) -> Iterator[list[Address]]:
    """Redrive or drop dead letters in batches. Yields the addresses that each batch has changed. A dead letter that
    another process has changed meanwhile is left out. The caller can stop after each batch."""
    for start in range(0, len(addresses), _PAGE):
        batch = addresses[start : start + _PAGE]
        if kind == "redrive":
            changed = store.redrive([Redrive(each.namespace, each.key) for each in batch])
        else:
            changed = store.reset([Reset(each.namespace, each.key, only_dead=True) for each in batch])
        yield [address for address, is_changed in zip(batch, changed, strict=True) if is_changed]


def about_reset(store: Store, entry: Entry) -> Iterator[str]:
    """Yields sentences about a record that a person wants to delete: first its state, then what the reset would lose or
    repeat, and other records of the same event."""
    record = entry.record
    yield sentence(record)
    is_running = record.state == IN_PROGRESS and wall() < record.lease_until
    if is_running:
        yield "A worker runs the event now. The event may run twice: the run goes on, and the next delivery runs too."
    if record.payload is not None:
        when = "If the run does not succeed, the event" if is_running else "The event"
        yield f"The stored payload is deleted too. {when} is lost unless it is delivered again."
    for each in stage_records(store, entry):
        yield f"The event was published. Its consumer uses the key {each.key.hex()}; reset that key too."


def reset_record(store: Store, entry: Entry, log: OperatorLog) -> bool:
    """Delete a record. Returns False if another process deleted the record before."""
    # A reset has no condition on the state or the fence. If the record changes in the milliseconds after the caller has
    # read it, the changed record is deleted. A condition would be a new operation of every store.
    (done,) = store.reset([Reset(entry.namespace, entry.key)])
    if done:
        event = ChangedEvent(entry.namespace, entry.key, entry.record.about)
        log.add("reset", f"Reset. The record was {state_name(entry.record.state)}.", event)
    return done


class RedriveWarnings:
    """What a person must know before dead letters are redriven: some of them no handler can run (calls of functions
    that `once` guards, and events that cannot be read), and some are conflicts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._readers: dict[str, tuple[keys.Strategy | None, Hints]] = {}
        self._calls = _FirstTexts()
        self._unreadable = _FirstTexts()
        self._conflicts = _FirstTexts()

    def add(self, entry: Entry) -> None:
        if entry.record.state != DEAD:
            return
        key = entry.key.hex()
        make, hints = self._reader(entry.namespace)
        if is_call_reason(entry.record.about):
            self._calls.add(key)
        elif (problem := understood(delivery(entry.record.payload), hints).problem) is not None:
            self._unreadable.add(f"{key} ({problem})")
        elif make is not None and (made := origin(entry, make, hints)) is not None and made.role == "conflict":
            self._conflicts.add(key)

    def _reader(self, namespace: str) -> tuple[keys.Strategy | None, Hints]:
        """The key strategy and the hints of a namespace. The strategy is None if it is a function that cannot be
        imported here."""
        if namespace not in self._readers:
            settings = settings_of_namespace(self._settings, namespace) or self._settings
            try:
                make: keys.Strategy | None = keys.strategy(settings.strategy())
            except SettingError:
                make = None
            self._readers[namespace] = make, settings.hints()
        return self._readers[namespace]

    def sentences(self) -> Iterator[str]:
        """Yields sentences about what happens if these dead letters are redriven."""
        if self._conflicts.count:
            count = times(self._conflicts.count, "conflict")
            yield f"{count}: an event with the same key and other content was accepted before: {self._conflicts}."
            yield "Redrive a conflict only if its content must run too. Then both contents take effect."
        if self._calls.count:
            count = times(self._calls.count, "call")
            yield f"{count} of a function cannot be redriven and will become a dead letter again: {self._calls}."
            yield "Only a caller of the function can run it. Drop these with `dlq drop`; the next call then runs."
        if self._unreadable.count:
            count = times(self._unreadable.count, "event")
            yield f"{count} cannot be read and will become a dead letter again: {self._unreadable}."
            yield "Correct the [read] settings, or let the sender send the event again. Then use `dlq drop`."


class _FirstTexts:
    """Counts texts, and names the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[str] = []

    def add(self, text: str) -> None:
        self.count += 1
        if len(self._first) < _MOST_KEYS:
            self._first.append(text)

    def __str__(self) -> str:
        return ", ".join([*self._first, *(["…"] if self.count > len(self._first) else [])])


# ── the record of who did what ────────────────────────────────────────────────────────────────────────────

_DONE: Final[dict[BulkKind, tuple[str, str]]] = {"redrive": ("Redrove", "Redriven"), "drop": ("Dropped", "Dropped")}


def letters(count: int) -> str:
    """A number of dead letters, as a page or the record shows it."""
    return f"{count:,} dead letter{'' if count == 1 else 's'}"


def filter_text(chosen: RecordFilter, namespace: str | None = None) -> str:
    """What a filter of dead letters selects, for the record."""
    parts = [
        namespace and f"namespace {namespace}",
        chosen.id and f"id {chosen.id}",
        chosen.type and f"type {chosen.type}",
        chosen.error and f'error with "{chosen.error}"',
        chosen.older_than and f"older than {spoken(chosen.older_than)}",
        chosen.newer_than and f"newer than {spoken(chosen.newer_than)}",
    ]
    return ", ".join(part for part in parts if part) or "all"


class BulkRecord:
    """Records an action on dead letters in the log of operators: one row for the action, and one for each event if
    there are at most 1,000. `chosen` says how they were chosen. The row of the action is written when the context ends,
    also after an error. If the process is killed before that, the rows of the events show what was done. With more
    events there are no such rows, so these actions also have a row when they start."""

    def __init__(self, log: OperatorLog, kind: BulkKind, selection: Selection, chosen: str) -> None:
        self._log = log
        self._kind = kind
        self._selection = selection
        self._chosen = chosen
        self._done: list[Address] = []
        self._total = len(selection.addresses)
        self.end: str | None = None  # why the action ended early

    @property
    def done(self) -> int:
        """The number of dead letters that were changed."""
        return len(self._done)

    def add(self, changed: Sequence[Address]) -> None:
        self._done += changed
        if 1 < self._total <= MOST_EVENT_ROWS:
            reason = f"{_DONE[self._kind][1]} by an action on {letters(self._total)}."
            self._log.add_events(self._kind, reason, [self._event(address) for address in changed])

    def _event(self, address: Address) -> ChangedEvent:
        return ChangedEvent(address.namespace, address.key, self._selection.abouts[address])

    def __enter__(self) -> "BulkRecord":
        if self._total > MOST_EVENT_ROWS:
            self._add(f"Started to {self._kind} {letters(self._total)}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None and self.end is None:
            self.end = "stopped by an error"
        if self._total == 1 and self._done:
            self._log.add(self._kind, f"{_DONE[self._kind][1]}.", self._event(self._done[0]))
        elif self._total:
            of = "" if self.done == self._total else f"{self.done:,} of "
            self._add(f"{_DONE[self._kind][0]} {of}{letters(self._total)}")

    def _add(self, what: str) -> None:
        namespaces = self._selection.namespaces
        end = "" if self.end is None else f"; {self.end}"
        namespace = next(iter(namespaces)) if len(namespaces) == 1 else ""
        self._log.add(self._kind, f"{what} ({self._chosen}){end}.", namespace=namespace)
