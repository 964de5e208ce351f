"""`oncegate work`: run the events of a queue, of a message bus or of the inbox."""

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from typing import Final

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from oncegate import __version__
from oncegate.cli.commands import CliCommand
from oncegate.cli.handlers import abandon, chosen_handler
from oncegate.cli.options import with_settings
from oncegate.cli.output import print_error
from oncegate.clocks import since_boot
from oncegate.durations import times
from oncegate.errors import QueueError, SettingError
from oncegate.gate import Gate, JsonLog, Notice
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.observers import Observer, outcome_of
from oncegate.gate.outcome import STATUSES
from oncegate.ingress import check_queue, counts_attempts
from oncegate.ingress.options import WIDEST_LIMITS, validate
from oncegate.ingress.worker import Figures, Worker
from oncegate.journal import Recorder
from oncegate.service.log import announce, console_for, handler_for, stack_lines
from oncegate.settings import Settings
from oncegate.settings.routes import name_of, routes_of
from oncegate.settings.schema import HANDLER_OPTIONS, INBOX, SETTINGS, TABLES
from oncegate.text import clean, masked, on_one_line

_SHOW_AFTER: Final = 0.5  # seconds; a worker that cannot start fails before this
_RATE_WINDOW: Final = 5_000_000  # microseconds
_NO_HANDLER: Final = "no handler; use --handler MODULE:FUNCTION, --forward URL or --publish URL"
WORKER_OPTIONS: Final = [setting.name for setting in TABLES["work"] if setting.name not in ("source", *HANDLER_OPTIONS)]


