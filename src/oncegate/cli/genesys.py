"""`oncegate genesys`: set up Genesys Cloud through its API, list its topics, and listen to its notifications."""

from typing import Any, Final

import click

from oncegate.cli import exit_codes
from oncegate.cli.commands import CliGroup, FileName
from oncegate.cli.infra import (
    NAME_OPTION,
    PLACE_OPTIONS,
    RULE_OPTIONS,
    TARGET_OPTIONS,
    missing_extra,
    wanted_of,
    with_options,
)
from oncegate.cli.options import output_option, with_settings
from oncegate.infra.wanted import Wanted, checked
from oncegate.settings import Settings
from oncegate.settings.schema import GENESYS, HANDLER_OPTIONS, TABLES

_USES: Final = ("eventbridge", "open-messaging", "listen")
_TOPICS_OPTION = click.option(
    "--topics", multiple=True, metavar="NAME,…", help="Topics, separated by commas; repeatable."
)
_DRY_RUN_OPTION = click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
_YES_OPTION = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
# The settings of `oncegate work` that have a meaning without a queue.
_LISTEN_SETTINGS: Final = [
    setting for setting in TABLES["work"] if setting.name in (*HANDLER_OPTIONS, "in_hand", "drain")
]


@click.group(
    cls=CliGroup,
    subcommand_metavar="COMMAND",  # the default, COMMAND [ARGS]..., does not fit into a narrow terminal
    short_help="Set up Genesys Cloud, or listen to it.",
    examples=(
        "oncegate genesys check",
        "oncegate genesys topics --filter customer.end",
        "oncegate genesys setup eventbridge --name crm --topics 'v2.users.{id}.presence' --dry-run",
        "oncegate genesys listen --topics v2.quality.evaluations --handler log",
    ),
)
def genesys() -> None:
    """Set up Genesys Cloud through its API, list its topics, or receive its notifications.

    An OAuth client with the grant type Client Credentials is needed. Its secret is read from the variable
    ONCEGATE_GENESYS_CLIENT_SECRET or from a file, never from the command line.
    """


@genesys.command(
    short_help="List the topics.",
    examples=("oncegate genesys topics --filter conversation", "oncegate genesys topics --output json"),
)
@click.option("--filter", "filter_", default="", metavar="TEXT", help="Only topics whose name contains this text.")
@click.option("--preview", is_flag=True, help="Include preview topics, which Genesys may change.")
@with_settings(*GENESYS)
@output_option
def topics(filter_: str, preview: bool, settings: Settings, output: str) -> None:
    """List the topics that your organisation can subscribe to, and how Oncegate identifies their events.

    The columns say which member of the body is the time of the event, which one is its id, and what the default key is
    made from. Over EventBridge, the send time is detail.timestamp.
    """
    _actions().topics(settings, filter_=filter_, preview=preview, output=output)


@genesys.command(
    short_help="Check permissions.",
    examples=("oncegate genesys check", "oncegate genesys check --for eventbridge --output json"),
    exit_codes={
        exit_codes.OK: "all permissions are granted",
        exit_codes.FAILED: "Genesys Cloud refused the login, or did not answer",
        exit_codes.ERRORS_FOUND: "a permission is missing",
        exit_codes.WARNINGS_FOUND: "a permission could not be checked",
    },
)
@click.option("--for", "uses", type=click.Choice(_USES), multiple=True, help="Only what this use needs; repeatable.")
@_TOPICS_OPTION
@with_settings(*GENESYS)
@output_option
def check(uses: tuple[str, ...], topics: tuple[str, ...], settings: Settings, output: str) -> int:
    """Log in, and check the permissions of the OAuth client.

    With --topics, the permissions that `listen` needs for these topics are included. Only permissions that Genesys
    documents are checked. Names in tutorials that the official SDK does not have are listed, too.
    """
    code: int = _actions().check(settings, uses=uses or _USES, topics=_split(topics), output=output)
    return code


# ── setup and down ────────────────────────────────────────────────────────────────────────────────────────


@genesys.group(
    cls=CliGroup,
    subcommand_metavar="COMMAND",
    short_help="Create or change integrations.",
    examples=(
        "oncegate genesys setup eventbridge --name crm --topics 'v2.users.{id}.presence' --dry-run",
        "oncegate genesys setup open-messaging --name crm --url https://events.example.com/events/messages"
        " --secret-file messages.secret",
    ),
)
def setup() -> None:
    """Create or change an integration of Genesys Cloud. A second run changes nothing."""


@setup.command(
    short_help="Send events to Amazon EventBridge.",
    examples=(
        "oncegate genesys setup eventbridge --name crm --topics 'v2.users.{id}.presence' --dry-run",
        "oncegate genesys setup eventbridge --name crm --topics 'v2.users.{id}.presence' --region eu-central-1",
    ),
)
@with_options(NAME_OPTION, *TARGET_OPTIONS, *RULE_OPTIONS, *PLACE_OPTIONS)
@_TOPICS_OPTION
@click.option(
    "--suffix", metavar="NAME", help="The last part of the name of the partner event source.  [default: --name]"
)
@_DRY_RUN_OPTION
@with_settings(*GENESYS)
@output_option
def eventbridge(
    region: str | None,
    topics: tuple[str, ...],
    suffix: str | None,
    dry_run: bool,
    settings: Settings,
    output: str,
    **given: Any,
) -> int:
    """Create the Amazon EventBridge integration, wait for its partner event source, and create the AWS parts.

    The AWS parts are those of `oncegate infra up`. At the end the deployment is checked by the rules of `oncegate
    doctor`. AWS credentials are read from the same places as the AWS CLI reads them.
    """
    wanted, suffix = wanted_of(given), suffix or given["name"]
    code: int = _actions("aws").setup_eventbridge(
        settings, wanted, region, suffix=suffix, topics=_split(topics), dry_run=dry_run, output=output
    )
    return code


