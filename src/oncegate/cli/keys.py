"""`oncegate keys`: look at what is remembered of a key, or forget it."""

from contextlib import closing

import click
import msgspec

from oncegate.claims import Reset
from oncegate.cli import exit_codes, options
from oncegate.cli.options import confirm, existing_store, looked_at, looking, lookup, the_one
from oncegate.cli.output import moment, say, say_error, show_facts, show_json
from oncegate.cli.records import NOT_TAKEN_THERE, fields, sentence, stages
from oncegate.settings import Settings


@click.group()
def keys() -> None:
    """Show or reset what is remembered of a key."""


@keys.command()
@lookup
def show(key: bytes, settings: Settings, output: str) -> None:
    """Show the record of KEY and what it means for the next delivery."""
    with closing(looked_at(settings)) as opened:
        entry = the_one(opened, settings, key)
        there = stages(opened, entry)
    if output == "json":
        handed_on = [fields(each) | {"meaning": sentence(each.record)} for each in there]
        show_json(fields(entry) | {"meaning": sentence(entry.record), "handed_on": handed_on})
        return
    for each in (entry, *there):
        say(sentence(each.record))
        facts = fields(each, moment)
        if each.record.result is not None:
            facts["result"] = msgspec.json.encode(facts["result"]).decode()
        show_facts(facts)
    if entry.record.handed_to is not None and not there:
        say(NOT_TAKEN_THERE)


@keys.command()
@click.argument("key", type=options.key)
@looking
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(key: bytes, settings: Settings, yes: bool) -> None:
    """Forget KEY: the next delivery of its event is run as if it were the first."""
    with closing(existing_store(settings)) as opened:
        entry = the_one(opened, settings, key)
        say(sentence(entry.record))
        for each in stages(opened, entry):
            say(f"Where it was published to it has the key {each.key.hex()}; reset that too to run it there again.")
        if not yes:
            confirm("Forget it, so that the next delivery runs again?")
        (done,) = opened.reset([Reset(entry.namespace, key)])
    if not done:
        say_error(f"{key.hex()} was gone before it could be reset")
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)
    say(f"{key.hex()} is forgotten. A process that has just seen it completed remembers that for up to a minute.")
