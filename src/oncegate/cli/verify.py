"""`oncegate verify`: compare what took effect with what the simulator knows to be true."""

from collections import Counter
from typing import Any

import click

from oncegate.cli import exit_codes
from oncegate.cli.event_files import opened
from oncegate.cli.options import counted, output_option
from oncegate.cli.output import say, say_aside, show_json, show_table
from oncegate.durations import times
from oncegate.simulate.truth import Truth, load
from oncegate.simulate.verification import EffectFinding, Judgement, effects, judge


@click.command()
@click.option("--truth", metavar="FILE", required=True, help="What oncegate simulate --truth wrote.")
@click.option(
    "--effects",
    "done",
    metavar="FILE",
    required=True,
    help="What took effect: JSON lines with a key or an event_id, or the log of oncegate serve; - for stdin.",
)
@click.option("--limit", type=counted(0), default=20, show_default=True, help="How much of what is wrong to list.")
@output_option
def verify(truth: str, done: str, limit: int, output: str) -> int:
    """Compare what took effect with what the simulator knows to be true.

    Exits with 0 if each event of which a delivery was taken took effect exactly once, and nothing else did.
    """
    with opened(truth) as lines:
        known = load(lines, truth)
    with opened(done) as lines:
        judgement = judge(known, effects(lines, done))
    if output == "json":
        show_json(_fields(judgement, limit))
        if len(judgement.findings) > limit:
            say_aside(_cut(judgement, limit))
    else:
        _show(known, judgement, limit)
    return exit_codes.OK if judgement.once else exit_codes.NOT_ONCE


def _show(truth: Truth, judgement: Judgement, limit: int) -> None:
    say(_verdict(judgement))
    shown = judgement.findings[:limit]
    if shown:
        print()
        headers = ("wrong", "event", "type", "entity", "effects", "deliveries")
        show_table(headers, [_row(finding) for finding in shown], essential=headers)
    if len(judgement.findings) > limit:
        say(_cut(judgement, limit))
    if any(finding.by_echo for finding in judgement.findings):
        window = truth.plan.wishes.window // 1_000
        print()
        say("Some are doubled by an echo alone: the same change of state under other ids and with other content.")
        say(f'A key of first(state_change("{window}ms"), auto) takes both for one.')


def _cut(judgement: Judgement, limit: int) -> str:
    return f"These are {limit} of {len(judgement.findings)}; see more of them with --limit."


def _verdict(judgement: Judgement) -> str:
    order = _order(judgement)
    if judgement.once:
        return f"Exactly once: {times(judgement.events, 'event')}, {times(judgement.effects, 'effect')}; {order}."
    wrong = [f"{len(found)} {what}" for what in ("lost", "doubled") if (found := judgement.of(what))]
    extra = sum(finding.effects for finding in judgement.of("extra"))
    wrong += [f"{times(extra, 'effect')} of nothing that was sent"] if extra else []
    return f"Not exactly once: of {times(judgement.events, 'event')} {', '.join(wrong)}; {order}."


def _order(judgement: Judgement) -> str:
    if judgement.ordered:
        return f"in order for each of {judgement.entities} entities"
    return f"out of order for {len(judgement.unordered)} of {judgement.entities} entities"


def _row(finding: EffectFinding) -> tuple[Any, ...]:
    event = finding.event
    if event is None:
        return finding.what, finding.called, None, None, finding.effects, None
    return finding.what, event.name, event.type, event.entity, finding.effects, _kinds(finding)


def _kinds(finding: EffectFinding) -> str:
    counts = Counter(delivery.kind for delivery in finding.deliveries)
    return ", ".join(kind if number == 1 else f"{number} {kind}" for kind, number in counts.items())


def _fields(judgement: Judgement, limit: int) -> dict[str, Any]:
    return {
        "exactly_once": judgement.once,
        "verdict": _verdict(judgement),
        "events": judgement.events,
        "effects": judgement.effects,
        "lost": len(judgement.of("lost")),
        "doubled": len(judgement.of("doubled")),
        "extra": sum(finding.effects for finding in judgement.of("extra")),
        "in_order": judgement.ordered,
        "entities": judgement.entities,
        "entities_out_of_order": len(judgement.unordered),
        "wrong": [_finding_fields(finding) for finding in judgement.findings[:limit]],
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
        "deliveries": [{"number": each.number, "kind": each.kind, "fate": each.fate} for each in finding.deliveries],
    }
