"""The classes of all commands: options under headings, examples, exit codes, and `--config` for every command."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

CONFIG: Final = "config"
_CONFIG_HELP: Final = "The settings file.  [default: oncegate.toml, if the file exists]"
_UNUSED_CONFIG_HELP: Final = "The settings file. This command reads no settings."
EXAMPLE_KEY: Final = "3f1c9a52e07b4d6f8a1b2c3d4e5f6071"
_META: Final = "oncegate.config"
_GENERAL: Final = "General"
_OTHER: Final = "Options"
_NARROW: Final = 70  # below this width, the text of an option starts on the line after its name
_NARROW_INDENT: Final = 4
_WIDEST_NAME: Final = 28
_WORD: Final = r"(?:'[^']*'|[^\s'])+"
_PARTS: Final = re.compile(rf"--\S+ (?!-){_WORD}|{_WORD}")

# The headings of the help, in their order, with the parameters below them. A name that ends with _ is a prefix.
# Parameters that are not listed are below "Options", which comes first.
SECTIONS: Final[Mapping[str, Sequence[str]]] = {
    "Address": (
        *("serve_host", "serve_port", "serve_proxies", "serve_tls_cert", "serve_tls_key"),
        *("console_host", "console_port"),
    ),
    "Console": ("console_",),
    "Handler": (
        *("serve_handler", "serve_forward", "serve_publish", "serve_mode"),
        *("work_handler", "work_forward", "work_publish", "handler", "handler_timeout", "threads"),
    ),
    "Filters": (
        *("since", "until", "status", "kind", "id_", "type_", "entity", "place", "state", "error"),
        *("newer_than", "older_than", "before"),
    ),
    "Store": ("store", "namespace", "previous", "on_store_error", "breaker", "remember"),
    "Queue": ("work_batch", "work_wait", "work_visibility", "work_in_hand", "work_receivers", "work_drain"),
    "Key": ("key", "strategies", "echo_window", "on_missing_key", "unguarded_types"),
    "Signature": ("serve_signature", "serve_secret_env", "serve_secret_file", "serve_signature_options"),
    "Claims": (
        *("mode", "lease", "max_hold", "retention", "sliding", "sliding_limit", "dead_letter_retention"),
        *("on_conflict", "on_replay", "on_stale", "max_age", "on_too_old"),
    ),
    "Retries": ("max_attempts", "backoff", "backoff_limit", "retry_for"),
    "Limits": (
        *("max_in_hand", "max_result", "scan", "serve_request_within", "serve_drain_within"),
        *("serve_max_",),
    ),
    "Forward": ("forward_",),
    "Fields of plain events": ("read_",),
    "Genesys Cloud": ("genesys_",),
    "AWS parts": (
        *("name", "table", "queue", "function", "rule", "bus", "partner_source", "pattern"),
        *("message_retention", "max_receives", "region", "endpoint"),
    ),
    "Lambda function": ("env", "lambda_"),
    "Traffic": ("events", "rate", "start", "seed", "delay", "window", "untimed", "replay_file"),
    "Copies": ("copies", "reemit", "rewrap", "replay", "echo", "conflict", "invalid"),
    "Sending": ("url", "parallel", "patience"),
    "Monitoring": ("log", "serve_trace", "serve_metrics_"),
    "Journal": ("journal", "journal_"),
    "Output": ("output", "limit", "truth", "html_file", "export_file", "redact"),
    _GENERAL: (CONFIG, "help", "version"),
}


class FileName(click.ParamType):  # type: ignore[type-arg]  # generic only in new versions of click
    """The type of an option that names a file. The file is opened later; shells complete the name."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("the name of the file is empty", param, ctx)
        if "\0" in value:
            self.fail("the name of the file contains NUL; no file can have such a name", param, ctx)
        return value

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


def chosen_config() -> str | None:
    """The value of `--config`, which may stand before or after any command."""
    chosen: str | None = click.get_current_context().meta.get(_META)
    return chosen


