"""`oncegate serve`: receive events over HTTP and take each through the gate."""

import ipaddress
import socket
from contextlib import closing, suppress
from importlib import import_module
from typing import Any

import click

from oncegate import __version__
from oncegate.cli.handlers import load_handler
from oncegate.cli.options import store_option
from oncegate.cli.output import say_error
from oncegate.errors import MissingExtra, SettingError
from oncegate.events import Event
from oncegate.gate import Gate


@click.command()
@store_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 for any free one.")
@click.option("--handler", metavar="MODULE:FUNCTION", help="Called with each new event; without it, it is only logged.")
@click.option("--namespace", default="default", show_default=True, help="What keeps these events apart from others.")
@click.option("--retention", default="7d", show_default=True, help="How long a processed event is remembered.")
@click.option("--lease", default="30s", show_default=True, help="How long a claim lasts if its worker dies.")
@click.option("--max-attempts", type=click.IntRange(1), default=5, show_default=True, help="Then it is buried.")
def serve(
    store: str,
    host: str,
    port: int,
    handler: str | None,
    namespace: str,
    retention: str,
    lease: str,
    max_attempts: int,
) -> None:
    """Receive events by POST /events and take each through the gate.

    No signature is checked yet, so only addresses of this machine itself can be listened on.
    """
    _refuse_open_doors(host)
    service = _service()
    call = _log_only if handler is None else load_handler(handler)
    gate = Gate(store, namespace=namespace, retention=retention, lease=lease, max_attempts=max_attempts)
    listener = _listen(host, port)
    url = f"http://{_in_url(host)}:{listener.getsockname()[1]}"
    click.echo(_WELCOME.format(version=__version__, url=url, store=store), err=True)
    with closing(gate), suppress(KeyboardInterrupt):  # Ctrl-C is how it is meant to be stopped
        service.run(gate, call, listener)


_WELCOME = """\
Oncegate {version} listens on {url} and remembers in {store}.
No signature is checked: whatever runs on this machine may send. Try it, twice:

  curl -s {url}/events -d '{{"id": "evt-1", "type": "call.ended"}}'

The first is processed, the second is a duplicate. Stop with Ctrl-C.
"""


def _log_only(event: Event) -> None:
    """With no handler, being told of an event in the log is all its effect."""


def _service() -> Any:
    try:
        return import_module("oncegate.service.server")
    except ImportError as error:
        raise MissingExtra(f"oncegate serve (no {error.name} here)", "serve") from error


def _refuse_open_doors(host: str) -> None:
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise SettingError(
            f"--host {host}: no signature is checked yet, so anyone who can reach that address could send events;"
            " listen on 127.0.0.1 and put a proxy that authenticates in front"
        )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        say_error(f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port")
        raise click.exceptions.Exit(1) from error


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
