"""`oncegate console`: serve the web console without the service."""

import sys
from contextlib import suppress
from typing import Any

import click

from oncegate import __version__
from oncegate.cli.commands import CliCommand
from oncegate.cli.options import with_settings
from oncegate.cli.serve import listen, url_of
from oncegate.cli.streams import unbuffer
from oncegate.console.tokens import Login, login_of
from oncegate.errors import MissingExtra, SettingError
from oncegate.service.config import tls_of
from oncegate.service.log import announce
from oncegate.settings import Settings
from oncegate.settings.schema import CONSOLE, JOURNAL, STORE
from oncegate.text import masked


@click.command(
    cls=CliCommand,
    short_help="Serve the web console.",
    examples=(
        "oncegate console --store sqlite:///oncegate.db",
        "oncegate console --store 'dynamodb://Claims?region=eu-central-1' --port 9000",
        "oncegate console --host 0.0.0.0 --token-env CONSOLE_TOKEN",
    ),
)
@with_settings(*(setting for setting in CONSOLE if setting.name != "enabled"), STORE, JOURNAL[0])
def console(settings: Settings) -> None:
    """Serve the web console of a store, without the service that receives events.

    Use this command if Lambda functions or queue workers run the events. `oncegate serve` serves the same pages itself.

    Without a token in the settings, the console is served only on a loopback address, with a token that is generated.
    TLS, proxies and limits are those of the table [serve].
    """
    tls_of(settings)
    server, module = _console_modules()
    service = module.ConsoleService(settings)
    try:
        login = _login(settings)
        service.add_console(login.tokens)
        listener = listen(settings, "console.host", "console.port")
    except BaseException:  # the console does not start, so it must close the store
        service.close()
        raise
    url = url_of(settings, settings["console.host"], listener)
    opens = f"Oncegate {__version__} listens on {url} and shows the store {masked(settings['store'])}."
    announce("oncegate.console", f"{opens}\n{login.facts(f'{url}/console')}", f"{login.hint}Stop with Ctrl-C.\n")
    unbuffer()
    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop
        server.run(service, settings, listener)


def _login(settings: Settings) -> Login:
    login = login_of(settings, settings["console.host"], can_show=sys.stderr.isatty())
    if not login.tokens:
        raise SettingError(f"the console cannot start: {login.off}")
    return login


def _console_modules() -> tuple[Any, Any]:
    try:
        from oncegate.service import console_service, server
    except ImportError as error:
        raise MissingExtra(f"oncegate console ({error.name} is not installed)", "serve") from error
    return server, console_service
