"""The commands of `oncegate`, in the order of the help. Each is imported when it is used: the imports of all commands
take longer than most commands run."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

import click

_NAMES: Final = (
    *("serve", "work", "console", "read", "analyze", "simulate", "verify", "explain", "events"),
    *("keys", "seed", "dlq", "forget", "config", "infra", "genesys", "doctor"),
)


class LazyCommands(Mapping[str, click.Command]):
    """The commands by their names. A module of this package has the name of its command."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in _NAMES:
            raise KeyError(name)
        command: click.Command = getattr(import_module(f"oncegate.cli.{name}"), name)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


COMMANDS: Final = LazyCommands()
