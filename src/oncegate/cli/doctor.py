"""`oncegate doctor`: judge a deployment, its store and the settings."""

from collections import Counter
from typing import Any, Final

import click
from msgspec.structs import asdict, replace
from rich.console import Console
from rich.text import Text

from oncegate.cli import exit_codes
from oncegate.cli.options import output_option, with_settings
from oncegate.cli.output import say, show_facts, show_json, show_table
from oncegate.doctor.facts import Facts, RouteFacts, Unread
from oncegate.doctor.findings import Finding
from oncegate.doctor.rules import RULES, judged, unasked
from oncegate.doctor.stores import seen
from oncegate.durations import microseconds, times
from oncegate.errors import MissingExtra
from oncegate.gate.options import DEFAULTS, validate
from oncegate.service.config import is_described, routes_of
from oncegate.settings import Settings
from oncegate.settings.schema import SETTINGS, STORE
from oncegate.text import clean, masked

_COLOURS: Final = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_CODES: Final = {"error": exit_codes.ERRORS_FOUND, "warning": exit_codes.WARNINGS_FOUND}

Judged = list[tuple[str, Finding]]


@click.command()
@click.option("--name", metavar="NAME", help="What `oncegate infra up` made under this name.")
@click.option("--queue", metavar="NAME|URL|ARN", help="An SQS queue.")
@click.option("--function", metavar="NAME|ARN", help="A Lambda function; its queue is found by its mapping.")
@click.option("--rule", metavar="NAME", help="An EventBridge rule; those that reach queue and function are found.")
@click.option("--bus", default="default", show_default=True, metavar="NAME", help="The event bus of the rule.")
@click.option("--table", metavar="NAME", help="A DynamoDB table.  [default: that of the store]")
@click.option("--region", metavar="REGION", help="Where to look.  [default: that of the environment]")
@click.option("--endpoint", metavar="URL", help="An emulator's address in place of AWS's own.")
@with_settings(STORE, SETTINGS["lease"], SETTINGS["retention"], SETTINGS["work.visibility"])
@output_option
def doctor(settings: Settings, region: str | None, endpoint: str | None, output: str, **asked: str | None) -> int:
    """Judge a deployment by the rules of docs/doctor.md: what was found, why it matters, and what mends it.

    Nothing is changed. Without a deployment the settings and their store are judged. Exits with 10 if there are errors,
    with 11 if there are warnings.
    """
    facts = _with_deployment(_of_settings(settings, asked), settings, asked, region, endpoint)
    found = judged(facts)
    if output == "json":
        findings = [{"rule": rule, **asdict(finding)} for rule, finding in found]
        told = {"identity": facts.identity, "region": facts.region, "findings": findings}
        show_json(told | {"rules": len(RULES), "unasked": unasked(facts)})
    else:
        _show(facts, found)
    return _CODES.get(found[0][1].severity, exit_codes.OK) if found else exit_codes.OK


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────


def _of_settings(settings: Settings, asked: dict[str, str | None]) -> Facts:
    """What the settings say, and their store; one that nobody chose is not looked for beside a deployment."""
    hidden = microseconds(settings["work.visibility"], "work.visibility")
    terms = validate({name: settings[name] for name in DEFAULTS})
    facts = Facts(terms=terms, routes=_routes(settings), worker_visibility=hidden)
    if settings.chosen("store") is None and _named(asked):
        return facts
    found = seen(settings["store"], masked(settings["store"]))
    return replace(facts, store=found.store, redis=found.redis, clocks=found.clocks)


def _routes(settings: Settings) -> tuple[RouteFacts, ...]:
    """The routes of the service, if the settings describe one."""
    if not is_described(settings):
        return ()
    return tuple(
        RouteFacts(path=path, key=route["key"], signature=route["serve.signature"])
        for path, route in routes_of(settings).items()
    )


def _with_deployment(
    facts: Facts, settings: Settings, asked: dict[str, str | None], region: str | None, endpoint: str | None
) -> Facts:
    """The same with what AWS tells, if anything of AWS is asked about."""
    in_aws = facts.store is not None and facts.store.scheme == "dynamodb"
    if not in_aws and not _named(asked):
        return facts
    try:
        from oncegate.doctor.reading import ReadRequest, read
    except ImportError:
        why = str(MissingExtra("looking at AWS", "aws"))
        return replace(facts, unread=(Unread(what="AWS", why=why),))
    store = settings["store"] if in_aws else None
    request = ReadRequest(**asked)  # type: ignore[arg-type]  # click gives --bus its default
    return read(facts, request, store, region, endpoint)


def _named(asked: dict[str, str | None]) -> bool:
    return any(value for name, value in asked.items() if name != "bus")


# ── showing ───────────────────────────────────────────────────────────────────────────────────────────────


def _show(facts: Facts, found: Judged) -> None:
    show_facts(
        {
            "identity": facts.identity or "not known",
            "region": facts.region or "not asked",
            "store": facts.store.url if facts.store else "not looked at",
            "looked at": _looked_at(facts),
        }
    )
    say("")
    if found:
        rows = [(finding.severity, rule, finding.what) for rule, finding in found]
        show_table(("severity", "rule", "what"), rows, essential=("severity", "rule", "what"))
        for rule, finding in found:
            _explain(rule, finding)
        say("")
    say(f"{_summary(facts, found)} {_left_out(facts)}".rstrip())


def _looked_at(facts: Facts) -> str:
    parts: list[Any] = [facts.queue, facts.function, facts.table]
    named = [f"{type(part).__name__.lower()} {part.name}" for part in parts if part is not None]
    return ", ".join(["settings", *named, *(f"rule {facts.named(rule)}" for rule in facts.rules)])


def _explain(rule: str, finding: Finding) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print()
    console.print(Text.assemble((finding.severity, _COLOURS[finding.severity]), f"  {rule}  {clean(finding.what)}"))
    for label, text in (("found", finding.found), ("why", finding.why), ("mend", finding.mend)):
        console.print(Text.assemble("  ", (label.ljust(5), "dim"), f"  {clean(text)}"))


def _summary(facts: Facts, found: Judged) -> str:
    if not found:
        asked = len(RULES) - len(unasked(facts))
        return f"{asked} of {len(RULES)} rules could be asked, and all of these are kept."
    counted = {word: sum(finding.severity == word for _, finding in found) for word in _COLOURS}
    return f"{', '.join(times(count, word) for word, count in counted.items() if count)}."


def _left_out(facts: Facts) -> str:
    """How many rules were not asked, and why."""
    lacking = Counter(unasked(facts).values())
    if not lacking:
        return ""
    named = ", ".join(f"no {what} ({count})" for what, count in lacking.items())
    return f"{times(lacking.total(), 'rule')} had nothing to look at: {named}."
