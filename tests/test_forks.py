"""Forks of a process with several threads and with signals: no deadlock, and no shared resources."""

from pathlib import Path
from textwrap import dedent

import pytest

from tests.stores.forking import run

START = """
import faulthandler, os, signal, sys, threading, time, warnings
from oncegate import Gate, forks
warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # as Python 3.12 has it
faulthandler.dump_traceback_later(20, exit=True)
gate = Gate("sqlite:///store.db")
gate.run({"id": "0"}, lambda event: None)
failed = []
sys.unraisablehook = lambda raised: failed.append(type(raised.exc_value).__name__)

def fork():
    "0, if the child has a connection of its own and can use the gate."
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        if gate.store._db is not None:
            os._exit(1)
        os._exit(0 if gate.run({"id": f"child {os.getpid()}"}, lambda event: None).status == "processed" else 2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lines(code: str) -> list[str]:
    """The lines that a process prints which has used a gate."""
    done = run(START + dedent(code))
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def test_two_threads_at_a_time() -> None:
    """Threads that fork at the same time wait for each other, and the gate works between the forks."""
    assert lines(
        """
        codes = []
        def forker(name):
            for number in range(10):
                codes.append(fork())
                gate.run({"id": f"{name}-{number}"}, lambda event: None)
        threads = [threading.Thread(target=forker, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(set(codes), len(gate.store.browse()), failed)
        """
    ) == ["{0} 41 []"]


def test_registered_during_a_fork() -> None:
    """A thread may register an object while another thread forks."""
    assert lines(
        """
        from weakref import WeakSet
        made = []
        def make(frame, event, _):
            if event == "return" and frame.f_code is WeakSet.__iter__.__code__:  # it yields the first
                sys.setprofile(None)
                thread = threading.Thread(target=lambda: made.append(forks.holding(threading.Lock())))
                thread.start()
                thread.join(0.1)
        sys.setprofile(make)
        print(fork(), failed)
        print(fork(), len(made))
        """
    ) == ["0 []", "0 1"]


def test_interrupted_while_it_waits() -> None:
    """An interrupt while a fork waits for a transaction of another thread releases nothing of that thread. The fork
    still waits until the store is at rest."""
    assert lines(
        """
        inside = threading.Event()
        def effect(event, db):
            inside.set()
            time.sleep(0.5)
        thread = threading.Thread(target=lambda: print(gate.transaction({"id": "1"}, effect).status))
        thread.start()
        inside.wait()
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
        code = fork()
        thread.join()
        print(code, failed)
        print(fork(), gate.run({"id": "2"}, lambda event: None).status)
        """
    ) == ["processed", "0 ['KeyboardInterrupt']", "0 processed"]


@pytest.mark.parametrize("hook", ["_before", "_after"])
def test_interrupted_as_it_begins(hook: str) -> None:
    """An interrupt before the first instruction of a fork hook leaves no work undone."""
    assert lines(
        f"""
        def strike(frame, event, _):
            if event == "call" and frame.f_code.co_name == {hook!r}:
                sys.setprofile(None)
                raise KeyboardInterrupt
        sys.setprofile(strike)
        print(fork(), failed)
        print(fork(), gate.run({{"id": "2"}}, lambda event: None).status)
        """
    ) == ["0 ['KeyboardInterrupt']", "0 processed"]