class _Above(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(Text(self.format(record)))


class LiveFigures:
    """A line of figures on the terminal, and above it a line for each event that was not processed. `handler` writes
    lines of the log above it, too."""

    def __init__(self) -> None:
        self._console = console_for()
        self.handler = _Above(self._console)
        self._worker: Worker | None = None
        self._seen: deque[tuple[int, int]] = deque()

    @contextmanager
    def of(self, worker: Worker) -> Iterator[None]:
        """Show the figures of this worker until the block ends."""
        self._worker = worker
        live = Live(get_renderable=self._line, console=self._console, refresh_per_second=4)
        timer = threading.Timer(_SHOW_AFTER, live.start)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            live.stop()

    def observe(self, notice: Notice) -> None:
        """Print an outcome. The line includes the text of an exception, because only the operator of the worker sees
        the line."""
        outcome = outcome_of(notice)
        if outcome is None or outcome.status in ("processed", "accepted", "duplicate", "skipped", "unguarded"):
            return
        colour = STATUSES[outcome.status].colour
        text = f"  {on_one_line(outcome.event.id or '-')}  {clean(outcome.reason)}"
        line = Text.assemble((outcome.status.ljust(9), colour), text)
        self._console.print(line, *stack_lines(outcome), sep="\n")

    observe.logs_outcomes = True  # type: ignore[attr-defined]  # see `log_outcomes`

    def _line(self) -> Text:
        figures = Figures() if self._worker is None else self._worker.figures
        named = {
            "received": figures.received,
            "processed": figures.processed,
            "duplicates": figures.duplicates,
            "failed": figures.failed,
            "in flight": figures.in_hand,
        }
        parts: list[str | tuple[str, str]] = []
        for name, value in named.items():
            parts += [(f"{name}\N{NO-BREAK SPACE}", "dim"), f"{value:,}   "]
        # The console does not fold lines. This one is folded between two figures: Live would cut it.
        return Text.assemble(*parts, f"{self._rate(figures):,.0f}/s", overflow="fold", no_wrap=False)

    def _rate(self, figures: Figures) -> float:
        """Outcomes per second, over the last five seconds."""
        now, done = since_boot(), figures.processed + figures.duplicates + figures.failed
        self._seen.append((now, done))
        while now - self._seen[0][0] > _RATE_WINDOW:
            self._seen.popleft()
        then, before = self._seen[0]
        return (done - before) * 1e6 / (now - then) if now > then else 0.0


@click.command(
    cls=CliCommand,
    short_help="Run events from a queue or the inbox.",
    examples=(
        "oncegate work inbox --handler app:on_event",
        "oncegate work 'sqs://crm-events?region=eu-central-1' --handler app:on_event --store redis://127.0.0.1:6379",
        "oncegate work 'sqs://crm-events?region=eu-central-1' --forward https://crm.example.com/events --in-hand 20",
        "oncegate work 'kafka://127.0.0.1:9092/events?group=crm' --handler app:on_event",
    ),
)
@with_settings(*TABLES["work"], *TABLES[""], *TABLES["read"], *TABLES["forward"])
def work(settings: Settings) -> None:
    """Run the events of a queue, of a message bus or of the inbox, until the worker is stopped.

    SOURCE is 'sqs://NAME?region=REGION', 'kafka://HOST/TOPIC?group=NAME', 'nats://HOST/STREAM?consumer=NAME' or
    'amqp://HOST/QUEUE' (with quotes in the shell), the URL of an SQS queue, or `inbox`. If SOURCE is not
    given, the setting work.source or the variable ONCEGATE_WORK_SOURCE names the source. SQS counts the attempts of a
    message, so max_attempts has no effect for an SQS queue. The same is true for a RabbitMQ queue with
    dead_letters=queue in its URL.

    With SOURCE `inbox`, the worker runs events that `oncegate serve` has stored in the same store. It runs the events
    of all routes with the settings of the route, and with the handler of the route if it has one; --namespace selects
    one namespace. The options --batch, --wait, --visibility and --receivers have no effect for the inbox.

    SIGTERM or Ctrl-C stops the worker: running handlers may finish, other claims are released.
    """
    place = source_of(settings)
    figures, observers = figures_of(settings)
    with ExitStack() as stack:
        recorder = settings.recorder()
        if recorder is not None:
            stack.callback(recorder.close)
            recorder.start()
        if place == INBOX:
            worker = open_inboxes(settings, observers, stack, recorder)
        else:
            handler = handler_of(settings)
            settings.check_previous(connect=True)
            gate = stack.enter_context(closing(settings.gate(observers=[*observers, *_journal(recorder, place)])))
            worker = open_worker(gate, place, handler, settings)
        announce_worker(clean(masked(place)), settings)
        run_worker(worker, figures)
    abandon_handlers(worker, settings)


def _journal(recorder: Recorder | None, queue: str) -> list[Observer]:
    """The journal of a queue worker. The worker of a queue that does not count attempts keeps all invalid events."""
    if recorder is None:
        return []
    return [recorder.of(clean(masked(queue.partition("?")[0])), awaits_keep=not counts_attempts(queue))]


def handler_of(settings: Settings) -> Handler | AsyncHandler:
    """The handler of a queue worker. A handler is required: without a handler, messages would be deleted from the queue
    without having run."""
    handler = chosen_handler(settings, "work")
    if handler is None:
        raise SettingError(_NO_HANDLER)
    return handler


def source_of(settings: Settings) -> str:
    """The source of the worker. An invalid source is refused before its options are checked."""
    place: str | None = settings["work.source"]
    if place is None:
        raise SettingError(
            "no source; write it after `oncegate work`, or set work.source or ONCEGATE_WORK_SOURCE; a source is the URL"
            f" of a queue or a bus, or {INBOX}"
        )
    check_source(settings)
    return place


def check_source(settings: Settings) -> None:
    """Refuse an invalid URL of a source, and a store that would lose events of this source."""
    if (place := settings["work.source"]) in (None, INBOX):
        return
    try:
        check_queue(place)
    except SettingError as error:
        raise SettingError(f"{settings.where('work.source')}: {error}", settings=error.settings) from error
    if not counts_attempts(place):
        check_lasting_store(settings)


def check_inbox_store(settings: Settings) -> None:
    """Refuse a store in memory, because it does not hold the events of other processes."""
    if settings["store"] == "memory://":
        where = settings.where("store")
        raise SettingError(f"{where}: memory:// is not shared with the service; use the store of the service")


def check_lasting_store(settings: Settings) -> None:
    """Refuse a store in memory where the store holds events that were acknowledged: events that wait, and dead
    letters."""
    if settings["store"] == "memory://":
        raise SettingError(
            f"{settings.where('store')}: memory:// loses the events that it holds when this command ends; use a store"
            " that keeps them, such as sqlite:///oncegate.db"
        )


def inbox_handlers(settings: Settings) -> dict[str, tuple[Settings, Handler | AsyncHandler]]:
    """The settings and the handler of each namespace: the handler of the route, otherwise the handler of the worker. A
    worker with a handler also runs the namespace of `POST /events`, even if the settings do not serve that path."""
    worker_handler = chosen_handler(settings, "work")
    served = {route["namespace"]: route for route in routes_of(settings).values()}
    if worker_handler is not None:
        served.setdefault(settings["namespace"], settings)
    if settings.origins["namespace"] == SETTINGS["namespace"].flag:
        only = settings["namespace"]
        served = {only: served.get(only, settings)}
    found = {}
    for namespace, route in served.items():
        handler = chosen_handler(route, "serve") if _names_handler(route) else worker_handler
        if handler is None:
            raise SettingError(_NO_HANDLER if len(served) == 1 else f"namespace {namespace}: {_NO_HANDLER}")
        found[namespace] = route, handler
    return found


def _names_handler(route: Settings) -> bool:
    """Whether the table of a route names a handler or sink."""
    paths = [f"serve.{option}" for option in HANDLER_OPTIONS]
    return any(route[path] is not None and route.origins[path].endswith("]") for path in paths)


def open_inboxes(
    settings: Settings, observers: Sequence[Observer], stack: ExitStack, recorder: Recorder | None = None
) -> Worker:
    """Open one worker for each namespace of the inbox. All workers use the same store. Returns one worker that runs all
    these workers. In the journal, the place of an event is the name of its route, as in the journal of the service."""
    from oncegate.ingress.inbox import Inboxes

    handlers = inbox_handlers(settings)
    names = {route["namespace"]: name_of(path) for path, route in routes_of(settings).items()}
    check_inbox_store(settings)
    store = settings.open_store()
    stack.callback(store.close)
    workers, drained = [], []
    for namespace, (route, handler) in handlers.items():
        journal = [] if recorder is None else [recorder.of(names.get(namespace, namespace))]
        gate = stack.enter_context(closing(route.gate(store, observers=[*observers, *journal])))
        workers.append(gate.inbox(handler, at_work=settings["work.in_hand"], drain=settings["work.drain"]))
        drained.append(gate.drain)
    for drain in drained:  # every gate must drain before the first gate closes the store
        stack.callback(drain)
    return Inboxes(workers)


def open_worker(gate: Gate, place: str, handler: Handler | AsyncHandler, settings: Settings) -> Worker:
    """Open the worker of a queue. A SettingError about an option of the worker starts with the place of that
    setting."""
    try:
        return gate.worker(place, handler, **{name: settings[f"work.{name}"] for name in WORKER_OPTIONS})
    except SettingError as error:
        own = [name for name in error.settings if name in WORKER_OPTIONS]
        if not own:
            raise
        raise SettingError(f"{settings.where(f'work.{own[0]}')}: {error}", settings=error.settings) from error


def check_work_option(settings: Settings, name: str) -> None:
    """Refuse a value that no queue allows. The other options are checked with their defaults, so that only a problem of
    this option is reported."""
    defaults = {each: SETTINGS[f"work.{each}"].default for each in WORKER_OPTIONS}
    try:
        validate(WIDEST_LIMITS, **defaults | {name: settings[f"work.{name}"]})
    except SettingError as error:
        raise SettingError(f"{settings.where(f'work.{name}')}: {error}") from error


def announce_worker(place: str, settings: Settings) -> None:
    store = clean(masked(settings["store"]))
    facts = f"Oncegate {__version__} starts a worker of {place} with the store {store}."
    announce("oncegate.work", facts, "Stop with Ctrl-C.")


def figures_of(settings: Settings) -> tuple[LiveFigures | None, list[Observer]]:
    """The log that the setting `log` selects: the figures, if they are shown, and the observers of the gate. By
    default, it is figures on a terminal and JSON in a pipe."""
    figures = LiveFigures() if settings.chosen("log") is None and sys.stdout.isatty() else None
    if settings.chosen("log") == "off":
        return figures, []
    return figures, [JsonLog()] if figures is None else [figures.observe]


def run_worker(worker: Worker, figures: LiveFigures | None) -> None:
    """Run a worker until it is stopped, and show its figures. If handlers still run, an error of the queue is printed
    and not raised, because `abandon_handlers` follows."""
    try:
        with nullcontext() if figures is None else figures.of(worker):
            _log_to_stderr(figures)
            worker.run()
    except QueueError as error:
        if not worker.left_running:
            raise
        print_error(str(error))


def abandon_handlers(worker: Worker, settings: Settings) -> None:
    """End the process if handlers still run after the drain time."""
    if worker.left_running:
        abandon(times(worker.left_running, "handler"), settings["work.drain"])


def _log_to_stderr(figures: LiveFigures | None) -> None:
    above = figures.handler if figures is not None and sys.stderr.isatty() else None
    logging.basicConfig(level=logging.WARNING, handlers=[handler_for(sys.stderr, above)])
    if above is not None:  # a person waits for the end of the worker
        logging.getLogger("oncegate.work").setLevel(logging.INFO)
