"""Options of commands that select records, and the output of commands that list records."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final

import click

from oncegate.cli.options import number
from oncegate.cli.output import print_note, print_text, show_json
from oncegate.durations import microseconds
from oncegate.inspection.record_filter import Listing, RecordFilter, time_of_dead_letters
from oncegate.settings import Settings
from oncegate.stores.base import Entry

_MOST: Final = 1_000_000

limit_option: Final = click.option(
    "--limit", type=number(most=_MOST), metavar="NUMBER", default=100, show_default=True, help="Maximum number to list."
)
type_option: Final = click.option("--type", "type_", metavar="TYPE", help="Only events of this type.")
scan_option: Final = click.option(
    "--scan",
    type=number(),
    metavar="NUMBER",
    default=_MOST,
    show_default=True,
    help="Maximum number of records to scan.",
)


def dead_letter_filter(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select dead letters. The command gets them as the argument `chosen`, a RecordFilter. Must be
    below `store_options`, because the filter needs the settings."""

    @wraps(command)
    def call(
        *,
        id_: str | None,
        type_: str | None,
        error: str | None,
        older_than: str | None,
        newer_than: str | None,
        settings: Settings,
        **given: Any,
    ) -> Any:
        chosen = RecordFilter(
            time_of_dead_letters(settings),
            id=id_,
            type=type_,
            error=error,
            older_than=None if older_than is None else microseconds(older_than, "--older-than"),
            newer_than=None if newer_than is None else microseconds(newer_than, "--newer-than"),
        )
        return command(settings=settings, chosen=chosen, **given)

    for option in (
        click.option("--newer-than", metavar="DURATION", help="Only dead letters that are newer than this."),
        click.option("--older-than", metavar="DURATION", help="Only dead letters that are older than this."),
        click.option("--error", metavar="TEXT", help="Only dead letters whose error contains this text."),
        type_option,
        click.option("--id", "id_", metavar="ID", help="Only the event with this id."),
    ):
        call = option(call)
    return call


def print_listing(
    found: Listing,
    output: str,
    fields_of: Callable[[Entry], dict[str, Any]],
    show_rows: Callable[[Sequence[Entry]], None],
    empty: Callable[[], str],
    total: str = "",
) -> None:
    """Print the records as JSON or as a table, then notes about records that are not shown. With JSON, the notes go to
    stderr. `empty` returns the text for a table without rows. `total` follows the number of rows in a note."""
    if output == "json":
        show_json([fields_of(entry) for entry in found.entries])
    elif found.entries:
        show_rows(found.entries)
    else:
        print_text(empty())
    print_line = print_note if output == "json" else print_text
    if found.is_cut:
        print_line(f"Showing the newest {len(found.entries)}{total}; use --limit to see more.")
    if found.scanned is not None:
        print_line(f"Only {found.scanned:,} records were scanned; use --scan to scan more.")
