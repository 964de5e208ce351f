"""`oncegate infra`: create, show and delete the AWS parts of a deployment."""

import json
from collections.abc import Callable
from typing import Any, Final

import click
from click.core import ParameterSource

from oncegate.cli.commands import CliGroup, FileName
from oncegate.cli.options import output_option
from oncegate.durations import microseconds
from oncegate.errors import MissingExtra, SettingError
from oncegate.files import read_file
from oncegate.infra.wanted import DEFAULT_BUS, GENESYS, Function, Wanted, checked, misses_partner, pattern_of

_Command = Callable[..., Any]

_OPTIONS_OF: Final = {
    "a function": ("lambda_runtime", "lambda_timeout", "lambda_memory", "env"),
    "a queue": ("message_retention", "max_receives"),
    "a rule": ("bus", "partner_source", "pattern"),
    "a function or --policy": ("publish",),
}
_TO_ADD: Final = {
    "a function": "name its package with --lambda-zip FILE",
    "a queue": "add --queue",
    "a rule": "remove --no-rule",
    "a function or --policy": "print the policy of a worker with `oncegate infra template --policy`",
}


@click.group(
    cls=CliGroup,
    short_help="Create, show or delete AWS parts.",
    examples=(
        "oncegate infra up --name crm --dry-run",
        "oncegate infra show --name crm",
        "oncegate infra template --name crm > crm.json",
    ),
    reads_settings=False,
)
def infra() -> None:
    """Create, show or delete the AWS parts of a deployment, or print them as a template.

    Credentials are read from the same places as the AWS CLI reads them.
    """


NAME_OPTION = click.option("--name", required=True, metavar="NAME", help="The prefix of the names of all parts.")
PLACE_OPTIONS = (
    click.option("--region", metavar="REGION", help="The AWS region.  [default: from the environment]"),
    click.option("--endpoint", metavar="URL", help="The address of an AWS emulator."),
)
TARGET_OPTIONS = (
    click.option("--table/--no-table", default=True, help="The DynamoDB table for claims.  [default: table]"),
    click.option(
        "--queue/--no-queue",
        default=None,
        help="An SQS queue for events.  [default: queue, but no-queue with a function]",
    ),
)
_BUS_OPTIONS = (
    click.option("--rule/--no-rule", default=True, help="The EventBridge rule.  [default: rule]"),
    click.option("--bus", default="default", show_default=True, metavar="NAME", help="The event bus of the rule."),
    click.option("--partner-source", metavar="NAME", help="A partner event source. It is associated if it is pending."),
)
RULE_OPTIONS = (
    click.option(
        "--pattern",
        metavar="FILE|JSON",
        help=f"The event pattern of the rule.  [default: Genesys Cloud events, {json.dumps(GENESYS)}]",
    ),
    click.option(
        "--message-retention",
        default="4d",
        show_default=True,
        metavar="DURATION",
        help="How long the queue keeps a message.",
    ),
    click.option(
        "--max-receives",
        default=5,
        show_default=True,
        type=click.IntRange(1, 1000),
        metavar="NUMBER",
        help="Number of receives after which a message becomes a dead letter.",
    ),
    click.option(
        "--lambda-zip",
        type=FileName(),
        metavar="FILE",
        help="The package of a Lambda function that handles the events.",
    ),
    click.option(
        "--lambda-handler", metavar="MODULE.FUNCTION", help="The handler of the function.  [default: app.handler]"
    ),
    click.option(
        "--lambda-runtime",
        default="python3.13",
        show_default=True,
        metavar="NAME",
        help="The Python runtime of the function.",
    ),
    click.option(
        "--lambda-timeout", default="30s", show_default=True, metavar="DURATION", help="The timeout of the function."
    ),
    click.option(
        "--lambda-memory",
        default=256,
        show_default=True,
        type=click.IntRange(128, 10_240),
        metavar="NUMBER",
        help="The memory of the function in MB.",
    ),
    click.option(
        "--env", multiple=True, metavar="NAME=VALUE", help="An environment variable of the function; repeatable."
    ),
    click.option(
        "--publish",
        multiple=True,
        metavar="URL",
        help="A queue or bus that the consumer may publish to, as in the setting `publish`; repeatable.",
    ),
)