@setup.command(
    "open-messaging",
    short_help="Send messages to a route.",
    examples=(
        "oncegate genesys setup open-messaging --name crm --url https://events.example.com/events/messages"
        " --secret-file messages.secret --dry-run",
        "oncegate genesys setup open-messaging --name crm --url https://events.example.com/events/messages"
        " --secret-env MESSAGES_SECRET",
    ),
)
@NAME_OPTION
@click.option("--url", required=True, metavar="URL", help="The public https URL of the route, ending in its name.")
@click.option("--route", metavar="NAME", help="The name of the route.  [default: the last part of --url]")
@click.option("--secret-env", metavar="NAME", help="The variable that holds the secret of the signature.")
@click.option(
    "--secret-file",
    type=FileName(),
    metavar="FILE",
    help="The file that holds the secret of the signature. A missing file is created with a random secret.",
)
@click.option("--replace-secret", is_flag=True, help="Send the secret again, if Genesys does not show the current one.")
@_DRY_RUN_OPTION
@with_settings(*GENESYS)
@output_option
def open_messaging(settings: Settings, dry_run: bool, output: str, **given: Any) -> None:
    """Create an Open Messaging integration that posts to a route, and add the route to the settings file.

    The settings file gets the table of the route, with the name of the variable or file of the secret. The rest of the
    file is not changed.
    """
    if (given["secret_env"] is None) == (given["secret_file"] is None):
        raise click.UsageError("name the secret of the signature with --secret-env or --secret-file, one of the two")
    checked(Wanted(name=given["name"]))
    _actions().setup_open_messaging(settings, dry_run=dry_run, output=output, **given)


@genesys.group(
    cls=CliGroup,
    subcommand_metavar="COMMAND",
    short_help="Delete integrations.",
    examples=("oncegate genesys down eventbridge --name crm --dry-run",),
)
def down() -> None:
    """Delete what Oncegate created with a name, and nothing else."""


@down.command(
    "eventbridge",
    short_help="Delete the integration and its AWS parts.",
    examples=("oncegate genesys down eventbridge --name crm --dry-run",),
)
@with_options(NAME_OPTION, *PLACE_OPTIONS)
@_YES_OPTION
@click.option("--keep-table", is_flag=True, help="Keep the table with its records.")
@_DRY_RUN_OPTION
@with_settings(*GENESYS)
def down_eventbridge(name: str, settings: Settings, **given: Any) -> None:
    """Delete the Amazon EventBridge integration and the AWS parts with this name.

    The parts that `oncegate infra up` created with this name are deleted, too.
    """
    checked(Wanted(name=name))
    _actions("aws").down_eventbridge(settings, name, **given)


@down.command(
    "open-messaging",
    short_help="Delete the integration.",
    examples=("oncegate genesys down open-messaging --name crm --dry-run",),
)
@NAME_OPTION
@_YES_OPTION
@_DRY_RUN_OPTION
@with_settings(*GENESYS)
def down_open_messaging(name: str, yes: bool, dry_run: bool, settings: Settings) -> None:
    """Delete the Open Messaging integration with this name. The route stays in the settings file."""
    checked(Wanted(name=name))
    _actions().down_open_messaging(settings, name, yes=yes, dry_run=dry_run)


# ── listen ────────────────────────────────────────────────────────────────────────────────────────────────


@genesys.command(
    short_help="Receive notifications.",
    examples=(
        "oncegate genesys listen --topics v2.quality.evaluations --handler log",
        "oncegate genesys listen --topics v2.quality.evaluations --forward https://crm.example.com/events",
    ),
    exit_codes={exit_codes.QUEUE: "Genesys Cloud refuses the login or a topic"},
)
@_TOPICS_OPTION
@with_settings(*_LISTEN_SETTINGS, *GENESYS, *TABLES[""], *TABLES["read"], *TABLES["forward"])
def listen(topics: tuple[str, ...], settings: Settings) -> None:
    """Receive events over the notification WebSocket of Genesys Cloud, until the listener is stopped.

    Each frame is stored in the inbox before it is handled. A channel is replaced before it ends, and both channels are
    read for some seconds. If events may have been missed, the log and the journal have the time from and to.
    EventBridge keeps events for days while nobody receives; the WebSocket does not.

    SIGTERM or Ctrl-C stops the listener: received frames are stored, and running handlers may finish.
    """
    _actions().listen(settings, _split(topics))


def _split(topics: tuple[str, ...]) -> list[str]:
    return [topic for part in topics for each in part.split(",") if (topic := each.strip())]


def _actions(*extras: str) -> Any:
    """The actions. They need the extra `genesys`, and the actions for EventBridge also the extra `aws`."""
    try:
        from oncegate.cli import genesys_actions

        if extras:
            from oncegate.cli import genesys_aws_actions

            return genesys_aws_actions
    except ImportError as error:
        raise missing_extra("oncegate genesys", ",".join(("genesys", *extras)), error) from error
    return genesys_actions
