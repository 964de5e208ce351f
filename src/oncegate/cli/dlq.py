"""`oncegate dlq`: list, show, redrive and drop dead letters."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import click

from oncegate.carriers import delivery
from oncegate.claims import DEAD, Redrive, Reset
from oncegate.cli import exit_codes, options
from oncegate.cli.commands import EXAMPLE_KEY, CliGroup
from oncegate.cli.handlers import load_handler
from oncegate.cli.options import (
    address_of,
    confirm,
    existing_store,
    find_record,
    namespace_of,
    number,
    output_option,
    read_only_store,
    record_options,
    store_options,
)
from oncegate.cli.output import print_error, print_note, print_text, readable_time, show_facts, show_json, show_table
from oncegate.cli.records import fields, payload_text, sentence
from oncegate.durations import microseconds, times
from oncegate.events import Event
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
_MOST_KEYS = 3  # in a message


@click.group(
    cls=CliGroup,
    short_help="List or handle dead letters.",
    examples=("oncegate dlq list", f"oncegate dlq show {EXAMPLE_KEY}", f"oncegate dlq redrive {EXAMPLE_KEY}"),
)
def dlq() -> None:
    """List, show, redrive or drop dead letters."""


@dlq.command(
    name="list",
    short_help="List dead letters.",
    examples=("oncegate dlq list", "oncegate dlq list --namespace default --limit 20 --output json"),
)
@store_options
@click.option(
    "--limit", type=number(most=_MOST), metavar="NUMBER", default=100, show_default=True, help="Maximum number to list."
)
@output_option
def list_(settings: Settings, limit: int, output: str) -> None:
    """List dead letters without their payloads."""
    with closing(read_only_store(settings)) as store:
        entries = store.dead_letters(namespace_of(settings), limit=limit + 1)
    more = f"Showing the first {limit}; use --limit to see more." if len(entries) > limit else None
    if output == "json":
        show_json([fields(entry) for entry in entries[:limit]])
        if more:
            print_note(more)
        return
    if not entries:
        print_text("There are no dead letters.")
        return
    rows = [_row(entry) for entry in entries[:limit]]
    headers = ("key", "namespace", "event id", "type", "attempts", "first seen", "error")
    show_table(headers, rows, essential=("key", "event id", "error"))
    if more:
        print_text(more)


def _row(entry: Entry) -> tuple[Any, ...]:
    record, about = entry.record, entry.record.about
    first_seen = readable_time(record.first_seen)
    error = (record.error or "").split("\n")[0]
    return entry.key.hex(), entry.namespace, about.delivery_id, about.type, record.attempts, first_seen, error


@dlq.command(
    short_help="Show a dead letter.",
    examples=(f"oncegate dlq show {EXAMPLE_KEY}", f"oncegate dlq show {EXAMPLE_KEY} --output json"),
)
@record_options
def show(key: bytes, settings: Settings, output: str) -> None:
    """Show the dead letter KEY and its payload."""
    with closing(read_only_store(settings)) as store:
        entry = _dead(store, settings, key)
    if output == "json":
        show_json(fields(entry) | {"payload": payload_text(entry.record)})
        return
    print_text(sentence(entry.record))
    show_facts(fields(entry, readable_time) | {"payload": payload_text(entry.record)})


@dlq.command(
    short_help="Run dead letters again.",
    examples=(f"oncegate dlq redrive {EXAMPLE_KEY}", "oncegate dlq redrive --all --handler app:on_event"),
)
@click.argument("wanted", metavar="[KEY]...", type=options.key, nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Every dead letter.")
@click.option("--handler", metavar="MODULE:FUNCTION", help="Run the events now, with this handler.")
@store_options
def redrive(wanted: tuple[bytes, ...], all_: bool, handler: str | None, settings: Settings) -> None:
    """Make dead letters run again. Their attempts are counted from zero.

    A running `oncegate serve` with the same store starts them within a second. With --handler this command runs them
    itself: up to max_attempts times each, without a pause, and together with all other waiting events of the same
    namespaces. With --handler and --all, the waiting events in the namespaces of the settings run too.
    """
    _require_keys_or_all(wanted, all_)
    call = None if handler is None else load_handler(handler, "--handler")
    with closing(existing_store(settings)) as store:
        entries = list(_wanted(store, settings, wanted, or_waiting=True))
        dead = [entry for entry in entries if entry.record.state == DEAD]
        redriven = sum(store.redrive([Redrive(entry.namespace, entry.key) for entry in dead]))
        print_text(f"{redriven} redriven.")
        _warn_about_calls([entry for entry in dead if is_call_reason(entry.record.about)])
        _warn_about_unreadable([entry for entry in dead if not is_call_reason(entry.record.about)], settings)
        failed = 0
        if call is not None:
            names = {entry.namespace for entry in entries} | (_namespaces(settings) if all_ else set())
            failed = _run_all(settings, store, sorted(names), call)
    _check_count(len(dead), redriven, "redriven")
    if failed:
        print_error(f"{times(failed, 'event')} could not be processed")
        raise click.exceptions.Exit(exit_codes.FAILED)


def _warn_about_calls(entries: Sequence[Entry]) -> None:
    """Warn about calls of functions that `once` guards: no handler can run them."""
    if entries:
        count, named = times(len(entries), "call"), _few([*map(_key, entries)])
        print_text(f"{count} of a function cannot be redriven and will become a dead letter again: {named}.")
        print_text("Only a caller of the function can run it. Drop these with `dlq drop`; the next call then runs.")


def _warn_about_unreadable(entries: Sequence[Entry], settings: Settings) -> None:
    """Warn about events that cannot be read: no handler can run them."""
    hints = settings.hints()
    found = {_key(entry): understood(delivery(entry.record.payload), hints).problem for entry in entries}
    unreadable = [f"{key} ({problem})" for key, problem in found.items() if problem is not None]
    if unreadable:
        count = times(len(unreadable), "event")
        print_text(f"{count} cannot be read and will become a dead letter again: {_few(unreadable)}.")
        print_text("Correct the [read] settings, or let the sender send the event again. Then use `dlq drop`.")


def _few(things: Sequence[str]) -> str:
    return ", ".join([*things[:_MOST_KEYS], *(["…"] if len(things) > _MOST_KEYS else [])])


def _key(entry: Entry) -> str:
    return entry.key.hex()


def _namespaces(settings: Settings) -> set[str]:
    """The namespaces that the settings name. Events that were redriven earlier may still wait in these namespaces."""
    chosen = namespace_of(settings)
    return {chosen} if chosen else {each["namespace"] for each in (settings, *settings.routes.values())}


def _run_all(settings: Settings, store: Store, namespaces: Sequence[str], handler: Handler) -> int:
    """Run the waiting events of these namespaces; returns the number of events that were not processed."""
    last: dict[tuple[str, str], Outcome] = {}
    ran: set[tuple[str, str]] = set()

    def run(event: Event, namespace: str) -> Any:
        ran.add((namespace, str(event.key)))
        return handler(event)

    with interrupts_told_apart():
        for namespace in namespaces:
            for outcome in _run(settings, store, namespace, contained(partial(run, namespace=namespace))):
                print_text(f"{outcome.key}  {outcome.reason}")
                last[namespace, str(outcome.key)] = outcome
    print_text(f"{len(ran)} run.")
    return sum(outcome.status != "processed" for outcome in last.values())


def _run(settings: Settings, store: Store, namespace: str, handler: Handler) -> Iterator[Outcome]:
    """Run the waiting events until each event is processed or is a dead letter again.

    If the settings have no max_attempts, its default applies, because no platform counts the attempts here. Pauses are
    short and unavailability counts as a failure, because a person waits for the result."""
    options: GateOptions = {
        "namespace": namespace,
        "max_attempts": settings["max_attempts"] or DEFAULTS["max_attempts"],
        "backoff": _PAUSE,
        "backoff_limit": _PAUSE,
        "retry_for": None,
    }
    gate = settings.gate(store, observers=(), **options)
    while outcomes := gate.run_waiting(handler):
        yield from outcomes
        time.sleep(microseconds(_PAUSE, "pause") / 1e6)


@dlq.command(
    short_help="Delete dead letters.",
    examples=(f"oncegate dlq drop {EXAMPLE_KEY}", "oncegate dlq drop --all --namespace default --yes"),
)
@click.argument("wanted", metavar="[KEY]...", type=options.key, nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Every dead letter.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@store_options
def drop(wanted: tuple[bytes, ...], all_: bool, yes: bool, settings: Settings) -> None:
    """Delete dead letters with their payloads. Their events then count as never seen."""
    _require_keys_or_all(wanted, all_)
    with closing(existing_store(settings)) as store:
        entries = list(_wanted(store, settings, wanted))
        if entries and not yes:
            confirm(f"Delete {times(len(entries), 'dead letter')} and the payload?")
        answers = store.reset([Reset(entry.namespace, entry.key, only_dead=True) for entry in entries])
    print_text(f"{sum(answers)} dropped.")
    _check_count(len(entries), sum(answers), "dropped")


def _require_keys_or_all(keys: tuple[bytes, ...], all_: bool) -> None:
    if bool(keys) is all_:
        raise click.UsageError("name the keys of dead letters, or use --all")


def _wanted(store: Store, settings: Settings, keys: tuple[bytes, ...], *, or_waiting: bool = False) -> Iterator[Entry]:
    if keys:
        yield from [_dead(store, settings, key, or_waiting=or_waiting) for key in keys]
        return
    after = None
    while page := store.dead_letters(namespace_of(settings), after=after, limit=_PAGE):
        yield from page
        after = address_of(page[-1])


def _dead(store: Store, settings: Settings, key: bytes, *, or_waiting: bool = False) -> Entry:
    """The dead letter of a key; with `or_waiting`, also an event that was redriven and is not processed yet."""
    entry = find_record(store, settings, key)
    if entry.record.state != DEAD and not (or_waiting and entry.record.payload is not None):
        print_error(f"{key.hex()} is not a dead letter. {sentence(entry.record)}")
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)
    return entry


def _check_count(wanted: int, done: int, verb: str) -> None:
    if done < wanted:
        print_error(f"{wanted - done} of {wanted} could not be {verb}: another process changed them meanwhile")
        raise click.exceptions.Exit(exit_codes.FAILED)
