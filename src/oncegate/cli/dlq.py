"""`oncegate dlq`: list, show, redrive and drop dead letters."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import click

from oncegate.claims import DEAD
from oncegate.cli import exit_codes, options
from oncegate.cli.commands import EXAMPLE_KEY, CliGroup
from oncegate.cli.handlers import load_handler
from oncegate.cli.options import (
    confirm,
    existing_store,
    find_record,
    namespace_of,
    operator_log,
    output_option,
    read_only_store,
    record_options,
    store_options,
)
from oncegate.cli.output import Progress, print_error, print_text, show_facts, show_json, show_table
from oncegate.cli.record_options import dead_letter_filter, limit_option, print_listing, scan_option
from oncegate.durations import microseconds, times
from oncegate.events import Event
from oncegate.gate.handlers import Handler
from oncegate.gate.options import DEFAULTS, GateOptions
from oncegate.gate.outcome import Outcome
from oncegate.inspection.operators import (
    BulkKind,
    BulkRecord,
    RedriveWarnings,
    Selection,
    all_dead_letters,
    change_dead_letters,
    filter_text,
)
from oncegate.inspection.record_filter import RecordFilter, empty_listing, list_newest, time_of_dead_letters
from oncegate.inspection.records import fields, payload_text, sentence
from oncegate.journal import OperatorLog
from oncegate.settings import Settings
from oncegate.stores.base import Entry, Store
from oncegate.times import readable_time, rfc3339

_PAUSE = "1ms"


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
    examples=("oncegate dlq list", "oncegate dlq list --error ZeroDivisionError --newer-than 24h --output json"),
)
@store_options
@dead_letter_filter
@limit_option
@scan_option
@output_option
def list_(settings: Settings, chosen: RecordFilter, limit: int, scan: int, output: str) -> None:
    """List dead letters without their payloads, the newest first.

    The order and the ages are those of the time at which an event became a dead letter. If several filters are given, a
    dead letter must match all of them.
    """
    with closing(read_only_store(settings)) as store:
        namespace = namespace_of(settings)
        with Progress("dead letters") as progress:
            found = list_newest(all_dead_letters(store, namespace), chosen, limit, scan, progress.update)
        print_listing(
            found,
            output,
            lambda entry: _fields(entry, chosen.time_of, rfc3339),
            lambda entries: _show_rows(entries, chosen.time_of),
            lambda: empty_listing("dead letter", chosen, namespace, partial(all_dead_letters, store)),
            f" of {found.count:,}",
        )


def _fields(entry: Entry, time_of: Callable[[Entry], int], spell: Callable[[int | None], str | None]) -> dict[str, Any]:
    return fields(entry, spell) | {"dead_since": spell(time_of(entry))}


def _show_rows(entries: Sequence[Entry], time_of: Callable[[Entry], int]) -> None:
    headers = ("key", "namespace", "event id", "type", "attempts", "dead since", "error")
    show_table(headers, [_row(entry, time_of) for entry in entries], essential=("key", "error", "event id"))


def _row(entry: Entry, time_of: Callable[[Entry], int]) -> tuple[Any, ...]:
    record, about = entry.record, entry.record.about
    since = readable_time(time_of(entry))
    error = (record.error or "").split("\n")[0]
    return entry.key.hex(), entry.namespace, about.delivery_id, about.type, record.attempts, since, error


@dlq.command(
    short_help="Show a dead letter.",
    examples=(f"oncegate dlq show {EXAMPLE_KEY}", f"oncegate dlq show {EXAMPLE_KEY} --output json"),
)
@record_options
def show(key: bytes, settings: Settings, output: str) -> None:
    """Show the dead letter KEY and its payload."""
    with closing(read_only_store(settings)) as store:
        entry = _dead(store, settings, key)
    time_of = time_of_dead_letters(settings)
    if output == "json":
        show_json(_fields(entry, time_of, rfc3339) | {"payload": payload_text(entry.record)})
        return
    print_text(sentence(entry.record))
    show_facts(_fields(entry, time_of, readable_time) | {"payload": payload_text(entry.record)})


# ── the dead letters that a command changes ───────────────────────────────────────────────────────────────


def _print_count(selection: Selection) -> None:
    verb = "matches" if len(selection.addresses) == 1 else "match"
    print_text(f"{times(len(selection.addresses), 'dead letter')} {verb}.")


def _show_dry_run(selection: Selection, time_of: Callable[[Entry], int]) -> None:
    """Show the newest dead letters of the selection."""
    if selection.newest:
        _show_rows(selection.newest, time_of)
    if more := len(selection.addresses) - len(selection.newest):
        print_text(f"Showing the newest {len(selection.newest)}; {more:,} more match.")
    print_text("Dry run: nothing was changed.")


def _select(
    store: Store, settings: Settings, keys: Sequence[bytes], chosen: RecordFilter, *, or_waiting: bool = False
) -> Iterator[Entry]:
    """Yield the dead letters of these keys, or all dead letters without keys, that match the filter. With `or_waiting`,
    a key may also be the key of an event that was redriven and is not processed yet."""
    entries = (
        (_dead(store, settings, key, or_waiting=or_waiting) for key in dict.fromkeys(keys))
        if keys
        else all_dead_letters(store, namespace_of(settings))
    )
    with Progress("dead letters") as progress:
        for count, entry in enumerate(entries, 1):
            progress.update(count)
            if chosen.matches(entry):
                yield entry


def _change(store: Store, kind: BulkKind, selection: Selection, log: OperatorLog, chosen: str, verb: str) -> int:
    """Change the dead letters in batches. Prints how many were changed, even if the store fails during the change."""
    record = BulkRecord(log, kind, selection, chosen)
    try:
        with record, Progress() as progress:
            for changed in change_dead_letters(store, kind, selection.addresses):
                record.add(changed)
                progress.show(f"{record.done:,} of {len(selection.addresses):,} {verb}")
    finally:
        print_text(f"{record.done} {verb}.")
    return record.done


def _choice(settings: Settings, keys: Sequence[bytes], chosen: RecordFilter) -> str:
    """How the dead letters were chosen, for the record of the action."""
    named = f"{times(len(keys), 'key')}, " if keys else ""
    return f"{named}{filter_text(chosen, namespace_of(settings))}".removesuffix(", all")


def _check_count(wanted: int, done: int, verb: str) -> None:
    if done < wanted:
        print_error(f"{wanted - done} of {wanted} could not be {verb}: another process changed them meanwhile")
        raise click.exceptions.Exit(exit_codes.FAILED)


def _require_choice(keys: Sequence[bytes], chosen: RecordFilter, all_: bool) -> None:
    if all_ and (keys or not chosen.is_empty):
        other = "keys" if keys else "filters"
        raise click.UsageError(
            f"{other} and --all cannot be combined, because --all selects every dead letter; remove --all or the"
            f" {other}"
        )
    if not all_ and not keys and chosen.is_empty:
        raise click.UsageError("name the keys of dead letters, use filters such as --type or --error, or use --all")


def _dead(store: Store, settings: Settings, key: bytes, *, or_waiting: bool = False) -> Entry:
    """The dead letter of a key; with `or_waiting`, also an event that was redriven and is not processed yet."""
    entry = find_record(store, settings, key)
    if entry.record.state != DEAD and not (or_waiting and entry.record.payload is not None):
        print_error(f"{key.hex()} is not a dead letter. {sentence(entry.record)}")
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)
    return entry


def _open(settings: Settings, *, dry_run: bool) -> Store:
    return read_only_store(settings) if dry_run else existing_store(settings)


def _changing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `redrive` and `drop` share."""
    for option in (
        dead_letter_filter,
        store_options,
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing."),
        click.option("--all", "all_", is_flag=True, help="Every dead letter."),
        click.argument("wanted", metavar="[KEY]...", type=options.key, nargs=-1),
    ):
        command = option(command)
    return command


