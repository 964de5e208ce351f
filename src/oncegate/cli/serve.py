"""`oncegate serve`: receive events over HTTP and take each through the gate."""

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
from oncegate.cli.handlers import abandon, chosen_handler
from oncegate.cli.options import with_settings
from oncegate.cli.output import say_error
from oncegate.cli.streams import unbuffer
from oncegate.errors import MissingExtra, SettingError
from oncegate.gate import JsonLog
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.observers import Observer
from oncegate.service.config import check_service, has_handler, is_open, routes_of, tls_of
from oncegate.service.log import pretty_line
from oncegate.settings import Settings
from oncegate.settings.routes import UNSIGNED
from oncegate.settings.schema import TABLES
from oncegate.text import masked


@click.command()
@with_settings(*TABLES["serve"], *TABLES[""], *TABLES["read"], *TABLES["forward"])
def serve(settings: Settings) -> None:
    """Receive events by POST /events and POST /events/ROUTE, and take each through the gate.

    Routes are described in the settings file. Without any, and without --signature, no signature is checked and only
    addresses of this machine itself can be listened on.

    Without a handler, --forward or --publish, events are stored in SQLite or Postgres for oncegate work inbox.
    """
    refuse_open_doors(settings)
    check_service(settings)
    server, service_module = _service_modules()
    handlers = {path: handler_of(route) for path, route in routes_of(settings).items()}
    service = service_module.Service(settings, handlers, _observers(settings))
    host = settings["serve.host"]
    try:
        scheme = "http" if tls_of(settings) is None else "https"
        listener = _listen(host, settings["serve.port"])
        metrics = _metrics_listener(settings)
    except BaseException:  # nothing will be served, so nothing stays open
        service.close()
        raise
    url = f"{scheme}://{_in_url(host)}:{listener.getsockname()[1]}"
    greeting, _, rest = _welcome(settings, url).partition("\n")
    if metrics is not None:
        at = f"{_in_url(settings['serve.metrics_host'])}:{metrics.getsockname()[1]}"
        greeting += f"\nMetrics are at {scheme}://{at}/metrics."
    click.echo(f"{greeting}\n{rest}", err=True)
    unbuffer()
    with suppress(KeyboardInterrupt):  # Ctrl-C is how it is meant to be stopped
        server.run(service, settings, listener, metrics)
    if not service.ended:
        abandon("a handler", settings["serve.drain_within"])


_WELCOME = """\
Oncegate {version} listens on {url} and remembers in {store}.
No signature is checked: whatever runs on this machine may send. Try it, twice:

  curl -s {url}/events -d '{{"id": "evt-1", "type": "call.ended"}}'

The first is {done}, the second is a duplicate.{note} Stop with Ctrl-C.
"""
_STORED = "stored for `oncegate work inbox --handler …`."


def _welcome(settings: Settings, url: str) -> str:
    store, routes = masked(settings["store"]), routes_of(settings)
    idle = [path for path, route in routes.items() if not has_handler(route)]
    if is_open(settings) and not settings.routes:
        done, note = ("kept", f"\nNo handler: events are {_STORED}") if idle else ("kept and run", "")
        return _WELCOME.format(version=__version__, url=url, store=store, done=done, note=note)
    lines = [f"Oncegate {__version__} listens on {url} and remembers in {store}."]
    for path, route in routes.items():
        signed = route["serve.signature"]
        said = "unsigned: whoever can reach it may send" if signed == UNSIGNED else f"signed by {signed}"
        lines.append(f"  POST {url}{path}  {said}{'; no handler' if path in idle else ''}")
    if idle:
        lines.append(f"Where there is no handler, events are {_STORED}")
    return "\n".join([*lines, "Stop with Ctrl-C.\n"])


def handler_of(settings: Settings) -> Handler | AsyncHandler | None:
    """The handler that is called with each new event; None if events are stored for a worker of the inbox."""
    return chosen_handler(settings, "serve")


def _observers(settings: Settings) -> list[Observer]:
    """The log, and traces if they are asked for."""
    return [*_log(settings), *_traces(settings)]


def _log(settings: Settings) -> list[Observer]:
    """As it was chosen, else lines for people on a terminal and for programs in a pipe."""
    chosen = settings.chosen("log")
    if chosen == "off":
        return []
    return [pretty_line] if chosen is None and sys.stdout.isatty() else [JsonLog()]


def _traces(settings: Settings) -> list[Observer]:
    if not settings["serve.trace"]:
        return []
    from oncegate.otel import tracing

    return [tracing()]


def check_traces(settings: Settings) -> None:
    """Refuse traces that can go nowhere. Whether a process is set up to send them, only that process knows."""
    if settings["serve.trace"]:
        from oncegate.otel import check_installed

        check_installed(settings.where("serve.trace"))


def _service_modules() -> tuple[Any, Any]:
    try:
        from oncegate.service import server, service
    except ImportError as error:
        raise MissingExtra(f"oncegate serve (no {error.name} here)", "serve") from error
    return server, service


def refuse_open_doors(settings: Settings) -> None:
    """Without a word on who may send, only this machine may."""
    if not any(is_open(route) for route in routes_of(settings).values()):
        return
    host = settings["serve.host"]
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise SettingError(
            f"{settings.where('serve.host')} {host}: no signature is checked, so anyone who can reach that address"
            f' could send events; name one with serve.signature, or say serve.signature = "{UNSIGNED}"'
        )


def _metrics_listener(settings: Settings) -> socket.socket | None:
    host = settings["serve.metrics_host"]
    return None if host is None else _listen(host, settings["serve.metrics_port"], "metrics-")


def _listen(host: str, port: int, flags: str = "") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        why = "no such name or address" if _is_of_host(error) else os.strerror(getattr(error, "errno", None) or 0)
        mend = f"--{flags}{'host' if _is_of_host(error) else 'port'}"
        say_error(f"cannot listen on {host} port {port}: {why}; choose another with {mend}")
        raise click.exceptions.Exit(exit_codes.FAILED) from error


def _is_of_host(error: OSError | UnicodeError) -> bool:
    """Whether it is the host, not the port, that cannot be listened on."""
    if isinstance(error, UnicodeError):
        return True
    return error.errno == errno.EADDRNOTAVAIL or (error.errno or 0) < 0  # below 0 are those of looking up names


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
