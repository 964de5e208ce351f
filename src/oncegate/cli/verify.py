"""`oncegate verify`: compare the effects of simulated traffic with its truth file."""

from collections import Counter
from typing import Any

import click

from oncegate.cli import exit_codes
from oncegate.cli.commands import CliCommand, FileName
from oncegate.cli.event_files import open_input
from oncegate.cli.options import number, output_option
from oncegate.cli.output import print_note, print_text, show_json, show_table
from oncegate.durations import times
from oncegate.simulate.truth import Truth, load
from oncegate.simulate.verification import EffectComparison, EffectFinding, compare, effects


@click.command(
    cls=CliCommand,
    short_help="Compare effects with a truth file.",
    examples=(
        "oncegate verify --truth truth.jsonl --effects effects.jsonl",
        "oncegate verify --truth truth.jsonl --effects effects.jsonl --limit 5 --output json",
    ),
    exit_codes={
        exit_codes.OK: "every event with an accepted delivery took effect exactly once, and nothing else did",
        exit_codes.FAILED: "a file is not a truth file or an effects file",
        exit_codes.USAGE: "invalid option or argument, or a file that cannot be read",
        exit_codes.NOT_ONCE: "events are lost, doubled or unknown",
        exit_codes.ALREADY_PROCESSED: "the log has only duplicates: the store had already processed this traffic",
    },
    reads_settings=False,
)
@click.option(
    "--truth", type=FileName(), metavar="FILE", required=True, help="The file that oncegate simulate --truth wrote."
)
@click.option(
    "--effects",
    "effects_file",
    type=FileName(),
    metavar="FILE",
    required=True,
    help="The effects: JSON lines with a key or an event_id, or the log of oncegate serve; - reads stdin.",
)
@click.option(
    "--limit",
    type=number(0),
    metavar="NUMBER",
    default=20,
    show_default=True,
    help="Maximum number of problems to list.",
)
@output_option
def verify(truth: str, effects_file: str, limit: int, output: str) -> int:
    """Compare the effects of simulated traffic with its truth file."""
    with open_input(truth) as lines:
        known = load(lines, truth)
    with open_input(effects_file) as lines:
        comparison = compare(known, effects(lines, effects_file))
    if output == "json":
        show_json(_fields(known, comparison, limit))
        if len(comparison.findings) > limit:
            print_note(_cut(comparison, limit))
    else:
        _show(known, comparison, limit)
    if comparison.already_processed:
        return exit_codes.ALREADY_PROCESSED
    return exit_codes.OK if comparison.once else exit_codes.NOT_ONCE


def _show(truth: Truth, comparison: EffectComparison, limit: int) -> None:
    print_text(_verdict(truth, comparison))
    shown = comparison.findings[:limit]
    if shown and not comparison.already_processed:
        print()
        headers = ("wrong", "event", "type", "entity", "effects", "deliveries")
        show_table(headers, [_row(finding) for finding in shown], essential=headers)
        if len(comparison.findings) > limit:
            print_text(_cut(comparison, limit))
    if any(finding.by_echo for finding in comparison.findings):
        window = truth.plan.copy_options.window // 1_000
        print()
        print_text("Some events are doubled only by an echo: the same state change with other ids and other content.")
        print_text(f'The key first(state_change("{window}ms"), auto) treats a state change and its echo as one event.')


def _cut(comparison: EffectComparison, limit: int) -> str:
    return f"Showing {limit} of {len(comparison.findings)} problems; use --limit to see more."


def _verdict(truth: Truth, comparison: EffectComparison) -> str:
    already = len(comparison.of("already processed"))
    seen = f"this store has already processed this traffic (seed {truth.plan.seed})"
    advice = "use another seed or an empty store"
    if comparison.already_processed:
        return (
            f"Nothing to compare: {seen}. {already} of {times(comparison.events, 'event')} took effect before the log"
            f" begins; {advice}."
        )
    order = _order(comparison)
    if comparison.once:
        return f"Exactly once: {times(comparison.events, 'event')}, {times(comparison.effects, 'effect')}{order}."
    problems = [f"{len(found)} {what}" for what in ("lost", "doubled") if (found := comparison.of(what))]
    extra = sum(finding.effects for finding in comparison.of("extra"))
    problems += [f"{times(extra, 'effect')} of unknown events"] if extra else []
    verdict = f"Not exactly once: {times(comparison.events, 'event')}, {', '.join(problems)}{order}."
    if already:
        return f"{verdict} {already} took effect before the log begins: {seen}; {advice}."
    if unsure := [finding for finding in comparison.of("lost") if finding.only_duplicates]:
        return (
            f"{verdict} The log has duplicates of {times(len(unsure), 'lost event')}, but no effect: lost, or processed"
            f" before the log begins; {advice} to be sure."
        )
    if not comparison.effects:
        return f"{verdict} There is no effect at all. If {seen}, {advice}."
    return verdict


def _order(comparison: EffectComparison) -> str:
    """The end of the verdict; empty if no event has an entity."""
    if not comparison.entities:
        return ""
    if comparison.ordered:
        return f"; in order for each of {comparison.entities} entities"
    return f"; out of order for {len(comparison.unordered)} of {comparison.entities} entities"


def _row(finding: EffectFinding) -> tuple[Any, ...]:
    event = finding.event
    if event is None:
        return finding.what, finding.called, None, None, finding.effects, None
    return finding.what, event.name, event.type, event.entity, finding.effects, _kinds(finding)


def _kinds(finding: EffectFinding) -> str:
    counts = Counter(delivery.kind for delivery in finding.deliveries)
    return ", ".join(kind if number == 1 else f"{number} {kind}" for kind, number in counts.items())


def _fields(truth: Truth, comparison: EffectComparison, limit: int) -> dict[str, Any]:
    return {
        "exactly_once": comparison.once,
        "verdict": _verdict(truth, comparison),
        "events": comparison.events,
        "effects": comparison.effects,
        "lost": len(comparison.of("lost")),
        "doubled": len(comparison.of("doubled")),
        "extra": sum(finding.effects for finding in comparison.of("extra")),
        "already_processed": len(comparison.of("already processed")),
        "in_order": comparison.ordered,
        "entities": comparison.entities,
        "entities_out_of_order": len(comparison.unordered),
        "wrong": [_finding_fields(finding) for finding in comparison.findings[:limit]],
    }


def _finding_fields(finding: EffectFinding) -> dict[str, Any]:
    event = finding.event
    return {
        "what": finding.what,
        "event": None if event is None else event.name,
        "called": finding.called,
        "type": None if event is None else event.type,
        "entity": None if event is None else event.entity,
        "keys": None if event is None else event.keys,
        "effects": finding.effects,
        "by_echo": finding.by_echo,
        "only_duplicates": finding.only_duplicates,
        "deliveries": [{"number": each.number, "kind": each.kind, "fate": each.fate} for each in finding.deliveries],
    }