def _remember_config(context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> None:
    """Store the value in the context that all commands of a command line share. Two different values are refused."""
    for value in values:
        earlier = context.meta.setdefault(_META, value)
        if value != earlier:
            raise click.UsageError(
                f"--config is given twice with different files, {earlier!r} and {value!r}; use it once", context
            )


class _Help(click.Command):
    """Formats the help of commands and of groups of commands.

    `examples` are command lines. `exit_codes` are the codes that have a special meaning for the command.
    `reads_settings` is false for a command that accepts `--config` without using it. `sections` are headings of this
    command alone; they come before the common headings."""

    def __init__(
        self,
        *arguments: Any,
        examples: Sequence[str] = (),
        exit_codes: Mapping[int, str] | None = None,
        reads_settings: bool = True,
        sections: Mapping[str, Sequence[str]] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self.examples = tuple(examples)
        self.exit_codes = exit_codes or {}
        self.sections = {**(sections or {}), **SECTIONS}
        help_ = _CONFIG_HELP if reads_settings else _UNUSED_CONFIG_HELP
        self.params.append(
            click.Option(
                [f"--{CONFIG}"],
                type=FileName(),
                metavar="FILE",
                multiple=True,
                expose_value=False,
                callback=_remember_config,
                help=help_,
            )
        )

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002
        """The line of this command in a list of commands. The list folds the line; it is never cut."""
        return super().get_short_help_str(1_000)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and not isinstance(parameter, click.Argument):
                options.setdefault(section_of(parameter, self.sections), []).append(record)
        width = _column_width(formatter, [name for records in options.values() for name, _ in records])
        for heading in (_OTHER, *self.sections):
            if heading in options:
                records = [(_folded_name(name, formatter).ljust(width), text) for name, text in options[heading]]
                with formatter.section(heading):
                    formatter.write_dl(records, col_max=width)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(_folded(example, formatter.width, formatter.current_indent))
        if self.exit_codes:
            with formatter.section("Exit codes"):
                formatter.write_dl([(str(code), meaning) for code, meaning in self.exit_codes.items()])


def section_of(parameter: click.Parameter, sections: Mapping[str, Sequence[str]] = SECTIONS) -> str:
    """The heading of a parameter. A name that is listed in full takes precedence over a prefix."""
    name = "help" if "--help" in parameter.opts else parameter.name or ""
    for heading, names in sections.items():
        if name in names:
            return heading
    for heading, names in sections.items():
        if any(prefix.endswith("_") and name.startswith(prefix) for prefix in names):
            return heading
    return _OTHER


def _column_width(formatter: click.HelpFormatter, names: Iterable[str]) -> int:
    """The width of the column of names, the same for all headings. A longer name has a line to itself."""
    if formatter.width < _NARROW:
        return _NARROW_INDENT
    return max((len(name) for name in names if len(name) <= _WIDEST_NAME), default=0)


def _folded_name(name: str, formatter: click.HelpFormatter) -> str:
    """The name of an option. The two names of a flag that can be turned off are on two lines if they do not fit."""
    indent = formatter.indent_increment
    return name if indent + len(name) <= formatter.width else name.replace(" / ", f" /\n{' ' * indent}")


def _folded(line: str, width: int, indent: int) -> str:
    """A command line, folded with backslashes, so that it can be copied from a narrow terminal. An option stays on the
    line of its value if both fit on one line."""
    first, *parts = _PARTS.findall(line)
    lines = [" " * indent + first]
    room = width - indent - 4 - len(" \\")
    for part in chain.from_iterable([part] if len(part) <= room else part.split(" ", 1) for part in parts):
        if len(lines[-1]) + 1 + len(part) + len(" \\") > width:
            lines[-1] += " \\"
            lines.append(" " * (indent + 4) + part)
        else:
            lines[-1] += f" {part}"
    return "\n".join(lines) + "\n"


class CliCommand(_Help):
    """A command."""


class CliGroup(_Help, click.Group):
    """A group of commands. Its commands are CliCommands."""

    command_class = CliCommand

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _Help.format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)
