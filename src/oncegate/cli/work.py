"""`oncegate work`: take the messages of a queue through the gate, or run what the inbox holds."""

import logging
import sys
from contextlib import closing
from importlib import import_module
from typing import Final

import click

from oncegate import __version__
from oncegate.cli.figures import LiveFigures
from oncegate.cli.handlers import abandon, chosen_handler
from oncegate.cli.options import with_settings
from oncegate.cli.output import clean, say_error
from oncegate.durations import times
from oncegate.errors import MissingExtra, QueueError, SettingError
from oncegate.gate import Gate, JsonLog
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.observing import Observer
from oncegate.gate.working import Worker
from oncegate.masking import masked
from oncegate.service.log import handler_for
from oncegate.settings import Settings
from oncegate.settings.known import SETTINGS, TABLES, WAYS

_INBOX: Final = "inbox"
OF_WORKER: Final = [setting.name for setting in TABLES["work"] if setting.name not in WAYS]


@click.command()
@click.argument("place", metavar="SOURCE")
@with_settings(*TABLES["work"], *TABLES[""], *TABLES["read"], *TABLES["forward"])
def work(place: str, settings: Settings) -> None:
    """Take the messages of a queue through the gate, or run what the inbox holds, until it is stopped.

    SOURCE is sqs://NAME?region=REGION, or the URL that AWS shows for a queue of SQS. The queue counts how often a
    message comes, and max_attempts does not matter.

    With `inbox` as the SOURCE, events run that `oncegate serve` has accepted into the same store and namespace, beside
    those that it runs itself. Of the options for work only in-hand, drain and what is done with an event matter then.

    SIGTERM or Ctrl-C stops it: what runs may end, the rest is let go.
    """
    _check_place(place)
    handler = handler_of(settings)
    refuse_empty_inbox(place, settings)
    shown = LiveFigures() if _is_watched(settings) else None
    gate = settings.gate(observers=_observers(settings, shown))
    with closing(gate):
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
        raise SettingError("name what is called with each event: --handler module:function, --forward or --publish URL")
    return handler


def _check_place(place: str) -> None:
    """Refuse what is no source before anything is said of how to work on it."""
    if place != _INBOX:
        import_module("oncegate.work.sqs.address").read_address(place)


def refuse_empty_inbox(place: str, settings: Settings) -> None:
    """What is kept in memory waits in the process that accepted it, and nobody else can run it."""
    if place == _INBOX and settings["store"] == "memory://":
        where = settings.where("store")
        raise SettingError(
            f"{where}: nothing can ever wait in memory:// of this process; name the store of the service"
        )


def worker_of(gate: Gate, place: str, handler: Handler | AsyncHandler, settings: Settings) -> Worker:
    """The worker; what it cannot be told is told with where that was said."""
    if place == _INBOX:
        return gate.inbox(handler, at_work=settings["work.in_hand"], drain=settings["work.drain"])
    try:
        return gate.worker(place, handler, **{name: settings[f"work.{name}"] for name in OF_WORKER})
    except SettingError as error:
        name = str(error).partition("=")[0]
        raise SettingError(f"{settings.where(f'work.{name}')}: {error}" if name in OF_WORKER else str(error)) from error


def check_way(settings: Settings, name: str) -> None:
    """Refuse what SQS would not allow of one setting, as the worker of a queue does."""
    try:
        agree = import_module("oncegate.work.sqs.ways").agree
    except MissingExtra:
        return  # there is no worker of a queue here
    usual = {each: SETTINGS[f"work.{each}"].default for each in OF_WORKER}
    try:
        agree(**usual | {name: settings[f"work.{name}"]})
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
