"""`oncegate config`: whether the settings can be meant, and where each comes from."""

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from oncegate.cli.handlers import chosen_handler
from oncegate.cli.options import examined, output_option, refuse, with_settings
from oncegate.cli.output import say, show_json, show_table
from oncegate.cli.serve import handler_of, refuse_open_doors
from oncegate.durations import times
from oncegate.errors import SettingError
from oncegate.service.routes import verifier_for
from oncegate.service.tls import tls_of
from oncegate.settings import Settings
from oncegate.settings.settings import DEFAULT
from oncegate.settings.values import as_text


@click.group()
def config() -> None:
    """Check or show the settings."""


@config.command()
def check() -> None:
    """Say what is wrong with the settings, all at once.

    Functions that are named in them are imported to see that they are there. No store is opened.
    """
    settings, problems = examined({})
    refuse(problems or _unusable(settings))
    chosen = [shown for shown in settings.shown() if shown.origin != DEFAULT]
    places = ", ".join(dict.fromkeys(shown.origin for shown in chosen))
    said = f"{times(len(chosen), 'setting')} from {places}, the rest by default" if chosen else "all by default"
    say(f"The settings are in order: {said}.")


def _unusable(settings: Settings) -> list[str]:
    """What only shows when the settings are put to use."""
    uses: list[Callable[[], Any]] = []
    for route in (settings, *settings.routes.values()):
        uses += [route.strategy, route.hints, partial(handler_of, route), partial(verifier_for, route)]
    uses += [partial(chosen_handler, settings, "work"), partial(refuse_open_doors, settings), partial(tls_of, settings)]
    return list(dict.fromkeys(problem for use in uses if (problem := _problem(use))))


def _problem(use: Callable[[], Any]) -> str | None:
    try:
        use()
    except SettingError as error:
        return str(error)
    return None


@config.command()
@with_settings()
@output_option
def show(settings: Settings, output: str) -> None:
    """Show each setting, its value and where it comes from; secrets are masked."""
    found = settings.shown()
    if output == "json":
        show_json({each.setting: {"value": each.value, "from": each.origin} for each in found})
        return
    rows = [(each.setting, as_text(each.value), each.origin) for each in found]
    show_table(("setting", "value", "from"), rows, essential=("setting", "value", "from"))
