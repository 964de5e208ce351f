"""What the pages of the console read and change: the settings, the store, the journal and the running service."""

import threading
from collections.abc import Callable, Mapping

from msgspec import Struct

from oncegate.console.curl import service_address
from oncegate.console.tasks import Tasks
from oncegate.errors import NoStore, SettingError
from oncegate.journal import Journal
from oncegate.settings import Settings
from oncegate.stores.base import Store
from oncegate.text import masked


class ServiceFigures(Struct, frozen=True):
    """Figures of the service that runs in this process. `breakers` has the state of the circuit breaker by route.
    `store_latency` is the median of the last answers of the store in microseconds; None if it is not known."""

    in_flight: int
    breakers: Mapping[str, str]
    store_latency: int | None = None


class Site:
    """Opens the store and the journal with the first page that needs them. The connections are separate from those of
    the service, so that a page does not delay events. `open_store` replaces the store of the settings, for reading and
    for changes. `live` returns figures of the service; None if the console runs alone. `address` is the URL at which
    the service listens; by default, the host and port of the settings."""

    def __init__(
        self,
        settings: Settings,
        open_store: Callable[[], Store] | None = None,
        live: Callable[[], ServiceFigures] | None = None,
        address: str | None = None,
    ) -> None:
        self.settings = settings
        self.address = address or service_address(settings)
        self.live = live
        self.tasks = Tasks()
        self._open_store = open_store
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._writable_store: Store | None = None
        self._journal: Journal | None = None

    @property
    def name(self) -> str:
        """Which store the console shows: the name of the file, or the URL without its password and parameters."""
        url = masked(self.settings["store"] or "").partition("?")[0]
        return url.rpartition("/")[2] if url.startswith("sqlite:") else url

    @property
    def store(self) -> Store:
        """The store, for reading only. Raises StoreError if the store cannot be opened."""
        with self._lock:
            if self._store is None:
                self._store = (self._open_store or self.settings.open_read_only)()
            return self._store

    @property
    def writable_store(self) -> Store:
        """The store, for operators' changes. Raises StoreError if the store cannot be opened."""
        if self._open_store is not None:
            return self.store
        with self._lock:
            if self._writable_store is None:
                self._writable_store = self.settings.open_store(create=False)
            return self._writable_store

    @property
    def journal(self) -> Journal | None:
        """The journal; None if there is none: see `no_journal`. Raises StoreError if the journal cannot be opened."""
        with self._lock:
            if self._journal is None:
                try:
                    self._journal = self.settings.open_journal()
                except (NoStore, SettingError):
                    return None
            return self._journal

    @property
    def no_journal(self) -> str:
        """The reason why there is no journal."""
        try:
            self.settings.open_journal().close()
        except (NoStore, SettingError) as error:
            return str(error)
        return ""

    def close(self) -> None:
        self.tasks.close()  # before the store, because tasks use it
        with self._lock:
            for each in (self._store, self._writable_store, self._journal):
                if each is not None:
                    each.close()
            self._store = self._writable_store = self._journal = None
