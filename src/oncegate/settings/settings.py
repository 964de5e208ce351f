"""Settings as they were found: each value, where it comes from, and the gate that they describe."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, Unpack, cast

from msgspec import Struct

from oncegate.errors import SettingError
from oncegate.gate import Gate, JsonLog
from oncegate.gate.observers import Observer
from oncegate.gate.options import DEFAULTS, GateOptions, validate
from oncegate.settings.parsing import shown, strategy_of
from oncegate.settings.schema import READ, SETTINGS
from oncegate.sources import Hints
from oncegate.sources.plain import paths
from oncegate.stores import check_url, open_read_only, open_store
from oncegate.stores.base import Store
from oncegate.stores.deferred import open_or_defer

DEFAULT: Final = "default"


def _in_route(path: str) -> str:
    """What the table of a route calls a setting."""
    return path.removeprefix("serve.")


class Shown(Struct, frozen=True):
    """A setting for a person to look at, secrets masked."""

    setting: str
    value: Any
    origin: str


class Settings(Struct, frozen=True):
    """Every setting by its path (`retention`, `serve.port`), and the origin of each: `default`, the file, the variable
    or the flag. A route has settings of its own: all of these, with what its table says instead. What was `refused` has
    its default."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    routes: Mapping[str, "Settings"] = MappingProxyType({})
    refused: frozenset[str] = frozenset()

    def __getitem__(self, path: str) -> Any:
        return self.values[path]

    def chosen(self, path: str) -> Any:
        """The value if somebody chose it, else None."""
        return None if self.origins[path] == DEFAULT else self.values[path]

    def where(self, path: str) -> str:
        """Where to look when the value is wrong, for a sentence."""
        origin, setting = self.origins[path], SETTINGS[path]
        if origin == DEFAULT:
            return path
        if origin in (setting.variable, setting.flag):
            return origin
        return f"{origin}, {_in_route(path) if origin.endswith(']') else path}"

    def shown(self) -> list[Shown]:
        everywhere = [self._shown(path, path) for path in SETTINGS]
        return everywhere + [
            route._shown(path, f"route.{name}.{_in_route(path)}")
            for name, route in self.routes.items()
            for path in SETTINGS
            if route.origins[path].endswith(f"[route.{name}]")
        ]

    def _shown(self, path: str, name: str) -> Shown:
        return Shown(name, shown(SETTINGS[path], self.values[path]), self.origins[path])

    def strategy(self) -> Callable[..., Any]:
        """The key's strategy; a function of the user's own is imported now."""
        return strategy_of(self.values["key"], self.where("key"))

    def hints(self) -> Hints:
        """What payloads do not say themselves."""
        given = {setting.name: self.values[setting.path] for setting in READ}
        topic = given.pop("topic")
        chosen = {name: value for name, value in given.items() if value is not None}
        for name, value in chosen.items():
            with self.placed(f"read.{name}"):
                paths(**{name: value})
        return Hints(topic, paths(**chosen))

    def open_store(self, *, create: bool = True, late: bool = False) -> Store:
        """The store. `late`: one that is away is opened when it is back."""
        with self.placed("store"):
            url = self.values["store"]
            return open_or_defer(url) if late else open_store(url, create=create)

    def open_read_only(self) -> Store:
        """The store, for those who only read it."""
        with self.placed("store"):
            return open_read_only(self.values["store"])

    def check_store(self) -> None:
        """Refuse a URL that cannot be meant, as `open_store` would; nothing is opened."""
        with self.placed("store"):
            check_url(self.values["store"])

    @contextmanager
    def placed(self, path: str) -> Iterator[None]:
        """Say where the value comes from that is found to be wrong in here."""
        try:
            yield
        except SettingError as error:
            raise SettingError(f"{self.where(path)}: {error}") from error

    def gate(
        self, store: Store | None = None, *, observers: Sequence[Observer] | None = None, **wishes: Unpack[GateOptions]
    ) -> Gate:
        """The gate of these settings; what is given here comes first. `observers` stand in for what `log` says."""
        if observers is None:
            observers = [JsonLog()] if self.values["log"] == "json" else []
        hints = self.hints()
        terms = cast(GateOptions, {name: self.values[name] for name in DEFAULTS} | {**wishes})
        key = self.strategy()
        if store is None:
            self.check_store()
        # A gate opens the store at a URL when nothing else is wrong; one that was opened here would stay open.
        place = self.values["store"] if store is None else store
        return Gate(place, key=key, observers=observers, hints=hints, **terms)


def disagreements(values: Mapping[str, Any], origins: Mapping[str, str]) -> Iterator[str]:
    """What a gate says to all its settings at once; each sentence names those that do not go together, which are left
    out of account to see whether there are others."""
    asked, usual = {name: values[name] for name in DEFAULTS}, {**DEFAULTS}
    while (problem := _disagreement(asked)) is not None:
        named = [name for name in re.findall(r"\b(\w+)=", problem) if name in DEFAULTS]
        places = dict.fromkeys(origins[name] for name in named)
        yield f"{', '.join(place for place in places if place != DEFAULT)}: {problem}"
        without = asked | {name: value for name, value in usual.items() if name in named}
        if without == asked:
            return
        asked = without


def _disagreement(asked: Mapping[str, Any]) -> str | None:
    try:
        validate(asked)
    except SettingError as error:
        return str(error)
    return None
