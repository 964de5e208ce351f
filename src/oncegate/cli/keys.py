"""`oncegate keys`: show or delete the record of a key."""

from contextlib import closing

import click
import msgspec

from oncegate.claims import Reset
from oncegate.cli import exit_codes, options
from oncegate.cli.commands import EXAMPLE_KEY, CliGroup
from oncegate.cli.options import confirm, existing_store, find_record, read_only_store, record_options, store_options
from oncegate.cli.output import print_error, print_text, readable_time, show_facts, show_json
from oncegate.cli.records import NOT_CONSUMED, fields, sentence, stage_records
from oncegate.settings import Settings


@click.group(
    cls=CliGroup,
    short_help="Show or reset the record of a key.",
    examples=(f"oncegate keys show {EXAMPLE_KEY}", f"oncegate keys reset {EXAMPLE_KEY} --yes"),
)
def keys() -> None:
    """Show or reset the record of a key."""


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
    """Delete the record of KEY. The next delivery of its event then runs like a new event."""
    with closing(existing_store(settings)) as store:
        entry = find_record(store, settings, key)
        print_text(sentence(entry.record))
        for each in stage_records(store, entry):
            print_text(f"The event was published. Its consumer uses the key {each.key.hex()}; reset that key too.")
        if not yes:
            confirm("Delete this record, so that the next delivery runs?")
        (done,) = store.reset([Reset(entry.namespace, key)])
    if not done:
        print_error(f"another process deleted the record of {key.hex()} before this command did")
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)
    print_text(f"Deleted {key.hex()}. Running processes may cache its completion for up to a minute.")
