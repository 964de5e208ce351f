"""The `oncegate` command."""

import sys

from oncegate.cli import exit_codes


def main() -> None:
    """What is slow to import is imported in here, so that Ctrl-C at any time is no more than an exit code."""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = exit_codes.INTERRUPTED
    sys.exit(code)


def _run() -> int | str:
    from oncegate.cli.streams import printing, ready

    if (problem := ready()) is not None:
        return problem
    try:
        from oncegate.cli.main import run  # the command line is an extra
    except ImportError as error:
        from oncegate.errors import MissingExtra

        return f"oncegate: {MissingExtra(f'The command line (no {error.name} here)', 'cli')}"
    return printing(run)


if __name__ == "__main__":
    main()
