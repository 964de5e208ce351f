"""Leases: how long a claim may be trusted here, and the thread that renews them."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from oncegate import forks
from oncegate.claims import Renew
from oncegate.clocks import Clock
from oncegate.errors import StoreError
from oncegate.stores.base import Store


class Lease:
    """A claim that this process holds.

    Its validity is counted on the boot clock from before the request was sent, so that however slow the network is
    the store thinks it ours for as long as we do. (Unless the store's clock is set ahead: see docs/decisions.md.)
    """

    __slots__ = ("held_since", "lost", "proof", "valid_until")

    def __init__(self, proof: Renew, sent_at: int, left: int) -> None:
        self.proof = proof
        self.held_since = sent_at
        self.valid_until = sent_at + left
        self.lost = False


class Heartbeat:
    """Renews every held lease each third of its length, for at most `max_hold`, from a thread of its own.

    The thread starts with the first lease and ends when it has found none to renew.
    """

    def __init__(self, store: Store, lease: int, max_hold: int, boot: Clock) -> None:
        self._store = store
        self._interval = lease / 3
        self._max_hold = max_hold
        self._boot = boot
        self._lock = threading.Lock()
        self._held: dict[Lease, None] = {}
        self._thread: threading.Thread | None = None
        forks.watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._held, self._thread = {}, None
        self._lock.release()

    @contextmanager
    def holding(self, leases: Iterable[Lease]) -> Iterator[None]:
        """Keep these leases alive until the block ends."""
        kept = dict.fromkeys(leases)
        with self._lock:
            self._held.update(kept)
            if kept and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._beat, name="oncegate-heartbeat", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            self.drop(kept)

    def drop(self, leases: Iterable[Lease]) -> None:
        with self._lock:
            for lease in leases:
                self._held.pop(lease, None)

    def _beat(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(self._interval / 1e6)
            with self._lock:
                self._held = {lease: None for lease in self._held if self._may_renew(lease)}
                held = list(self._held)
                if not held:
                    self._thread = None
                    return
            self._renew(held)

    def _may_renew(self, lease: Lease) -> bool:
        return not lease.lost and self._boot() - lease.held_since < self._max_hold

    def _renew(self, held: list[Lease]) -> None:
        sent_at = self._boot()
        try:
            answers = self._store.renew([lease.proof for lease in held])
        except StoreError:
            return  # the leases still have two thirds of their length: the next beat tries again
        for lease, renewed in zip(held, answers, strict=True):
            if renewed:
                lease.valid_until = sent_at + lease.proof.lease
            else:
                lease.lost = True
