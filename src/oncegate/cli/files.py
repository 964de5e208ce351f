"""Files that a command reads: by name, or what comes on stdin."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import click

from oncegate.cli import exits
from oncegate.cli.output import say_error

_STDIN = "-"


@contextmanager
def opened(file: str) -> Iterator[BinaryIO]:
    """The file, to be read; one that cannot be ends the command with a sentence."""
    try:
        if file == _STDIN:
            yield sys.stdin.buffer
            return
        with open(file, "rb") as stream:
            yield stream
    except OSError as error:
        say_error(f"cannot read {click.format_filename(file)}: {error.strerror or error}")
        raise click.exceptions.Exit(exits.FAILED) from error
