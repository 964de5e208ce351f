"""`oncegate dlq`: dead letters, for a person to look at, redrive or drop."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import click

from oncegate.carriers import delivery
from oncegate.claims import DEAD, Redrive, Reset
from oncegate.cli import exit_codes, options
from oncegate.cli.handlers import load_handler
from oncegate.cli.options import (
    address_of,
    confirm,
    counted,
    existing_store,
    looked_at,
    looking,
    lookup,
    namespace_of,
    output_option,
    the_one,
)
from oncegate.cli.output import moment, say, say_aside, say_error, show_facts, show_json, show_table
from oncegate.cli.records import fields, payload_text, sentence
from oncegate.durations import microseconds, times
from oncegate.gate.handlers import Handler
from oncegate.gate.job import is_call_reason
from oncegate.gate.options import DEFAULTS, GateOptions
from oncegate.gate.outcome import Outcome
from oncegate.ingress.handler_wrappers import contained, interrupts_told_apart
from oncegate.settings import Settings
from oncegate.sources import understood
from oncegate.stores.base import Entry, Store

_PAGE = 100
_MOST = 1_000_000
_PAUSE = "1ms"
_NAMED = 3


@click.group()
def dlq() -> None:
    """List, show, redrive or drop dead letters."""


@dlq.command(name="list")
@looking
@click.option("--limit", type=counted(most=_MOST), default=100, show_default=True, help="How many at most.")
@output_option
def list_(settings: Settings, limit: int, output: str) -> None:
    """List dead letters, the payloads left out."""
    with closing(looked_at(settings)) as opened:
        entries = opened.dead_letters(namespace_of(settings), limit=limit + 1)
    more = f"There are more than these {limit}; ask for them with --limit." if len(entries) > limit else None
    if output == "json":
        show_json([fields(entry) for entry in entries[:limit]])
        if more:
            say_aside(more)
        return
    if not entries:
        say("There are no dead letters.")
        return
    rows = [_row(entry) for entry in entries[:limit]]
    headers = ("key", "namespace", "event id", "type", "attempts", "first seen", "error")
    show_table(headers, rows, essential=("key", "event id", "error"))
    if more:
        say(more)


def _row(entry: Entry) -> tuple[Any, ...]:
    record, about = entry.record, entry.record.about
    first_seen = moment(record.first_seen)
    error = (record.error or "").split("\n")[0]
    return entry.key.hex(), entry.namespace, about.delivery_id, about.type, record.attempts, first_seen, error


@dlq.command()
@lookup
def show(key: bytes, settings: Settings, output: str) -> None:
    """Show the dead letter KEY with its payload."""
    with closing(looked_at(settings)) as opened:
        entry = _dead(opened, settings, key)
    if output == "json":
        show_json(fields(entry) | {"payload": payload_text(entry.record)})
        return
    say(sentence(entry.record))
    show_facts(fields(entry, moment) | {"payload": payload_text(entry.record)})


@dlq.command()
@click.argument("wanted", metavar="[KEY]...", type=options.key, nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Every dead letter there is.")
@click.option("--handler", metavar="MODULE:FUNCTION", help="Run them here and now with this handler.")
@looking
def redrive(wanted: tuple[bytes, ...], all_: bool, handler: str | None, settings: Settings) -> None:
    """Send dead letters back to work, with all their attempts.

    A running `oncegate serve` on the same store takes them up within a second. With --handler they run here, at most
    max_attempts times and without a pause, together with whatever else waits in their namespaces; with --all, also in
    those of the settings.
    """
    _one_of(wanted, all_)
    call = None if handler is None else load_handler(handler, "--handler")
    with closing(existing_store(settings)) as opened:
        entries = list(_wanted(opened, settings, wanted, or_waiting=True))
        dead = [entry for entry in entries if entry.record.state == DEAD]
        redriven = sum(opened.redrive([Redrive(entry.namespace, entry.key) for entry in dead]))
        say(f"{redriven} redriven.")
        _warn_of_calls([entry for entry in dead if is_call_reason(entry.record.about)])
        _warn_of_unreadable([entry for entry in dead if not is_call_reason(entry.record.about)], settings)
        undone = 0
        if call is not None:
            names = {entry.namespace for entry in entries} | (_namespaces(settings) if all_ else set())
            undone = _run_all(settings, opened, sorted(names), call)
    _all_done(len(dead), redriven, "redriven")
    if undone:
        say_error(f"{times(undone, 'event')} could not be processed")
        raise click.exceptions.Exit(exit_codes.FAILED)


def _warn_of_calls(entries: Sequence[Entry]) -> None:
    """Say the same of the calls of functions that `once` guards, which no handler is given."""
    if entries:
        say(f"{times(len(entries), 'call')} will be buried again, whatever the handler: {_few([*map(_key, entries)])}.")
        say("Only the callers of a function can run it: drop these with `dlq drop`, and the next call runs.")


def _warn_of_unreadable(entries: Sequence[Entry], settings: Settings) -> None:
    """Say of what cannot be read, and so can never be run, that it will be a dead letter again."""
    hints = settings.hints()
    found = {_key(entry): understood(delivery(entry.record.payload), hints).problem for entry in entries}
    unreadable = [f"{key} ({problem})" for key, problem in found.items() if problem is not None]
    if unreadable:
        count = times(len(unreadable), "event")
        say(f"{count} cannot be read and will be buried again, whatever the handler: {_few(unreadable)}.")
        say("Have the sender send it anew, or say in the settings how it is read; then drop these with `dlq drop`.")


def _few(things: Sequence[str]) -> str:
    return ", ".join([*things[:_NAMED], *(["…"] if len(things) > _NAMED else [])])


def _key(entry: Entry) -> str:
    return entry.key.hex()


def _namespaces(settings: Settings) -> set[str]:
    """Those that the command looks in, as far as the settings name them: what was redriven before may wait there."""
    chosen = namespace_of(settings)
    return {chosen} if chosen else {each["namespace"] for each in (settings, *settings.routes.values())}


def _run_all(settings: Settings, store: Store, namespaces: Sequence[str], handler: Handler) -> int:
    """Run what waits in these; how many are not processed then."""
    last: dict[tuple[str, str], Outcome] = {}
    ran = set()
    with interrupts_told_apart():
        for namespace in namespaces:
            for outcome in _run(settings, store, namespace, contained(handler)):
                say(f"{outcome.key}  {outcome.reason}")
                last[namespace, str(outcome.key)] = outcome
                if not outcome.reason.startswith("Not run"):
                    ran.add((namespace, str(outcome.key)))
    say(f"{len(ran)} run.")
    return sum(outcome.status != "processed" for outcome in last.values())


def _run(settings: Settings, store: Store, namespace: str, handler: Handler) -> Iterator[Outcome]:
    """Run what waits until each is processed or a dead letter again.

    Nobody else counts the attempts here, so if the settings do not either, the default does."""
    attempts = settings["max_attempts"] or DEFAULTS["max_attempts"]
    gate = settings.gate(store, observers=(), **_here(namespace, attempts))
    while outcomes := gate.run_waiting(handler):
        yield from outcomes
        time.sleep(microseconds(_PAUSE, "pause") / 1e6)


def _here(namespace: str, attempts: int | None) -> GateOptions:
    """A person waits for the answer, so nothing is tried for longer than its attempts take."""
    pauses: GateOptions = {"backoff": _PAUSE, "backoff_limit": _PAUSE, "retry_for": None}
    return {"namespace": namespace, "max_attempts": attempts, **pauses}


@dlq.command()
@click.argument("wanted", metavar="[KEY]...", type=options.key, nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Every dead letter there is.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@looking
def drop(wanted: tuple[bytes, ...], all_: bool, yes: bool, settings: Settings) -> None:
    """Throw dead letters away: their payload is lost, and their events count as never seen."""
    _one_of(wanted, all_)
    with closing(existing_store(settings)) as opened:
        entries = list(_wanted(opened, settings, wanted))
        if entries and not yes:
            confirm(f"Throw away {times(len(entries), 'dead letter')} with the payload?")
        answers = opened.reset([Reset(entry.namespace, entry.key, only_dead=True) for entry in entries])
    say(f"{sum(answers)} dropped.")
    _all_done(len(entries), sum(answers), "dropped")


def _one_of(keys: tuple[bytes, ...], all_: bool) -> None:
    if bool(keys) is all_:
        raise click.UsageError("name the keys of dead letters, or --all for every one")


def _wanted(store: Store, settings: Settings, keys: tuple[bytes, ...], *, or_waiting: bool = False) -> Iterator[Entry]:
    if keys:
        yield from [_dead(store, settings, key, or_waiting=or_waiting) for key in keys]
        return
    after = None
    while page := store.dead_letters(namespace_of(settings), after=after, limit=_PAGE):
        yield from page
        after = address_of(page[-1])


def _dead(store: Store, settings: Settings, key: bytes, *, or_waiting: bool = False) -> Entry:
    """The dead letter of a key, or what was one and waits to be run."""
    entry = the_one(store, settings, key)
    if entry.record.state != DEAD and not (or_waiting and entry.record.payload is not None):
        say_error(f"{key.hex()} is no dead letter. {sentence(entry.record)}")
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)
    return entry


def _all_done(asked: int, done: int, what: str) -> None:
    if done < asked:
        say_error(f"{asked - done} were no dead letters any more when they were to be {what}")
        raise click.exceptions.Exit(exit_codes.FAILED)
