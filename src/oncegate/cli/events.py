"""`oncegate events`: list, show, follow and export the rows of the journal."""

import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, Final, get_args

import click
from rich.text import Text

from oncegate.cli import exit_codes
from oncegate.cli.commands import EXAMPLE_KEY, CliGroup, FileName
from oncegate.cli.options import NAMESPACE_FILTER, namespace_of, number, output_option, read_only_store, with_settings
from oncegate.cli.output import Progress, print_error, print_note, print_text, show_facts, show_json, show_table
from oncegate.cli.record_options import limit_option, type_option
from oncegate.cli.stories import (
    JOURNAL,
    delivery_sentence,
    outcome_text,
    row_fields,
    show_story,
    story_fields,
    times_of,
)
from oncegate.cli.streams import reader_has_gone
from oncegate.clocks import wall
from oncegate.durations import microseconds, spoken
from oncegate.errors import NoStore, SettingError, StoreError, TargetError
from oncegate.gate.observers import write_line
from oncegate.gate.outcome import STATUSES, Kind
from oncegate.inspection.explanations import Explainers
from oncegate.inspection.journal_recording import JournalRecording
from oncegate.inspection.stories import Stories, find_events
from oncegate.journal import AUTO, GAP, OPERATOR, Journal, Row, RowFilter
from oncegate.journal.base import all_rows, rows_after
from oncegate.journal.operators import OperatorKind
from oncegate.journal.rows import ID_BITS
from oncegate.service.log import console_for
from oncegate.settings import Settings
from oncegate.settings.schema import STORE
from oncegate.text import clean, on_one_line
from oncegate.times import microseconds_of, moment, readable_time

_STDOUT: Final = "-"
_SCAN: Final = 10_000  # records that are read to find events that wait for the same entity
_READS: Final = 10_000  # reads of the journal for one id: all of it
_POLL: Final = 0.25  # seconds; the recorder writes rows four times a second
_RETRY: Final = 1.0  # seconds
_STATUS_WIDTH: Final = 9
_TIME_ERROR: Final = "{!r} is not a time; write a duration such as 2h, or a time such as 2026-01-31T10:00:00Z"
_CURSOR_ERROR: Final = "{!r} is not a cursor; a cursor is a number, which a list prints below its last row"

_with_journal = with_settings(STORE, JOURNAL, NAMESPACE_FILTER)


class _Moment(click.ParamType):  # type: ignore[type-arg]  # generic only in new versions of click
    """The type of an option that is a time: a duration before now, or a time. The value is in microseconds since
    1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return wall() - microseconds(value)
        except SettingError:
            found = moment(value) or moment(f"{value}T00:00:00Z")
        if found is None:
            self.fail(_TIME_ERROR.format(value), param, ctx)
        return microseconds_of(found)


class _Cursor(click.IntRange):
    """The type of an option that is a cursor: the id of a row."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(_CURSOR_ERROR.format(value), param, ctx)


