"""`python -m benchmarks.viewer URL`: a person who looks at the console, in a separate process, until stdin is closed.

The viewer logs in with the token in ONCEGATE_CONSOLE_TOKEN, reads the live tail, and loads a page every second.
"""

import argparse
import json
import os
import sys
import threading
from itertools import cycle

import httpx2

_PAGES = ("/console", "/console/events", "/console/dead-letters")
_PAUSE = 1.0  # seconds between two pages


class Tail(threading.Thread):
    """Counts the bytes of the live tail."""

    def __init__(self, client: httpx2.Client) -> None:
        super().__init__(daemon=True)
        self._client = client
        self.received = 0

    def run(self) -> None:
        with self._client.stream("GET", "/console/tail", timeout=None) as answer:
            for part in answer.iter_bytes():
                self.received += len(part)


def _wait_for_end(closed: threading.Event) -> None:
    sys.stdin.read()
    closed.set()


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.viewer", description=__doc__)
    parser.add_argument("url")
    url = parser.parse_args().url
    closed = threading.Event()
    threading.Thread(target=_wait_for_end, args=[closed], daemon=True).start()
    pages = 0
    with httpx2.Client(base_url=url, timeout=30, trust_env=False) as client:
        login = {"token": os.environ["ONCEGATE_CONSOLE_TOKEN"], "user": "viewer"}
        assert client.post("/console/login", data=login).status_code == httpx2.codes.SEE_OTHER
        tail = Tail(client)
        tail.start()
        print("logged in", flush=True)
        for path in cycle(_PAGES):
            assert client.get(path).status_code == httpx2.codes.OK
            pages += 1
            if closed.wait(_PAUSE):
                break
        print(json.dumps({"pages": pages, "tail": tail.received}), flush=True)
    os._exit(0)  # the thread of the tail still reads


if __name__ == "__main__":
    main()
