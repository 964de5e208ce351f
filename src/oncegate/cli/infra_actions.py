"""The actions of `oncegate infra`. They are separate from `cli/infra.py` because they need the extra `aws`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oncegate.aws.cloud import Cloud
from oncegate.cli.output import Progress, print_text, show_facts, show_json, show_plain_table
from oncegate.cli.steps import carry_out_all, confirm_deletion, print_kept, remove_all, show_plan, step_fields, summary
from oncegate.infra.design import Design, Placement
from oncegate.infra.plan import aws_platform, plan_leftovers, possible_parts
from oncegate.infra.platform import Platform, Step
from oncegate.infra.template import template as made_template
from oncegate.infra.wanted import Wanted


def up(wanted: Wanted, region: str | None, *, prune: bool, yes: bool, dry_run: bool, output: str) -> None:
    with connect(region, wanted.endpoint) as (cloud, place, progress):
        design, platform = Design(wanted, place), aws_platform(cloud)
        steps = [*platform.plan(design.parts()), *plan_leftovers(cloud, design, prune=prune)]
        if dry_run:
            show_plan(steps, output)
            print_kept(steps, output, "add --prune")
            return
        deletions = [step for step in steps if step.action == "delete"]
        if deletions and not yes:
            if output == "text":
                show_plan(deletions, output)
            confirm_deletion(len(deletions), place_text(place))
        carry_out_all([(platform, step) for step in steps], progress, output)
    if output == "json":
        show_json({"parts": [step_fields(step) for step in steps], **addresses(design)})
        return
    print_text("")
    print_text(summary(steps))
    print_kept(steps, output, "add --prune")
    show_facts(addresses(design))


def down(name: str, region: str | None, endpoint: str | None, *, yes: bool, keep_table: bool, dry_run: bool) -> None:
    with connect(region, endpoint) as (cloud, place, progress):
        nothing = f"oncegate infra created no parts with the name {name} in {place.region}"
        steps = removal_steps(cloud, name, place, keep_table=keep_table)
        remove_all(steps, progress, place=place_text(place), nothing=nothing, yes=yes, dry_run=dry_run)


def removal_steps(cloud: Cloud, name: str, place: Placement, *, keep_table: bool) -> list[tuple[Platform[Cloud], Step]]:
    platform = aws_platform(cloud)
    steps = platform.plan_removal(platform.existing_parts(possible_parts(cloud, name, place)))
    return [(platform, step) for step in steps if not (keep_table and step.part.kind == "table")]


def place_text(place: Placement) -> str:
    return f"account {place.account}, {place.region}"


def show(name: str, region: str | None, endpoint: str | None, *, output: str) -> None:
    with connect(region, endpoint) as (cloud, place, _progress):
        found = list(aws_platform(cloud).existing_parts(possible_parts(cloud, name, place)))
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
        print_text(f"No parts with the name {name} exist in account {place.account}, {place.region}.")
    else:
        _show_parts(rows)


def _show_parts(rows: list[dict[str, Any]]) -> None:
    """Print the parts. The long addresses are the last column."""
    shown = [(row["part"], "yes" if row["made by oncegate"] else "no", row["holds"], row["address"]) for row in rows]
    show_plain_table(("part", "ours", "holds", "address"), shown)


def template(wanted: Wanted, *, policy: bool) -> None:
    if policy:
        show_json(Design(wanted, Placement("aws", "*", "*")).consumer_policy())
    else:
        show_json(made_template(wanted))


@contextmanager
def connect(region: str | None, endpoint: str | None) -> Iterator[tuple[Cloud, Placement, Progress]]:
    """Connect to AWS. Yields a client, its account and region, and a progress line for slow requests."""
    with Progress() as progress:
        cloud = Cloud(region, endpoint, lambda what: progress.show(f"waiting for {what} …"))
        try:
            identity = cloud.identity()
            yield cloud, Placement(identity.partition, identity.region, identity.account), progress
        finally:
            cloud.close()


def addresses(design: Design) -> dict[str, str]:
    """The addresses that the next steps need."""
    wanted = design.wanted
    found = {"store": design.store_url} if wanted.table else {}
    if wanted.rule:
        found["rule"] = design.rule_arn
    if wanted.queue:
        found["queue"] = design.queue_arn
    if wanted.function:
        found["function"] = design.function_arn
    return found | ({"dead letters": design.dead_arn} if wanted.queue or wanted.function else {})
