"""A deferred store is a remote store that could not be reached at start and is opened by a later call.

Until the store is open, every call raises StoreError, as it does for a store that became unreachable after the start.
So the gate applies its policy `on_store_error` to the events.
"""

import threading
import warnings
from collections.abc import Callable
from typing import Any, Final, cast

from oncegate import forks
from oncegate.clocks import Clock, since_boot
from oncegate.errors import StoreError, StoreRefused, StoreUnavailable
from oncegate.stores import open_store, store_class
from oncegate.stores.base import Store

_TRY_EVERY: Final = 1_000_000  # microseconds
_NOT_FORWARDED: Final = ("close", "before_fork", "after_fork")


def open_or_defer(url: str) -> Store:
    """Open the store at a URL. If a remote store cannot be reached, warn and return a deferred store. An error that
    does not go away without a change by the user, such as a wrong password, is raised now."""
    try:
        return open_store(url)
    except StoreUnavailable as error:
        kind = store_class(url)
        if not getattr(kind, "remote", False):
            raise
        warnings.warn(
            f"started without the store; it is tried again with each event (on_store_error=unguarded): {error}",
            RuntimeWarning,
            stacklevel=3,
        )
        return cast(Store, _deferred_class(kind)(lambda: open_store(url), error))


class _DeferredStore:
    """The base of every deferred store; `_deferred_class` adds the methods of one kind of store."""

    remote = True

    def __init__(self, open_now: Callable[[], Store], error: StoreError, boot: Clock = since_boot) -> None:
        self._open_now = open_now
        self._error = error
        self._boot = boot
        self._tried_at = boot()
        self._store: Store | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock)

    def _open_or_raise(self) -> Store:
        """Return the open store. If the store is not open, try to open it, at most once a second and in one thread at a
        time. If the store is still not open, raise the error of the last try. Other threads do not wait for the try."""
        if self._store is None and self._boot() - self._tried_at >= _TRY_EVERY and self._lock.acquire(blocking=False):
            try:
                self._try_to_open()
            finally:
                self._lock.release()
        if self._store is None:
            raise type(self._error)(*self._error.args)
        return self._store

    def _try_to_open(self) -> None:
        if self._store is not None or self._closed:
            return
        try:
            self._store = self._open_now()
        except StoreError as error:
            self._error = error
        self._tried_at = self._boot()

    def close(self) -> None:
        with self._lock:
            self._closed, self._error = True, StoreRefused("the store was closed before it could be reached")
            if self._store is not None:
                self._store.close()


def _deferred_class(kind: type[Any]) -> type[_DeferredStore]:
    """Return a class with the public methods of this kind of store. `__getattr__` was rejected: isinstance() looks for
    the methods of a protocol on the class, and would not find them."""
    methods = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))]
    forwarded = {name: _make_forwarder(name) for name in methods if name not in _NOT_FORWARDED}
    return type(f"Deferred{kind.__name__}", (_DeferredStore,), forwarded)


def _make_forwarder(name: str) -> Callable[..., Any]:
    def forward(self: _DeferredStore, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._open_or_raise(), name)(*args, **kwargs)

    return forward
