"""Run the service with its console, and send simulated traffic of every kind for a minute.

Everything is in a temporary folder, on a free port. At the end, `oncegate verify` compares the effects with the events
that were sent.
"""

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NoReturn

import httpx2

FILES = ("handlers.py", "oncegate.toml")
STARTED = re.compile(r"listens on (http://[^\s/]+)")
STEP = 5.0  # seconds between two lines of progress
DRAIN = 30.0  # seconds for the events that still wait at the end
SHARES = ("--echo", "0.05", "--conflict", "0.03", "--invalid", "0.02")
SHOWN = ("processed", "duplicate", "conflict", "failed", "buried")
HEARTBEAT = {"topicName": "channel.metadata", "eventBody": {"message": "WebSocket Heartbeat"}}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make demo", description="The service, its console and simulated traffic.")
    parser.add_argument("--seconds", type=int, default=60, help="how long to send traffic (default: 60)")
    parser.add_argument("--rate", type=int, default=12, help="contact-centre events per second (default: 12)")
    parser.add_argument("--seed", type=int, help="repeat the traffic of this seed (default: random)")
    parser.add_argument("--once", action="store_true", help="stop the service after the traffic")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the service, too
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # also in a pipe
    with TemporaryDirectory(prefix="oncegate-demo-") as name:
        folder = Path(name)
        for file in FILES:
            shutil.copy(Path(__file__).with_name(file), folder)
        try:
            with service(folder) as (process, url, token):
                show(folder, process, url, token, given)
        except KeyboardInterrupt:
            print("\nThe service is stopped, and its files are deleted.")


@contextmanager
def service(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    """Run `oncegate serve` in the folder. Yields the process, the URL and the token of the console. The settings of the
    user's environment do not apply to the demo."""
    token = secrets.token_urlsafe(12)
    env = {name: value for name, value in os.environ.items() if not name.startswith("ONCEGATE_")}
    with (folder / "log.jsonl").open("wb") as log, (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "oncegate", "serve"],
            cwd=folder,
            env={**env, "ONCEGATE_CONSOLE_TOKEN": token},
            stdout=log,
            stderr=errors,
        )
    try:
        while not (found := STARTED.search((folder / "errors").read_text())):
            if process.poll() is not None:
                stop((folder / "errors").read_text())
            time.sleep(0.05)
        yield process, found[1], token
    finally:
        process.terminate()
        process.wait()


def show(folder: Path, process: subprocess.Popen[bytes], url: str, token: str, given: argparse.Namespace) -> None:
    print(f"Console  {url}/console")
    print(f"Token    {token}\n")
    print(f"The demo sends events for {given.seconds} s: duplicates, conflicts, failures and a storm.")
    print("Ctrl-C stops the service and deletes its files.\n")
    with (folder / "log.jsonl").open("rb") as file:
        log = Log(file)
        send(folder, url, given, log)
        drain(log)
    print("\nEach event of the contact centre must take effect once. `oncegate verify` says:")
    verify = [sys.executable, "-m", "oncegate", "verify", "--truth", "truth.jsonl", "--effects", "effects.jsonl"]
    code = subprocess.run(verify, cwd=folder, check=False).returncode  # noqa: S603  # ourselves
    (folder / "repaired").touch()
    if given.once:
        sys.exit(code)
    print("\nThe CRM now has the customers that were unknown: redrive their dead letters.")
    print("The service runs until Ctrl-C.\n")
    print(f"Console  {url}/console")
    print(f"Token    {token}")
    process.wait()


# ── traffic ───────────────────────────────────────────────────────────────────────────────────────────────────


def send(folder: Path, url: str, given: argparse.Namespace, log: "Log") -> None:
    """Send all traffic, and print the progress."""
    seconds, rate = given.seconds, given.rate
    command = [sys.executable, "-m", "oncegate", "simulate", "--to", f"{url}/events/contact-centre"]
    # Simulated time passes faster than real time: calls last for minutes. No event may be in the future.
    start = datetime.now(UTC) - timedelta(seconds=60 + 0.3 * rate * seconds)
    command += ["--truth", "truth.jsonl", "--events", str(rate * seconds), "--rate", str(rate)]
    command += ["--start", start.isoformat(timespec="seconds")]
    command += [] if given.seed is None else ["--seed", str(given.seed)]
    done = threading.Event()
    own = threading.Thread(target=send_invoices, args=(url, seconds, done))
    begun = time.monotonic()
    own.start()
    with (folder / "simulate").open("wb") as output:
        simulation = subprocess.Popen([*command, *SHARES], cwd=folder, stdout=output, stderr=output)  # noqa: S603
    try:
        while simulation.poll() is None:
            done.wait(min(STEP, max(0.1, seconds / 4)))
            print(f"{time.monotonic() - begun:4.0f} s  {log.summary()}")
    finally:
        done.set()
        simulation.terminate()
        simulation.wait()
        own.join()


def send_invoices(url: str, seconds: float, done: threading.Event) -> None:
    """Send invoices: most of them are written, some become dead letters, one arrives hundreds of times."""
    steps = 20
    with httpx2.Client(base_url=url, timeout=30, trust_env=False) as client:
        for number in range(steps):
            for invoice in invoices(number, steps):
                client.post("/events/invoices", json=invoice)
            client.post("/events/contact-centre", json=HEARTBEAT)
            if done.wait(seconds / steps):
                return


def invoices(number: int, steps: int) -> Iterator[dict[str, Any]]:
    invoice = {"id": f"{1000 + number}", "type": "invoice.due", "amount": 10 * number, "customer": f"c-{number % 7}"}
    yield invoice
    yield invoice  # a duplicate
    if number % 4 == 1:
        yield {**invoice, "id": f"{2000 + number}", "customer": f"unknown-{number}"}
    if number % 6 == 2:
        yield {"id": f"{3000 + number}", "type": "invoice.due", "amount": 0}
    if number % 5 == 3:
        yield {**invoice, "amount": 99}  # a conflict
    if number % 9 == 4:
        yield {**invoice, "id": f"{4000 + number}", "type": "invoice.batch", "slow": True}
    if number == steps // 2:
        yield from [{**invoice, "id": "5000", "type": "invoice.paid"}] * 300  # a storm
    if number == steps - 1:
        yield {**invoice, "id": "2001", "amount": 10, "customer": "unknown-1"}  # already a dead letter


# ── progress ──────────────────────────────────────────────────────────────────────────────────────────────────


class Log:
    """Counts the statuses in the log of the service. `waiting` has the events that are accepted and not settled."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._rest = b""  # the start of a line that the service has not written completely
        self._counts: Counter[str] = Counter()
        self.waiting: set[str] = set()

    def read(self) -> None:
        """Read the lines that are new."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            event = json.loads(line)
            self._counts[event["status"]] += 1
            if event["status"] == "accepted":
                self.waiting.add(event["key"])
            elif event["status"] in ("processed", "buried"):
                self.waiting.discard(event["key"])

    def summary(self) -> str:
        self.read()
        return "  ".join(f"{self._counts[status]:4} {status}" for status in SHOWN)


def drain(log: Log) -> None:
    """Wait until no event waits for its next attempt."""
    deadline = time.monotonic() + DRAIN
    while log.waiting and time.monotonic() < deadline:
        time.sleep(0.2)
        log.read()


def stop(text: str) -> NoReturn:
    sys.exit(f"The service did not start:\n{text}")


if __name__ == "__main__":
    main()
