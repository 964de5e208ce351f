"""`oncegate serve`: receive events over HTTP and run each once."""

import errno
import os
import socket
import sys
from contextlib import suppress
from typing import Any

import click

from oncegate import __version__
from oncegate.cli import exit_codes
from oncegate.cli.commands import CliCommand
from oncegate.cli.handlers import abandon, chosen_handler
from oncegate.cli.options import with_settings
from oncegate.cli.output import print_error
from oncegate.cli.streams import unbuffer
from oncegate.console.tokens import Login, is_loopback, login_of
from oncegate.errors import MissingExtra, SettingError
from oncegate.gate import JsonLog
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.observers import Observer
from oncegate.service.config import check_service, has_handler, is_open, tls_of
from oncegate.service.log import announce, pretty_line
from oncegate.settings import Settings
from oncegate.settings.routes import UNSIGNED, routes_of
from oncegate.settings.schema import SETTINGS, TABLES
from oncegate.text import masked


@click.command(
    cls=CliCommand,
    short_help="Receive events over HTTP.",
    examples=(
        "oncegate serve --handler log",
        "oncegate serve --handler app:on_event --store sqlite:///crm.db --port 9000",
        "oncegate serve --forward https://crm.example.com/events --lease 1m",
        "oncegate serve --signature standard-webhooks --secret-env WEBHOOK_SECRET --handler app:on_event",
    ),
)
@with_settings(*TABLES["serve"], SETTINGS["console.enabled"], *TABLES[""], *TABLES["read"], *TABLES["forward"])
def serve(settings: Settings) -> None:
    """Receive events at POST /events and POST /events/ROUTE, and run each event once.

    Routes are defined in the settings file. Without routes and without --signature, no signature is checked, and the
    service listens only on loopback addresses.

    Without --handler, --forward or --publish, events are stored in SQLite or Postgres for `oncegate work inbox`.
    """
    check_unsigned_host(settings)
    check_service(settings)
    for route in routes_of(settings).values():
        route.check_previous(connect=True)
    server, service_module = _service_modules()
    handlers = {path: handler_of(route) for path, route in routes_of(settings).items()}
    service = service_module.Service(settings, handlers, _observers(settings), settings.recorder())
    host = settings["serve.host"]
    try:
        tls_of(settings)
        listener = listen(settings, "serve.host", "serve.port")
        metrics = None
        if settings["serve.metrics_host"] is not None:
            metrics = listen(settings, "serve.metrics_host", "serve.metrics_port")
        login = login_of(settings, host, can_show=sys.stderr.isatty()) if settings["console.enabled"] else None
    except BaseException:  # the service does not start, so it must release its store
        service.close()
        raise
    url = url_of(settings, host, listener)
    if login is not None and login.tokens:
        service.add_console(login.tokens, url)
    metrics_url = None if metrics is None else f"{url_of(settings, settings['serve.metrics_host'], metrics)}/metrics"
    announce("oncegate.service", *welcome(settings, url, metrics_url, login))
    unbuffer()
    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop
        server.run(service, settings, listener, metrics)
    if not service.ended:
        abandon("a handler", settings["serve.drain_within"])


_STOP = "Stop with Ctrl-C.\n"
_TRY = """\
Run this twice:

  curl -s {url}/events -d '{{"id": "evt-1", "type": "call.ended"}}'

A new event is {done}. A copy of it is a duplicate. {stop}"""
_STORED = "stored for `oncegate work inbox --handler …`."


def welcome(
    settings: Settings, url: str, metrics_url: str | None = None, login: Login | None = None
) -> tuple[str, str]:
    """The facts of the start message, and the hint that follows on a terminal. The token of the console is only in the
    hint, because the facts may go to a log."""
    routes = routes_of(settings)
    idle = [path for path, route in routes.items() if not has_handler(route)]
    lines = [f"Oncegate {__version__} listens on {url} with the store {masked(settings['store'])}."]
    if metrics_url is not None:
        lines.append(f"Metrics are at {metrics_url}.")
    if login is not None:
        lines.append(login.facts(f"{url}/console"))
    token = "" if login is None else login.hint
    if is_open(settings) and not settings.routes:
        lines.append("No signature is checked: every process on this machine can send events.")
        if idle:
            lines.append(f"No handler: events are {_STORED}")
        done = "stored" if idle else "stored and run"
        return "\n".join(lines), token + _TRY.format(url=url, done=done, stop=_STOP)
    for path, route in routes.items():
        scheme = route["serve.signature"]
        signature = "unsigned: anyone who can reach it can send" if scheme == UNSIGNED else f"signature: {scheme}"
        lines.append(f"  POST {url}{path}  {signature}{'; no handler' if path in idle else ''}")
    if idle:
        lines.append(f"Events of routes without a handler are {_STORED}")
    return "\n".join(lines), token + _STOP


def handler_of(settings: Settings) -> Handler | AsyncHandler | None:
    """The handler for new events; None if events are stored for an inbox worker."""
    return chosen_handler(settings, "serve")


def _observers(settings: Settings) -> list[Observer]:
    return [*_log(settings), *_traces(settings)]


def _log(settings: Settings) -> list[Observer]:
    """The log that the setting `log` selects. By default, it is readable lines on a terminal and JSON in a pipe."""
    chosen = settings.chosen("log")
    if chosen == "off":
        return []
    return [pretty_line] if chosen is None and sys.stdout.isatty() else [JsonLog()]


def _traces(settings: Settings) -> list[Observer]:
    if not settings["serve.trace"]:
        return []
    from oncegate.otel import tracing

    return [tracing()]


def check_tracing(settings: Settings) -> None:
    """Refuse tracing if no OpenTelemetry SDK is installed. Only the running service can check the configuration of the
    SDK."""
    if settings["serve.trace"]:
        from oncegate.otel import check_installed

        check_installed(settings.where("serve.trace"))


def _service_modules() -> tuple[Any, Any]:
    try:
        from oncegate.service import server, service
    except ImportError as error:
        raise MissingExtra(f"oncegate serve ({error.name} is not installed)", "serve") from error
    return server, service


def check_unsigned_host(settings: Settings) -> None:
    """Refuse a host that other machines can reach if a route has no signature setting."""
    if not any(is_open(route) for route in routes_of(settings).values()):
        return
    host = settings["serve.host"]
    if not is_loopback(host):
        raise SettingError(
            f"{settings.where('serve.host')} {host}: no signature is checked, so anyone who can reach this address can"
            f" send events; set serve.signature (--signature SCHEME), or allow this with --signature {UNSIGNED}"
        )


def listen(settings: Settings, host_setting: str, port_setting: str) -> socket.socket:
    """A listener on the address of these two settings. If it cannot listen, the command exits with an error."""
    host, port = settings[host_setting], settings[port_setting]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        bad_host = _is_about_host(error)
        why = "unknown host or address" if bad_host else os.strerror(getattr(error, "errno", None) or 0)
        setting = SETTINGS[host_setting if bad_host else port_setting]
        print_error(
            f"cannot listen on {host} port {port}: {why}; choose another with {setting.flag}, {setting.variable} or"
            f" {setting.path} in the settings file"
        )
        raise click.exceptions.Exit(exit_codes.FAILED) from error


def _is_about_host(error: OSError | UnicodeError) -> bool:
    """Whether the host, not the port, caused the error."""
    if isinstance(error, UnicodeError):
        return True
    return error.errno == errno.EADDRNOTAVAIL or (error.errno or 0) < 0  # errors of name lookup are negative


def url_of(settings: Settings, host: str, listener: socket.socket) -> str:
    scheme = "http" if settings["serve.tls_cert"] is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
