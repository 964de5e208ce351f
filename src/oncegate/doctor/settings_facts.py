"""Read facts from the settings, and from the store that the settings name."""

from msgspec.structs import replace

from oncegate.doctor.facts import Facts, RouteFacts
from oncegate.doctor.store_facts import read_store
from oncegate.durations import microseconds
from oncegate.gate.options import DEFAULTS, validate
from oncegate.settings import Settings
from oncegate.settings.routes import is_described, routes_of
from oncegate.text import masked


def settings_facts(settings: Settings) -> Facts:
    """Returns the facts about the settings. The store is not read."""
    return Facts(
        config=validate({name: settings[name] for name in DEFAULTS}),
        routes=_routes(settings),
        worker_visibility=microseconds(settings["work.visibility"], "work.visibility"),
    )


def with_store(facts: Facts, settings: Settings, check_limit: float | None = None) -> Facts:
    """Returns the facts, completed with facts about the store. `check_limit` is the longest time, in seconds, for the
    integrity check of an SQLite file. None is the limit of `oncegate doctor`."""
    reading = read_store(settings["store"], masked(settings["store"]), check_limit)
    return replace(facts, store=reading.store, redis=reading.redis, clocks=reading.clocks)


def _routes(settings: Settings) -> tuple[RouteFacts, ...]:
    """The routes of the service, if the settings describe a service."""
    if not is_described(settings):
        return ()
    return tuple(
        RouteFacts(path=path, key=route["key"], signature=route["serve.signature"])
        for path, route in routes_of(settings).items()
    )
