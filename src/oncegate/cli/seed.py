"""`oncegate seed`: record the events of an earlier deduplication table as completed."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from typing import Any, Final, get_args

import click
import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from oncegate import keys
from oncegate.cli import exit_codes
from oncegate.cli.commands import CliCommand, FileName
from oncegate.cli.event_files import check_readable, events_of
from oncegate.cli.options import output_option, with_settings
from oncegate.cli.output import print_copyable, print_error, print_note, print_text, show_json
from oncegate.cli.seeding import (
    CountingSink,
    Counts,
    Item,
    LineFormat,
    MergedEvents,
    SampleEvent,
    SampleSink,
    Seeding,
    Sink,
    StoreSink,
    lines_of,
    peeked,
    sample_event,
)
from oncegate.clocks import wall
from oncegate.durations import times
from oncegate.errors import SettingError, StoreError
from oncegate.gate.options import DEFAULTS, validate
from oncegate.previous import open_place
from oncegate.previous.base import (
    KEY_TEXT,
    KeyPart,
    OldPlace,
    OldRow,
    PlaceUrl,
    column_part,
    expiry_column,
    pages,
    read_place_url,
)
from oncegate.previous.lookup import PreviousPlace
from oncegate.previous.row_keys import KNOWN_SOURCES, MappedColumn, RowKeys
from oncegate.previous.templates import Template
from oncegate.settings import Settings
from oncegate.settings.routes import by_route
from oncegate.settings.schema import KEY, READ, SETTINGS, STORE
from oncegate.stores import scheme_of
from oncegate.times import rfc3339

_EXAMPLES: Final = 3
_COUNTS: Final = ("read", "seeded", "already_there", "same_key", "expired", "unreadable", "invalid_expiry")
_TYPES: Final = ("int", "text")
_FILE: Final = "file://"
_PAGE: Final = 100
_OTHER_WILDCARDS: Final = re.compile(r"[?\[\\]")  # of a pattern of Redis


@click.command(
    cls=CliCommand,
    short_help="Record events of an earlier deduplication table.",
    examples=(
        "oncegate seed events.jsonl --dry-run",
        "oncegate seed 'dynamodb://Dedup?region=eu-central-1' --sample events.jsonl",
        "oncegate seed redis://127.0.0.1:6379 --match 'event:*' --template 'event:{conversationId}:{timestamp:int}'",
        "oncegate seed sqlite:///old.db --table dedup --map eventId=id --source plain --store sqlite:///oncegate.db",
    ),
    exit_codes={
        exit_codes.OK: "success",
        exit_codes.FAILED: "some rows could not be read",
        exit_codes.USAGE: "invalid option or setting, or the rows lack parts of the key",
        exit_codes.STORE: "the store or the source cannot be used",
    },
    sections={"Source": ("match", "templates", "table", "expires", "mapped", "source", "lines")},
)
@click.argument("source_url", metavar="SOURCE")
@click.option("--match", metavar="PATTERN", help="The Redis keys to read, such as 'event:dedup:*'.")
@click.option(
    "--template",
    "templates",
    metavar="TEMPLATE",
    multiple=True,
    help="How to read a key: 'event:{conversationId}:{timestamp:int}' for Redis, 'pk:{id}#{time}' for a column.",
)
@click.option("--table", metavar="NAME", help="The SQL table to read.")
@click.option("--expires", metavar="COLUMN", help="The column with the time of expiry.")
@click.option(
    "--map", "mapped", metavar="PATH=COLUMN", multiple=True, help="The column of a path of the key; add :int or :text."
)
@click.option("--source", metavar="NAME", help="The source of the events, such as genesys, cxone or plain.")
@click.option(
    "--lines",
    type=click.Choice(get_args(LineFormat)),
    default="auto",
    show_default=True,
    help="What the lines of a file are.",
)
@click.option(
    "--sample",
    type=FileName(),
    metavar="FILE",
    help="Write nothing; say how many events of this file would be recognised.",
)
@click.option("--dry-run", is_flag=True, help="Write nothing; only count.")
@click.option(
    "--stopped",
    is_flag=True,
    help="The old program has stopped: print the time after which 'previous' can be removed.",
)
@with_settings(STORE, SETTINGS["namespace"], KEY, SETTINGS["retention"], *READ)
@output_option
def seed(
    source_url: str,
    settings: Settings,
    sample: str | None,
    source: str | None,
    dry_run: bool,
    stopped: bool,
    output: str,
    lines: LineFormat,
    mapped: tuple[str, ...],
    **options: Any,
) -> int:
    """Record the events that earlier code has processed as completed, so that their copies are duplicates.

    SOURCE is 'dynamodb://Table?region=NAME', redis://HOST with --match, postgresql://HOST/DATABASE or
    sqlite:///FILE with --table, or a file with one JSON object per line; - reads stdin. SOURCE is only read. Each
    event is remembered for the time that is left of its row; without an expiry, for the retention of the gate. If
    several rows have one key, the longest time counts. Events that the store knows stay as they are, so the command
    can be repeated.
    """
    settings = _for_namespace(settings)
    recent = _recent(sample, settings)
    with ExitStack() as stack:
        old = _open_source(source_url, settings, lines, **options)
        stack.callback(old.close)
        first, items = peeked(old.items)
        rows = [item for item in first if isinstance(item, OldRow)]
        event_source = _event_source(source, settings, recent, is_needed=bool(rows))
        strategy = keys.strategy(settings.strategy())
        old = _with_default_template(old, RowKeys(strategy, event_source).paths)
        columns = dict(map(_mapped_column, mapped))
        row_keys = RowKeys(strategy, event_source, old.templates, columns)
        if rows and (missing := row_keys.missing(rows)):
            paths = {each.column: path for path, each in columns.items()}
            refusal = _Refusal(settings["key"], missing, row_keys.columns(rows), paths, row_keys.never is None)
            return refusal.show(old, items, recent, output, stopped=stopped)
        sink = _sink(settings, recent, dry_run, stack)
        counts = _run(row_keys, strategy, sink, items)
    if not counts.read:
        print_note(f"There are no rows in {old.name}. Check the name, and --match if it is Redis.")
    return _show(counts, sink, output, stopped=stopped)


def _for_namespace(settings: Settings) -> Settings:
    """The settings of the route whose namespace is selected."""
    found = by_route(settings)
    if len(found) > 1:
        names = ", ".join(route["namespace"] for route in found.values())
        raise SettingError(f"the settings have several namespaces ({names}); choose one with --namespace")
    return next(iter(found.values()), settings)


# ── the source ────────────────────────────────────────────────────────────────────────────────────────────


class _OldEvents(Struct, frozen=True):
    """The old events. `url` and `place` are None for a file of JSON lines."""

    name: str
    items: Iterator[Item]
    templates: tuple[KeyPart, ...]
    url: PlaceUrl | None = None
    place: OldPlace | None = None

    def close(self) -> None:
        if self.place is not None:
            self.place.close()


def _open_source(
    source_url: str,
    settings: Settings,
    lines: LineFormat,
    *,
    match: str | None,
    templates: tuple[str, ...],
    table: str | None,
    expires: str | None,
) -> _OldEvents:
    if "://" not in source_url or source_url.startswith(_FILE):
        if match or table:
            raise click.UsageError("--match is for Redis and --table for SQL; a file has neither")
        file = source_url.removeprefix(_FILE)
        check_readable([file])
        items = lines_of(file, lines, expires, settings.hints())
        return _OldEvents(click.format_filename(file), items, tuple(map(column_part, templates)))
    url = read_place_url(source_url)
    is_redis = url.scheme.startswith("redis")
    if match and not is_redis:
        raise click.UsageError("--match is for Redis")
    key = templates or url.key
    if is_redis and not match:
        if not key:
            raise click.UsageError("name the Redis keys to read, such as --match 'event:dedup:*'")
        match = Template(key[0]).glob
    url = replace(
        url,
        key=key,
        table=table or url.table,
        expires=expires or url.expires,
        match=match,
    )
    place = open_place(url)
    parts = [KeyPart(KEY_TEXT, Template(each)) if is_redis else column_part(each) for each in url.key]
    # A template of one value names the column itself: there is nothing to read from its text.
    read_parts = [part for part in parts if is_redis or not part.template.is_one_value]
    return _OldEvents(place.name, place.rows(), tuple(read_parts), url, place)


def _with_default_template(old: _OldEvents, paths: Sequence[str]) -> _OldEvents:
    """The old events of Redis with a template. Without `--template`, the * of `--match` is the only part of the key; if
    the key has no paths, the * is the id."""
    if old.url is None or old.url.match is None or old.templates:
        return old
    names, match = paths or ("id",), old.url.match
    if match.count("*") != 1 or _OTHER_WILDCARDS.search(match) or len(names) > 1:
        example = ":".join(f"{{{name}}}" for name in names)
        raise click.UsageError(f"say how the Redis keys are made, such as --template 'event:{example}'")
    template = match.replace("{", "{{").replace("}", "}}").replace("*", f"{{{names[0]}}}")
    print_note(f"The * of --match is read as {names[0]}: --template '{template}'")
    parts = (KeyPart(KEY_TEXT, Template(template)),)
    return replace(old, templates=parts, url=replace(old.url, key=(template,)))


def _mapped_column(written: str) -> tuple[str, MappedColumn]:
    path, equals, column = written.partition("=")
    if not equals or not path or not column:
        raise click.UsageError(f"--map {written!r} must be written PATH=COLUMN, such as data.case.id=case_id")
    name, colon, type_ = column.rpartition(":")
    if colon and type_ in _TYPES:
        return path, MappedColumn(name, "int" if type_ == "int" else "text")
    return path, MappedColumn(column)


def _event_source(
    given: str | None, settings: Settings, recent: Sequence[SampleEvent] | None, *, is_needed: bool
) -> str:
    """The source of the events, which is a part of every key. An empty text if it is not known and not needed: whole
    payloads have their source."""
    if given is not None:
        if given not in (*KNOWN_SOURCES, settings["read.source"]):
            print_note(f"{given} is not a known source ({', '.join(KNOWN_SOURCES)}); it must be the [read] source.")
        return given
    if settings["read.source"] is not None:
        return str(settings["read.source"])
    if settings["read.topic"] is not None:
        return "genesys"
    found = sorted({event.source for event in recent or () if event.key is not None})
    if len(found) == 1:
        print_note(f"The source of the events in the sample is {found[0]}.")
        return found[0]
    if not is_needed:
        return ""
    several = f" (the sample has {', '.join(found)})" if found else ""
    raise SettingError(
        f"the source of the events is a part of their keys, and it is not known{several}; add --source genesys,"
        " --source cxone or --source plain (oncegate read FILE shows the source of an event)"
    )


# ── seeding ───────────────────────────────────────────────────────────────────────────────────────────────


def _recent(sample: str | None, settings: Settings) -> list[SampleEvent] | None:
    """The events of the sample; None if there is no sample."""
    if sample is None:
        return None
    check_readable([sample])
    strategy = keys.strategy(settings.strategy())
    return [sample_event(found.place, found.event, strategy) for found in events_of([sample], settings.hints())]


def _sink(
    settings: Settings, recent: Sequence[SampleEvent] | None, dry_run: bool, stack: ExitStack
) -> SampleSink | CountingSink | StoreSink:
    merged = stack.enter_context(closing(MergedEvents()))
    if recent is not None:
        return SampleSink(recent, merged)
    if dry_run:
        return CountingSink(merged)
    if scheme_of(settings["store"]) == "memory":
        raise SettingError("memory:// is empty again when this command ends; name another store with --store")
    config = validate({name: settings[name] for name in DEFAULTS})
    store = stack.enter_context(closing(settings.open_store()))
    return StoreSink(store, replace(config, previous=None, breaker=None), settings.hints(), merged)


def _run(row_keys: RowKeys, strategy: keys.Strategy, sink: Sink, items: Iterator[Item]) -> Counts:
    """Seed the items. If the store or the source fails, show what was done before the error."""
    with _progress_bar() as advance:
        seeding = Seeding(row_keys, strategy, sink, advance)
        try:
            return seeding.run(items)
        except StoreError:
            counts = seeding.counts
            if isinstance(sink, StoreSink):
                print_note(f"Stopped after {times(counts.read, 'row')}; {counts.seeded:,} seeded. Repeat the command.")
            raise


@contextmanager
def _progress_bar() -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if stderr is a terminal. The number of rows is not known before they are read."""
    columns = (TextColumn("reading"), BarColumn(), TextColumn("{task.completed:,} rows"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        yield lambda count: progress.update(task, completed=count)


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────


def _show(counts: Counts, sink: Sink, output: str, *, stopped: bool) -> int:
    if output == "json":
        until = {"until": None if counts.until is None else rfc3339(counts.until)} if stopped else {}
        show_json(_fields(counts, sink) | until)
    else:
        _print(counts, sink)
        if stopped:
            _print_until(counts)
    return exit_codes.FAILED if counts.unreadable else exit_codes.OK


def _print_until(counts: Counts) -> None:
    if counts.until is not None:
        print_text(f"The last row expires at {rfc3339(counts.until)}. After this time, remove the setting previous.")
    elif counts.unending:
        print_text(f"{_rows(counts.unending)} without an expiry: there is no time after which previous can be removed.")


def _fields(counts: Counts, sink: Sink) -> dict[str, Any]:
    fields = {name: getattr(counts, name) for name in _COUNTS}
    fields |= {"written": isinstance(sink, StoreSink), "problems": [asdict(each) for each in counts.problems]}
    if isinstance(sink, SampleSink):
        examples = [{"place": event.place, "reason": why} for event, why in islice(sink.unrecognised(), _EXAMPLES)]
        fields["sample"] = {"events": sink.count, "recognised": sink.recognised, "not_recognised": examples}
    return fields


def _print(counts: Counts, sink: Sink) -> None:
    same_key = f"{counts.same_key:,} with the key of another row, " if counts.same_key else ""
    rest = f"{same_key}{counts.expired:,} expired, {counts.unreadable:,} unreadable"
    read = f"Read {_rows(counts.read)}"
    if isinstance(sink, StoreSink):
        print_text(f"{read}: {counts.seeded:,} seeded, {counts.already_there:,} already there, {rest}.")
    else:
        print_text(f"{read}: {counts.seeded:,} would be seeded, {rest}. Nothing was written.")
    if counts.invalid_expiry:
        print_text(f"{_rows(counts.invalid_expiry)} with an expiry that is not a time: remembered for the retention.")
    for each in counts.problems:
        print_text(f"  {each.position}: {each.problem}")
    if counts.unreadable > len(counts.problems):
        print_text(f"  and {counts.unreadable - len(counts.problems):,} more")
    if isinstance(sink, SampleSink):
        print_text(f"Of {_events(sink.count)}, {sink.recognised:,} would be recognised.")
        for event, why in islice(sink.unrecognised(), _EXAMPLES):
            print_text(f"  {event.place}: {why}")


def _rows(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"


def _events(count: int) -> str:
    return f"{count:,} recent {'event' if count == 1 else 'events'}"


# ── rows that lack parts of the key ───────────────────────────────────────────────────────────────────────


class _Refusal(Struct, frozen=True):
    """The rows lack parts of the key. The gate can ask the old place for each event instead. `paths` has the paths of
    columns that have another name. `may_be_mapped`: a column may have the missing part under another name."""

    key: str
    missing: list[str]
    columns: list[str]
    paths: dict[str, str]
    may_be_mapped: bool

    def show(
        self,
        old: _OldEvents,
        items: Iterator[Item],
        recent: Sequence[SampleEvent] | None,
        output: str,
        *,
        stopped: bool,
    ) -> int:
        until = _last_expiry(items) if stopped else None
        url = None if old.url is None or old.place is None else self._previous(old.url, old.place, until)
        marked = None if url is None or recent is None else _marked(url, recent)
        missing = ", ".join(self.missing)
        sentence = f"the rows of {old.name} lack {missing}, which the key {self.key} needs; nothing was written"
        if output == "json":
            sample = None if marked is None else {"events": len(recent or ()), "marked": marked}
            fields = {"missing": self.missing, "columns": self.columns, "previous": None if url is None else url.shown}
            show_json({"error": sentence, **fields, "sample": sample})
            return exit_codes.USAGE
        print_error(sentence)
        print_text(f"The rows have: {', '.join(self.columns)}.")
        if self.may_be_mapped:
            print_text("If a column has another name than its path, add --map PATH=COLUMN.")
        if url is None:
            print_text("If the lines are whole events, add --lines events.")
        else:
            _print_previous(url, stopped=stopped)
        if marked is not None:
            print_text(f"Of {_events(len(recent or ()))}, {marked:,} are marked there.")
        elif url is not None:
            print_text("Add --sample FILE to check the line with recent events.")
        return exit_codes.USAGE

    def _previous(self, url: PlaceUrl, place: OldPlace, until: int | None) -> PlaceUrl:
        """The URL for the option `previous`."""
        if url.key or url.columns:
            return replace(url, until=until)
        expires = expiry_column(self.columns, url.expires)
        columns = place.key_columns() or [name for name in self.columns if name != expires]
        return replace(url, key=tuple(f"{name}:{{{self.paths.get(name, name)}}}" for name in columns), until=until)


def _last_expiry(items: Iterator[Item]) -> int | None:
    counts = Counts()
    with _progress_bar() as advance:
        for number, item in enumerate(items, 1):
            counts.add_expiry(item)
            advance(number)
    return counts.until


def _print_previous(url: PlaceUrl, *, stopped: bool) -> None:
    print_text("The gate can look up each event there instead. Add this line to oncegate.toml:")
    print()
    print_copyable(f"previous = {msgspec.json.encode(url.shown).decode()}")
    print()
    print_text("A name in braces is the path of a value in the event.")
    if "***" in url.shown:
        print_text("Write the password in place of ***.")
    if not stopped:
        print_text("When the old program has stopped, add --stopped to see after which time the line can be removed.")
    elif url.until is None:
        print_text("Some rows do not expire, so the line has no until=TIME. Remove the line when it is not needed.")


def _marked(url: PlaceUrl, recent: Sequence[SampleEvent]) -> int:
    """How many events of the sample the old place has marked."""
    with closing(PreviousPlace(open_place(url), wall)) as previous:
        return sum(
            left is not None for page in pages(recent, _PAGE) for left in previous.find([each.event for each in page])
        )
