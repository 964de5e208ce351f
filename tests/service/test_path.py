"""How many of our modules a webhook crosses."""

import json
import time
from pathlib import Path

import oncegate
from tests.service.protocols import post
from tests.service.running import Service, until

REQUESTS = 5
LIMIT = 30
ROOT = Path(oncegate.__file__).parent

# Runs in the service. For each request it records the files of our functions, from the arrival of the request until its
# response is written, on the threads that handle the event. Threads that serve all events (heartbeat, observers, the
# inbox's poll) are left out.
PROFILED_HANDLER = f"""
import json, os, sys, threading

ROOT = {str(ROOT)!r} + "/"
THREADS = ("MainThread", "oncegate-writer", "oncegate-handler")
functions = {{}}
recording = False
requests = 0

def profile(frame, event, argument):
    global recording, requests
    code = frame.f_code
    if event not in ("call", "return") or not code.co_filename.startswith(ROOT):
        return
    if code.co_name == "data_received" and event == "call":
        functions.clear()
        recording = True
    if not recording or code.co_name == "<module>":
        return
    if threading.current_thread().name.startswith(THREADS):
        functions.setdefault(code.co_filename.removeprefix(ROOT), set()).add(code.co_qualname)
    if code.co_name == "_write_response" and event == "return":
        recording = False
        with open("path.part", "w") as file:
            json.dump({{module: sorted(names) for module, names in functions.items()}}, file)
        os.rename("path.part", f"path-{{requests}}")
        requests += 1

sys.setprofile(profile)
threading.setprofile(profile)

def handle(event):
    pass
"""


def test_a_webhook_crosses_few_modules(tmp_path: Path) -> None:
    """From the arrival of a webhook to its response, on the embedded store with the inbox and a synchronous handler, at
    most `LIMIT` of our modules run.

    The request with the fewest modules counts: the first request also builds what is made at first use, and a poll of
    the inbox or a readiness probe may run during any other."""
    paths: list[dict[str, list[str]]] = []
    with Service(tmp_path, handler=PROFILED_HANDLER) as service:
        for number in range(REQUESTS):
            body = b'{"id": "evt-%d", "type": "call.ended"}' % number
            assert b'"accepted"' in service.raw(post(body, b"Connection: close\r\n"))
            until((tmp_path / f"path-{number}").exists)
            paths.append(json.loads((tmp_path / f"path-{number}").read_text()))
            time.sleep(0.1)  # the handler of this event must not run during the next request
    path = min(paths, key=len)
    assert {"service/protocol.py", "service/route.py", "ingress/inbox.py", "stores/sqlite/store.py"} <= path.keys()
    listed = "\n".join(f"{module}: {', '.join(names)}" for module, names in sorted(path.items()))
    assert len(path) <= LIMIT, f"{len(path)} modules:\n{listed}"