# ── redrive ───────────────────────────────────────────────────────────────────────────────────────────────


@dlq.command(
    short_help="Run dead letters again.",
    examples=(f"oncegate dlq redrive {EXAMPLE_KEY}", "oncegate dlq redrive --type call.ended --handler app:on_event"),
)
@_changing_options
@click.option("--handler", metavar="MODULE:FUNCTION", help="Run the events now, with this handler.")
def redrive(
    wanted: tuple[bytes, ...],
    all_: bool,
    dry_run: bool,
    yes: bool,
    handler: str | None,
    settings: Settings,
    chosen: RecordFilter,
) -> None:
    """Make dead letters run again. Their attempts are counted from zero.

    Name the KEYs, or select dead letters with filters, or use --all. If several filters are given, a dead letter must
    match all of them. On a terminal, the command asks for confirmation if --all or filters select several dead letters.

    A running `oncegate serve` with the same store starts them within a second. With --handler, this command runs them
    itself, up to max_attempts times each, without a pause.

    The command with --handler also runs events that were waiting before. It runs all waiting events in the namespaces
    of the selected dead letters. With --all, it also runs all waiting events in the namespaces that the settings name.
    """
    _require_choice(wanted, chosen, all_)
    call = None if handler is None else load_handler(handler, "--handler")
    with closing(_open(settings, dry_run=dry_run)) as store:
        selection, warnings = Selection(chosen.time_of), RedriveWarnings(settings)
        for entry in _select(store, settings, wanted, chosen, or_waiting=True):
            selection.add(entry)
            warnings.add(entry)
        _print_count(selection)
        _print_all(warnings.sentences())
        if dry_run:
            _show_dry_run(selection, chosen.time_of)
            return
        if len(selection.addresses) > 1 and (all_ or not chosen.is_empty) and not yes and sys.stdin.isatty():
            confirm(f"Redrive {times(len(selection.addresses), 'dead letter')}?")
        with operator_log(settings) as log:
            redriven = _change(store, "redrive", selection, log, _choice(settings, wanted, chosen), "redriven")
        failed = 0
        if call is not None:
            names = selection.namespaces | (_namespaces(settings) if all_ else set())
            failed = _run_all(settings, store, sorted(names), call)
    _check_count(len(selection.addresses), redriven, "redriven")
    if failed:
        print_error(f"{times(failed, 'event')} could not be processed")
        raise click.exceptions.Exit(exit_codes.FAILED)


