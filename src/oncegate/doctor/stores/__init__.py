"""Reading the store of the settings: a module for each kind. One that cannot be used is a fact like any other."""

from importlib import import_module
from typing import Final

from oncegate.doctor.facts import StoreFacts
from oncegate.doctor.stores.seen import Seen
from oncegate.errors import MissingExtra, StoreError
from oncegate.stores import check_url, scheme_of

# scheme → module with `look`; loaded when asked for, as the stores themselves are.
_LOOKS: Final = {"sqlite": "sqlite", "dynamodb": "dynamodb", "postgres": "postgres", "postgresql": "postgres"}


def seen(url: str, shown: str) -> Seen:
    """What there is to see of a store; `shown` is its URL without secrets."""
    scheme = scheme_of(url)
    module = "redis" if "redis" in scheme else _LOOKS.get(scheme)
    if module is None:
        check_url(url)
        return Seen(store=StoreFacts(url=shown, scheme=scheme))
    try:
        found: Seen = import_module(f"oncegate.doctor.stores.{module}").look(url, shown)
    except (StoreError, MissingExtra) as error:
        return Seen(store=StoreFacts(url=shown, scheme=scheme, problem=str(error)))
    return found
