"""An exception that a signal raises in the middle of a call leaves no lock, no open transaction and no half write."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from inspect import CO_GENERATOR
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from oncegate.claims import COMPLETED, IN_PROGRESS, ClaimProof, Complete, Record
from oncegate.stores.base import EffectFailed
from oncegate.stores.sqlite import SqliteStore
from oncegate.testing.requests import KEY, NAMESPACE, RETENTION, admit, claim_of, granted, reset, stored, take
from tests.stores.forking import run


class Interrupt(BaseException):
    """Like KeyboardInterrupt, which pytest would handle itself."""


def interrupted(call: Callable[[], object]) -> Iterator[BaseException]:
    """Repeat a call and interrupt it at each point where Python checks for signals: when a Python function starts, and
    when a C function returns. Starts of generators are left out: closing a generator also counts as a start, and an
    exception there is ignored."""
    for place in count():
        left = [place]

        def strike(frame: FrameType, event: str, _argument: Any, left: list[int] = left) -> None:
            if event == "c_return" or (event == "call" and not frame.f_code.co_flags & CO_GENERATOR):
                left[0] -= 1
                if left[0] < 0:
                    sys.setprofile(None)
                    raise Interrupt

        sys.setprofile(strike)
        try:
            call()
        except (Interrupt, EffectFailed) as error:
            yield error  # the traceback keeps the frames of the call alive
        finally:
            sys.setprofile(None)
        if left[0] >= 0:
            return


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(str(tmp_path / "store.db"), synchronous="normal")) as store:
        yield store


CALLS: dict[str, Callable[[SqliteStore], object]] = {
    "claim": lambda store: store.claim([claim_of(key=os.urandom(16))]),
    "take": lambda store: (admit(store, key=os.urandom(16)), take(store, in_order=True)),
    "browse": lambda store: store.browse(),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_lock_is_released(store: SqliteStore, call: str) -> None:
    """An interrupt at any point of a call leaves the lock released and no transaction open."""
    places = 0
    for _error in interrupted(lambda: CALLS[call](store)):
        assert not store._lock.locked()
        assert store._db is None or not store._db.in_transaction
        places += 1
    assert places > 20


def test_a_transaction_is_atomic(store: SqliteStore) -> None:
    """An interrupt at any point of a transaction leaves both its effect and its completion, or neither."""
    store._get_connection().execute("CREATE TABLE effects (id)")

    def transact(record: Record) -> None:
        def effect(db: Any) -> Complete:
            db.execute("INSERT INTO effects VALUES (1)")
            return Complete(NAMESPACE, KEY, record.owner, record.fence, RETENTION)

        store.transact(ClaimProof(NAMESPACE, KEY, record.owner, record.fence), effect)

    seen = set()
    for _error in interrupted(lambda: transact(granted(store))):
        assert not store._lock.locked()
        assert store._handler_thread is None
        assert store._db is None or not store._db.in_transaction
        record = stored(store)
        (effects,) = store._get_connection().execute("SELECT count(*) FROM effects").fetchone()
        seen.add((record and record.state, effects))
        store._get_connection().execute("DELETE FROM effects")
        reset(store)
    assert seen == {(None, 0), (IN_PROGRESS, 0), (COMPLETED, 1)}


def test_interrupts(tmp_path: Path) -> None:
    """Exceptions of real signals at random instructions leave no transaction open."""
    done = run(
        f"""
        import signal, time
        from oncegate import open_store
        from oncegate.testing.requests import claim_of
        store = open_store("sqlite:///{tmp_path}/store.db?synchronous=normal")
        class Interrupt(Exception): ...
        def interrupt(*_): raise Interrupt
        signal.signal(signal.SIGALRM, interrupt)
        interrupts, end = 0, time.monotonic() + 2
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0003)
                while True:
                    store.claim([claim_of()])
            except Interrupt:
                interrupts += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        store.claim([claim_of()])
        print(interrupts > 100)
        """
    )
    assert done.stdout.strip() == "True", done
