"""`oncegate simulate`: generate realistic traffic with known duplicates, and send it to a target."""

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import takewhile
from pathlib import Path
from secrets import randbelow
from typing import Any, Final, TextIO, TypeVar, get_args

import click
from click.core import ParameterSource
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from oncegate.cli import exit_codes
from oncegate.cli.commands import CliCommand, FileName
from oncegate.cli.event_files import open_input, raw_documents
from oncegate.cli.options import NumberRange, number, output_option
from oncegate.cli.output import print_note, print_text, show_json, show_table
from oncegate.cli.streams import reader_has_gone
from oncegate.durations import microseconds, times
from oncegate.errors import TargetError
from oncegate.service.log import console_for
from oncegate.simulate.copies import CopyOptions, Kind
from oncegate.simulate.sender import Sender, Summary
from oncegate.simulate.targets import STDOUT, goes_to_stdout, is_bus, open_target
from oncegate.simulate.traffic import Plan, PlannedDelivery, deliveries, recorded_deliveries
from oncegate.simulate.truth import TruthFile
from oncegate.times import microseconds_of, moment

_KINDS: Final = get_args(Kind)
_SEEDS: Final = 10**9
_MOST_SEED: Final = 2**63 - 1
_SLOWEST: Final = 0.001
_FASTEST: Final = 1_000_000
_DEFAULTS: Final = CopyOptions()
_REASONS: Final = 5
_ONLY_GENERATED: Final = (*("events", "reemit", "rewrap", "echo", "window", "untimed", "conflict", "invalid", "start"),)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _copies(written: str) -> tuple[int, int]:
    """The least and the greatest number of copies, from `2` or `1..3`."""
    found = re.fullmatch(r"(\d{1,3})(?:\.\.(\d{1,3}))?", written)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most:
        raise click.BadParameter(f"{written!r} is not a number of copies; write it like 2 or 1..3")
    return least, most


def _time(written: str) -> int:
    """The time in milliseconds."""
    found = moment(written)
    if found is None:
        raise click.BadParameter(f"{written!r} is not a time; write it like 2026-01-31T09:30:00Z")
    return microseconds_of(found) // 1_000


