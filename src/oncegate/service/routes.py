"""Routes as settings describe them: the paths that are served, and who may send to each."""

from collections.abc import Mapping

from oncegate.errors import SettingError
from oncegate.gate.terms import check_keeping
from oncegate.service.addresses import Proxies, networks
from oncegate.settings import Settings
from oncegate.settings.known import TABLES
from oncegate.settings.routes import UNSIGNED
from oncegate.settings.secrets import secrets_of
from oncegate.signatures import Verifier, verifier_of
from oncegate.signatures.names import check_name
from oncegate.signatures.senders import bearer
from oncegate.stores import keeps_events

DEFAULT = "default"


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


def check_mode(settings: Settings) -> None:
    """Refuse a service whose store could not keep what it accepts, without opening it. Where nothing is said of a
    service there may be none."""
    chosen = [setting.path for setting in TABLES["serve"] if settings.chosen(setting.path) is not None]
    if settings["serve.mode"] == "inline" or not (chosen or settings.routes):
        return
    keeps = keeps_events(settings["store"])
    for route in routes_of(settings).values():
        try:
            check_keeping("inbox()", keeps=keeps, marks_first=route["mode"] == "mark_first")
        except SettingError as error:
            raise unkept(settings, error) from error


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
