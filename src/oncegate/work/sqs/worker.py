"""The worker of an SQS queue: messages in, events through the gate, messages deleted or let go.

receive ─▶ read ─▶ dispatcher ─▶ gate ─▶ all events acknowledged ─▶ delete
                                        └▶ one was not ─▶ visible again, when there is sense in it

Nothing is buried here: how often a message comes, the queue counts, and its dead-letter queue has what always fails.
"""

import asyncio
import threading
from collections import Counter

from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.working import Figures, Lent
from oncegate.work.signals import stopped_by_signals
from oncegate.work.sqs.address import read_address
from oncegate.work.sqs.session import Session
from oncegate.work.sqs.ways import Ways


class SqsWorker:
    """See `oncegate.gate.working.Worker`."""

    def __init__(self, queue: str, handler: AsyncHandler | Handler, ways: Ways, lent: Lent) -> None:
        self._address = read_address(queue)
        self._handler = handler
        self._ways = ways
        self._lent = lent
        # All of them from the start: other threads read it, which must not grow meanwhile.
        self._counts = Counter(received=0, processed=0, duplicates=0, failed=0)
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._left_running = 0

    def run(self) -> None:
        self._left_running = 0
        try:
            asyncio.run(self._work())
        finally:
            self._stopped = False
        if not self._left_running:
            self._lent.engine.close()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._loop is not None and self._session is not None:
                self._loop.call_soon_threadsafe(self._session.stop)

    @property
    def figures(self) -> Figures:
        session = self._session
        return Figures(**self._counts, in_hand=0 if session is None else session.in_hand)

    @property
    def left_running(self) -> int:
        return self._left_running

    async def _work(self) -> None:
        session = Session(self._address, self._handler, self._ways, self._lent, self._counts)
        with self._lock:
            self._session, self._loop = session, asyncio.get_running_loop()
            if self._stopped:
                session.stop()
        try:
            with stopped_by_signals(session.stop):
                await session.work()
        finally:
            with self._lock:
                self._session = self._loop = None
            self._left_running = session.left_running + self._lent.engine.concurrent.threads.given_up
