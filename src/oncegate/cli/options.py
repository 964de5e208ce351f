"""Options and helpers that several commands share."""

import os
import pwd
import select
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import wraps
from math import isnan
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem
from msgspec.structs import replace

from oncegate.canonical import HASH_SIZE
from oncegate.cli import exit_codes
from oncegate.cli.commands import CONFIG, chosen_config
from oncegate.cli.output import print_error, print_note, print_text
from oncegate.journal import OperatorLog
from oncegate.settings import Settings, examine
from oncegate.settings.parsing import as_text, shown
from oncegate.settings.routes import UNSIGNED
from oncegate.settings.schema import SETTINGS, STORE, Setting
from oncegate.signatures.senders import SENDERS
from oncegate.stores.base import Entry, Store

NAMESPACE_FILTER = replace(SETTINGS["namespace"], meaning="Use only this namespace.")
_METAVARS = {
    "duration": "DURATION",
    "count": "NUMBER",
    "port": "NUMBER",
    "names": "NAME,…",
    "url": "URL",
    "place": "URL",
    "journal": "URL",
    "function": "MODULE:FUNCTION",
    "strategy": "STRATEGY",
}

# Settings that name files.
_FILES = frozenset(
    {
        *("serve.tls_cert", "serve.tls_key", "serve.secret_file", "serve.metrics_token_file", "console.token_file"),
        *("forward.headers", "forward.ca", "forward.certificate", "forward.certificate_key", "genesys.secret_file"),
    }
)
_MOST = 1_000_000_000
_ANSWER_WITHIN = 5.0  # seconds

_Command = TypeVar("_Command", bound=Callable[..., Any])


def with_settings(*settings: Setting) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a flag for each of these settings to a command, and pass the command all settings in the argument
    `settings`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def call(**given: Any) -> Any:
            flags = {setting.path: given.pop(setting.parameter) for setting in settings}
            found, problems = examine_settings(flags)
            exit_on_problems(problems)
            return command(settings=found, **given)

        decorated: Callable[..., Any] = call
        for setting in reversed(settings):
            decorated = _option(setting)(decorated)
        return decorated

    return decorate


