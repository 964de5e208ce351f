"""The actions of `oncegate genesys` for Amazon EventBridge. They need the extras `genesys` and `aws`."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from oncegate.cli.doctor import examine_deployment
from oncegate.cli.genesys_actions import connected
from oncegate.cli.infra_actions import addresses, connect, place_text, removal_steps
from oncegate.cli.output import print_text, show_facts, show_json
from oncegate.cli.steps import carry_out_all, print_kept, remove_all, show_plan, step_fields, summary
from oncegate.genesys.integrations import (
    eventbridge_part,
    genesys_platform,
    organisation_of,
    source_name,
)
from oncegate.genesys.topics import check_topics
from oncegate.infra.design import Design
from oncegate.infra.plan import aws_platform, plan_leftovers
from oncegate.infra.platform import Part, Platform, Step
from oncegate.infra.wanted import Wanted, checked
from oncegate.settings import Settings


def setup_eventbridge(
    settings: Settings,
    wanted: Wanted,
    region: str | None,
    *,
    suffix: str,
    topics: Sequence[str],
    dry_run: bool,
    output: str,
) -> int:
    topics = check_topics(topics, template=True)
    with connect(region, wanted.endpoint) as (cloud, place, progress), connected(settings, progress) as client:
        source = source_name(organisation_of(client), suffix)
        design = Design(checked(replace(wanted, partner_source=source)), place)
        genesys, aws = genesys_platform(client), aws_platform(cloud)
        integration = eventbridge_part(wanted.name, place.account, place.region, suffix, topics)
        awaited = Part("source", source, source, {}, wanted.name)
        steps: list[tuple[Platform[Any], Step]] = [(genesys, step) for step in genesys.plan([integration])]
        steps += [(aws, step) for step in aws.plan([awaited, *design.parts()])]
        steps += [(aws, step) for step in plan_leftovers(cloud, design, prune=False)]
        planned = [step for _, step in steps]
        to_delete = f"use `oncegate infra up` with --partner-source {source}, the same options and --prune"
        if dry_run:
            show_plan(planned, output)
            print_kept(planned, output, to_delete)
            return 0
        carry_out_all(steps, progress, output)
    if output == "text":
        print_text("")
        print_text(summary(planned))
        print_kept(planned, output, to_delete)
        show_facts({"source": source, **addresses(design)})
        print_text("")
    parts = {"name": wanted.name, "queue": None, "function": None, "rule": None, "bus": source, "table": None}
    findings, code = examine_deployment(settings, parts, region, wanted.endpoint, is_shown=output == "text")
    if output == "json":
        listed = [step_fields(step) for step in planned]
        show_json({"parts": listed, "source": source, **addresses(design), "doctor": findings})
    return code


def down_eventbridge(
    settings: Settings,
    name: str,
    *,
    region: str | None,
    endpoint: str | None,
    yes: bool,
    keep_table: bool,
    dry_run: bool,
) -> None:
    with connect(region, endpoint) as (cloud, place, progress), connected(settings, progress) as client:
        genesys = genesys_platform(client)
        integration = eventbridge_part(name, place.account, place.region, name, ())
        steps: list[tuple[Platform[Any], Step]] = [
            (genesys, step) for step in genesys.plan_removal(genesys.existing_parts([integration]))
        ]
        steps += removal_steps(cloud, name, place, keep_table=keep_table)
        where = f"{client.place.name} and {place_text(place)}"
        nothing = f"Oncegate created nothing with the name {name} in {place.region}"
        remove_all(steps, progress, place=where, nothing=nothing, yes=yes, dry_run=dry_run)
