"""Options that several commands share."""

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from math import isnan
from typing import Any, TypeVar

import click
from msgspec.structs import replace

from oncegate.canonical import HASH_SIZE
from oncegate.claims import Address
from oncegate.cli import exit_codes
from oncegate.cli.output import say, say_error
from oncegate.settings import Settings, examine
from oncegate.settings.parsing import as_text, shown
from oncegate.settings.schema import SETTINGS, STORE, Setting
from oncegate.stores.base import Entry, Store

LOOKED_IN = replace(SETTINGS["namespace"], meaning="Look in this namespace only.")
_METAVARS = {
    "duration": "DURATION",
    "count": "NUMBER",
    "port": "NUMBER",
    "names": "NAME,…",
    "url": "URL",
    "place": "URL",
    "function": "MODULE:FUNCTION",
    "strategy": "STRATEGY",
}

_MANY = 1_000_000_000

_Command = TypeVar("_Command", bound=Callable[..., Any])


def with_settings(*settings: Setting) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have a command called with the `settings`, these of which it takes as flags."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def call(**given: Any) -> Any:
            flags = {setting.path: given.pop(setting.parameter) for setting in settings}
            found, problems = examined(flags | {"config": given.pop("config")})
            refuse(problems)
            return command(settings=found, **given)

        taking = click.option("--config", metavar="FILE", hidden=True)(call)  # people write it after the command, too
        for setting in reversed(settings):
            taking = _option(setting)(taking)
        return taking

    return decorate


def examined(flags: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """The settings for this command, and all that is wrong with them."""
    config = flags.get("config") or click.get_current_context().find_root().params["config"]
    return examine(flags={**flags, "config": config})


def refuse(problems: list[str]) -> None:
    """Go on only if there are none."""
    for problem in problems:
        say_error(problem)
    if problems:
        raise click.exceptions.Exit(exit_codes.USAGE)


def _option(setting: Setting) -> Callable[[_Command], _Command]:
    """The flag of a setting. Its value is checked with all the others, so that every error is said the same way."""
    help_ = setting.meaning.replace("`", "")
    if setting is not LOOKED_IN:
        help_ += f"  [default: {as_text(shown(setting, setting.default)) or 'none'}]"
    if setting.kind == "truth":
        return click.option(f"{setting.flag}/--no-{setting.flag[2:]}", setting.parameter, default=None, help=help_)
    metavar = _METAVARS.get(setting.kind) or "|".join(setting.choices) or "NAME"
    return click.option(setting.flag, setting.parameter, metavar=metavar, help=help_)


looking = with_settings(STORE, LOOKED_IN)


def counted(least: int = 1, most: int = _MANY) -> click.IntRange:
    """A whole number of things, as many as somebody can mean."""
    return click.IntRange(least, most)


class Measured(click.FloatRange):
    """A number within bounds; what is no number (nan) is within none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if isnan(found):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return found


def output_option(command: _Command) -> _Command:
    return click.option(
        "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print."
    )(command)


def key(written: str) -> bytes:
    """A key as it is printed everywhere: 32 hexadecimal digits."""
    try:
        found = bytes.fromhex(written)
    except ValueError:
        found = b""
    if len(found) != HASH_SIZE:
        raise click.BadParameter(f"{written!r} is not a key; a key is 32 hexadecimal digits, as outcomes show it")
    return found


def lookup(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a command that shows one record takes."""
    for option in (output_option, looking, click.argument("key", type=key)):
        command = option(command)
    return command


def confirm(question: str) -> None:
    """Go on only with a yes."""
    if sys.stdin.isatty():
        yes = click.confirm(question, err=True)
    elif answer := sys.stdin.readline():
        yes = answer.strip().lower() in ("y", "yes")
    else:
        say_error("there is no terminal to ask on; add --yes to go on without being asked")
        raise click.exceptions.Exit(exit_codes.USAGE)
    if not yes:
        say("Nothing was changed.")
        raise click.exceptions.Exit(exit_codes.FAILED)


def existing_store(settings: Settings) -> Store:
    return settings.open_store(create=False)


def looked_at(settings: Settings) -> Store:
    """The same for a command that changes nothing."""
    return settings.open_read_only()


def namespace_of(settings: Settings) -> str | None:
    """The namespace to look in: the one that was chosen, else all."""
    chosen: str | None = settings.chosen("namespace")
    return chosen


def the_one(store: Store, settings: Settings, key: bytes) -> Entry:
    """The record of a key, or an exit that says what to do."""
    namespace = namespace_of(settings)
    entries = store.browse(namespace, key=key)
    if not entries:
        where = f" in namespace {namespace}" if namespace else ""
        say_error(f"there is no record of {key.hex()}{where}; it was never seen, or it has expired")
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)
    if len(entries) > 1:
        names = ", ".join(entry.namespace for entry in entries)
        raise click.UsageError(f"{key.hex()} is in several namespaces ({names}); choose one with --namespace")
    return entries[0]


def address_of(entry: Entry) -> Address:
    return Address(entry.namespace, entry.key)
