"""`oncegate analyze`: choose key, window and retention from recorded traffic."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from oncegate.analysis.analysis import Analysis, AnalysisOptions
from oncegate.analysis.analysis import analyze as run_analysis
from oncegate.analysis.answer import (
    current_sentence,
    facts,
    settings_text,
    spoken_name,
    time_sentences,
    total_sentence,
    type_sentence,
)
from oncegate.analysis.examples import Examples
from oncegate.analysis.judgement import KeyJudgement
from oncegate.analysis.report import report
from oncegate.cli import exit_codes
from oncegate.cli.commands import CliCommand, FileName
from oncegate.cli.options import number, output_option, with_settings
from oncegate.cli.output import (
    print_copyable,
    print_indented,
    print_note,
    print_text,
    show_facts,
    show_json,
    show_table,
)
from oncegate.cli.recordings import RecordingFile, batches, fetch, find_recordings, sample, text_size
from oncegate.durations import microseconds, times
from oncegate.errors import SettingError, TargetError
from oncegate.keys import strategy
from oncegate.service.log import console_for
from oncegate.settings import Settings
from oncegate.settings.parsing import as_text, shown, strategy_of
from oncegate.settings.schema import READ, SETTINGS

_MOST_UNREADABLE = 5
_EXPORTS = (".parquet", ".csv")
_WIDE = 80  # columns
_HEADERS = ("strategy", "caught", "missed", "probable", "lost", "may be lost", "conflicts", "no key")
_ESSENTIAL = ("strategy", "lost", "no key", "missed", "caught", "probable", "may be lost", "conflicts")


@click.command(
    cls=CliCommand,
    short_help="Choose a key from recorded traffic.",
    examples=(
        "oncegate analyze events.jsonl",
        "oncegate analyze events.jsonl --html report.html",
        """oncegate analyze events.jsonl --key 'fields("data.case.id")' --window 2s""",
        "cat events.jsonl | oncegate analyze - --output json",
    ),
    exit_codes={
        exit_codes.OK: "the current settings would lose no event of the recording",
        exit_codes.FAILED: "the recording has no event, or a file cannot be written",
        exit_codes.USAGE: "invalid option, argument or setting, or a file that cannot be read",
        exit_codes.LOSES_EVENTS: "the current settings would lose events of the recording",
    },
)
@click.argument("files", metavar="FILE...", type=FileName(), nargs=-1, required=True)
@click.option("--key", "strategies", metavar="STRATEGY", multiple=True, help="A strategy to judge, too; repeatable.")
@click.option("--window", "echo_window", metavar="DURATION", help="Also judge state_change with this window.")
@click.option("--html", "html_file", type=FileName(), metavar="FILE", help="Write a report for a browser.")
@click.option(
    "--redact/--no-redact",
    default=True,
    show_default=True,
    help="Hide the values of examples; the paths of their members are always shown.",
)
@click.option(
    "--export",
    "export_file",
    type=FileName(),
    metavar="FILE",
    help="Write one row of digests for each delivery to FILE.parquet or FILE.csv.",
)
@click.option(
    "--limit", type=number(), metavar="NUMBER", default=20, show_default=True, help="Maximum number of types to list."
)
@with_settings(*READ)
@output_option
def analyze(
    files: tuple[str, ...],
    strategies: tuple[str, ...],
    echo_window: str | None,
    html_file: str | None,
    redact: bool,
    export_file: str | None,
    limit: int,
    settings: Settings,
    output: str,
) -> int:
    """Find the copies in recorded traffic, judge key strategies on it, and recommend key, window and retention.

    A FILE holds JSON documents, also compressed with gzip or zstd: a document, an array, one document per line,
    documents without a line break between them (exports of Firehose to S3), exports of CloudWatch Logs, dumps of SQS,
    or the output of oncegate events export. FILE can also be a folder, whose files are read in the order of their
    names, s3://BUCKET/PREFIX, or - for stdin. Nothing is claimed, run or stored.
    """
    options = _options(settings, strategies, echo_window)
    export = _export_path(export_file)
    with tempfile.TemporaryDirectory(prefix="oncegate-analyze-") as name:
        folder = Path(name)
        found = find_recordings(files, folder)
        analysis = _analyzed(found, folder, options, export)
        fetched = lambda places: fetch(found, places)  # noqa: E731
        names = [each.name for each in found]
        examples = Examples(analysis.places, names, fetched, options.hints, redact=redact)
        if html_file is not None:
            _write_report(html_file, analysis, examples, names)
        if output == "json":
            show_json(_fields(analysis, examples, names))
        else:
            _show(analysis, examples, names, limit)
    for what, file in (("report", html_file), ("rows", export_file)):
        if file is not None:
            print_note(f"The {what} are in {file}." if what == "rows" else f"The {what} is in {file}.")
    return exit_codes.LOSES_EVENTS if analysis.would_lose else exit_codes.OK


def _options(settings: Settings, strategies: tuple[str, ...], window: str | None) -> AnalysisOptions:
    own = [_checked(each.strip()) for each in strategies]
    if window is not None:
        microseconds(window, "--window")
        own.append(f'first(state_change("{window.strip()}"), auto)')
    keys = SETTINGS["retention"]
    settings.strategy()  # raises SettingError if it cannot be imported
    return AnalysisOptions(
        current=settings["key"].strip(),
        retention=as_text(shown(keys, settings["retention"])),
        own=tuple(own),
        hints=settings.hints(),
    )


def _checked(name: str) -> str:
    try:
        strategy(strategy_of(name, "--key"))
    except SettingError as error:
        raise SettingError(str(error) if str(error).startswith("--key") else f"--key: {error}") from error
    return name


def _export_path(file: str | None) -> Path | None:
    if file is None:
        return None
    if not file.endswith(_EXPORTS):
        raise click.UsageError(f"--export {file}: the name must end with {' or '.join(_EXPORTS)}")
    return Path(file)


def _analyzed(files: list[RecordingFile], folder: Path, options: AnalysisOptions, export: Path | None) -> Analysis:
    with _progress(sum(each.size for each in files)) as (on_batch, on_step):
        return run_analysis(
            sample(files),
            batches(files),
            folder,
            options,
            size=text_size(files),
            on_batch=on_batch,
            on_step=on_step,
            export=export,
        )


@contextmanager
def _progress(size: int) -> Iterator[tuple[Callable[[int], object], Callable[[str], object]]]:
    """A progress bar on stderr, with the rate and the time left, if stderr is a terminal. On a narrow terminal there is
    no bar, so that all is on one line."""
    console = console_for(stderr=True)
    bar = (BarColumn(), DownloadColumn()) if console.width >= _WIDE else (TaskProgressColumn(),)
    columns = (TextColumn("{task.description}"), *bar, TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=size)
        yield lambda read: progress.advance(task, read), lambda text: progress.update(task, description=text)


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────


def _show(analysis: Analysis, examples: Examples, files: list[str], limit: int) -> None:
    show_facts(facts(analysis))
    _show_unreadable(analysis, files)
    print()
    for each in analysis.types[:limit]:
        print_text(f"{each.name}  ({each.traffic.deliveries:,})")
        print_indented(type_sentence(each, examples), 2)
    if len(analysis.types) > limit:
        print_text(f"Showing {limit} of {times(len(analysis.types), 'type')}; use --limit to see more.")
    print()
    print_text(total_sentence(analysis))
    if (current := current_sentence(analysis)) is not None:
        print_text(current)
    if analysis.own:
        print()
        _show_comparison(analysis)
    print()
    for sentence in time_sentences(analysis):
        print_text(sentence)
    print()
    for line in settings_text(analysis).splitlines():
        print_copyable(line)


def _show_unreadable(analysis: Analysis, files: list[str]) -> None:
    for each in analysis.read.shown[:_MOST_UNREADABLE]:
        print_indented(f"{files[each.file]} at byte {each.place:,}: {each.problem}", 2)


def _show_comparison(analysis: Analysis) -> None:
    names = dict.fromkeys((analysis.recommended.name, analysis.current, *analysis.own))
    rows = [_row(analysis.of(name)) for name in names]
    show_table(_HEADERS, rows, _ESSENTIAL, required=("strategy", "lost", "no key"))


def _row(found: KeyJudgement) -> tuple[Any, ...]:
    counts = (found.caught, found.missed, found.inferred, found.wrong, found.doubtful, found.conflicts, found.keyless)
    return (found.name, *(f"{count:,}" for count in counts))


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────


def _write_report(file: str, analysis: Analysis, examples: Examples, names: list[str]) -> None:
    text = report(analysis, examples, names)
    try:
        # Examples may hold personal data. Like a store, a new file is readable only by its owner.
        with open(file, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as stream:
            stream.write(text)
    except OSError as error:
        raise TargetError(f"cannot write {file}: {error.strerror or error}") from error


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────────


def _fields(analysis: Analysis, examples: Examples, files: list[str]) -> dict[str, Any]:
    traffic = analysis.traffic
    return {
        "deliveries": traffic.deliveries,
        "events": traffic.events,
        "certain_copies": traffic.duplicates,
        "inferred_copies": traffic.inferred,
        "possible_copies": traffic.possible,
        "conflicts": traffic.conflicts,
        "unreadable": analysis.read.unreadable,
        "unreadable_documents": [
            {"file": files[each.file], "offset": each.place, "problem": each.problem} for each in analysis.read.shown
        ],
        "recommended": {
            "key": analysis.recommended.name,
            "window": analysis.window.duration,
            "retention": analysis.retention.duration,
            "settings": settings_text(analysis),
        },
        "current": {"key": analysis.current, "would_lose": analysis.would_lose},
        "sentences": [total_sentence(analysis), *filter(None, [current_sentence(analysis)]), *time_sentences(analysis)],
        "strategies": [_judgement_fields(each, None) for each in analysis.totals],
        "types": [
            {
                "source": each.source,
                "type": each.type,
                "deliveries": each.traffic.deliveries,
                "certain_copies": each.traffic.duplicates,
                "inferred_copies": each.traffic.inferred,
                "possible_copies": each.traffic.possible,
                "conflicts": each.traffic.conflicts,
                "copies": each.copies,
                "recommended": each.best.name,
                "sentence": type_sentence(each, examples),
                "strategies": [
                    _judgement_fields(judgement, examples, each.source, each.type) for judgement in each.judgements
                ],
            }
            for each in analysis.types
        ],
        "timing": analysis.timing,
    }


def _judgement_fields(
    found: KeyJudgement, examples: Examples | None, source: str = "", kind: str | None = None
) -> dict[str, Any]:
    return {
        "strategy": found.name,
        "called": spoken_name(found.name, source, kind),
        "origin": found.origin,
        "presence": round(found.presence, 6),
        "caught": found.caught,
        "missed": found.missed,
        "inferred_caught": found.inferred,
        "lost": found.wrong,
        "may_be_lost": found.doubtful,
        "conflicts": found.conflicts,
        "without_key": found.keyless,
        "halves": found.halves,
        "lost_example": None if examples is None else examples.show(found.lost_example),
        "missed_example": None if examples is None else examples.show(found.missed_example),
    }
