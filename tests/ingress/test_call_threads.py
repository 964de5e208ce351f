"""Blocking calls in threads, for an event loop."""

import asyncio
import subprocess
import sys
import threading
import time
from textwrap import dedent

import pytest

from oncegate.ingress.call_threads import CallThreads
from tests.gate.conftest import until


def test_results_and_errors() -> None:
    """A call returns what the function returns, and raises what it raises."""

    async def main() -> None:
        threads = CallThreads("test", 1)
        assert await threads.call(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await threads.call(divmod, 7, 0)
        threads.close()

    asyncio.run(main())


def test_limit() -> None:
    """At most `limit` calls run at a time; the others wait, and all of them run."""
    running, most, lock = 0, 0, threading.Lock()

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    async def main() -> None:
        threads = CallThreads("test", 3)
        await asyncio.gather(*(threads.call(call) for _ in range(9)))
        threads.close()

    asyncio.run(main())
    assert most == 3


def test_one_thread_keeps_the_order() -> None:
    """Calls of one thread run in the order of submission, also if they were submitted before the close."""
    ran: list[int] = []
    threads = CallThreads("test", 1)
    futures = [threads.submit(ran.append, number) for number in range(20)]
    threads.close()
    futures[-1].result(10)
    assert ran == list(range(20))


def test_a_cancelled_caller_does_not_stop_the_call() -> None:
    """A call goes on after its caller was cancelled, and a new call gets a thread of its own."""
    go_on, ended = threading.Event(), threading.Event()

    def block() -> None:
        go_on.wait(10)
        ended.set()

    async def main() -> None:
        threads = CallThreads("test", 2)
        blocked = asyncio.create_task(threads.call(block))
        await asyncio.sleep(0.02)
        blocked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await blocked
        async with asyncio.timeout(5):
            assert await threads.call(int, "1") == 1
        go_on.set()
        await until(ended.is_set)
        threads.close()

    asyncio.run(main())


def test_threads_end_after_close() -> None:
    """The threads end once they are closed."""
    threads = CallThreads("test-closing", 2)
    for future in [threads.submit(time.sleep, 0.01) for _ in range(2)]:
        future.result(10)
    threads.close()
    deadline = time.monotonic() + 10
    while any(thread.name.startswith("test-closing") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_hanging_call_does_not_delay_the_end_of_the_process() -> None:
    """The interpreter exits although a call still blocks."""
    program = dedent("""
        import threading
        from oncegate.ingress.call_threads import CallThreads
        CallThreads("test", 1).submit(threading.Event().wait, 60)
    """)
    subprocess.run([sys.executable, "-c", program], timeout=20, check=True)