class _ShareOrFile(FileName):
    """The type of --replay: a share of generated events, or the name of a recording."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            share = float(value)
        except ValueError:
            return super().convert(value, param, ctx)
        if not 0 <= share <= 1:
            self.fail(f"{value} is not a share from 0 to 1; write ./{value} to name a file", param, ctx)
        return share


def _share(name: str, default: float, help_: str) -> Callable[[_Command], _Command]:
    return click.option(
        f"--{name}", type=NumberRange(0, 1), metavar="SHARE", default=default, show_default=True, help=help_
    )


@click.command(
    cls=CliCommand,
    short_help="Generate and send test traffic.",
    examples=(
        "oncegate simulate --to http://127.0.0.1:8080/events --truth truth.jsonl",
        "oncegate simulate --to file://traffic.jsonl --events 100 --seed 7 --echo 0.1",
        "oncegate simulate --to file://copies.jsonl --replay events.jsonl --copies 2 --rate 20",
    ),
    reads_settings=False,
)
@click.option(
    "--to",
    "url",
    metavar="URL",
    required=True,
    help="Target: http://HOST/events, sqs://QUEUE, eventbridge://BUS, file://PATH, or - for stdout. AWS targets accept"
    " ?region=NAME and &endpoint=URL; quote such a URL in the shell: 'sqs://QUEUE?region=NAME'.",
)
@click.option("--events", type=number(), metavar="NUMBER", default=1_000, show_default=True, help="Number of events.")
@click.option(
    "--rate",
    type=NumberRange(_SLOWEST, _FASTEST),
    metavar="NUMBER",
    default=100.0,
    show_default=True,
    help="Events per second, or documents of a recording per second.",
)
@click.option(
    "--copies",
    type=_copies,
    metavar="N|A..B",
    default="1..3",
    show_default=True,
    help="Number of deliveries of each envelope.",
)
@_share("reemit", _DEFAULTS.reemit, "Share of events that are published again in a new envelope.")
@_share("rewrap", _DEFAULTS.rewrap, "Share of events that also arrive in SNS, in an array, or without the envelope.")
@click.option(
    "--replay",
    type=_ShareOrFile(),
    metavar="SHARE|FILE",
    default=_DEFAULTS.replay,
    show_default=True,
    help="Share of events that are replayed from an archive. Or a file of recorded events, which are sent as they are"
    " instead of generated traffic; - reads stdin.",
)
@_share("echo", _DEFAULTS.echo, "Share of state changes that are sent again with other ids and content.")
@click.option(
    "--window",
    metavar="DURATION",
    default="500ms",
    show_default=True,
    help="Longest time between a state change and its echo.",
)
@_share("untimed", 0.0, "Share of conversations beside which a user joins a queue twice: equal bodies without a time.")
@_share("conflict", _DEFAULTS.conflict, "Share of events that are sent again with the same id and other content.")
@_share("invalid", _DEFAULTS.invalid, "Share of events with an additional delivery that cannot be read.")
@click.option("--delay", metavar="DURATION", help="Longest delay of a delivery, to change the order.  [default: none]")
@click.option(
    "--start",
    type=_time,
    metavar="TIME",
    default="2026-01-05T09:00:00Z",
    show_default=True,
    help="Time of the first event.",
)
@click.option(
    "--seed", type=number(0, _MOST_SEED), metavar="NUMBER", help="Repeat the traffic of this seed.  [default: random]"
)
@click.option("--truth", type=FileName(), metavar="FILE", help="Write the truth file that oncegate verify needs.")
@click.option(
    "--parallel",
    type=click.IntRange(1, 256),
    metavar="NUMBER",
    default=1,
    show_default=True,
    help="Concurrent requests.",
)
@click.option("--patience", metavar="DURATION", default="60s", show_default=True, help="How long to retry a delivery.")
@output_option
def simulate(url: str, truth: str | None, parallel: int, patience: str, output: str, **options: Any) -> int:
    """Generate realistic traffic with known duplicates, and send it to a target.

    The traffic consists of Genesys conversations in EventBridge envelopes, Open Messaging webhooks and NICE CXone
    events. Deliveries that the target does not accept are retried. The truth file records every event and delivery.

    With --replay FILE, the documents of a recording are sent instead, once each unless --copies is given. The file has
    one JSON document, an array, one document per line, or several documents in a row.

    Exits with 1 if the target did not accept a delivery. The unreadable deliveries of --invalid do not count.
    """
    if truth == STDOUT:
        raise click.UsageError("--truth - is not possible; name a file")
    to_stdout = goes_to_stdout(url)
    if to_stdout and output == "json":
        raise click.UsageError("--output json is not possible when the events go to stdout; use another --to")
    recording = options["replay"] if isinstance(options["replay"], str) else None
    plan = _plan(url, **options) if recording is None else _replay_plan(url, **options)
    with ExitStack() as stack:
        recorded = None if recording is None else stack.enter_context(_recorded(recording, plan))
        summary = _send(url, plan, recorded, truth, parallel, microseconds(patience, "--patience") / 1e6)
    if recording is not None and not summary.count():
        raise TargetError(f"there is no document in {recording}")
    if to_stdout:
        print_note(_sentence(plan, summary, recording))
    elif output == "json":
        show_json(_fields(plan, summary, recording))
    else:
        _show(plan, summary, truth, recording)
    return exit_codes.OK if _all_accepted(summary) else exit_codes.FAILED


def _plan(
    url: str,
    *,
    events: int,
    rate: float,
    window: str,
    delay: str | None,
    start: int,
    seed: int | None,
    untimed: float,
    **shares: Any,
) -> Plan:
    copy_options = CopyOptions(window=microseconds(window, "--window"), by_bus=is_bus(url), **shares)
    return Plan(
        events=events,
        rate=rate,
        delay=0 if delay is None else microseconds(delay, "--delay"),
        start=start,
        seed=randbelow(_SEEDS) if seed is None else seed,
        copy_options=copy_options,
        untimed=untimed,
    )


def _replay_plan(url: str, *, copies: tuple[int, int], **options: Any) -> Plan:
    """The plan of a recording: each document once, unless --copies is given. --truth and options that change generated
    traffic are refused."""
    file = options["replay"]
    if _is_given("truth"):
        raise click.UsageError(
            f"--truth is not possible with --replay {file}, because it is not known which documents are the same event;"
            " remove --truth"
        )
    given = [name for name in _ONLY_GENERATED if _is_given(name)]
    if given:
        raise click.UsageError(f"--{given[0]} changes only generated traffic; remove it to replay {file}")
    if not _is_given("copies"):
        copies = (1, 1)
    return _plan(url, copies=copies, **options | {"replay": 0.0})


def _is_given(option: str) -> bool:
    return click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE


@contextmanager
def _recorded(file: str, plan: Plan) -> Iterator[Iterator[PlannedDelivery]]:
    """The deliveries of a recording. The file is open until the block ends."""
    with open_input(file) as stream:
        yield recorded_deliveries(raw_documents(stream), plan)


def _send(
    url: str, plan: Plan, recorded: Iterator[PlannedDelivery] | None, truth: str | None, parallel: int, patience: float
) -> Summary:
    planned = deliveries(plan) if recorded is None else recorded
    with ExitStack() as stack:
        target = stack.enter_context(closing(open_target(url, parallel)))
        stream = stack.enter_context(_written(truth)) if truth else None
        on_settled = stack.enter_context(_progress_bar(plan.events if recorded is None else None))
        sender = Sender(target, TruthFile(stream, plan), patience=patience, parallel=parallel, on_settled=on_settled)
        return sender.send(takewhile(lambda _: not reader_has_gone(), planned) if goes_to_stdout(url) else planned)


@contextmanager
def _written(path: str) -> Iterator[TextIO]:
    try:
        with Path(path).open("w", encoding="utf-8") as stream:
            yield stream
    except OSError as error:
        raise TargetError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def _progress_bar(events: int | None) -> Iterator[Callable[[PlannedDelivery], object]]:
    """A progress bar on stderr, if stderr is a terminal. `events` is None for a recording, because the number of its
    documents is not known."""
    noun = TextColumn("documents" if events is None else "events")
    columns = (TextColumn("sending"), BarColumn(), MofNCompleteColumn(), noun, TimeRemainingColumn())
    console = console_for(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=events)

        def advance(delivery: PlannedDelivery) -> None:
            if delivery.copy.kind == "first":
                progress.advance(task)

        yield advance


def _all_accepted(summary: Summary) -> bool:
    """Whether the target accepted all deliveries except the invalid ones."""
    return summary.count(fate="taken") + summary.count("invalid") - summary.count("invalid", "taken") == summary.count()


def _sentence(plan: Plan, summary: Summary, recording: str | None) -> str:
    pace = summary.count() / summary.seconds if summary.seconds else 0
    events = times(summary.count("first"), "event" if recording is None else "document")
    retries = "" if not summary.again else "; 1 retry" if summary.again == 1 else f"; {summary.again} retries"
    deliveries = "1 delivery" if summary.count() == 1 else f"{summary.count()} deliveries"
    source = f" from {recording}" if recording is not None else ""
    sentence = f"Sent {deliveries} of {events}{source} in {summary.seconds:.1f} s ({pace:.0f} per second){retries}."
    return sentence if recording is not None else f"{sentence} Repeat this traffic with --seed {plan.seed}."


def _rows(summary: Summary) -> list[tuple[Any, ...]]:
    kinds = [kind for kind in _KINDS if summary.count(kind)]
    return [(kind, *(summary.count(kind, fate) for fate in (None, "taken", "refused", "gave up"))) for kind in kinds]


def _show(plan: Plan, summary: Summary, truth: str | None, recording: str | None) -> None:
    headers = ("kind", "deliveries", "taken", "refused", "gave up")
    names = {} if recording is None else {"first": "document", "redelivery": "copy"}
    show_table(headers, [(names.get(kind, kind), *counts) for kind, *counts in _rows(summary)], essential=headers)
    print_text(_sentence(plan, summary, recording))
    for reason, count in summary.reasons.most_common(_REASONS):
        place, detail = summary.examples[reason]
        first = f", first at {place}" if place else ""
        print_text(f"Not accepted: {reason} ({count}){first}{f': {detail}' if detail else ''}".removesuffix(".") + ".")
    if truth:
        print_text(
            f"The truth file is {truth}. Compare it with the effects:"
            f" oncegate verify --truth {shlex.quote(truth)} --effects FILE"
        )


def _fields(plan: Plan, summary: Summary, recording: str | None) -> dict[str, Any]:
    names = ("kind", "deliveries", "taken", "refused", "gave_up")
    return {
        "seed": plan.seed,
        "replay": recording,
        "events": summary.count("first"),
        "deliveries": summary.count(),
        "sent_again": summary.again,
        "seconds": round(summary.seconds, 3),
        "kinds": [dict(zip(names, row, strict=True)) for row in _rows(summary)],
        "reasons": dict(summary.reasons),
    }
