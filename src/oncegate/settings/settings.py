"""The loaded settings. They have the value and the origin of each setting, and open the configured store and gate."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import MappingProxyType
from typing import Any, Final, Unpack, cast

from msgspec import Struct

from oncegate.clocks import wall
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
    """The name of a setting in the table of a route."""
    return path.removeprefix("serve.")


class Shown(Struct, frozen=True):
    """A setting as it is displayed, with secrets masked."""

    setting: str
    value: Any
    origin: str


class Settings(Struct, frozen=True):
    """The value of every setting by its path (`retention`, `serve.port`), and the origin of the value: `default`, the
    file, the variable or the flag. `routes` has a full set of settings for each route: the values of its table, and the
    inherited values. `refused` has the paths of the settings with an invalid value; these settings have their
    defaults."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    routes: Mapping[str, "Settings"] = MappingProxyType({})
    refused: frozenset[str] = frozenset()

    def __getitem__(self, path: str) -> Any:
        return self.values[path]

    def chosen(self, path: str) -> Any:
        """The value of a setting if the file, a variable or a flag sets it; None if it is not set."""
        return None if self.origins[path] == DEFAULT else self.values[path]

    def where(self, path: str) -> str:
        """Where a value was set, for an error message: the variable, the flag, or the file and the setting."""
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
        """Return the key strategy. If the strategy is `module:function`, this method imports the function."""
        return strategy_of(self.values["key"], self.where("key"))

    def hints(self) -> Hints:
        """The hints of the table `[read]`: the topic, and the paths of the fields that payloads do not name."""
        given = {setting.name: self.values[setting.path] for setting in READ}
        topic = given.pop("topic")
        chosen = {name: value for name, value in given.items() if value is not None}
        for name, value in chosen.items():
            with self.placed(f"read.{name}"):
                paths(**{name: value})
        return Hints(topic, paths(**chosen))

    def open_store(self, *, create: bool = True, late: bool = False) -> Store:
        """Open the store. If `late` is true and the store is unavailable, it is opened later, when it is available."""
        with self.placed("store"):
            url = self.values["store"]
            return open_or_defer(url) if late else open_store(url, create=create)

    def open_read_only(self) -> Store:
        """Open the store for reading only."""
        with self.placed("store"):
            return open_read_only(self.values["store"])

    def check_store(self) -> None:
        """Raise SettingError if the URL of the store is invalid, as `open_store` does, but do not open the store."""
        with self.placed("store"):
            check_url(self.values["store"])

    def check_previous(self, *, connect: bool = False) -> None:
        """Raise SettingError if the URL of `previous` is invalid. With `connect`, raise StoreError if events cannot be
        looked up there. A service that starts without this check would refuse every event."""
        url = self.values["previous"]
        if url is None:
            return
        from oncegate.previous.lookup import open_previous

        with self.placed("previous"), closing(open_previous(url, wall)) as place:
            if connect:
                place.check()

    @contextmanager
    def placed(self, path: str) -> Iterator[None]:
        """If a SettingError is raised in this context, put the place of the setting (see `where`) before its text."""
        try:
            yield
        except SettingError as error:
            raise SettingError(f"{self.where(path)}: {error}") from error

    def gate(
        self, store: Store | None = None, *, observers: Sequence[Observer] | None = None, **options: Unpack[GateOptions]
    ) -> Gate:
        """Create a gate with these settings. `options` override the settings, and `observers` replace the setting
        `log`."""
        if observers is None:
            observers = [JsonLog()] if self.values["log"] == "json" else []
        hints = self.hints()
        gate_options = cast(GateOptions, {name: self.values[name] for name in DEFAULTS} | {**options})
        key = self.strategy()
        if store is None:
            self.check_store()
        # If there is no open store, pass the URL: Gate opens the store after all other checks. A store that is opened
        # here would stay open if one of these checks failed.
        store_or_url = self.values["store"] if store is None else store
        return Gate(store_or_url, key=key, observers=observers, hints=hints, **gate_options)


def disagreements(values: Mapping[str, Any], origins: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem for each group of gate settings that contradict each other. After each problem, its settings are
    replaced by their defaults, so that the next problem can be found."""
    remaining, defaults = {name: values[name] for name in DEFAULTS}, {**DEFAULTS}
    while (error := _setting_error(remaining)) is not None:
        places = dict.fromkeys(origins[name] for name in error.settings if name in DEFAULTS)
        yield f"{', '.join(place for place in places if place != DEFAULT)}: {error}"
        corrected = remaining | {name: value for name, value in defaults.items() if name in error.settings}
        if corrected == remaining:
            return
        remaining = corrected


def _setting_error(options: Mapping[str, Any]) -> SettingError | None:
    try:
        validate(options)
    except SettingError as error:
        return error
    return None
