"""The `oncegate` command."""

import sys

from oncegate.cli import exit_codes


def main() -> None:
    """Run the command line. Slow imports happen inside, so that Ctrl-C during an import prints no traceback."""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = exit_codes.INTERRUPTED
    sys.exit(code)


def _run() -> int | str:
    from oncegate.cli.streams import flush_after, prepare

    if (problem := prepare()) is not None:
        return problem
    try:
        from oncegate.cli.main import run  # the command line is an optional extra
    except ImportError as error:
        from oncegate.errors import MissingExtra

        return f"oncegate: {MissingExtra(f'the command line ({error.name} is not installed)', 'cli')}"
    return flush_after(run)


if __name__ == "__main__":
    main()
