"""Routes as settings describe them: the paths that are served, and who may send to each."""

from collections.abc import Mapping

from oncegate.errors import SettingError
from oncegate.settings import Settings
from oncegate.settings.routes import UNSIGNED
from oncegate.settings.secrets import secrets_of
from oncegate.signatures import Verifier, verifier_of

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
    secrets = secrets_of(route)
    if signature is None or signature == UNSIGNED:
        if secrets:
            raise SettingError(
                f"{route.where('serve.signature')}: there is a secret, but no signature to check with it"
            )
        return None
    if not secrets:
        where = route.where("serve.signature")
        raise SettingError(f'{where}: signature={signature} needs its secret; write secret_env = "ITS_VARIABLE"')
    try:
        return verifier_of(signature, secrets, _options(route))
    except SettingError as error:
        raise SettingError(f"{route.where('serve.signature')}: {error}") from None


def _options(route: Settings) -> Mapping[str, str]:
    found = {}
    for written in route["serve.signature_options"]:
        name, equals, value = written.partition("=")
        if not equals:
            where = route.where("serve.signature_options")
            raise SettingError(f"{where}: {written!r} is no option; write it like header=x-signature")
        found[name.strip()] = value.strip()
    return found
