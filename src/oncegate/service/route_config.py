"""Addresses: who is at the other end, and who is believed when they say that it is somebody else."""

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from oncegate.errors import SettingError
from oncegate.gate.options import check_inbox
from oncegate.settings import Settings
from oncegate.settings.load import secrets_of
from oncegate.settings.parsing import uses_webhook_id
from oncegate.settings.routes import UNSIGNED
from oncegate.settings.schema import HANDLER_OPTIONS, TABLES
from oncegate.signatures import Verifier, verifier_of
from oncegate.signatures.senders import bearer, check_name
from oncegate.stores import keeps_events

Network = IPv4Network | IPv6Network


def networks(written: Sequence[str], where: str) -> list[Network]:
    """Addresses and networks as settings have them."""
    try:
        return [ip_network(each) for each in written]
    except ValueError as error:
        raise SettingError(f"{where}: {error}; write an address or a network such as 10.0.0.0/8") from error


class Proxies:
    """Those whose `X-Forwarded-For` is believed; what anybody else says there is nothing but text."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        self._networks = tuple(networks)

    def sender(self, scope: dict[str, Any]) -> str:
        """The address of the sender: the nearest that is not a proxy of ours."""
        client = scope.get("client")
        nearest = client[0] if client else ""
        if not self._networks or not self._ours(nearest):
            return nearest
        said = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for").decode("latin-1")
        for address in reversed([part.strip() for part in said.split(",") if part.strip()]):
            if not _is_address(address):
                break
            nearest = address
            if not self._ours(address):
                break
        return nearest

    def _ours(self, address: str) -> bool:
        return _is_address(address) and any(ip_address(address) in network for network in self._networks)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


# Routes as settings describe them: the paths that are served, and who may send to each.


DEFAULT = "default"
_SIGNS_IDS = "standard-webhooks"


def routes_of(settings: Settings) -> dict[str, Settings]:
    """The settings of every route by its path. `/events` is served if it was described, or if nothing else was."""
    found = {f"/events/{name}": route for name, route in settings.routes.items()}
    if not found or settings.chosen("serve.signature") is not None:
        found["/events"] = settings
    return found


def name_of(path: str) -> str:
    """The name of the route that is served at a path."""
    return path.removeprefix("/events").removeprefix("/") or DEFAULT


def is_open(route: Settings) -> bool:
    """Whether nobody has said how its senders are known, not even that they are not."""
    return route["serve.signature"] is None


def verifier_for(route: Settings) -> Verifier | None:
    """What checks the signatures of a route; None where it was said, or left open, that there are none."""
    signature = route["serve.signature"]
    if signature is None or signature == UNSIGNED:
        _refuse_unused(route)
        return None
    with route.placed("serve.signature"):
        check_name(signature)
    secrets, options = secrets_of(route), _options(route)
    with route.placed("serve.signature"):
        if not secrets:
            raise SettingError(
                f'signature={signature} needs its secret; name the variable that holds it: secret_env = "ITS_VARIABLE",'
                " or --secret-env"
            )
        return verifier_of(signature, secrets, options)


def check_keys(settings: Settings) -> None:
    """Refuse the key `webhook_id` on routes whose senders do not sign the header: anybody could write another id there,
    and have an event run again."""
    for route in routes_of(settings).values():
        signature = route["serve.signature"]
        if signature != _SIGNS_IDS and uses_webhook_id(route["key"]):
            raise SettingError(
                f"{route.where('key')}: key={route['key']} needs signature={_SIGNS_IDS}, and the signature of this"
                f" route is {signature or UNSIGNED}, which does not sign the header webhook-id; choose another key"
            )


def metrics_verifier(settings: Settings) -> Verifier | None:
    """What checks the token of those who ask for metrics; None where everybody may who can reach the address."""
    tokens = secrets_of(settings, named="serve.metrics_token")
    if not tokens:
        return None
    with settings.placed("serve.metrics_token_env"):
        return bearer(tokens)


def _refuse_unused(route: Settings) -> None:
    """Refuse what is said of a signature where none is checked."""
    secrets = secrets_of(route)
    with route.placed("serve.signature"):
        if secrets:
            raise SettingError("there is a secret, but no signature to check with it")
    if _options(route):
        where = route.where("serve.signature_options")
        raise SettingError(f"{where}: there is no signature that these could be options of; name one with signature")


def proxies_of(settings: Settings) -> Proxies:
    """Those whose word is taken for who has sent something."""
    return Proxies(networks(settings["serve.proxies"], settings.where("serve.proxies")))


def is_described(settings: Settings) -> bool:
    """Whether the settings say anything of a service."""
    return bool(settings.routes) or any(settings.chosen(each.path) is not None for each in TABLES["serve"])


def check_mode(settings: Settings) -> None:
    """Refuse a service whose store could not keep what it accepts, without opening it. Where nothing is said of a
    service there may be none."""
    if is_described(settings):
        check_service(settings)


def check_service(settings: Settings) -> None:
    """Refuse a service that could neither run nor keep what it accepts, without opening its store."""
    mode, routes = settings["serve.mode"], routes_of(settings)
    if mode == "inline":
        for path, route in routes.items():
            if not has_handler(route):
                raise SettingError(f"{settings.where('serve.mode')}=inline: {_NOTHING_TO_RUN.format(path=path)}")
        return
    settings.check_store()
    if not keeps_events(settings["store"]):
        store = settings["store"].partition("://")[0]
        raise SettingError(f"{settings.where('serve.mode')}=inbox: {_NO_INBOX.format(store=store)}")
    for route in routes.values():
        try:
            check_inbox("inbox()", has_inbox=True, marks_first=route["mode"] == "mark_first")
        except SettingError as error:
            raise unkept(settings, error) from error


_NOTHING_TO_RUN = (
    "POST {path} has no handler to run while the sender waits; name one with handler, forward or publish (handler=log"
    " only logs each event), or choose serve.mode=inbox with SQLite or Postgres, which stores events for oncegate work"
    " inbox"
)
_NO_INBOX = (
    "{store}:// cannot keep events until they are run; choose serve.mode=inline, which runs a handler while the sender"
    " waits, or keep the inbox in SQLite (sqlite:///oncegate.db) or Postgres (postgresql://…)"
)


def has_handler(route: Settings) -> bool:
    """Whether anything is done with its events: by a handler, or by handing them on."""
    return any(route[f"serve.{option}"] is not None for option in HANDLER_OPTIONS)


def unkept(settings: Settings, error: SettingError) -> SettingError:
    return SettingError(f"{settings.where('serve.mode')}=inbox: {error}; or choose serve.mode=inline")


def _options(route: Settings) -> Mapping[str, str]:
    found = {}
    for written in route["serve.signature_options"]:
        name, equals, value = written.partition("=")
        if not equals:
            where = route.where("serve.signature_options")
            raise SettingError(f"{where}: {written!r} is no option; write it like header=x-signature")
        found[name.strip()] = value.strip()
    return found
