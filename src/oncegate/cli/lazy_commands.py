"""The commands of `oncegate`. Each is imported when it is used: the imports of all commands take longer than most
commands run."""

from collections.abc import Callable, Iterator, Mapping

import click


class LazyCommands(Mapping[str, click.Command]):
    """The commands of a group by their names. `loaders` import them."""

    def __init__(self, loaders: Mapping[str, Callable[[], click.Command]]) -> None:
        self._loaders = loaders

    def __getitem__(self, name: str) -> click.Command:
        return self._loaders[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)


def _serve() -> click.Command:
    from oncegate.cli.serve import serve

    return serve


def _work() -> click.Command:
    from oncegate.cli.work import work

    return work


def _console() -> click.Command:
    from oncegate.cli.console import console

    return console


def _read() -> click.Command:
    from oncegate.cli.read import read

    return read


def _analyze() -> click.Command:
    from oncegate.cli.analyze import analyze

    return analyze


def _simulate() -> click.Command:
    from oncegate.cli.simulate import simulate

    return simulate


def _verify() -> click.Command:
    from oncegate.cli.verify import verify

    return verify


def _explain() -> click.Command:
    from oncegate.cli.explain import explain

    return explain


def _events() -> click.Command:
    from oncegate.cli.events import events

    return events


def _keys() -> click.Command:
    from oncegate.cli.keys import keys

    return keys


def _seed() -> click.Command:
    from oncegate.cli.seed import seed

    return seed


def _dlq() -> click.Command:
    from oncegate.cli.dlq import dlq

    return dlq


def _forget() -> click.Command:
    from oncegate.cli.forget import forget

    return forget


def _config() -> click.Command:
    from oncegate.cli.config import config

    return config


def _infra() -> click.Command:
    from oncegate.cli.infra import infra

    return infra


def _genesys() -> click.Command:
    from oncegate.cli.genesys import genesys

    return genesys


def _doctor() -> click.Command:
    from oncegate.cli.doctor import doctor

    return doctor


COMMANDS = LazyCommands(
    {
        "serve": _serve,
        "work": _work,
        "console": _console,
        "read": _read,
        "analyze": _analyze,
        "simulate": _simulate,
        "verify": _verify,
        "explain": _explain,
        "events": _events,
        "keys": _keys,
        "seed": _seed,
        "dlq": _dlq,
        "forget": _forget,
        "config": _config,
        "infra": _infra,
        "genesys": _genesys,
        "doctor": _doctor,
    }
)
