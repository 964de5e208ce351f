"""The work of `oncegate infra`; apart from its options, since it needs what only the extra `aws` brings."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from oncegate.aws.cloud import Cloud
from oncegate.cli.options import confirm
from oncegate.cli.output import Progress, say, show_facts, show_json, show_whole
from oncegate.durations import times
from oncegate.infra.design import Design, Placement
from oncegate.infra.plan import Step, carry_out, existing_parts, plan, plan_leftovers, plan_removal, possible_parts
from oncegate.infra.template import template as made_template
from oncegate.infra.wanted import Wanted

_DONE = {"create": "created", "change": "changed", "keep": "kept", "delete": "deleted", "leave": "left"}
_WIDTH = max(map(len, _DONE.values()))
_KIND_WIDTH = len("permission")
_HEADERS = ("plan", "part", "name", "why")


def up(wanted: Wanted, region: str | None, *, prune: bool, yes: bool, dry_run: bool, output: str) -> None:
    with _asking(region, wanted.endpoint) as (cloud, place, progress):
        design = Design(wanted, place)
        steps = [*plan(cloud, design.parts()), *plan_leftovers(cloud, design, prune=prune)]
        if dry_run:
            _show_plan(steps, output)
            _say_left(steps, output)
            return
        doomed = [step for step in steps if step.action == "delete"]
        if doomed and not yes:
            if output == "text":
                _show_plan(doomed, output)
            _agree(len(doomed), place)
        for step in steps:
            carry_out(cloud, step)
            progress.hide()
            if output == "text":
                _say_done(step)
    if output == "json":
        show_json({"parts": [_fields(step) for step in steps], **_addresses(design)})
        return
    say("")
    say(_summary(steps))
    _say_left(steps, output)
    show_facts(_addresses(design))


def _summary(steps: list[Step]) -> str:
    made, deleted = (sum(step.action in actions for step in steps) for actions in (("create", "change"), ("delete",)))
    if not made and not deleted:
        return "Nothing was changed: all is as wanted."
    told = f"{times(made, 'part')} made or changed"
    return f"{told}, {deleted} deleted." if deleted else f"{told}."


def _say_left(steps: list[Step], output: str) -> None:
    left = [step for step in steps if step.action == "leave"]
    if left and output == "text":
        say(
            f"An earlier run has made {times(len(left), 'part')} for {left[0].part.deployment} that this one does not"
            " ask for, and leaves as it was; the same command with --prune deletes what is left."
        )


def down(name: str, region: str | None, endpoint: str | None, *, yes: bool, keep_table: bool, dry_run: bool) -> None:
    with _asking(region, endpoint) as (cloud, place, progress):
        steps = plan_removal(existing_parts(cloud, possible_parts(cloud, name, place)))
        steps = [step for step in steps if not (keep_table and step.part.kind == "table")]
        doomed = [step for step in steps if step.action == "delete"]
        if steps:
            _show_plan(steps, "text")
        if not doomed:
            say(f"There is nothing to delete that oncegate infra has made as {name} in {place.region}.")
            return
        if dry_run:
            return
        if not yes:
            _agree(len(doomed), place)
        for step in doomed:
            carry_out(cloud, step)
            progress.hide()
            _say_done(step)


def _agree(count: int, place: Placement) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on; look at what is listed, and add --yes to delete it")
    confirm(f"Delete {times(count, 'part')} in account {place.account}, {place.region}? What they hold is lost.")


def show(name: str, region: str | None, endpoint: str | None, *, output: str) -> None:
    with _asking(region, endpoint) as (cloud, place, _progress):
        found = list(existing_parts(cloud, possible_parts(cloud, name, place)))
    rows: list[dict[str, Any]] = [
        {
            "part": part.kind,
            "name": part.about or part.name,
            "address": each.url or each.arn,
            "arn": each.arn,
            "made by oncegate": each.made_for(name),
            "holds": each.note or None,
        }
        for part, each in found
    ]
    if output == "json":
        show_json({"account": place.account, "region": place.region, "parts": rows})
    elif not rows:
        say(f"There is nothing of {name} in account {place.account}, {place.region}.")
    else:
        _show_parts(rows)


def _show_parts(rows: list[dict[str, Any]]) -> None:
    """The addresses come last, where a narrow terminal breaks them and cuts nothing."""
    shown = [(row["part"], "yes" if row["made by oncegate"] else "no", row["holds"], row["address"]) for row in rows]
    show_whole(("part", "ours", "holds", "address"), shown)


def template(wanted: Wanted, *, policy: bool) -> None:
    if policy:
        show_json(Design(wanted, Placement("aws", "*", "*")).consumer_policy())
    else:
        show_json(made_template(wanted))


@contextmanager
def _asking(region: str | None, endpoint: str | None) -> Iterator[tuple[Cloud, Placement, Progress]]:
    """AWS, and whose account and which region it is; what takes long is told on a terminal."""
    with Progress() as progress:
        cloud = Cloud(region, endpoint, lambda what: progress.tell(f"waiting for {what} …"))
        try:
            who = cloud.identity()
            yield cloud, Placement(who.partition, who.region, who.account), progress
        finally:
            cloud.close()


def _show_plan(steps: list[Step], output: str) -> None:
    if output == "json":
        show_json({"parts": [_fields(step) for step in steps]})
        return
    rows = [(step.action, step.part.kind, step.part.name, step.why or None) for step in steps]
    show_whole(_HEADERS, rows)


def _say_done(step: Step) -> None:
    why = f"  ({step.why})" if step.why else ""
    say(f"{_DONE[step.action].ljust(_WIDTH)}  {step.part.kind.ljust(_KIND_WIDTH)}  {step.part.name}{why}")


def _fields(step: Step) -> dict[str, str]:
    part = step.part
    return {"action": step.action, "part": part.kind, "name": part.name, "arn": part.arn, "why": step.why}


def _addresses(design: Design) -> dict[str, str]:
    """What the next steps need."""
    wanted = design.wanted
    found = {"store": design.store_url} if wanted.table else {}
    if wanted.rule:
        found["rule"] = design.rule_arn
    if wanted.queue:
        found["queue"] = design.queue_arn
    if wanted.function:
        found["function"] = design.function_arn
    return found | ({"dead letters": design.dead_arn} if wanted.queue or wanted.function else {})
