"""`oncegate serve`: receive events over HTTP and run each once."""

import errno
import ipaddress
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
from oncegate.errors import MissingExtra, SettingError
from oncegate.gate import JsonLog
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.observers import Observer
from oncegate.service.config import check_service, has_handler, is_open, routes_of, tls_of
from oncegate.service.log import announce, pretty_line
from oncegate.settings import Settings
from oncegate.settings.routes import UNSIGNED
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
@with_settings(*TABLES["serve"], *TABLES[""], *TABLES["read"], *TABLES["forward"])
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
    service = service_module.Service(settings, handlers, _observers(settings))
    host = settings["serve.host"]
    try:
        scheme = "http" if tls_of(settings) is None else "https"
        listener = _listen(host, settings["serve.port"])
        metrics = _metrics_listener(settings)
    except BaseException:  # the service does not start, so it must release its store
        service.close()
        raise
    url = f"{scheme}://{_in_url(host)}:{listener.getsockname()[1]}"
    metrics_url = None
    if metrics is not None:
        metrics_url = f"{scheme}://{_in_url(settings['serve.metrics_host'])}:{metrics.getsockname()[1]}/metrics"
    announce("oncegate.service", *welcome(settings, url, metrics_url))
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


def welcome(settings: Settings, url: str, metrics_url: str | None = None) -> tuple[str, str]:
    """The facts of the start message, and the hint that follows on a terminal."""
    routes = routes_of(settings)
    idle = [path for path, route in routes.items() if not has_handler(route)]
    lines = [f"Oncegate {__version__} listens on {url} with the store {masked(settings['store'])}."]
    if metrics_url is not None:
        lines.append(f"Metrics are at {metrics_url}.")
    if is_open(settings) and not settings.routes:
        lines.append("No signature is checked: every process on this machine can send events.")
        if idle:
            lines.append(f"No handler: events are {_STORED}")
        return "\n".join(lines), _TRY.format(url=url, done="stored" if idle else "stored and run", stop=_STOP)
    for path, route in routes.items():
        scheme = route["serve.signature"]
        signature = "unsigned: anyone who can reach it can send" if scheme == UNSIGNED else f"signature: {scheme}"
        lines.append(f"  POST {url}{path}  {signature}{'; no handler' if path in idle else ''}")
    if idle:
        lines.append(f"Events of routes without a handler are {_STORED}")
    return "\n".join(lines), _STOP


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
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise SettingError(
            f"{settings.where('serve.host')} {host}: no signature is checked, so anyone who can reach this address can"
            f" send events; set serve.signature (--signature SCHEME), or allow this with --signature {UNSIGNED}"
        )


def _metrics_listener(settings: Settings) -> socket.socket | None:
    host = settings["serve.metrics_host"]
    return None if host is None else _listen(host, settings["serve.metrics_port"], "metrics_")


def _listen(host: str, port: int, prefix: str = "") -> socket.socket:
    """`prefix` is the common start of the names of the two settings that have the host and the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        bad_host = _is_about_host(error)
        why = "unknown host or address" if bad_host else os.strerror(getattr(error, "errno", None) or 0)
        setting = SETTINGS[f"serve.{prefix}{'host' if bad_host else 'port'}"]
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


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
