"""What a worker does, on a terminal: a line of figures that moves, and above it what was not taken."""

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Final

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from oncegate import __version__
from oncegate.cli.handlers import abandon, chosen_handler
from oncegate.cli.options import with_settings
from oncegate.cli.output import say_error
from oncegate.clocks import since_boot
from oncegate.durations import times
from oncegate.errors import MissingExtra, QueueError, SettingError
from oncegate.gate import Gate, JsonLog, Notice
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.observers import Observer, outcome_of
from oncegate.gate.outcome import STATUSES
from oncegate.ingress.inbox import Inboxes
from oncegate.ingress.worker import Figures, Worker
from oncegate.service.config import routes_of
from oncegate.service.log import handler_for
from oncegate.settings import Settings
from oncegate.settings.schema import SETTINGS, TABLES, WAYS
from oncegate.text import clean, masked

_BEGIN_AFTER: Final = 0.5  # in seconds: what cannot start says why before
_OVER: Final = 5_000_000  # in microseconds: the time over which the rate is taken


class LiveFigures:
    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._worker: Worker | None = None
        self._seen: deque[tuple[int, int]] = deque()

    @contextmanager
    def of(self, worker: Worker) -> Iterator[None]:
        """Show the figures of this worker until the block ends."""
        self._worker = worker
        live = Live(get_renderable=self._line, console=self._console, refresh_per_second=4)
        begin = threading.Timer(_BEGIN_AFTER, live.start)
        begin.daemon = True
        begin.start()
        try:
            yield
        finally:
            begin.cancel()
            begin.join()
            live.stop()

    def told(self, notice: Notice) -> None:
        """An observer. What an exception said is part of the line: whoever started the worker is looking at it."""
        outcome = outcome_of(notice)
        if outcome is None or outcome.status in ("processed", "duplicate", "skipped", "unguarded"):
            return
        colour = STATUSES[outcome.status].colour
        said = f"  {clean(outcome.event.id or '-')}  {clean(outcome.reason)}"
        self._console.print(Text.assemble((outcome.status.ljust(9), colour), said))

    def _line(self) -> Text:
        figures = Figures() if self._worker is None else self._worker.figures
        named = {
            "received": figures.received,
            "processed": figures.processed,
            "duplicates": figures.duplicates,
            "failed": figures.failed,
            "in hand": figures.in_hand,
        }
        parts: list[str | tuple[str, str]] = []
        for name, value in named.items():
            parts += [(f"{name} ", "dim"), f"{value:,}   "]
        return Text.assemble(*parts, f"{self._rate(figures):,.0f}/s")

    def _rate(self, figures: Figures) -> float:
        """Events that came to an outcome, per second, over the last few."""
        now, done = since_boot(), figures.processed + figures.duplicates + figures.failed
        self._seen.append((now, done))
        while now - self._seen[0][0] > _OVER:
            self._seen.popleft()
        then, before = self._seen[0]
        return (done - before) * 1e6 / (now - then) if now > then else 0.0


# `oncegate work`: take the messages of a queue through the gate, or run what the inbox holds.


_INBOX: Final = "inbox"
OF_WORKER: Final = [setting.name for setting in TABLES["work"] if setting.name not in WAYS]


@click.command()
@click.argument("place", metavar="SOURCE")
@with_settings(*TABLES["work"], *TABLES[""], *TABLES["read"], *TABLES["forward"])
def work(place: str, settings: Settings) -> None:
    """Take the messages of a queue through the gate, or run what the inbox holds, until it is stopped.

    SOURCE is sqs://NAME?region=REGION, or the URL that AWS shows for a queue of SQS. The queue counts how often a
    message comes, and max_attempts does not matter.

    With `inbox` as the SOURCE, events run that `oncegate serve` has accepted into the same store, beside those that it
    runs itself: those of every route, with the route's settings and, if it names one, its own handler. --namespace
    takes those of one namespace. Of the options for work only in-hand, drain and what is done with an event matter.

    SIGTERM or Ctrl-C stops it: what runs may end, the rest is let go.
    """
    _check_place(place)
    shown = LiveFigures() if _is_watched(settings) else None
    observers = _observers(settings, shown)
    with ExitStack() as opened:
        if place == _INBOX:
            worker = inboxes_of(settings, observers, opened)
        else:
            handler = handler_of(settings)
            gate = opened.enter_context(closing(settings.gate(observers=observers)))
            worker = worker_of(gate, place, handler, settings)
        click.echo(_WELCOME.format(version=__version__, place=clean(masked(place)), store=_store(settings)), err=True)
        try:
            _run(worker, shown)
        except QueueError as error:
            if not worker.left_running:
                raise
            say_error(str(error))
    if worker.left_running:
        abandon(times(worker.left_running, "handler"), settings["work.drain"])