def with_options(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@infra.command(
    short_help="Create or change the parts.",
    examples=(
        "oncegate infra up --name crm --partner-source aws.partner/genesys.com/cloud/0e5c3f2a/crm",
        "oncegate infra up --name crm --lambda-zip function.zip --lambda-handler app.handler",
        "oncegate infra up --name crm --no-rule --dry-run",
    ),
    reads_settings=False,
)
@with_options(NAME_OPTION, *TARGET_OPTIONS, *_BUS_OPTIONS, *RULE_OPTIONS, *PLACE_OPTIONS)
@click.option("--prune", is_flag=True, help="Delete parts of an earlier run that these options do not include.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation before deleting.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@output_option
def up(region: str | None, prune: bool, yes: bool, dry_run: bool, output: str, **given: Any) -> None:
    """Create all parts, or change them to match the options. A second run changes nothing.

    Other parts with this name are reported and kept with their permissions, unless --prune is used.
    """
    if given["lambda_handler"] and not given["lambda_zip"]:
        raise click.UsageError("--lambda-handler needs the package of the function; add --lambda-zip FILE")
    if yes and not prune:
        raise click.UsageError("--yes has an effect only with --prune; remove it, or add --prune")
    wanted = wanted_of(given)
    _actions().up(wanted, region, prune=prune, yes=yes, dry_run=dry_run, output=output)
    _warn_about_default_bus(wanted)


@infra.command(
    short_help="Delete the parts.",
    examples=("oncegate infra down --name crm --dry-run", "oncegate infra down --name crm --keep-table --yes"),
    reads_settings=False,
)
@with_options(NAME_OPTION, *PLACE_OPTIONS)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--keep-table", is_flag=True, help="Keep the table with its records.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
def down(name: str, region: str | None, endpoint: str | None, yes: bool, keep_table: bool, dry_run: bool) -> None:
    """Delete the parts that `infra up` created with this name, and nothing else."""
    checked(Wanted(name=name))
    _actions().down(name, region, endpoint, yes=yes, keep_table=keep_table, dry_run=dry_run)


@infra.command(
    short_help="List the parts.",
    examples=("oncegate infra show --name crm", "oncegate infra show --name crm --region eu-central-1 --output json"),
    reads_settings=False,
)
@with_options(NAME_OPTION, *PLACE_OPTIONS)
@output_option
def show(name: str, region: str | None, endpoint: str | None, output: str) -> None:
    """List the existing parts and their addresses."""
    checked(Wanted(name=name))
    _actions().show(name, region, endpoint, output=output)


@infra.command(
    short_help="Print a CloudFormation template.",
    examples=("oncegate infra template --name crm > crm.json", "oncegate infra template --name crm --policy"),
    reads_settings=False,
)
@with_options(NAME_OPTION, *TARGET_OPTIONS, *_BUS_OPTIONS, *RULE_OPTIONS)
@click.option("--policy", is_flag=True, help="Print the IAM policy that a consumer needs.")
def template(policy: bool, **given: Any) -> None:
    """Print the parts as a CloudFormation template.

    No request is sent to AWS, but Oncegate must be installed with the pip extra `aws`.
    """
    wanted = wanted_of(given, policy=policy)
    _actions().template(wanted, policy=policy)
    if not policy:
        _warn_about_default_bus(wanted)


def _actions() -> Any:
    try:
        from oncegate.cli import infra_actions
    except ImportError as error:
        raise missing_extra("oncegate infra", "aws", error) from error
    return infra_actions


def missing_extra(command: str, extra: str, error: ImportError) -> MissingExtra:
    missing = str(error.name).partition(".")[0]
    return MissingExtra(f"{command} ({missing} is not installed)", extra)


def wanted_of(given: dict[str, Any], *, policy: bool = False) -> Wanted:
    """The deployment that the options describe. A command that has no options for the bus always creates a rule."""
    function = _function(given) if given["lambda_zip"] or given["lambda_handler"] else None
    queue = given["queue"] if given["queue"] is not None else function is None
    has_function = function is not None
    rule = given.get("rule", True)
    parts = {"a function": has_function, "a queue": queue, "a rule": rule}
    _refuse_unused_options(parts | {"a function or --policy": has_function or policy})
    return checked(
        Wanted(
            name=given["name"],
            table=given["table"],
            queue=queue,
            rule=rule,
            bus=given.get("bus", DEFAULT_BUS),
            partner_source=given.get("partner_source"),
            pattern=_pattern(given["pattern"]),
            function=function,
            publish=given["publish"],
            endpoint=given.get("endpoint"),
            max_receives=given["max_receives"],
            message_retention=_seconds(given["message_retention"], "--message-retention"),
        )
    )


def _warn_about_default_bus(wanted: Wanted) -> None:
    if wanted.rule and misses_partner(wanted.bus_name, wanted.pattern):
        click.echo(
            "Warning: the rule is on the default bus, where no Genesys Cloud events arrive. Name the partner event"
            " source with --partner-source (the AWS console lists it under Partner event sources), or name the bus"
            " that the events are forwarded to with --bus.",
            err=True,
        )


def _refuse_unused_options(wanted: dict[str, bool]) -> None:
    """Refuse an option of a part that is not created."""
    context = click.get_current_context()
    for part, options in _OPTIONS_OF.items():
        for name in options:
            if not wanted[part] and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                option = f"--{name.replace('_', '-')}"
                raise click.UsageError(f"{option} needs {part}; remove the option, or {_TO_ADD[part]}")


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
    """The pattern from JSON, or from a file with JSON."""
    if written is None:
        return dict(GENESYS)
    if written.lstrip().startswith("{"):
        return pattern_of(written, "--pattern")
    return pattern_of(_bytes(written, "--pattern").decode(errors="replace"), f"--pattern {written}")


def _bytes(path: str, option: str) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise SettingError(f"{option}: cannot read {path}: {error.strerror}") from error


def _seconds(written: str, option: str) -> int:
    return microseconds(written, option) // 1_000_000


def _variable(written: str) -> tuple[str, str]:
    name, sign, value = written.partition("=")
    if not sign or not name.isidentifier():
        raise SettingError(f"--env {written!r} is not a variable; write it like --env NAME=VALUE")
    return name, value
