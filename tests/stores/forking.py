"""Run code in a new process; tests for stores that are opened before a fork."""

import subprocess
import sys
from textwrap import dedent


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new Python process: for what cannot be undone, or must not happen to the test process."""
    command = [sys.executable, "-W", "error", "-c", dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


class Forks:
    """A store that was opened before a fork works in parent and child, whatever the other process does."""

    def test_both_sides(self, url: str) -> None:
        """Parent and child see each other's claims, each over its own connections."""
        done = run(
            f"""
            import os
            from oncegate import open_store
            from oncegate.testing.requests import claim
            store = open_store({url!r})
            claim(store, "parent")
            child = os.fork()
            if child == 0:
                mine, new = claim(store, "child"), claim(store, "child", key=b"c" * 16)
                print(type(mine).__name__, type(new).__name__, flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            print(type(claim(store, "again", key=b"c" * 16)).__name__, type(claim(store, "parent")).__name__)
            store.close()
            """
        )
        assert done.stdout.split() == ["InFlight", "Granted", "InFlight", "Granted"], done

    def test_while_threads_ask(self, url: str) -> None:
        """After a fork during calls of other threads, the store works in the child, and the calls succeed.

        The threads pause between calls: not every store lets waiting threads acquire its lock in turn."""
        done = run(
            f"""
            import os, threading
            from oncegate import open_store
            from oncegate.testing.requests import claim, claim_of
            store = open_store({url!r})
            stop = threading.Event()
            def write(name):
                number = 0
                while not stop.wait(0.002):
                    number += 100
                    store.claim([claim_of(key=b"%s%015d" % (name, number + each)) for each in range(50)])
            threads = [threading.Thread(target=write, args=(name,)) for name in (b"a", b"b")]
            for thread in threads:
                thread.start()
            codes = []
            for number in range(10):
                child = os.fork()
                if child == 0:
                    code = 0 if type(claim(store, "child", key=b"%016d" % number)).__name__ == "Granted" else 1
                    os._exit(code)
                codes.append(os.waitpid(child, 0)[1])
            stop.set()
            for thread in threads:
                thread.join()
            store.close()
            print(codes)
            """
        )
        assert (done.stdout.strip(), done.stderr) == (str([0] * 10), ""), done
