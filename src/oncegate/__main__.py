"""The `oncegate` command."""

import sys
from io import TextIOWrapper

from oncegate.errors import MissingExtra


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that cannot show a character gets its escape
            stream.reconfigure(errors="backslashreplace")
    try:
        from oncegate.cli.main import run  # the command line is an extra
    except ImportError as error:
        sys.exit(f"oncegate: {MissingExtra(f'The command line (no {error.name} here)', 'cli')}")
    sys.exit(run())


if __name__ == "__main__":
    main()