def examine_settings(flags: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """The settings for this command, and the problems of these settings."""
    return examine(flags={**flags, CONFIG: chosen_config()})


def exit_on_problems(problems: list[str]) -> None:
    """Print the problems, and exit if there are any."""
    for problem in problems:
        print_error(problem)
    if problems:
        raise click.exceptions.Exit(exit_codes.USAGE)


def _option(setting: Setting) -> Callable[[_Command], _Command]:
    """The flag of a setting. click does not check the value: all settings are checked in one place."""
    if setting.kind == "source":
        return click.argument(setting.parameter, metavar=f"[{setting.flag}]", required=False)
    help_ = setting.meaning.replace("`", "")
    if setting is not NAMESPACE_FILTER:
        help_ += f"  [default: {as_text(shown(setting, setting.default)) or 'none'}]"
    if setting.kind == "truth":
        return click.option(f"{setting.flag}/--no-{setting.flag[2:]}", setting.parameter, default=None, help=help_)
    metavar = _METAVARS.get(setting.kind) or "|".join(setting.choices) or "NAME"
    if setting.path in _FILES:
        metavar = metavar.replace("NAME", "FILE")
    return click.option(
        setting.flag, setting.parameter, metavar=metavar, help=help_, shell_complete=_completion(setting)
    )


def _completion(setting: Setting) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Complete the value of an option in a shell."""
    if setting.path in _FILES:
        return lambda _context, _option, incomplete: [CompletionItem(incomplete, type="file")]
    choices = (*SENDERS, UNSIGNED) if setting.path == "serve.signature" else setting.choices
    return lambda _context, _option, incomplete: [
        CompletionItem(choice) for choice in choices if choice.startswith(incomplete)
    ]


store_options = with_settings(STORE, NAMESPACE_FILTER)


def number(least: int = 1, most: int = _MOST) -> click.IntRange:
    """The type of an option that is a whole number. The default maximum is 10^9."""
    return click.IntRange(least, most)


class NumberRange(click.FloatRange):
    """The type of an option that is a number within bounds. nan is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if isnan(found):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return found


def output_option(command: _Command) -> _Command:
    return click.option(
        "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
    )(command)


def key(written: str) -> bytes:
    """The bytes of a key that is written as 32 hexadecimal digits."""
    try:
        found = bytes.fromhex(written)
    except ValueError:
        found = b""
    if len(found) != HASH_SIZE:
        raise click.BadParameter(f"{written!r} is not a key; a key has 32 hexadecimal digits")
    return found


def record_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument KEY and the options of a command that shows one record."""
    for option in (output_option, store_options, click.argument("key", type=key)):
        command = option(command)
    return command


def confirm(question: str) -> None:
    """Ask the question on the terminal, or read the answer from a pipe. Exits unless the answer is yes.

    The text that the question is about goes to stdout. stdout is flushed first, so that this text appears before the
    question if stdout is a pipe to the same terminal. The question goes to stderr. If only stdout is a terminal, the
    question goes to stdout, because nobody would see it in the file or pipe of stderr. click.confirm is not used: on a
    terminal, Python writes its question to stderr in every case."""
    sys.stdout.flush()
    asks = sys.stdin.isatty()
    if asks:
        to_stderr = sys.stderr.isatty() or not sys.stdout.isatty()
        print(f"{question} [y/N]: ", end="", file=sys.stderr if to_stderr else sys.stdout, flush=True)
    answer = sys.stdin.readline() if asks or _has_input() else ""
    if not answer and asks:
        raise click.Abort
    if not answer:
        print_error("cannot ask for confirmation because stdin is not a terminal; add --yes to confirm")
        raise click.exceptions.Exit(exit_codes.USAGE)
    if answer.strip().lower() not in ("y", "yes"):
        print_text("Nothing was changed.")
        raise click.exceptions.Exit(exit_codes.FAILED)


def _has_input() -> bool:
    """Whether stdin has input, or is at its end. Waits at most 5 s: a script may have left a pipe open that nobody
    writes to."""
    try:
        return bool(select.select([sys.stdin], [], [], _ANSWER_WITHIN)[0])
    except (OSError, ValueError):  # stdin is not a file of the system, so a read returns at once
        return True


def existing_store(settings: Settings) -> Store:
    return settings.open_store(create=False)


def read_only_store(settings: Settings) -> Store:
    """The store, for a command that changes nothing."""
    return settings.open_read_only()


def namespace_of(settings: Settings) -> str | None:
    """The namespace of the settings; None (all namespaces) if the settings do not name a namespace."""
    chosen: str | None = settings.chosen("namespace")
    return chosen


@contextmanager
def operator_log(settings: Settings) -> Iterator[OperatorLog]:
    """The record of what the user of this command does. It never hides the result of the command: if the journal cannot
    be written, a note says so. A command has no log."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run with a number that has no name
        user = f"user {os.getuid()}"
    with closing(settings.operator_log(f"{user}@{os.uname().nodename} (command)", is_logged=False)) as log:
        yield log
    if log.problem is not None and not log.is_missing:
        print_note(f"The journal has no record of this command: {log.problem}")


def find_record(store: Store, settings: Settings, key: bytes) -> Entry:
    """The record of a key. Exits if the key has no record, or has records in several namespaces."""
    namespace = namespace_of(settings)
    entries = store.browse(namespace, key=key)
    if not entries:
        where = f" in namespace {namespace}" if namespace else ""
        print_error(
            f"there is no record of {key.hex()}{where}; the event was never seen, or its record has expired, or was"
            " reset or dropped"
        )
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)
    if len(entries) > 1:
        names = ", ".join(entry.namespace for entry in entries)
        raise click.UsageError(f"{key.hex()} exists in several namespaces ({names}); choose one with --namespace")
    return entries[0]
