"""Turn settings into the parts of a service: routes, signature verifiers, trusted proxies and TLS.

The command line checks settings with this module without the `serve` extra, so the module must not import uvicorn or
prometheus_client.
"""

import ssl
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from oncegate.errors import SettingError
from oncegate.files import check_file
from oncegate.gate.options import check_inbox
from oncegate.settings import Settings
from oncegate.settings.load import secrets_of
from oncegate.settings.parsing import uses_webhook_id
from oncegate.settings.routes import UNSIGNED, is_described, routes_of
from oncegate.settings.schema import HANDLER_OPTIONS
from oncegate.signatures import Verifier, verifier_of
from oncegate.signatures.senders import bearer, check_name
from oncegate.stores import keeps_events

_SIGNS_IDS = "standard-webhooks"


# ── routes ────────────────────────────────────────────────────────────────────────────────────────────────


def is_open(route: Settings) -> bool:
    """Whether `serve.signature` is not set. The value `none` counts as set."""
    return route["serve.signature"] is None


def has_handler(route: Settings) -> bool:
    """Whether the route has a handler, or forwards or publishes its events."""
    return any(route[f"serve.{option}"] is not None for option in HANDLER_OPTIONS)


def check_mode(settings: Settings) -> None:
    """Call `check_service` if the settings configure a service."""
    if is_described(settings):
        check_service(settings)


def check_service(settings: Settings) -> None:
    """Raise SettingError if a route of the service could neither run nor store its events. Does not open the store."""
    mode, routes = settings["serve.mode"], routes_of(settings)
    if mode == "inline":
        for path, route in routes.items():
            if not has_handler(route):
                raise SettingError(f"{settings.where('serve.mode')}=inline: {_NO_HANDLER.format(path=path)}")
        return
    settings.check_store()
    if not keeps_events(settings["store"]):
        store = settings["store"].partition("://")[0]
        raise SettingError(f"{settings.where('serve.mode')}=inbox: {_NO_INBOX.format(store=store, inline=_INLINE)}")
    for route in routes.values():
        try:
            check_inbox("inbox()", has_inbox=True, marks_first=route["mode"] == "mark_first")
        except SettingError as error:
            raise inbox_error(settings, error) from error


_NO_HANDLER = (
    "POST {path} has no handler to run while the sender waits; name one with handler, forward or publish (handler=log"
    " only logs each event), or store events for oncegate work inbox, with SQLite or Postgres: --serve-mode inbox, or"
    ' mode = "inbox" in [serve]'
)
_NO_INBOX = (
    "{store}:// cannot store events until they are run; run a handler while the sender waits ({inline}), or use SQLite"
    " (sqlite:///oncegate.db) or Postgres (postgresql://…) for the inbox"
)
_INLINE = '--serve-mode inline, or mode = "inline" in [serve]'


def inbox_error(settings: Settings, error: SettingError) -> SettingError:
    """An error that says why serve.mode=inbox is not possible, and names the alternative."""
    return SettingError(f"{settings.where('serve.mode')}=inbox: {error}; or choose {_INLINE}")


# ── signatures ────────────────────────────────────────────────────────────────────────────────────────────


def verifier_for(route: Settings) -> Verifier | None:
    """The verifier of a route's signatures; None if the signature is `none` or not set."""
    signature = route["serve.signature"]
    if signature is None or signature == UNSIGNED:
        _check_unsigned(route)
        return None
    with route.placed("serve.signature"):
        check_name(signature)
    secrets, options = secrets_of(route), _signature_options(route)
    with route.placed("serve.signature"):
        if not secrets:
            raise SettingError(
                f"signature={signature} needs a secret; name the environment variable that holds it:"
                ' secret_env = "VARIABLE", or --secret-env VARIABLE'
            )
        return verifier_of(signature, secrets, options)


def _check_unsigned(route: Settings) -> None:
    """Raise SettingError if a route without a signature has a secret or signature options."""
    secrets = secrets_of(route)
    with route.placed("serve.signature"):
        if secrets:
            raise SettingError("a secret is set, but no signature; set signature, or remove the secret")
    if _signature_options(route):
        where = route.where("serve.signature_options")
        raise SettingError(f"{where}: options are set, but no signature; set signature, or remove the options")


