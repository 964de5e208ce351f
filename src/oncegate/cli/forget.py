"""`oncegate forget`: erase one entity, such as a conversation or a person."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import click

from oncegate.cli import exit_codes
from oncegate.cli.commands import CliCommand
from oncegate.cli.options import (
    NAMESPACE_FILTER,
    confirm,
    existing_store,
    namespace_of,
    operator_log,
    output_option,
    read_only_store,
    with_settings,
)
from oncegate.cli.output import Progress, print_error, print_note, print_text, show_json
from oncegate.cli.stories import JOURNAL
from oncegate.durations import times
from oncegate.errors import NoStore, StoreError
from oncegate.inspection.erasure import (
    MOST_RECORDS,
    ErasurePlan,
    ErasureResult,
    erase,
    plan_erasure,
    recorded_erasure,
)
from oncegate.journal import AUTO, Journal, journal_url, open_journal
from oncegate.settings import Settings
from oncegate.settings.schema import STORE
from oncegate.stores.base import KeepsDeletedData

_CACHED = (
    "Running processes may keep the erased data in memory for up to a minute, and may still write journal rows. Run the"
    " command again after a minute to erase these rows, too."
)
_NOT_PURGED = "Another process uses the SQLite files, so their logs still hold the erased data. Run the command again."
_ABSENT = "There is no journal."
_UNUSED = (
    "Warning: {setting} is off, but there is a journal beside the store. Its rows are not searched and not erased. Use"
    " --journal auto to erase them, too."
)
_FREE_SPACE = (
    "Data that SQLite deleted earlier, such as payloads of events that have run, may still be in the free space of its"
    " files. Use --vacuum to remove it."
)


@click.command(
    cls=CliCommand,
    short_help="Erase a conversation or a person.",
    examples=(
        "oncegate forget --entity 3fa85f64-5717-4562-b3fc-2c963f66afa6 --dry-run",
        "oncegate forget --entity 3fa85f64-5717-4562-b3fc-2c963f66afa6 --yes --vacuum",
    ),
)
@click.option("--entity", metavar="ENTITY", required=True, help="The conversation or person to erase.")
@click.option("--waiting", is_flag=True, help="Also erase events that have not run yet. They never run then.")
@click.option("--vacuum", is_flag=True, help="Also rewrite SQLite files without their free space.")
@click.option("--dry-run", is_flag=True, help="Show what would be erased, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@with_settings(STORE, JOURNAL, NAMESPACE_FILTER)
@output_option
def forget(entity: str, waiting: bool, vacuum: bool, dry_run: bool, yes: bool, settings: Settings, output: str) -> None:
    """Erase ENTITY from the records, the dead letters and the journal.

    A record keeps its key, type, source and times, so duplicates are still recognised. It loses the entity, the event
    id, the result and the error. A dead letter loses its payload, too. Its event never runs: a later delivery is a
    duplicate.

    An event that waits to be run is left, unless --waiting is given. An event in progress is left: run the command
    again when it has run. If events are left, the exit code is 1.

    The command scans all records, because no store has an index by entity. DynamoDB bills this scan. With --vacuum,
    other processes cannot write to the SQLite files until they are rewritten.
    """
    if not entity:
        raise click.UsageError("--entity is empty; give the id of a conversation or a person")
    print_line = print_note if output == "json" else print_text
    with ExitStack() as stack:
        store = stack.enter_context(closing(read_only_store(settings) if dry_run else existing_store(settings)))
        journal = _open_journal(settings, dry_run)
        if journal is not None:
            stack.enter_context(closing(journal))
        with Progress() as progress:
            plan = plan_erasure(
                store, journal, entity, namespace_of(settings), lambda what, count: progress.show(f"{count:,} {what}")
            )
        no_journal = _UNUSED.format(setting=settings.where("journal")) if _has_unused_journal(settings) else _ABSENT
        for line in _summary(plan, waiting, no_journal):
            print_line(line)
        if dry_run:
            print_line("Dry run: nothing was changed.")
            _show_json(output, plan, ErasureResult(rows=None if plan.rows is None else 0), dry_run)
            return
        if not yes and (plan.erasable(waiting=waiting) or plan.rows):
            confirm("Erase this? It cannot be restored.")
        try:
            with operator_log(settings) as log, recorded_erasure(log, plan) as result, Progress() as progress:
                erase(
                    plan,
                    store,
                    journal,
                    settings,
                    result,
                    waiting=waiting,
                    rewrite=vacuum,
                    progress=lambda what, count: progress.show(f"{count:,} {what}"),
                )
        finally:
            print_line(result.sentence)
        has_files = isinstance(store, KeepsDeletedData) or isinstance(journal, KeepsDeletedData)
    for note in _notes(plan, result, has_free_space=has_files and not vacuum):
        print_line(note)
    _show_json(output, plan, result, dry_run)
    if result.left:
        print_error(f"{times(result.left, 'event')} could not be erased now; run the command again")
    if result.left or plan.is_cut or not result.is_purged:
        raise click.exceptions.Exit(exit_codes.FAILED)


def _open_journal(settings: Settings, dry_run: bool) -> Journal | None:
    """The journal, or None if there is none."""
    if journal_url(settings["journal"], settings["store"]) is None:
        return None
    try:
        return settings.open_journal(writes=not dry_run)
    except NoStore:
        return None


def _has_unused_journal(settings: Settings) -> bool:
    """Whether the setting `journal` is off, but there is a journal beside the store."""
    url = journal_url(AUTO, settings["store"])
    if settings["journal"] is not None or url is None:
        return False
    try:
        open_journal(url, create=False).close()
    except NoStore:
        return False
    except StoreError:  # it exists, but cannot be read now
        return True
    return True


def _summary(plan: ErasurePlan, waiting: bool, no_journal: str) -> list[str]:
    records, dead_letters = times(len(plan.records), "record"), times(len(plan.dead_letters), "dead letter")
    if plan.rows is None:
        lines = [f"Found {records} and {dead_letters}. {no_journal}"]
    else:
        lines = [f"Found {records}, {dead_letters} and {times(plan.rows, 'journal row')}."]
    if plan.waiting and waiting:
        lines.append(f"{_events(plan.waiting)} not run yet, and will never run.")
    elif plan.waiting:
        lines.append(f"{_events(plan.waiting)} not run yet, and will be left. Use --waiting to erase waiting events.")
    if plan.in_progress:
        lines.append(f"{times(len(plan.in_progress), 'event')} in progress will be left.")
    if plan.is_cut:
        lines.append(f"There are more than {MOST_RECORDS:,} records. Run the command again for the rest.")
    return lines


def _events(found: dict[Any, None]) -> str:
    return f"{times(len(found), 'event')} {'has' if len(found) == 1 else 'have'}"


def _notes(plan: ErasurePlan, result: ErasureResult, *, has_free_space: bool) -> Iterator[str]:
    if not plan.is_empty:
        yield _CACHED
    if not result.is_purged:
        yield _NOT_PURGED
    elif has_free_space and not plan.is_empty:
        yield _FREE_SPACE


def _show_json(output: str, plan: ErasurePlan, result: ErasureResult, dry_run: bool) -> None:
    if output != "json":
        return
    found = {
        "records": len(plan.records),
        "dead_letters": len(plan.dead_letters),
        "waiting": len(plan.waiting),
        "in_progress": len(plan.in_progress),
        "journal_rows": plan.rows,
    }
    erased = {
        "records": result.records,
        "dead_letters": result.dead_letters,
        "waiting": result.waiting,
        "journal_rows": result.rows,
    }
    left = {"left": result.left, "journal_rows_left": result.rows_left}
    show_json({"dry_run": dry_run, "found": found, "erased": erased, **left})
