"""The command line: one group, and what every command shares."""

import warnings

import click

from oncegate import __version__
from oncegate.cli import exit_codes
from oncegate.cli.config import config
from oncegate.cli.dlq import dlq
from oncegate.cli.doctor import doctor
from oncegate.cli.explain import explain
from oncegate.cli.infra import infra
from oncegate.cli.keys import keys
from oncegate.cli.output import say_error
from oncegate.cli.read import read
from oncegate.cli.serve import serve
from oncegate.cli.simulate import simulate
from oncegate.cli.verify import verify
from oncegate.cli.work import work
from oncegate.errors import OncegateError, QueueError, SettingError, StoreError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="oncegate")
@click.option("--config", metavar="FILE", help="The settings file.  [default: oncegate.toml, if there is one]")
def cli(**_config: str | None) -> None:
    """Make every event take effect once, however often it is delivered."""


cli.add_command(serve)
cli.add_command(work)
cli.add_command(read)
cli.add_command(simulate)
cli.add_command(verify)
cli.add_command(explain)
cli.add_command(keys)
cli.add_command(dlq)
cli.add_command(config)
cli.add_command(infra)
cli.add_command(doctor)


def run(arguments: list[str] | None = None) -> int:
    """Run a command; every way it can go wrong is one sentence on stderr and a named exit code."""
    warnings.showwarning = _warn  # type: ignore[assignment]  # it looks at the message only
    try:
        code = cli.main(arguments, prog_name="oncegate", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        return exit_codes.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except OncegateError as error:
        say_error(str(error))
        return _code(error)
    return code if isinstance(code, int) else exit_codes.OK


def _warn(message: Warning | str, *_where: object) -> None:
    """People are told what to mind, not where in the code that was noticed."""
    click.echo(f"Warning: {message}", err=True)


def _code(error: OncegateError) -> int:
    if isinstance(error, StoreError):
        return exit_codes.STORE
    if isinstance(error, QueueError):
        return exit_codes.QUEUE
    return exit_codes.USAGE if isinstance(error, SettingError) else exit_codes.FAILED