def _signature_options(route: Settings) -> Mapping[str, str]:
    options = {}
    for written in route["serve.signature_options"]:
        name, equals, value = written.partition("=")
        if not equals:
            where = route.where("serve.signature_options")
            raise SettingError(f"{where}: {written!r} is not an option; write NAME=VALUE, such as header=x-signature")
        options[name.strip()] = value.strip()
    return options


def check_keys(settings: Settings) -> None:
    """Raise SettingError if a route has the key `webhook_id`, but its signature does not cover the header `webhook-id`.
    Anyone could then replay an event with another id in the header, and the event would run again."""
    for route in routes_of(settings).values():
        signature = route["serve.signature"]
        if signature != _SIGNS_IDS and uses_webhook_id(route["key"]):
            raise SettingError(
                f"{route.where('key')}: key={route['key']} needs signature={_SIGNS_IDS}; signature="
                f"{signature or UNSIGNED} does not sign the header webhook-id; choose another key"
            )


def metrics_verifier(settings: Settings) -> Verifier | None:
    """The verifier of the bearer token for /metrics; None if no token is set, which makes the metrics public."""
    tokens = secrets_of(settings, named="serve.metrics_token")
    if not tokens:
        return None
    with settings.placed("serve.metrics_token_env"):
        return bearer(tokens)


# ── proxies ───────────────────────────────────────────────────────────────────────────────────────────────


Network = IPv4Network | IPv6Network


def proxies_of(settings: Settings) -> "TrustedProxies":
    return TrustedProxies(networks(settings["serve.proxies"], settings.where("serve.proxies")))


def networks(written: Sequence[str], where: str) -> list[Network]:
    """Parse IP addresses and networks. Raises SettingError if one of them is invalid."""
    try:
        return [ip_network(text) for text in written]
    except ValueError as error:
        raise SettingError(f"{where}: {error}; write an address or a network such as 10.0.0.0/8") from error


class TrustedProxies:
    """Finds the address of the sender, and whether the sender uses https. Uses `X-Forwarded-For` and
    `X-Forwarded-Proto` only if the request comes from one of these proxies."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        self._networks = tuple(networks)

    def sender(self, scope: dict[str, Any]) -> str:
        """The address of the sender: the hop nearest to this service that is not a trusted proxy."""
        client = scope.get("client")
        nearest = client[0] if client else ""
        if not self._networks or not self._is_trusted(nearest):
            return nearest
        forwarded = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for").decode("latin-1")
        for address in reversed([part.strip() for part in forwarded.split(",") if part.strip()]):
            if not _is_address(address):
                break
            nearest = address
            if not self._is_trusted(address):
                break
        return nearest

    def is_https(self, scope: dict[str, Any]) -> bool:
        """Whether the connection is encrypted, or a trusted proxy says that the connection of its client is."""
        if scope["scheme"] == "https":
            return True
        client = scope.get("client")
        if not self._networks or not client or not self._is_trusted(client[0]):
            return False
        return any(name == b"x-forwarded-proto" and value.lower() == b"https" for name, value in scope["headers"])

    def _is_trusted(self, address: str) -> bool:
        return _is_address(address) and any(ip_address(address) in network for network in self._networks)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────────────


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """A context for TLS 1.2 or newer with the configured certificate; None if no certificate is configured."""
    certificate, key = settings["serve.tls_cert"], settings["serve.tls_key"]
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        given, missing = ("tls_key", "tls_cert") if certificate is None else ("tls_cert", "tls_key")
        raise SettingError(f"{settings.where(f'serve.{given}')}: TLS needs serve.{missing} too")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        for file in (certificate, key):
            check_file(file)
        context.load_cert_chain(certificate, key, password=_refuse_passphrase)
    except (OSError, ValueError) as error:
        where = settings.where("serve.tls_cert")
        raise SettingError(f"{where}: cannot use {certificate} and {key}: {_tls_error_text(error)}") from error
    return context


def _refuse_passphrase() -> bytes:
    """OpenSSL calls this function for an encrypted key. Without it, OpenSSL would ask for the passphrase on the
    terminal."""
    raise ValueError("the key has a passphrase; store the key without one, readable by the service only")


def _tls_error_text(error: Exception) -> str:
    """The text of the error, without OpenSSL's error numbers."""
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key does not belong to the certificate"
        return "both must be PEM files: tls_cert the certificate chain, tls_key its private key"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
