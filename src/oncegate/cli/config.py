"""`oncegate config`: whether the settings can be meant, and where each comes from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import click

from oncegate.cli.handlers import chosen_handler, forward_problems
from oncegate.cli.options import examined, output_option, refuse, with_settings
from oncegate.cli.output import say, show_json, show_table
from oncegate.cli.serve import check_traces, handler_of, refuse_open_doors
from oncegate.cli.work import OF_WORKER, check_way
from oncegate.durations import spoken, times
from oncegate.errors import MissingExtra, SettingError
from oncegate.gate.options import DEFAULTS, validate
from oncegate.service.config import check_keys, check_mode, metrics_verifier, proxies_of, tls_of, verifier_for
from oncegate.settings import Settings
from oncegate.settings.load import secrets_of
from oncegate.settings.parsing import as_text
from oncegate.settings.schema import FORWARD, OF_SIGNATURE, READ, WAYS
from oncegate.settings.settings import DEFAULT

_FORWARD: Final = [setting.path for setting in FORWARD]


# What is made of the settings, and of which.
_USES: Final[Mapping[Callable[[Settings], Any], Sequence[str]]] = {
    Settings.strategy: ["key"],
    Settings.hints: [setting.path for setting in READ],
    handler_of: [*(f"serve.{way}" for way in WAYS), *_FORWARD],
    verifier_for: [f"serve.{name}" for name in OF_SIGNATURE],
    secrets_of: ["serve.secret_env", "serve.secret_file"],
}
_USES_OF_ALL: Final[Mapping[Callable[[Settings], Any], Sequence[str]]] = {
    partial(chosen_handler, table="work"): [*(f"work.{way}" for way in WAYS), *_FORWARD],
    **{partial(check_way, name=name): [f"work.{name}"] for name in OF_WORKER},
    check_traces: ["serve.trace"],
    refuse_open_doors: ["serve.host", "serve.signature"],
    tls_of: ["serve.tls_cert", "serve.tls_key"],
    proxies_of: ["serve.proxies"],
    metrics_verifier: ["serve.metrics_token_env", "serve.metrics_token_file"],
    Settings.check_store: ["store"],
    check_mode: ["store", "mode", "serve.mode"],
    check_keys: ["key", "serve.signature"],
}


@click.group()
def config() -> None:
    """Check or show the settings."""


@config.command()
def check() -> None:
    """Say what is wrong with the settings, all at once.

    Functions that are named in them are imported to see that they are there. No store is opened, but its URL is read.
    """
    settings, problems = examined({})
    refuse(list(dict.fromkeys([*problems, *_unusable(settings)])))
    chosen = [shown for shown in settings.shown() if shown.origin != DEFAULT]
    places = ", ".join(dict.fromkeys(shown.origin for shown in chosen))
    said = f"{times(len(chosen), 'setting')} from {places}, the rest by default" if chosen else "all by default"
    say(f"The settings are in order: {said}.")


def _unusable(settings: Settings) -> list[str]:
    """What only shows when the settings are put to use. What rests on one that was refused is not tried: what is wrong
    with it was said, and its default was not meant."""
    uses: list[Callable[[], Any]] = []
    routes = settings.routes.values()
    for route in (settings, *routes):
        uses += [partial(use, route) for use, names in _USES.items() if route.refused.isdisjoint(names)]
    refused = settings.refused.union(*(route.refused for route in routes))
    uses += [partial(use, settings) for use, names in _USES_OF_ALL.items() if refused.isdisjoint(names)]
    found = [problem for use in uses if (problem := _problem(use))]
    return list(dict.fromkeys([*found, *_of_forwarding(settings, *routes)]))


def _problem(use: Callable[[], Any]) -> str | None:
    try:
        use()
    except (SettingError, MissingExtra) as error:
        return str(error)
    return None


def _of_forwarding(*routes: Settings) -> Iterator[str]:
    """Of these there may be several at a time, of which a handler only tells the first."""
    for route in routes:
        for path in ("serve.forward", "work.forward"):
            if route.refused.isdisjoint([path, *_FORWARD]):
                with suppress(MissingExtra):  # which was said
                    yield from forward_problems(route, path)


@config.command()
@with_settings()
@output_option
def show(settings: Settings, output: str) -> None:
    """Show each setting, its value and where it comes from; secrets are masked."""
    found, lasts = settings.shown(), _lasts(settings)
    if output == "json":
        rest = {name: {"lasts": said} for name, said in lasts.items()}
        show_json(
            {each.setting: {"value": each.value, "from": each.origin} | rest.get(each.setting, {}) for each in found}
        )
        return
    rows = [(each.setting, as_text(each.value), each.origin) for each in found]
    show_table(("setting", "value", "from"), rows, essential=("setting", "value", "from"))
    for name, said in lasts.items():
        say(f"{name}: {said}")


def _lasts(settings: Settings) -> dict[str, str]:
    """For how long the inbox tries an event again, by the setting that says so."""
    terms = validate({name: settings[name] for name in DEFAULTS})
    if terms.max_attempts is None:
        attempts = "failures are not counted; an event that always fails is tried for ever"
    else:
        least, most = terms.attempts_last
        attempts = (
            f"an event that always fails is a dead letter after {times(terms.max_attempts, 'attempt')}, {spoken(least)}"
            f" to {spoken(most)} after the first, not counting the time that its handler takes"
        )
    if terms.retry_for is None:
        return {"max_attempts": attempts, "retry_for": "unavailability counts like any failure, by max_attempts"}
    retried = f"while what its handler calls is unavailable, an event is tried again for {spoken(terms.retry_for)}"
    return {"max_attempts": attempts, "retry_for": f"{retried}, and then is a dead letter"}
