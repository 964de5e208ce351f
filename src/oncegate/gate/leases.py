"""Leases, and the thread that renews them. A lease says how long this process may rely on a claim."""

import threading
from collections.abc import Callable, Iterable

from msgspec import Struct

from oncegate import forks
from oncegate.claims import Record, Renew
from oncegate.clocks import Clock
from oncegate.errors import StoreError
from oncegate.stores.base import Store


class Lease(Struct, eq=False, gc=False):
    """A claim that this process holds: its namespace and key, and the record that the store granted. `granted_at` is
    the store's time of the grant.

    `held_since` and `valid_until` are on the boot clock. They are counted from a time that is read just before the
    request is sent. So the lease ends here at the same time as in the store, or earlier, even if the network is slow.
    The only exception is a store whose clock is set ahead (see docs/decisions.md). A lease that is `ending` is being
    settled and is not renewed any more: the store refuses to renew a settled claim, and this would look like a lost
    lease. `on_lost` is called when the lease is lost. gc=False is safe: the code that sets `on_lost` resets it, so no
    reference cycle remains.
    """

    namespace: str
    key: bytes
    record: Record
    granted_at: int
    held_since: int
    valid_until: int
    lost: bool = False
    ending: bool = False
    on_lost: Callable[[], object] | None = None

    def renewal(self, length: int) -> Renew:
        return Renew(self.namespace, self.key, self.record.owner, self.record.fence, length)

    def lose(self) -> None:
        """Mark the lease as lost and call `on_lost`. Another worker has the claim, or may have it."""
        self.lost = True
        if self.on_lost is not None:
            self.on_lost()


class Heartbeat:
    """A thread that renews all held leases. `lease` is the length of a lease. Each lease is renewed after every third
    of this length, for at most `max_hold`. Both are in microseconds.

    The thread starts with the first lease and ends when there is no lease to renew. `on_lost` is called with each lease
    that is lost while it is held. A lease is held here until it is dropped, even if it is lost. Until then its event is
    not started here again: `adopt` gives a new grant to the handler that still runs.
    """

    def __init__(
        self, store: Store, lease: int, max_hold: int, boot: Clock, on_lost: Callable[[Lease], object] | None = None
    ) -> None:
        self._store = store
        self._length = lease
        self._max_hold = max_hold
        self._boot = boot
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._held: dict[bytes, Lease] = {}  # by key; a heartbeat serves one namespace
        self._thread: threading.Thread | None = None
        forks.watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._held, self._thread = {}, None
        self._lock.release()

    def hold(self, leases: Iterable[Lease]) -> None:
        """Renew these leases until they are dropped."""
        with self._lock:
            self._held.update({lease.key: lease for lease in leases})
            self._start()

    def drop(self, leases: Iterable[Lease]) -> None:
        with self._lock:
            held = self._held
            for lease in leases if held else ():
                if held.get(lease.key) is lease:
                    del held[lease.key]

    def adopt(self, granted: Lease) -> bool:
        """Give a new grant to the held lease of the same event. Returns False if the event is not held here.

        The store grants a held event again if the store's clock was set ahead, or if this process was stopped for
        longer than the lease. The handler of the held event has not returned yet, so it continues under the new
        grant."""
        if not self._held:
            return False
        with self._lock:
            lease = self._held.get(granted.key)
            if lease is None or lease.record.fence >= granted.record.fence:
                return False
            lease.record, lease.granted_at, lease.valid_until = granted.record, granted.granted_at, granted.valid_until
            lease.lost = False
            self._start()
            return True

    def _start(self) -> None:
        if self._held and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._beat, name="oncegate-heartbeat", daemon=True)
            self._thread.start()

    def _beat(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(self._length / 3e6)
            with self._lock:
                held = [lease for lease in self._held.values() if not lease.lost and not lease.ending]
                if not held:
                    self._thread = None
                    return
            self._renew([lease for lease in held if self._boot() - lease.held_since < self._max_hold])
            self._report_lost([lease for lease in held if lease.lost or self._boot() >= lease.valid_until])

    def _renew(self, held: list[Lease]) -> None:
        sent_at = self._boot()
        renewals = [lease.renewal(self._length) for lease in held]
        try:
            answers = self._store.renew(renewals)
        except StoreError:
            return  # two thirds of each lease are left, and the next beat retries
        with self._lock:
            for lease, renewal, renewed in zip(held, renewals, answers, strict=True):
                if lease.record.fence != renewal.fence:  # adopt() gave the lease a new grant during the renewal
                    continue
                if renewed:
                    lease.valid_until = sent_at + self._length
                else:
                    lease.lost = True

    def _report_lost(self, leases: list[Lease]) -> None:
        """Call `on_lost` for each of these leases that is still held. A lease that was settled after the renewal was
        sent is not lost."""
        with self._lock:
            now = self._boot()
            held = [lease for lease in leases if self._held.get(lease.key) is lease]
            lost = [lease for lease in held if (lease.lost or now >= lease.valid_until) and not lease.ending]
        for lease in lost:
            lease.lose()
            if self._on_lost is not None:
                self._on_lost(lease)
