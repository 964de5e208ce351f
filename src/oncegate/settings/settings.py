"""The loaded settings. They have the value and the origin of each setting, and open the configured store and gate."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Unpack, cast

from msgspec import Struct

from oncegate.clocks import wall
from oncegate.durations import microseconds, spoken, times
from oncegate.errors import SettingError
from oncegate.gate import Gate, JsonLog
from oncegate.gate.observers import Observer
from oncegate.gate.options import DEFAULTS, GateOptions, validate
from oncegate.journal import (
    AUTO,
    SHARE,
    SHARE_IN_PROGRAM,
    GapLog,
    Journal,
    OperatorLog,
    Recorder,
    check_journal,
    journal_url,
    open_journal,
    open_recorder,
)
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

    def retry_times(self) -> dict[str, str]:
        """How long the inbox retries an event, by the name of the setting that decides this."""
        config = validate({name: self.values[name] for name in DEFAULTS})
        if config.max_attempts is None:
            attempts = "failures are not counted; an event that always fails is retried forever"
        else:
            least, most = config.attempts_last
            attempts = (
                f"an event that always fails becomes a dead letter after {times(config.max_attempts, 'attempt')},"
                f" {spoken(least)} to {spoken(most)} after the first one, plus the time that its handler takes"
            )
        if config.retry_for is None:
            return {"max_attempts": attempts, "retry_for": "unavailability counts as a failure (max_attempts)"}
        retried = f"while what the handler calls is unavailable, an event is retried for {spoken(config.retry_for)}"
        return {"max_attempts": attempts, "retry_for": f"{retried}, and then becomes a dead letter"}

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

    def recorder(self, *, automatic: bool = True) -> Recorder | None:
        """Return the recorder that writes the journal, or None if no journal is written. If `automatic` is false, a
        journal is written only if the settings have its URL. The journal is opened later, with the first event."""
        journal, payloads = self.values["journal"], self.values["journal_payloads"]
        if journal is None or (journal == AUTO and not automatic):
            return None
        with self.placed("store" if journal == AUTO else "journal"):
            url = journal_url(journal, self.values["store"])
            if url is None:
                return None
            check_journal(url)
        with self.placed("journal_max_size"):
            return open_recorder(
                url,
                max_age=microseconds(self.values["journal_max_age"]),
                max_size=self.values["journal_max_size"],
                payload_age=None if payloads is None else microseconds(payloads),
                share=SHARE if automatic else SHARE_IN_PROGRAM,
            )

    def open_journal(self, *, writes: bool = False) -> Journal:
        """Open the journal for reading; with `writes`, also for writing. Raises SettingError if the settings have no
        journal, and NoStore if nothing was written to it yet."""
        url = journal_url(self.values["journal"], self.values["store"])
        if url is None:
            store = self.values["store"].partition("://")[0]
            has_place = journal_url(AUTO, self.values["store"]) is not None
            by_url = "set journal to a URL, such as sqlite:///oncegate.journal.db"
            advice = "remove this setting, or set it to auto" if has_place else by_url
            if self.values["journal"] is None:
                raise SettingError(f"{self.where('journal')}: there is no journal, because it is off; {advice}")
            raise SettingError(f"there is no journal, because {store}:// has no place for one; {advice}")
        with self.placed("journal"):
            journal = open_journal(url, create=False)
        if not writes:
            return journal
        journal.close()
        return open_journal(url, max_size=self.values["journal_max_size"])

    def operator_log(self, who: str, *, is_logged: bool = True) -> OperatorLog:
        """Return the log of what a person does, which writes to the journal. With the setting `auto`, rows are added
        only to a journal that exists: a command must not start a journal for a program that writes none."""

        def open_for_writing() -> Journal:
            if self.values["journal"] in (None, AUTO):
                return self.open_journal(writes=True)
            return open_journal(self.values["journal"], max_size=self.values["journal_max_size"])

        return OperatorLog(open_for_writing, who, is_logged=is_logged)

    def gap_log(self, place: str) -> GapLog:
        """Return the log of gaps in what was received at a place. It writes to the journal, if there is one."""
        url = journal_url(self.values["journal"], self.values["store"])
        max_size = self.values["journal_max_size"]
        opener = None if url is None else partial(open_journal, url, max_size=max_size)
        return GapLog(opener, place, self.values["namespace"])

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
        """Create a gate with these settings. `options` override the settings, and `observers` replace the settings
        `log` and `journal`."""
        if observers is None:
            observers = [JsonLog()] if self.values["log"] == "json" else []
            if (recorder := self.recorder(automatic=False)) is not None:
                observers = [*observers, recorder.of(self.values["namespace"], closes=True)]
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
