"""A store that could not be reached when it was to be opened: it is opened by the first call that finds it back.

Until then every call raises StoreError, as those to a store do that went away while it was in use, so that the policy
of the gate decides what becomes of events.
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

_TRY_EVERY: Final = 1_000_000
_OWN: Final = ("close", "before_fork", "after_fork")


def open_or_defer(url: str) -> Store:
    """Open the store at a URL; one over a network that is away is opened later. What a person has to put right, such as
    a wrong password, is refused now."""
    try:
        return open_store(url)
    except StoreUnavailable as error:
        kind = store_class(url)
        if not getattr(kind, "remote", False):
            raise
        warnings.warn(
            f"started without the store, which is tried again with each event (on_store_error=unguarded): {error}",
            RuntimeWarning,
            stacklevel=3,
        )
        return cast(Store, _deferred(kind)(lambda: open_store(url), error))


class _DeferredStore:
    """What a late store of any kind does; `_late` adds the verbs of its kind."""

    remote = True

    def __init__(self, opening: Callable[[], Store], error: StoreError, boot: Clock = since_boot) -> None:
        self._opening = opening
        self._error = error
        self._boot = boot
        self._tried_at = boot()
        self._store: Store | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock)

    def _opened(self) -> Store:
        """The store, if it is there by now. One thread tries it, at most once a second; the others do not wait."""
        if self._store is None and self._boot() - self._tried_at >= _TRY_EVERY and self._lock.acquire(blocking=False):
            try:
                self._try()
            finally:
                self._lock.release()
        if self._store is None:
            raise type(self._error)(*self._error.args)
        return self._store

    def _try(self) -> None:
        if self._store is not None or self._closed:
            return
        try:
            self._store = self._opening()
        except StoreError as error:
            self._error = error
        self._tried_at = self._boot()

    def close(self) -> None:
        with self._lock:
            self._closed, self._error = True, StoreRefused("the store was closed before it could be reached")
            if self._store is not None:
                self._store.close()


def _deferred(kind: type[Any]) -> type[_DeferredStore]:
    """The verbs are written into the class, since protocols are looked for there."""
    verbs = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))]
    return type(
        f"Late{kind.__name__}", (_DeferredStore,), {name: _forwarded(name) for name in verbs if name not in _OWN}
    )


def _forwarded(name: str) -> Callable[..., Any]:
    def verb(self: _DeferredStore, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._opened(), name)(*args, **kwargs)

    return verb