def _print_all(lines: Iterable[str]) -> None:
    for line in lines:
        print_text(line)


def _namespaces(settings: Settings) -> set[str]:
    """The namespaces that the settings name. Events that were redriven earlier may still wait in these namespaces."""
    chosen = namespace_of(settings)
    return {chosen} if chosen else {each["namespace"] for each in (settings, *settings.routes.values())}


def _run_all(settings: Settings, store: Store, namespaces: Sequence[str], handler: Handler) -> int:
    """Run the waiting events of these namespaces; returns the number of events that were not processed."""
    from oncegate.ingress.handler_wrappers import contained, interrupts_told_apart

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


# ── drop ──────────────────────────────────────────────────────────────────────────────────────────────────


@dlq.command(
    short_help="Delete dead letters.",
    examples=(f"oncegate dlq drop {EXAMPLE_KEY}", "oncegate dlq drop --older-than 7d --dry-run"),
)
@_changing_options
def drop(
    wanted: tuple[bytes, ...], all_: bool, dry_run: bool, yes: bool, settings: Settings, chosen: RecordFilter
) -> None:
    """Delete dead letters with their payloads. The next delivery of such an event then runs like a new event.

    There are two exceptions, because their dead letters have other keys and the record of the original key stays. The
    next delivery of a conflict is a conflict again. The next delivery of an event that failed after it was marked as
    done (mode mark_first) is a duplicate.

    Name the KEYs, or select dead letters with filters, or use --all. If several filters are given, a dead letter must
    match all of them.
    """
    _require_choice(wanted, chosen, all_)
    with closing(_open(settings, dry_run=dry_run)) as store:
        selection = Selection(chosen.time_of)
        for entry in _select(store, settings, wanted, chosen):
            selection.add(entry)
        _print_count(selection)
        if dry_run:
            _show_dry_run(selection, chosen.time_of)
            return
        if selection.addresses and not yes:
            confirm(f"Delete {times(len(selection.addresses), 'dead letter')} with the payload?")
        with operator_log(settings) as log:
            dropped = _change(store, "drop", selection, log, _choice(settings, wanted, chosen), "dropped")
    _check_count(len(selection.addresses), dropped, "dropped")
