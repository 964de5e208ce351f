"""`oncegate simulate`: make realistic traffic with known duplicates, and send it somewhere."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from secrets import randbelow
from typing import Any, Final, TextIO, TypeVar, get_args

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from oncegate.cli import exit_codes
from oncegate.cli.options import Measured, counted, output_option
from oncegate.cli.output import say, show_json, show_table
from oncegate.durations import microseconds, times
from oncegate.errors import TargetError
from oncegate.simulate.copies import CopyOptions, Kind
from oncegate.simulate.sender import Sender, Summary
from oncegate.simulate.targets import STDOUT, goes_to_stdout, is_bus, open_target
from oncegate.simulate.traffic import Plan, PlannedDelivery, deliveries
from oncegate.simulate.truth import TruthFile

_KINDS: Final = get_args(Kind)
_SEEDS: Final = 10**9
_MOST_SEED: Final = 2**63 - 1
_SLOWEST: Final = 0.001
_FASTEST: Final = 1_000_000
_DEFAULTS: Final = CopyOptions()
_REASONS: Final = 5

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _copies(written: str) -> tuple[int, int]:
    """`2`, or `1..3` for as many as chance will have."""
    found = re.fullmatch(r"(\d{1,3})(?:\.\.(\d{1,3}))?", written)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most:
        raise click.BadParameter(f"{written!r} is no number of copies; write it like 2 or 1..3")
    return least, most


def _share(name: str, default: float, help_: str) -> Callable[[_Command], _Command]:
    return click.option(
        f"--{name}", type=Measured(0, 1), metavar="SHARE", default=default, show_default=True, help=help_
    )


@click.command()
@click.option(
    "--to",
    "url",
    metavar="URL",
    required=True,
    help="Where to: http://…/events, sqs://QUEUE or eventbridge://BUS (?region=&endpoint=), file://PATH, or -.",
)
@click.option("--events", type=counted(), default=1_000, show_default=True, help="How many happen.")
@click.option("--rate", type=Measured(_SLOWEST, _FASTEST), default=100.0, show_default=True, help="Events a second.")
@click.option(
    "--copies", type=_copies, metavar="N|A..B", default="1..3", show_default=True, help="Deliveries of one envelope."
)
@_share("reemit", _DEFAULTS.reemit, "Share of events that are emitted again, in a new envelope.")
@_share("rewrap", _DEFAULTS.rewrap, "Share that comes in another wrapping too: SNS, an array, the detail alone.")
@_share("replay", _DEFAULTS.replay, "Share that is replayed from an archive.")
@_share("echo", _DEFAULTS.echo, "Share whose change of state is told again with other ids and content.")
@click.option(
    "--window", metavar="DURATION", default="500ms", show_default=True, help="How far apart echoes are, at most."
)
@_share("conflict", _DEFAULTS.conflict, "Share that comes again with the same id and other content.")
@_share("invalid", _DEFAULTS.invalid, "Share beside which something comes that cannot be read.")
@click.option(
    "--delay", metavar="DURATION", help="Up to how late a delivery is; so they are out of order.  [default: none]"
)
@click.option("--seed", type=counted(0, _MOST_SEED), help="Makes the same traffic again.  [default: another each time]")
@click.option("--truth", metavar="FILE", help="Write what is true to this file, for oncegate verify.")
@click.option("--parallel", type=click.IntRange(1, 256), default=1, show_default=True, help="Requests at a time.")
@click.option("--patience", metavar="DURATION", default="60s", show_default=True, help="How long to try to send one.")
@output_option
def simulate(url: str, truth: str | None, parallel: int, patience: str, output: str, **asked: Any) -> int:
    """Make realistic traffic with known duplicates, and send it somewhere.

    It is Genesys conversations in EventBridge envelopes, Open Messaging webhooks and NICE CXone events. What is not
    taken is sent again; what is true of it goes to the file of --truth.
    """
    if truth == STDOUT:
        raise click.UsageError("what is true is written to a file, not to stdout; name one with --truth")
    plan = _plan(url, **asked)
    to_stdout = goes_to_stdout(url)
    if to_stdout and output == "json":
        raise click.UsageError("the events go to stdout, so the summary cannot; choose another --to, or no --output")
    summary = _send(url, plan, truth, parallel, microseconds(patience, "--patience") / 1e6)
    if to_stdout:
        click.echo(_sentence(plan, summary), err=True)
    elif output == "json":
        show_json(_fields(plan, summary))
    else:
        _show(plan, summary, truth)
    return exit_codes.OK if _all_taken(summary) else exit_codes.FAILED


def _plan(
    url: str, *, events: int, rate: float, window: str, delay: str | None, seed: int | None, **shares: Any
) -> Plan:
    wishes = CopyOptions(window=microseconds(window, "--window"), by_bus=is_bus(url), **shares)
    return Plan(
        events=events,
        rate=rate,
        delay=0 if delay is None else microseconds(delay, "--delay"),
        seed=randbelow(_SEEDS) if seed is None else seed,
        wishes=wishes,
    )


def _send(url: str, plan: Plan, truth: str | None, parallel: int, patience: float) -> Summary:
    with ExitStack() as stack:
        target = stack.enter_context(closing(open_target(url, parallel)))
        stream = stack.enter_context(_written(truth)) if truth else None
        told = stack.enter_context(_bar(plan.events))
        sender = Sender(target, TruthFile(stream, plan), patience=patience, parallel=parallel, told=told)
        try:
            return sender.send(deliveries(plan))
        except BrokenPipeError:  # whoever reads has seen enough, as head does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return sender.summary


@contextmanager
def _written(path: str) -> Iterator[TextIO]:
    try:
        with Path(path).open("w", encoding="utf-8") as stream:
            yield stream
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise TargetError(f"cannot write {click.format_filename(path)}: {error.strerror or error}") from error


@contextmanager
def _bar(events: int) -> Iterator[Callable[[PlannedDelivery], object]]:
    """Shows how far it is, if there is a terminal to show it on."""
    columns = (TextColumn("sending"), BarColumn(), MofNCompleteColumn(), TextColumn("events"), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=events)

        def told(delivery: PlannedDelivery) -> None:
            if delivery.of is not None and delivery.copy.kind == "first":
                progress.advance(task)

        yield told


def _all_taken(summary: Summary) -> bool:
    """But for what is meant to be refused."""
    return summary.count(fate="taken") + summary.count("invalid") - summary.count("invalid", "taken") == summary.count()


def _sentence(plan: Plan, summary: Summary) -> str:
    pace = summary.count() / summary.seconds if summary.seconds else 0
    events = times(summary.count("first"), "event")
    again = f"; {times(summary.again, 'time')} sent again" if summary.again else ""
    deliveries = "1 delivery" if summary.count() == 1 else f"{summary.count()} deliveries"
    return (
        f"Sent {deliveries} of {events} in {summary.seconds:.1f} s"
        f" ({pace:.0f} a second){again}. --seed {plan.seed} makes the same again."
    )


def _rows(summary: Summary) -> list[tuple[Any, ...]]:
    kinds = [kind for kind in _KINDS if summary.count(kind)]
    return [(kind, *(summary.count(kind, fate) for fate in (None, "taken", "refused", "gave up"))) for kind in kinds]


def _show(plan: Plan, summary: Summary, truth: str | None) -> None:
    headers = ("kind", "deliveries", "taken", "refused", "gave up")
    show_table(headers, _rows(summary), essential=headers)
    say(_sentence(plan, summary))
    if summary.reasons:
        why = ", ".join(f"{reason} ({number})" for reason, number in summary.reasons.most_common(_REASONS))
        say(f"Not taken: {why}.")
    if truth:
        say(f"What is true of it is in {truth}; oncegate verify compares it with what took effect.")


def _fields(plan: Plan, summary: Summary) -> dict[str, Any]:
    names = ("kind", "deliveries", "taken", "refused", "gave_up")
    return {
        "seed": plan.seed,
        "events": summary.count("first"),
        "deliveries": summary.count(),
        "sent_again": summary.again,
        "seconds": round(summary.seconds, 3),
        "kinds": [dict(zip(names, row, strict=True)) for row in _rows(summary)],
        "reasons": dict(summary.reasons),
    }
