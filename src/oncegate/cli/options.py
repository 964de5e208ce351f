"""Options that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from oncegate.canonical import HASH_SIZE
from oncegate.claims import Address
from oncegate.cli import exits
from oncegate.cli.output import say, say_error
from oncegate.stores import open_store
from oncegate.stores.base import Entry, Store

DEFAULT_STORE = "sqlite:///oncegate.db"

_Command = TypeVar("_Command", bound=Callable[..., Any])


def store_option(command: _Command) -> _Command:
    return click.option(
        "--store", metavar="URL", default=DEFAULT_STORE, show_default=True, help="Where the claims are kept."
    )(command)


def namespace_option(command: _Command) -> _Command:
    return click.option("--namespace", metavar="NAME", help="Look in this namespace only.")(command)


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


def lookup(command: _Command) -> _Command:
    """What a command that shows one record takes."""
    for option in (output_option, namespace_option, store_option, click.argument("key", type=key)):
        command = option(command)
    return command


def confirm(question: str) -> None:
    """Go on only with a yes."""
    if not click.confirm(question, err=True):
        say("Nothing was changed.")
        raise click.exceptions.Exit(exits.FAILED)


def existing_store(url: str) -> Store:
    return open_store(url, create=False)


def the_one(store: Store, namespace: str | None, key: bytes) -> Entry:
    """The record of a key, or an exit that says what to do."""
    entries = store.browse(namespace, key=key)
    if not entries:
        where = f" in namespace {namespace}" if namespace else ""
        say_error(f"there is no record of {key.hex()}{where}; it was never seen, or it has expired")
        raise click.exceptions.Exit(exits.NOT_FOUND)
    if len(entries) > 1:
        names = ", ".join(entry.namespace for entry in entries)
        raise click.UsageError(f"{key.hex()} is in several namespaces ({names}); choose one with --namespace")
    return entries[0]


def address_of(entry: Entry) -> Address:
    return Address(entry.namespace, entry.key)
