"""`oncegate keys`: list records, and show or delete the record of a key."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

import click
import msgspec

from oncegate.claims import COMPLETED, DEAD
from oncegate.cli import exit_codes, options
from oncegate.cli.commands import EXAMPLE_KEY, CliGroup
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
from oncegate.cli.record_options import limit_option, print_listing, scan_option, type_option
from oncegate.inspection.operators import CACHED, about_reset, reset_record
from oncegate.inspection.record_filter import STATES, RecordFilter, empty_listing, list_newest
from oncegate.inspection.records import NOT_CONSUMED, fields, sentence, stage_records, state_name
from oncegate.settings import Settings
from oncegate.stores.base import Entry
from oncegate.stores.base import scan as all_records
from oncegate.times import readable_time


@click.group(
    cls=CliGroup,
    short_help="List records, or show or reset a record.",
    examples=(
        "oncegate keys list",
        f"oncegate keys show {EXAMPLE_KEY}",
        f"oncegate keys reset {EXAMPLE_KEY} --yes",
    ),
)
def keys() -> None:
    """List records, or show or reset the record of a key."""


@keys.command(
    name="list",
    short_help="List records.",
    examples=("oncegate keys list", "oncegate keys list --state completed --type call.ended --limit 20"),
)
@store_options
@click.option("--state", type=click.Choice(list(STATES)), help="Only records in this state.")
@type_option
@click.option("--entity", metavar="ENTITY", help="Only events of this entity, such as a conversation.")
@limit_option
@scan_option
@output_option
def list_(
    settings: Settings, state: str | None, type_: str | None, entity: str | None, limit: int, scan: int, output: str
) -> None:
    """List records without their payloads, the newest first. Nothing is changed.

    The order is that of the time at which an event was first seen. If several filters are given, a record must match
    all of them. No store has an index by type, entity or time, so the command scans all records.
    """
    chosen = RecordFilter(state=None if state is None else STATES[state], type=type_, entity=entity)
    with closing(read_only_store(settings)) as store:
        namespace = namespace_of(settings)
        with Progress("records") as progress:
            found = list_newest(all_records(store, namespace), chosen, limit, scan, progress.update)
        # The note has no total: the scan of some stores may yield a record twice.
        empty = partial(empty_listing, "record", chosen, namespace, partial(all_records, store))
        print_listing(found, output, fields, _show_rows, empty)


def _show_rows(entries: Sequence[Entry]) -> None:
    headers = ("key", "namespace", "event id", "type", "entity", "state", "attempts", "first seen", "error")
    essential = ("key", "state", "entity", "event id", "type")
    show_table(headers, [_row(entry) for entry in entries], essential, required=("state",))


def _row(entry: Entry) -> tuple[Any, ...]:
    record, about = entry.record, entry.record.about
    what = (about.delivery_id, about.type, about.entity, state_name(record.state), record.attempts)
    error = (record.error or "").split("\n")[0]
    return entry.key.hex(), entry.namespace, *what, readable_time(record.first_seen), error


@keys.command(
    short_help="Show the record of a key.",
    examples=(f"oncegate keys show {EXAMPLE_KEY}", f"oncegate keys show {EXAMPLE_KEY} --output json"),
)
@record_options
def show(key: bytes, settings: Settings, output: str) -> None:
    """Show the record of KEY, and what happens to the next delivery of its event."""
    with closing(read_only_store(settings)) as store:
        entry = find_record(store, settings, key)
        consumed = stage_records(store, entry)
    if output == "json":
        handed_on = [fields(each) | {"meaning": sentence(each.record)} for each in consumed]
        show_json(fields(entry) | {"meaning": sentence(entry.record), "handed_on": handed_on})
        return
    for each in (entry, *consumed):
        print_text(sentence(each.record))
        facts = fields(each, readable_time)
        if each.record.result is not None:
            facts["result"] = msgspec.json.encode(facts["result"]).decode()
        show_facts(facts)
    if entry.record.handed_to is not None and not consumed:
        print_text(NOT_CONSUMED)


@keys.command(
    short_help="Delete the record of a key.",
    examples=(f"oncegate keys reset {EXAMPLE_KEY}", f"oncegate keys reset {EXAMPLE_KEY} --namespace default --yes"),
)
@click.argument("key", type=options.key)
@store_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def reset(key: bytes, settings: Settings, yes: bool) -> None:
    """Delete the record of KEY. The next delivery of its event then runs like a new event.

    A dead letter is not deleted: use `oncegate dlq redrive KEY` to run its event again, or `oncegate dlq drop KEY` to
    delete it with its payload. If the event of KEY waits to be run, its stored payload is deleted too. The event is
    then lost unless it is delivered again.
    """
    with closing(existing_store(settings)) as store:
        entry = find_record(store, settings, key)
        if entry.record.state == DEAD:
            print_error(
                f"{key.hex()} is a dead letter, and its payload would be lost; use oncegate dlq redrive {key.hex()} to"
                f" run it again, or oncegate dlq drop {key.hex()} to delete it with its payload"
            )
            raise click.exceptions.Exit(exit_codes.USAGE)
        for line in about_reset(store, entry):
            print_text(line)
        if not yes:
            payload = "" if entry.record.payload is None else " and the stored payload"
            confirm(f"Delete this record{payload}, so that the next delivery runs?")
        with operator_log(settings) as log:
            done = reset_record(store, entry, log)
    if not done:
        print_error(f"another process deleted the record of {key.hex()} before this command did")
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)
    print_text(f"Deleted {key.hex()}.{f' {CACHED}' if entry.record.state == COMPLETED else ''}")
