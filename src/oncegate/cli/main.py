"""The command group `oncegate`, and the exit codes of its errors."""

import os
import warnings

import click

from oncegate import __version__
from oncegate.cli import exit_codes
from oncegate.cli.commands import CliGroup
from oncegate.cli.lazy_commands import COMMANDS
from oncegate.cli.output import print_error, print_note
from oncegate.cli.streams import StdoutError
from oncegate.errors import OncegateError, QueueError, SettingError, StoreError


@click.group(
    cls=CliGroup,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    examples=(
        "oncegate serve --handler log",
        "oncegate explain evt-1",
        "oncegate dlq list --store sqlite:///oncegate.db",
        "oncegate doctor",
    ),
    exit_codes=exit_codes.MEANINGS,
)
@click.version_option(__version__, prog_name="oncegate")
def cli() -> None:
    """Make every event take effect once, even if it is delivered several times."""


def run(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code. An error is printed to stderr as one sentence."""
    warnings.showwarning = _print_warning  # type: ignore[assignment]  # only the message is used
    try:
        code = cli.main(arguments, prog_name="oncegate", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        return exit_codes.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except OncegateError as error:
        print_error(str(error))
        return _code_of(error)
    except OSError as error:
        if isinstance(error, StdoutError):
            raise
        print_error(_os_error_text(error))
        return exit_codes.FAILED
    return code if isinstance(code, int) else exit_codes.OK


def _print_warning(message: Warning | str, *_location: object) -> None:
    """Print a warning without the line of code that raised it."""
    print_note(f"Warning: {message}")


def _os_error_text(error: OSError) -> str:
    """An error that no command has explained. The name of the file is the only known cause."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"cannot use {os.fsdecode(error.filename)}: {reason}"


def _code_of(error: OncegateError) -> int:
    if isinstance(error, StoreError):
        return exit_codes.STORE
    if isinstance(error, QueueError):
        return exit_codes.QUEUE
    return exit_codes.USAGE if isinstance(error, SettingError) else exit_codes.FAILED
