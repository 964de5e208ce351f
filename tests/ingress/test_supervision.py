"""Signals that stop a worker, and the log of outages."""

import asyncio
import signal
import threading

import pytest

from oncegate.ingress.supervision import OutageLogger, stopped_by_signals, wait_out
from oncegate.testing import ManualClock


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop(number: signal.Signals) -> None:
    """SIGTERM and Ctrl-C call `stop` in the loop, and the previous handlers are restored."""
    before = signal.getsignal(number)

    async def main() -> None:
        stopped = asyncio.Event()
        with stopped_by_signals(stopped.set):
            signal.raise_signal(number)
            async with asyncio.timeout(5):
                await stopped.wait()

    asyncio.run(main())
    assert signal.getsignal(number) is before


def test_no_signals_outside_the_main_thread() -> None:
    """In another thread no handler is installed, and nothing fails."""
    before, during = signal.getsignal(signal.SIGTERM), []

    async def main() -> None:
        with stopped_by_signals(lambda: None):
            during.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
    assert during == [before]


class TestOutageLogger:
    def test_logged_twice(self, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
        """An outage is logged when it begins and when it ends, however many failures it has."""
        outage = OutageLogger(clock)
        outage.succeeded("the queue answers")
        for _ in range(3):
            outage.failed("the queue is away")
            clock.advance("1m")
        outage.succeeded("the queue answers")
        outage.succeeded("the queue answers")
        begun, ended = (record.getMessage() for record in caplog.records)
        assert begun == "the queue is away; nothing is received until this ends"
        assert ended.startswith("the queue answers again, after ")

    def test_a_request_of_the_time_before(self, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
        """A success of a request that was sent before the last failure, also before a failure within a pause, does not
        end the outage."""
        outage = OutageLogger(clock)
        sent_at = clock()
        for _ in range(2):
            clock.advance("1ms")
            outage.failed("the store is away")
            outage.succeeded("the store answers", sent_at)
            assert outage.is_ongoing
            sent_at = clock()
        clock.advance("1ms")
        outage.succeeded("the store answers", clock())
        assert not outage.is_ongoing
        assert len(caplog.records) == 2

    def test_pauses_grow(self, clock: ManualClock) -> None:
        """Each pause is up to twice as long as the one before, at most 20 s, and starts again after a success."""
        outage = OutageLogger(clock)
        assert outage.pause == 0
        for longest in (0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 20, 20):
            outage.failed("away")
            assert longest / 2 - 0.001 <= outage.pause <= longest
            clock.advance("20s")
        outage.succeeded("it answers")
        assert outage.pause == 0
        outage.failed("away")
        assert outage.pause <= 0.2

    def test_failures_during_a_pause(self, clock: ManualClock) -> None:
        """Requests that were under way when the outage began do not make the pause longer."""
        outage = OutageLogger(clock)
        outage.failed("away")
        pause = outage.pause
        outage.failed("away")
        assert outage.pause == pause


class TestWaitOut:
    def test_the_longest_pause(self, clock: ManualClock) -> None:
        """The wait ends when no outage has a pause. Without an outage there is no wait."""
        queue, store = OutageLogger(clock), OutageLogger(clock)
        store.failed("away")

        async def wait() -> None:
            await wait_out(asyncio.Event(), queue)
            waiting = asyncio.create_task(wait_out(asyncio.Event(), queue, store))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            clock.advance("1s")
            await asyncio.wait_for(waiting, 5)

        asyncio.run(wait())

    def test_stopping(self, clock: ManualClock) -> None:
        """A worker that stops does not wait."""
        outage = OutageLogger(clock)
        outage.failed("away")

        async def wait() -> None:
            (stopping := asyncio.Event()).set()
            await asyncio.wait_for(wait_out(stopping, outage), 5)

        asyncio.run(wait())
