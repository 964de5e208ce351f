"""The payload of an event as a curl command, to send it again by hand."""

import base64
import shlex
from typing import Final

from oncegate.settings import Settings
from oncegate.settings.routes import UNSIGNED

# Bytes. An argument of a program can have 128 kB on Linux, and a page with a longer command is slow.
LARGEST_PAYLOAD: Final = 100_000


def curl_command(address: str, payload: bytes) -> str:
    """Returns a command for a POSIX shell that posts exactly these bytes, at most LARGEST_PAYLOAD. Text is shown as
    text. Bytes that are not text, or that a terminal would interpret, are encoded."""
    send = f"curl -sS -X POST -H 'content-type: application/json' {shlex.quote(address)}"
    if (text := _as_text(payload)) is not None:
        # --data-raw does not read a file if the payload starts with @.
        return f"{send} \\\n  --data-raw {shlex.quote(text)}"
    encoded = base64.b64encode(payload).decode()
    return f"printf %s '{encoded}' | base64 -d | \\\n  {send} --data-binary @-"


def _as_text(payload: bytes) -> str | None:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    is_plain = all(character.isprintable() or character == "\n" for character in text)
    return text if is_plain else None


def service_address(settings: Settings) -> str:
    """The address of the service at the host and port of the settings. A service that listens on all addresses is
    reached on a loopback address."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings["serve.host"], settings["serve.host"])  # noqa: S104
    scheme = "http" if settings["serve.tls_cert"] is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings['serve.port']}"


def route_address(settings: Settings, address: str, namespace: str, place: str | None = None) -> str:
    """The address of the route that has this name or this namespace. `address` is the address of the service."""
    route = settings.routes.get(place or "")
    name = place if route is not None else None
    if name is None:
        name = next((each for each, found in settings.routes.items() if found["namespace"] == namespace), None)
    return f"{address}/events{'' if name is None else f'/{name}'}"


def is_signed(settings: Settings, namespace: str) -> bool:
    """Whether the route of a namespace checks a signature, which the command cannot make."""
    route = next((each for each in settings.routes.values() if each["namespace"] == namespace), settings)
    return route["serve.signature"] not in (None, UNSIGNED)
