"""`oncegate config`: check the settings, and show where each value comes from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import click

from oncegate.cli.commands import CliGroup
from oncegate.cli.handlers import chosen_handler, forward_problems
from oncegate.cli.options import examine_settings, exit_on_problems, output_option, with_settings
from oncegate.cli.output import print_text, show_json, show_table
from oncegate.cli.serve import check_tracing, check_unsigned_host, handler_of
from oncegate.cli.work import WORKER_OPTIONS, check_source, check_work_option
from oncegate.console.tokens import configured_tokens
from oncegate.errors import MissingExtra, SettingError
from oncegate.genesys.regions import configured_place
from oncegate.service.config import check_keys, check_mode, metrics_verifier, proxies_of, tls_of, verifier_for
from oncegate.settings import Settings
from oncegate.settings.load import secrets_of
from oncegate.settings.parsing import as_text
from oncegate.settings.schema import FORWARD, HANDLER_OPTIONS, OF_SIGNATURE, READ
from oncegate.settings.settings import DEFAULT

_FORWARD: Final = [setting.path for setting in FORWARD]


# Functions that use settings of a route. Each is listed with the settings that it uses.
_ROUTE_USES: Final[Mapping[Callable[[Settings], Any], Sequence[str]]] = {
    Settings.strategy: ["key"],
    Settings.hints: [setting.path for setting in READ],
    Settings.check_previous: ["previous"],
    handler_of: [*(f"serve.{option}" for option in HANDLER_OPTIONS), *_FORWARD],
    verifier_for: [f"serve.{name}" for name in OF_SIGNATURE],
    secrets_of: ["serve.secret_env", "serve.secret_file"],
}
# Functions that use settings which are not set per route. Each is listed with the settings that it uses.
_COMMON_USES: Final[Mapping[Callable[[Settings], Any], Sequence[str]]] = {
    partial(chosen_handler, table="work"): [*(f"work.{option}" for option in HANDLER_OPTIONS), *_FORWARD],
    check_source: ["work.source", "store"],
    **{partial(check_work_option, name=name): [f"work.{name}"] for name in WORKER_OPTIONS},
    check_tracing: ["serve.trace"],
    check_unsigned_host: ["serve.host", "serve.signature"],
    tls_of: ["serve.tls_cert", "serve.tls_key"],
    proxies_of: ["serve.proxies"],
    metrics_verifier: ["serve.metrics_token_env", "serve.metrics_token_file"],
    configured_tokens: ["console.token_env", "console.token_file"],
    configured_place: ["genesys.region", "genesys.endpoint"],
    partial(secrets_of, named="genesys.secret"): ["genesys.secret_env", "genesys.secret_file"],
    Settings.check_store: ["store"],
    Settings.recorder: ["store", "journal", "journal_payloads", "journal_max_age", "journal_max_size"],
    check_mode: ["store", "mode", "serve.mode"],
    check_keys: ["key", "serve.signature"],
}


@click.group(
    cls=CliGroup,
    short_help="Check or show the settings.",
    examples=("oncegate config check", "oncegate config show --config crm.toml"),
)
def config() -> None:
    """Check or show the settings."""


@config.command(
    short_help="Report all problems.",
    examples=("oncegate config check", "oncegate config check --config crm.toml"),
)
def check() -> None:
    """Check the settings, and report all problems at once.

    Functions that the settings name are imported. The URL of the store is checked, but the store is not opened.
    """
    settings, problems = examine_settings({})
    exit_on_problems(list(dict.fromkeys([*problems, *_problems_in_use(settings)])))
    places = ", ".join(dict.fromkeys(origin for origin in settings.origins.values() if origin != DEFAULT))
    summary = f"values from {places}; all other settings" if places else "all settings"
    routes = f" Routes with their own settings: {', '.join(settings.routes)}." if settings.routes else ""
    print_text(f"The settings are valid: {summary} have their defaults.{routes}")


def _problems_in_use(settings: Settings) -> list[str]:
    """Use the settings, and return the problems that appear only then. A function that uses a refused setting is not
    called: the problem of that setting is reported already, and its default value is not the user's choice."""
    uses: list[Callable[[], Any]] = []
    routes = settings.routes.values()
    for route in (settings, *routes):
        uses += [partial(use, route) for use, names in _ROUTE_USES.items() if route.refused.isdisjoint(names)]
    refused = settings.refused.union(*(route.refused for route in routes))
    uses += [partial(use, settings) for use, names in _COMMON_USES.items() if refused.isdisjoint(names)]
    found = [problem for use in uses if (problem := _problem(use))]
    return list(dict.fromkeys([*found, *_forwarding_problems(settings, *routes)]))


def _problem(use: Callable[[], Any]) -> str | None:
    try:
        use()
    except (SettingError, MissingExtra) as error:
        return str(error)
    return None


def _forwarding_problems(*routes: Settings) -> Iterator[str]:
    """All problems of the forward settings. A handler reports only the first problem."""
    for route in routes:
        for path in ("serve.forward", "work.forward"):
            if route.refused.isdisjoint([path, *_FORWARD]):
                with suppress(MissingExtra):  # reported already
                    yield from forward_problems(route, path)


@config.command(
    short_help="Show values and origins.",
    examples=("oncegate config show", "oncegate config show --config crm.toml --output json"),
)
@with_settings()
@output_option
def show(settings: Settings, output: str) -> None:
    """Show each setting, its value and its origin. Secrets are masked."""
    found, lasts = settings.shown(), settings.retry_times()
    if output == "json":
        rest = {name: {"lasts": text} for name, text in lasts.items()}
        show_json(
            {each.setting: {"value": each.value, "from": each.origin} | rest.get(each.setting, {}) for each in found}
        )
        return
    rows = [(each.setting, as_text(each.value) or "none", each.origin) for each in found]
    show_table(("setting", "value", "from"), rows, essential=("setting", "value", "from"))
    for name, text in lasts.items():
        print_text(f"{name}: {text}")