def _row_filter(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select rows. The command gets them as the argument `where`, a RowFilter. Must be below
    `_with_journal`, because the filter needs the namespace."""

    @wraps(command)
    def call(
        *,
        since: int | None,
        until: int | None,
        status: str | None,
        kind: str | None,
        type_: str | None,
        entity: str | None,
        id_: str | None,
        place: str | None,
        settings: Settings,
        **given: Any,
    ) -> Any:
        if since is not None and until is not None and since >= until:
            raise click.UsageError("--since is not before --until; no row can match")
        where = RowFilter(place, namespace_of(settings), None, type_, status, kind, since, until, id_, entity)
        return command(settings=settings, where=where, **given)

    statuses = click.Choice([*STATUSES, OPERATOR, GAP])
    kinds = click.Choice(list(dict.fromkeys([*get_args(Kind), *get_args(OperatorKind)])))
    for option in (
        click.option("--route", "place", metavar="NAME", help="Only rows of this route or queue."),
        click.option("--id", "id_", metavar="ID", help="Only rows with this event id, delivery id, entity or key."),
        click.option("--entity", metavar="ID", help="Only rows of this entity, such as a conversation."),
        type_option,
        click.option("--kind", type=kinds, help="Only duplicates, or actions of operators, of this kind."),
        click.option(
            "--status", type=statuses, help="Only rows with this status. Without it, actions of operators are left out."
        ),
        click.option("--until", type=_Moment(), metavar="TIME", help="Only rows before this time."),
        click.option(
            "--since", type=_Moment(), metavar="TIME", help="Only rows since this time: 2h, or 2026-01-31T10:00:00Z."
        ),
    ):
        call = option(call)
    return call


@click.group(
    cls=CliGroup,
    short_help="List, show, follow or export decisions.",
    examples=(
        "oncegate events list --since 2h --status duplicate",
        "oncegate events tail",
        "oncegate events show evt-1",
        "oncegate events export recording.jsonl --since 24h",
    ),
)
def events() -> None:
    """List, show, follow or export the decisions about events, from the journal."""


def _open_journal(settings: Settings) -> Journal:
    """Opens the journal for reading. If there is no journal beside the store, because there is no store, the error is
    about the store."""
    try:
        return settings.open_journal()
    except NoStore:
        if settings["journal"] == AUTO:
            read_only_store(settings).close()
        raise


# ── list ──────────────────────────────────────────────────────────────────────────────────────────────────


@events.command(
    name="list",
    short_help="List the newest decisions.",
    examples=(
        "oncegate events list",
        "oncegate events list --since 2h --status duplicate --type call.ended",
        "oncegate events list --entity c-1 --output json",
    ),
)
@_with_journal
@_row_filter
@click.option("--before", type=_Cursor(1, 2**63 - 1), metavar="CURSOR", help="Only rows before this cursor.")
@limit_option
@output_option
def list_(settings: Settings, where: RowFilter, before: int | None, limit: int, output: str) -> None:
    """List rows of the journal, the newest first: one row for each delivery and for each attempt.

    If several filters are given, a row must match all of them. A list that has more rows ends with the cursor of the
    next page.
    """
    with closing(_open_journal(settings)) as journal:
        page = all_rows(journal, where, limit, before=before)
    if output == "json":
        show_json({"rows": [row_fields(row) for row in page], "next": None if page.next is None else str(page.next)})
        return
    if page:
        _show_rows(page)
    elif page.next is None:
        print_text("No row matches." if before is None else "No older row matches.")
    if page.next is not None:
        searched = "" if len(page) >= limit else f"Searched back to {readable_time(page.next >> ID_BITS)}. "
        print_text(f"{searched}Older rows: --before {page.next}")


def _show_rows(rows: list[Row]) -> None:
    headers = (
        *("time", "outcome", "event id", "type", "entity", "state", "route", "namespace", "attempt", "took"),
        *("delivery id", "key", "row", "reason"),
    )
    table = []
    for time_of_day, row in zip(times_of([row.at for row in rows]), rows, strict=True):
        took = None if row.took is None else spoken(row.took)
        route = None if row.status == OPERATOR else row.place
        what = (row.event_id, row.type, row.entity, row.state, route, row.namespace)
        ids = (row.delivery_id, row.key_text, row.id)
        table.append((time_of_day, outcome_text(row), *what, row.attempt or None, took, *ids, row.reason))
    essential = ("time", "outcome", "event id", "reason", "type", "entity", "state", "route")
    show_table(headers, table, essential, required=("outcome", "reason"))


# ── show ──────────────────────────────────────────────────────────────────────────────────────────────────


@events.command(
    short_help="Show the story of an event.",
    examples=("oncegate events show evt-1", f"oncegate events show {EXAMPLE_KEY} --output json"),
)
@click.argument("id_", metavar="ID")
@_with_journal
@output_option
def show(id_: str, settings: Settings, output: str) -> None:
    """Show what the journal has about one event or one row.

    ID is an event id, a delivery id, an entity, a key, or the number of a row. If several events match, the latest is
    shown: the decision, each delivery and attempt, the difference to the original, the parts of the key, and what other
    key strategies would have decided.
    """
    with closing(_open_journal(settings)) as journal, closing(read_only_store(settings)) as store:
        row, others = _find_row(journal, namespace_of(settings), id_)
        if row is None:
            print_error(f"no row of the journal has the id {id_}; oncegate explain {id_} also searches the store")
            raise click.exceptions.Exit(exit_codes.NOT_FOUND)
        stories = Stories(Explainers(store, settings, _SCAN), journal)
        story, payload = stories.of_row(row), stories.payload(row)
    text = None if payload is None else payload.decode("utf-8", "backslashreplace")
    if output == "json":
        show_json({"id": id_, "others": others, **story_fields(story), "payload": text})
        return
    more = f" This is the latest of {others + 1:,} events with the id {id_}." if others else ""
    print_text(f"{story.sentence}{more}")
    if story.is_copy:
        print_text(delivery_sentence(row, id_))
    facts = {name: value for name, value in row_fields(row).items() if value not in (None, "", False)}
    show_facts(facts | {"payload": text})
    show_story(story)


def _find_row(journal: Journal, namespace: str | None, id_: str) -> tuple[Row | None, int]:
    """The row with this number, or the latest row with this id, and the number of other events with this id."""
    if id_.isascii() and id_.isdecimal() and len(id_) < 20 and (page := _row_at(journal, int(id_))):
        return page[0], 0
    found = find_events(journal, id_, RowFilter(namespace=namespace), reads=_READS).events
    return (found[0].latest, len(found) - 1) if found else (None, 0)


def _row_at(journal: Journal, row_id: int) -> list[Row]:
    if not 0 < row_id < 2**63 - 1:
        return []
    return journal.rows(RowFilter(operators=True), before=row_id + 1, after=row_id - 1, limit=1)


# ── tail ──────────────────────────────────────────────────────────────────────────────────────────────────


@events.command(
    short_help="Follow new decisions.",
    examples=("oncegate events tail", "oncegate events tail --status failed --output json"),
)
@_with_journal
@_row_filter
@click.option(
    "--last", type=number(0), metavar="NUMBER", default=10, show_default=True, help="Rows to show before new rows."
)
@output_option
def tail(settings: Settings, where: RowFilter, last: int, output: str) -> None:
    """Show new rows of the journal as they are written, until Ctrl-C.

    With --output json, each row is one line. If there is no journal yet, the command waits for it.
    """
    follower = _Follower(settings, where, _print_line if output == "text" else _print_json)
    try:
        while not _is_unread():
            time.sleep(follower.step(last))
    except KeyboardInterrupt:
        pass
    finally:
        follower.close()


class _Follower:
    """Prints the rows that were written since the last step."""

    def __init__(self, settings: Settings, where: RowFilter, print_row: Callable[[Row], None]) -> None:
        self._settings, self._where, self._print_row = settings, where, print_row
        self._journal: Journal | None = None
        self._cursor: int | None = None
        self._problem: str | None = None

    def step(self, last: int) -> float:
        """Print new rows; in the first step, the newest `last` rows. Returns the seconds to wait. If the journal cannot
        be read, it is opened again later."""
        try:
            if self._journal is None:
                self._journal = self._settings.open_journal()
            self._print_new(self._journal, last)
        except StoreError as error:
            self._report(str(error), isinstance(error, NoStore))
            self.close()
            return _RETRY
        if self._problem is not None:
            print_note("The journal can be read again.")
            self._problem = None
        return _POLL

    def _print_new(self, journal: Journal, last: int) -> None:
        # The newest id is read first. So the search can go on behind it, even if no row matches.
        newest = journal.rows(RowFilter(operators=True), limit=1)
        end = newest[0].id if newest else self._cursor or 0
        rows: Iterable[Row]
        if self._cursor is None:
            rows = all_rows(journal, self._where, last, before=end + 1)[::-1] if last else []
        else:
            rows = rows_after(journal, self._where, self._cursor, before=end + 1)
        for row in rows:
            self._print_row(row)
            self._cursor = row.id  # if a later read fails, this row is not printed again
        sys.stdout.flush()
        self._cursor = end

    def _report(self, problem: str, is_absent: bool) -> None:
        if problem != self._problem:
            self._problem = problem
            print_note(f"{problem}; {'waiting for it' if is_absent else 'trying again'}")
        if is_absent and self._cursor is None:
            self._cursor = 0  # every row of a new journal is new

    def close(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()


def _print_json(row: Row) -> None:
    write_line(row_fields(row))


def _print_line(row: Row) -> None:
    """Print one line for a row. A terminal folds a long line."""
    rule = STATUSES.get(row.status)  # type: ignore[call-overload]  # a row of a later version may have another status
    name = on_one_line(row.event_id or row.delivery_id or "-")
    kind = "" if row.kind is None else f" ({row.kind})"
    count = "" if row.count == 1 else f" {row.counted}"
    entity = "" if row.entity is None else f"  {on_one_line(row.entity)}"
    what = f"{kind}{count}  {on_one_line(row.place)}  {name}{entity}  {clean(row.reason)}"
    status = (row.status.ljust(_STATUS_WIDTH), rule.colour if rule is not None else "")
    console_for().print(Text.assemble((readable_time(row.at) or "", "dim"), "  ", status, what))


def _is_unread() -> bool:
    """Whether nobody reads stdout any more. A write would show it too, but it may take hours until the next row."""
    if reader_has_gone():
        return True
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(state & (select.POLLERR | select.POLLNVAL) for _, state in poll.poll(0))
    except (OSError, ValueError):
        return False


# ── export ────────────────────────────────────────────────────────────────────────────────────────────────


@events.command(
    short_help="Write a recording of deliveries.",
    examples=(
        "oncegate events export recording.jsonl --since 24h",
        "oncegate events export - --type call.ended > recording.jsonl",
    ),
)
@click.argument("file", metavar="FILE", type=FileName())
@_with_journal
@_row_filter
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def export(file: str, settings: Settings, where: RowFilter, force: bool) -> None:
    """Write the payload of each delivery to FILE, one JSON document per line, oldest first; - writes to stdout.

    An existing FILE is replaced only with --force. Only the current user may read a new FILE.
    oncegate read FILE compares key strategies on the recording. oncegate simulate --replay FILE --to URL sends it. The
    journal holds payloads only with the setting journal_payloads. Deliveries that are not JSON are left out, and so are
    the copies of a storm that have no row of their own.
    """
    _open_journal(settings).close()
    if not force and file != _STDOUT and Path(file).is_file():
        raise TargetError(f"{file} exists; use --force to replace it, or name another file")
    with closing(settings.open_journal()) as journal, ExitStack() as files, Progress("rows") as progress:
        recording, stream = JournalRecording(journal, where), None
        for count, row in enumerate(recording.rows(), 1):
            progress.update(count)
            if (line := recording.line(row)) is not None:
                stream = stream or files.enter_context(_written(file))
                stream.write(line + b"\n")
            if file == _STDOUT and reader_has_gone():
                break
        if stream is None and not recording.missing:
            files.enter_context(_written(file))
    print_note(recording.sentence)
    if recording.missing and not recording.written:
        print_error(
            "the journal holds no payloads of these events, so no file was written; set journal_payloads to a duration,"
            " such as 24h, where the events arrive, and export later events"
        )
        raise click.exceptions.Exit(exit_codes.FAILED)


@contextmanager
def _written(file: str) -> Iterator[BinaryIO]:
    if file == _STDOUT:
        yield sys.stdout.buffer
        return
    try:
        # Payloads may be personal data. Like a store, a new file is readable only by its owner.
        with open(file, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as stream:
            yield stream
    except OSError as error:
        raise TargetError(f"cannot write {file}: {error.strerror or error}") from error
