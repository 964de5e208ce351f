"""How many of our modules a webhook crosses."""

import json
from pathlib import Path

import oncegate
from tests.service.protocols import post
from tests.service.running import Service, until

LIMIT = 36  # only ever lowered; the goal is 30
ROOT = Path(oncegate.__file__).parent

# Runs in the service. It records the files of our functions, from the arrival of the request until its response is
# written, on the threads that handle the event. Threads that serve all events (heartbeat, observers, the inbox's poll)
# are left out.
PROFILED_HANDLER = f"""
import json, os, sys, threading

ROOT = {str(ROOT)!r} + "/"
THREADS = ("MainThread", "oncegate-writer", "oncegate-handler")
functions = {{}}
recording = False
is_done = False

def profile(frame, event, argument):
    global recording, is_done
    code = frame.f_code
    if is_done or event not in ("call", "return") or not code.co_filename.startswith(ROOT):
        return
    if code.co_name == "data_received" and event == "call":
        recording = True
    if not recording or code.co_name == "<module>":
        return
    thread = threading.current_thread().name
    if thread.startswith(THREADS):
        functions.setdefault(code.co_filename.removeprefix(ROOT), set()).add(code.co_qualname)
    if code.co_name == "_write_response" and event == "return":
        is_done = True
        with open("path.part", "w") as file:
            json.dump({{module: sorted(names) for module, names in functions.items()}}, file)
        os.rename("path.part", "path")

sys.setprofile(profile)
threading.setprofile(profile)

def handle(event):
    pass
"""


def test_a_webhook_crosses_few_modules(tmp_path: Path) -> None:
    """From the arrival of a webhook to its response, on the embedded store with the inbox and a synchronous handler, at
    most `LIMIT` of our modules run."""
    with Service(tmp_path, handler=PROFILED_HANDLER) as service:
        assert b'"accepted"' in service.raw(post(b'{"id": "evt-1", "type": "call.ended"}', b"Connection: close\r\n"))
        until((tmp_path / "path").exists)
    path: dict[str, list[str]] = json.loads((tmp_path / "path").read_text())
    assert {"service/protocol.py", "service/route.py", "ingress/inbox.py", "stores/sqlite/store.py"} <= path.keys()
    listed = "\n".join(f"{module}: {', '.join(names)}" for module, names in sorted(path.items()))
    assert len(path) <= LIMIT, f"{len(path)} modules:\n{listed}"