_WELCOME = "Oncegate {version} takes events from {place} and remembers them in {store}. Stop it with Ctrl-C."


def handler_of(settings: Settings) -> Handler | AsyncHandler:
    """The handler: there must be one, since what it is given leaves the queue."""
    handler = chosen_handler(settings, "work")
    if handler is None:
        raise SettingError(_NO_HANDLER)
    return handler


_NO_HANDLER: Final = "name what is called with each event: --handler module:function, --forward or --publish URL"


def _check_place(place: str) -> None:
    """Refuse what is no source before anything is said of how to work on it."""
    if place != _INBOX:
        from oncegate.ingress import check_queue

        check_queue(place)


def refuse_empty_inbox(settings: Settings) -> None:
    """What is kept in memory waits in the process that accepted it, and nobody else can run it."""
    if settings["store"] == "memory://":
        where = settings.where("store")
        raise SettingError(
            f"{where}: nothing can ever wait in memory:// of this process; name the store of the service"
        )


def handlers_of_inbox(settings: Settings) -> dict[str, tuple[Settings, Handler | AsyncHandler]]:
    """By namespace, the settings of each route and what runs its events: the handler in the route's own table, else the
    worker's. A worker with a handler also takes the namespace of `POST /events`, served or not."""
    named = chosen_handler(settings, "work")
    served = {route["namespace"]: route for route in routes_of(settings).values()}
    if named is not None:
        served.setdefault(settings["namespace"], settings)
    if settings.origins["namespace"] == SETTINGS["namespace"].flag:
        only = settings["namespace"]
        served = {only: served.get(only, settings)}
    found = {}
    for namespace, route in served.items():
        handler = chosen_handler(route, "serve") if _names_handler(route) else named
        if handler is None:
            raise SettingError(_NO_HANDLER if len(served) == 1 else f"events of {namespace}: {_NO_HANDLER}")
        found[namespace] = route, handler
    return found


def _names_handler(route: Settings) -> bool:
    """Whether a route's own table says what is done with its events."""
    paths = [f"serve.{way}" for way in WAYS]
    return any(route[path] is not None and route.origins[path].endswith("]") for path in paths)


def inboxes_of(settings: Settings, observers: Sequence[Observer], opened: ExitStack) -> Worker:
    """The worker of the inbox: one for each namespace, on one store."""
    handlers = handlers_of_inbox(settings)
    refuse_empty_inbox(settings)
    store = settings.open_store()
    opened.callback(store.close)
    workers, drained = [], []
    for route, handler in handlers.values():
        gate = opened.enter_context(closing(route.gate(store, observers=observers)))
        workers.append(gate.inbox(handler, at_work=settings["work.in_hand"], drain=settings["work.drain"]))
        drained.append(gate.drain)
    for drain in drained:  # all of them before the first closes the store
        opened.callback(drain)
    return Inboxes(workers)


def worker_of(gate: Gate, place: str, handler: Handler | AsyncHandler, settings: Settings) -> Worker:
    """The worker of a queue; what it cannot be told is told with where that was said."""
    try:
        return gate.worker(place, handler, **{name: settings[f"work.{name}"] for name in OF_WORKER})
    except SettingError as error:
        name = str(error).partition("=")[0]
        raise SettingError(f"{settings.where(f'work.{name}')}: {error}" if name in OF_WORKER else str(error)) from error


def check_way(settings: Settings, name: str) -> None:
    """Refuse what SQS would not allow of one setting, as the worker of a queue does."""
    try:
        from oncegate.ingress.sqs.options import validate
    except MissingExtra:
        return  # there is no worker of a queue here
    usual = {each: SETTINGS[f"work.{each}"].default for each in OF_WORKER}
    try:
        validate(**usual | {name: settings[f"work.{name}"]})
    except SettingError as error:
        raise SettingError(f"{settings.where(f'work.{name}')}: {error}") from error


def _store(settings: Settings) -> str:
    return clean(masked(settings["store"]))


def _is_watched(settings: Settings) -> bool:
    return settings.chosen("log") is None and sys.stdout.isatty()


def _observers(settings: Settings, shown: LiveFigures | None) -> list[Observer]:
    """The log: as it was chosen, else figures for people on a terminal and lines for programs in a pipe."""
    if settings.chosen("log") == "off":
        return []
    return [JsonLog()] if shown is None else [shown.told]


def _run(worker: Worker, shown: LiveFigures | None) -> None:
    if shown is None:
        _log_to_stderr()
        worker.run()
        return
    with shown.of(worker):
        _log_to_stderr()
        worker.run()


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, handlers=[handler_for(sys.stderr)])
