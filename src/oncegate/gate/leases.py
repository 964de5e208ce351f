"""Leases: how long a claim may be trusted here, and the thread that renews them."""

import threading
from collections.abc import Callable, Iterable

from msgspec import Struct

from oncegate import forks
from oncegate.claims import Record, Renew
from oncegate.clocks import Clock
from oncegate.errors import StoreError
from oncegate.stores.base import Store


class Lease(Struct, eq=False, gc=False):
    """A claim that this process holds: at which address, and the record as the store granted it at its time
    `granted_at`.

    Its validity is counted on the boot clock from before the request was sent, so that however slow the network is
    the store thinks it ours for as long as we do. (Unless the store's clock is set ahead: see docs/decisions.md.)
    One that is `ending` is about to be settled, and is no longer renewed: that would look like a loss.
    It is nothing to the garbage collector: whoever sets `on_lost` takes it back.
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
        """It is another's, or may be: whoever runs under it is told."""
        self.lost = True
        if self.on_lost is not None:
            self.on_lost()


class Heartbeat:
    """Renews every held lease each third of its length, for at most `max_hold`, from a thread of its own.

    The thread starts with the first lease and ends when it has found none to renew. `told` hears of those that are
    lost while they are held. What is held here, lost or not, is not run here again: a new grant of it is adopted.
    """

    def __init__(
        self, store: Store, lease: int, max_hold: int, boot: Clock, told: Callable[[Lease], object] | None = None
    ) -> None:
        self._store = store
        self._length = lease
        self._max_hold = max_hold
        self._boot = boot
        self._told = told
        self._lock = threading.Lock()
        self._held: dict[bytes, Lease] = {}  # by key: all are of one namespace
        self._thread: threading.Thread | None = None
        forks.watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._held, self._thread = {}, None
        self._lock.release()

    def hold(self, leases: Iterable[Lease]) -> None:
        """Keep these leases alive until they are dropped."""
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
        """Whether this event is held here already. Then its lease is the one that was just granted: the store's clock
        was set ahead, or this process was stopped for longer than the lease, and its handler has not ended."""
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
            self._part_with([lease for lease in held if lease.lost or self._boot() >= lease.valid_until])

    def _renew(self, held: list[Lease]) -> None:
        sent_at = self._boot()
        renewals = [lease.renewal(self._length) for lease in held]
        try:
            answers = self._store.renew(renewals)
        except StoreError:
            return  # the leases still have two thirds of their length: the next beat tries again
        with self._lock:
            for lease, renewal, renewed in zip(held, renewals, answers, strict=True):
                if lease.record.fence != renewal.fence:  # it was granted anew meanwhile
                    continue
                if renewed:
                    lease.valid_until = sent_at + self._length
                else:
                    lease.lost = True

    def _part_with(self, gone: list[Lease]) -> None:
        """Those still held are told; what was settled a moment ago is lost to nobody."""
        with self._lock:
            now = self._boot()
            held = [lease for lease in gone if self._held.get(lease.key) is lease]
            lost = [lease for lease in held if (lease.lost or now >= lease.valid_until) and not lease.ending]
        for lease in lost:
            lease.lose()
            if self._told is not None:
                self._told(lease)
