"""Old places: where earlier code has marked the events that it processed. `open_place` opens the place of a URL."""

from collections.abc import Callable
from typing import Final

from oncegate.errors import SettingError
from oncegate.previous.base import OldPlace, PlaceUrl
from oncegate.text import quoted


def _redis(url: PlaceUrl) -> OldPlace:
    from oncegate.previous.redis import RedisPlace

    return RedisPlace(url)


def _dynamodb(url: PlaceUrl) -> OldPlace:
    from oncegate.previous.dynamodb import DynamoPlace

    return DynamoPlace(url)


def _postgres(url: PlaceUrl) -> OldPlace:
    from oncegate.previous.postgres import PostgresPlace

    return PostgresPlace(url)


def _sqlite(url: PlaceUrl) -> OldPlace:
    from oncegate.previous.sqlite import SqlitePlace

    return SqlitePlace(url)


# The reader of a scheme is imported when it is first used: a process does not load drivers that it does not use.
_PLACES: Final[dict[str, Callable[[PlaceUrl], OldPlace]]] = {
    "redis": _redis,
    "rediss": _redis,
    "redis+cluster": _redis,
    "rediss+cluster": _redis,
    "dynamodb": _dynamodb,
    "postgresql": _postgres,
    "postgres": _postgres,
    "sqlite": _sqlite,
}


def open_place(url: PlaceUrl) -> OldPlace:
    """Open an old place. Connections are opened when they are first needed. Raises SettingError if the URL is
    invalid."""
    if url.scheme not in _PLACES or "://" not in url.address:
        raise SettingError(f"{quoted(url.address)} is not the URL of an old place; use one of: {', '.join(_PLACES)}")
    return _PLACES[url.scheme](url)
