"""`oncegate doctor`: check a deployment, its store and the settings."""

from typing import Any, Final

import click
from msgspec.structs import asdict, replace
from rich.text import Text

from oncegate.cli import exit_codes
from oncegate.cli.commands import CliCommand
from oncegate.cli.options import output_option, with_settings
from oncegate.cli.output import print_text, show_facts, show_json, show_table
from oncegate.doctor.facts import Facts, Unread
from oncegate.doctor.findings import Finding
from oncegate.doctor.rules import RULES, check, summary, unchecked
from oncegate.doctor.settings_facts import settings_facts, with_store
from oncegate.errors import MissingExtra
from oncegate.service.log import console_for
from oncegate.settings import Settings
from oncegate.settings.schema import SETTINGS, STORE
from oncegate.text import on_one_line

_COLOURS: Final = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_CODES: Final = {"error": exit_codes.ERRORS_FOUND, "warning": exit_codes.WARNINGS_FOUND}

Findings = list[tuple[str, Finding]]


@click.command(
    cls=CliCommand,
    short_help="Check a deployment for known problems.",
    examples=(
        "oncegate doctor",
        "oncegate doctor --store redis://cache.example.com:6379",
        "oncegate doctor --name crm --region eu-central-1",
        "oncegate doctor --queue crm-events --lease 30s --retention 7d --output json",
    ),
    exit_codes={
        exit_codes.OK: "no errors and no warnings",
        exit_codes.ERRORS_FOUND: "errors: events are lost or doubled",
        exit_codes.WARNINGS_FOUND: "warnings: events are lost or doubled if something else also fails",
    },
)
@click.option("--name", metavar="NAME", help="The name of a deployment that `oncegate infra up` created.")
@click.option("--queue", metavar="NAME|URL|ARN", help="An SQS queue.")
@click.option(
    "--function",
    metavar="NAME|ARN",
    help="A Lambda function. The queue that it reads is looked up automatically.",
)
@click.option(
    "--rule",
    metavar="NAME",
    help="An EventBridge rule. Rules that send to the queue or the function are looked up automatically.",
)
@click.option("--bus", default="default", show_default=True, metavar="NAME", help="The event bus of the rule.")
@click.option("--table", metavar="NAME", help="A DynamoDB table.  [default: the table of the store]")
@click.option("--region", metavar="REGION", help="The AWS region.  [default: from the environment]")
@click.option("--endpoint", metavar="URL", help="The address of an AWS emulator.")
@with_settings(STORE, SETTINGS["lease"], SETTINGS["retention"], SETTINGS["work.visibility"])
@output_option
def doctor(settings: Settings, region: str | None, endpoint: str | None, output: str, **parts: str | None) -> int:
    """Check a deployment, its store and the settings for known problems.

    Each finding says what was found, why it matters and how to fix it. Nothing is changed. If no part of a deployment
    is named, only the settings and their store are checked. The rules are listed in docs/doctor.md.
    """
    fields, code = examine_deployment(settings, parts, region, endpoint, is_shown=output == "text")
    if output == "json":
        show_json(fields)
    return code


def examine_deployment(
    settings: Settings, parts: dict[str, str | None], region: str | None, endpoint: str | None, *, is_shown: bool
) -> tuple[dict[str, Any], int]:
    """Check a deployment. Returns the findings as fields, and the exit code. If `is_shown` is true, they are printed as
    text."""
    facts = _with_deployment(_facts_of_settings(settings, parts), settings, parts, region, endpoint)
    found = check(facts)
    if is_shown:
        _show(facts, found)
    findings = [{"rule": rule, **asdict(finding)} for rule, finding in found]
    fields = {"identity": facts.identity, "region": facts.region, "findings": findings}
    code = _CODES.get(found[0][1].severity, exit_codes.OK) if found else exit_codes.OK
    return fields | {"rules": len(RULES), "unasked": unchecked(facts)}, code


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────


def _facts_of_settings(settings: Settings, parts: dict[str, str | None]) -> Facts:
    """The facts about the settings and their store. The default store is not read if parts of a deployment are
    named."""
    facts = settings_facts(settings)
    return facts if settings.chosen("store") is None and _names_part(parts) else with_store(facts, settings)


def _with_deployment(
    facts: Facts, settings: Settings, parts: dict[str, str | None], region: str | None, endpoint: str | None
) -> Facts:
    """The facts, completed with facts from AWS if a part of a deployment is named or the store is in DynamoDB."""
    in_aws = facts.store is not None and facts.store.scheme == "dynamodb"
    if not in_aws and not _names_part(parts):
        return facts
    try:
        from oncegate.doctor.reading import ReadRequest, read
    except ImportError:
        why = str(MissingExtra("reading from AWS", "aws"))
        return replace(facts, unread=(Unread(what="AWS", why=why, mend="pip install 'oncegate[aws]'"),))
    store = settings["store"] if in_aws else None
    request = ReadRequest(**parts)  # type: ignore[arg-type]  # click gives --bus its default
    return read(facts, request, store, region, endpoint)


def _names_part(parts: dict[str, str | None]) -> bool:
    return any(value for name, value in parts.items() if name != "bus")


# ── showing ───────────────────────────────────────────────────────────────────────────────────────────────


def _show(facts: Facts, found: Findings) -> None:
    show_facts(
        {
            "identity": facts.identity or "unknown",
            "region": facts.region or "not used",
            "store": facts.store.url if facts.store else "not checked",
            "checked": _checked_parts(facts),
        }
    )
    print_text("")
    if found:
        rows = [(finding.severity, rule, finding.what) for rule, finding in found]
        show_table(("severity", "rule", "what"), rows, essential=("severity", "rule", "what"))
        for rule, finding in found:
            _explain(rule, finding)
        print_text("")
    print_text(summary(facts, found))


def _checked_parts(facts: Facts) -> str:
    parts = {"queue": facts.queue, "function": facts.function, "table": facts.table}
    named = [f"{kind} {part.name}" for kind, part in parts.items() if part is not None]
    store = [] if facts.store is None or facts.store.problem is not None else ["store"]
    return ", ".join(["settings", *store, *named, *(f"rule {facts.named(rule)}" for rule in facts.rules)])


def _explain(rule: str, finding: Finding) -> None:
    console = console_for()
    console.print()
    console.print(
        Text.assemble((finding.severity, _COLOURS[finding.severity]), f"  {rule}  {on_one_line(finding.what)}")
    )
    lines = {"found": finding.found, "why": finding.why}
    if finding.decision is None:
        lines["mend"] = finding.mend
    else:
        lines |= {"decide": finding.decision, "start": finding.mend}
    if finding.keep is not None:
        lines["keep"] = f"The command changes only this shell. To keep the change, write {finding.keep}."
    for label, text in lines.items():
        console.print(Text.assemble("  ", (label.ljust(6), "dim"), f"  {on_one_line(text)}"))
