"""`oncegate infra`: the AWS parts of a deployment."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from oncegate.cli.options import output_option
from oncegate.durations import microseconds
from oncegate.errors import MissingExtra, SettingError
from oncegate.infra.wanted import GENESYS, Function, Wanted, checked, misses_partner, pattern_of

_Command = Callable[..., Any]

_ABOUT: Final = {
    "a function": ("lambda_runtime", "lambda_timeout", "lambda_memory", "env"),
    "a queue": ("message_retention", "max_receives"),
    "a rule": ("bus", "partner_source", "pattern"),
}
_HAVING: Final = {
    "a function": "name its package with --lambda-zip FILE",
    "a queue": "add --queue",
    "a rule": "leave out --no-rule",
}


@click.group()
def infra() -> None:
    """Make, show or take away the AWS parts of a deployment, or print them as a template.

    Credentials come from where AWS's own tools look.
    """


_NAMED = click.option("--name", required=True, metavar="NAME", help="What the names of all parts begin with.")
_PLACED = (
    click.option("--region", metavar="REGION", help="Where to look.  [default: that of the environment]"),
    click.option("--endpoint", metavar="URL", help="An emulator's address in place of AWS's own."),
)
_WANTED = (
    click.option("--table/--no-table", default=True, help="The DynamoDB table of claims.  [default: table]"),
    click.option(
        "--queue/--no-queue",
        default=None,
        help="An SQS queue that events wait in.  [default: a queue, unless there is a function]",
    ),
    click.option("--rule/--no-rule", default=True, help="The EventBridge rule.  [default: rule]"),
    click.option("--bus", default="default", show_default=True, metavar="NAME", help="The event bus of the rule."),
    click.option(
        "--partner-source", metavar="NAME", help="A partner's event source, to be associated if it is pending."
    ),
    click.option(
        "--pattern",
        metavar="FILE|JSON",
        help=f"Which events the rule takes.  [default: those of Genesys Cloud, {json.dumps(GENESYS)}]",
    ),
    click.option(
        "--message-retention", default="4d", show_default=True, metavar="DURATION", help="How long events wait."
    ),
    click.option(
        "--max-receives",
        default=5,
        show_default=True,
        type=click.IntRange(1, 1000),
        help="After how many receives a message is a dead letter.",
    ),
    click.option("--lambda-zip", metavar="FILE", help="The package of a Lambda function that takes the events."),
    click.option("--lambda-handler", metavar="MODULE.FUNCTION", help="Its handler.  [default: app.handler]"),
    click.option("--lambda-runtime", default="python3.13", show_default=True, metavar="NAME", help="Its Python."),
    click.option("--lambda-timeout", default="30s", show_default=True, metavar="DURATION", help="Its timeout."),
    click.option(
        "--lambda-memory", default=256, show_default=True, type=click.IntRange(128, 10_240), help="Its memory, in MB."
    ),
    click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable of the function; may be repeated."),
)


def _taking(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@infra.command()
@_taking(_NAMED, *_WANTED, *_PLACED)
@click.option("--prune", is_flag=True, help="Delete what an earlier run has made and this one does not ask for.")
@click.option("--yes", is_flag=True, help="Do not ask before that.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@output_option
def up(region: str | None, prune: bool, yes: bool, dry_run: bool, output: str, **given: Any) -> None:
    """Make all parts, or bring them to what is wanted. A second time changes nothing.

    What is there under this name besides is told and stays, and so do its rights.
    """
    if given["lambda_handler"] and not given["lambda_zip"]:
        raise click.UsageError("--lambda-handler is that of a package: name it with --lambda-zip FILE")
    if yes and not prune:
        raise click.UsageError("--yes answers what only --prune asks; leave it out, or add --prune")
    wanted = _wanted(given)
    _work().up(wanted, region, prune=prune, yes=yes, dry_run=dry_run, output=output)
    _warn_of_silence(wanted)


@infra.command()
@_taking(_NAMED, *_PLACED)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--keep-table", is_flag=True, help="Leave the table with all that is remembered.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
def down(name: str, region: str | None, endpoint: str | None, yes: bool, keep_table: bool, dry_run: bool) -> None:
    """Delete what `infra up` has made under this name, and nothing else."""
    checked(Wanted(name=name))
    _work().down(name, region, endpoint, yes=yes, keep_table=keep_table, dry_run=dry_run)


@infra.command()
@_taking(_NAMED, *_PLACED)
@output_option
def show(name: str, region: str | None, endpoint: str | None, output: str) -> None:
    """List the parts that exist, with their addresses."""
    checked(Wanted(name=name))
    _work().show(name, region, endpoint, output=output)


@infra.command()
@_taking(_NAMED, *_WANTED)
@click.option("--policy", is_flag=True, help="Print the rights that a consumer needs, as an IAM policy.")
def template(policy: bool, **given: Any) -> None:
    """Print the parts as a CloudFormation template. AWS is not asked, but the extra aws is needed all the same."""
    wanted = _wanted(given)
    _work().template(wanted, policy=policy)
    if not policy:
        _warn_of_silence(wanted)


def _work() -> Any:
    try:
        from oncegate.cli import infra_actions
    except ImportError as error:
        raise MissingExtra(f"oncegate infra (no {str(error.name).partition('.')[0]} here)", "aws") from error
    return infra_actions


def _wanted(given: dict[str, Any]) -> Wanted:
    function = _function(given) if given["lambda_zip"] or given["lambda_handler"] else None
    queue = given["queue"] if given["queue"] is not None else function is None
    _refuse_idle({"a function": function is not None, "a queue": queue, "a rule": given["rule"]})
    return checked(
        Wanted(
            name=given["name"],
            table=given["table"],
            queue=queue,
            rule=given["rule"],
            bus=given["bus"],
            partner_source=given["partner_source"],
            pattern=_pattern(given["pattern"]),
            function=function,
            endpoint=given.get("endpoint"),
            max_receives=given["max_receives"],
            message_retention=_seconds(given["message_retention"], "--message-retention"),
        )
    )


def _warn_of_silence(wanted: Wanted) -> None:
    if wanted.rule and misses_partner(wanted.bus_name, wanted.pattern):
        click.echo(
            "Warning: the rule is on the default bus, where no event of Genesys Cloud arrives. Name the partner event"
            " source with --partner-source (the AWS console lists it under Partner event sources), or with --bus the"
            " bus that the events are forwarded to.",
            err=True,
        )


def _refuse_idle(wanted: dict[str, bool]) -> None:
    """What was written about a part that is not wanted."""
    context = click.get_current_context()
    for part, options in _ABOUT.items():
        for name in options:
            if not wanted[part] and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                option = f"--{name.replace('_', '-')}"
                raise click.UsageError(f"{option} is about {part}, and there is none; leave it out, or {_HAVING[part]}")


def _function(given: dict[str, Any]) -> Function:
    return Function(
        handler=given["lambda_handler"] or "app.handler",
        code=_bytes(given["lambda_zip"], "--lambda-zip") if given["lambda_zip"] else b"",
        runtime=given["lambda_runtime"],
        timeout=_seconds(given["lambda_timeout"], "--lambda-timeout"),
        memory=given["lambda_memory"],
        variables=dict(map(_variable, given["env"])),
    )


def _pattern(written: str | None) -> dict[str, Any]:
    """JSON as it is, else the name of a file that has it."""
    if written is None:
        return dict(GENESYS)
    if written.lstrip().startswith("{"):
        return pattern_of(written, "--pattern")
    return pattern_of(_bytes(written, "--pattern").decode(errors="replace"), f"--pattern {written}")


def _bytes(path: str, option: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingError(f"{option} {path} cannot be read: {error.strerror}") from error


def _seconds(written: str, option: str) -> int:
    return microseconds(written, option) // 1_000_000


def _variable(written: str) -> tuple[str, str]:
    name, sign, value = written.partition("=")
    if not sign or not name.isidentifier():
        raise SettingError(f"--env {written!r} is no variable; write it like --env NAME=VALUE")
    return name, value
