"""Send simulated webhooks through a message bus, and kill every part on the way. Each event takes effect once.

    oncegate simulate ──▶ oncegate serve ──▶ bus ──▶ oncegate work ──▶ Postgres

Everything runs in a temporary folder on this machine, on free ports. At the end, `oncegate verify` compares the effects
in Postgres with the events that were sent.
"""

import argparse
import json
import math
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from cases import TABLES
from parts import Bus, MockKafka, Nats, Part, RabbitQueue, free_port, is_listening, postgres

BUSES: dict[str, Callable[[Path], Bus]] = {"nats": Nats, "kafka": MockKafka}
SHARES = ("--echo", "0.05", "--conflict", "0.03", "--invalid", "0.02")
SETTINGS = """
key = 'first(state_change("500ms"), auto)'  # a state change and its echo, within 500 ms, are one event
lease = "3s"  # the claims of a killed process end soon
[serve]
signature = "none"  # the service listens on 127.0.0.1 only
[work]
visibility = "3s"
"""
START_WITHIN = 30.0  # seconds


class Verdict(NamedTuple):
    """What took effect. `verified` is the exit code of `oncegate verify`, 0 if each event took effect once. `repeats`
    counts attempts whose effect was committed before."""

    verified: int
    effects: int
    repeats: int
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description="Webhooks, a message bus, a worker and Postgres, with kills.")
    parser.add_argument(
        "bus",
        nargs="?",
        type=bus_of,
        default="nats",
        help="nats (the default), kafka, or the URL of a queue on your RabbitMQ server, amqp://HOST/QUEUE",
    )
    parser.add_argument("--events", type=positive, default=2_000, help="number of events (default: 2000)")
    parser.add_argument("--rate", type=positive, default=200, help="events per second (default: 200)")
    parser.add_argument(
        "--parallel",
        type=positive,
        default=1,
        help="webhooks sent at a time; more than one changes the order (default: 1)",
    )
    parser.add_argument("--kills", type=not_negative, default=2, help="how often each part is killed (default: 2)")
    parser.add_argument(
        "--mode",
        choices=("lease", "mark_first"),
        default="lease",
        help="the mode of the worker; with mark_first, a kill loses events (default: lease)",
    )
    parser.add_argument(
        "--patience", type=positive, default=60, help="seconds without a new effect before it gives up (default: 60)"
    )
    parser.add_argument("--seed", type=int, default=1, help="the traffic and the times of the kills (default: 1)")
    given = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # also in a pipe
    with temporary_folder() as folder:
        sys.exit(run(folder, given.bus, given).verified)


def bus_of(text: str) -> Callable[[Path], Bus]:
    if text in BUSES:
        return BUSES[text]
    if re.fullmatch("amqp://[^/]+/[^/?]+", text):
        return lambda _folder: RabbitQueue(text)
    raise argparse.ArgumentTypeError(f"{text!r} must be nats, kafka or a URL such as amqp://127.0.0.1/events")


def positive(text: str) -> int:
    if (number := not_negative(text)) == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def not_negative(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 0 or more")
    return int(text)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that other users may enter: root runs Postgres as `nobody`."""
    with tempfile.TemporaryDirectory(prefix="oncegate-bus-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def run(folder: Path, open_bus: Callable[[Path], Bus], given: argparse.Namespace) -> Verdict:
    """Send the traffic through the bus, with kills, and compare the effects with it."""
    begun = time.monotonic()
    for name in ("postgres", "bus"):
        (folder / name).mkdir()
    shutil.copy(Path(__file__).with_name("cases.py"), folder)
    (folder / "oncegate.toml").write_text(SETTINGS)
    with ExitStack() as stack:
        database, url = postgres(folder / "postgres")
        bus = open_bus(folder / "bus")
        stack.callback(database.stop)
        stack.callback(bus.stop)
        database.start()
        bus.start()
        with connected(url) as db:
            db.execute(TABLES)
        port = free_port()
        env = {"DATABASE_URL": url, "ONCEGATE_STORE": url}
        oncegate = [sys.executable, "-m", "oncegate"]
        serve = [*oncegate, "serve", "--port", str(port), "--publish", bus.publish]
        service = Part("serve", serve, folder, lambda: is_listening(port), env=env)
        work = [*oncegate, "work", bus.source, "--handler", "cases:record_event", "--mode", given.mode]
        work += ["--namespace", "cases"]  # service and worker share the database, but not the inbox
        worker = Part("work", work, folder, lambda: True, env=env)
        for part in (service, worker):
            stack.callback(part.stop)
            part.start()
        send(folder, port, [service, worker, *bus.parts, database], given)
        wait_for_effects(url, given, worker)
        for part in (service, worker):
            part.stop()
        return verdict(folder, url, begun)


# ── traffic and kills ─────────────────────────────────────────────────────────────────────────────────────────


def send(folder: Path, port: int, parts: list[Part], given: argparse.Namespace) -> None:
    """Send the traffic, and kill the parts one after the other meanwhile. The simulator repeats a delivery that was not
    accepted, as a contact centre does."""
    command = [sys.executable, "-m", "oncegate", "simulate", "--to", f"http://127.0.0.1:{port}/events"]
    command += ["--events", str(given.events), "--rate", str(given.rate), "--seed", str(given.seed), *SHARES]
    command += ["--truth", "truth.jsonl", "--parallel", str(given.parallel), "--patience", "2m", "--output", "json"]
    print(f"{given.events} events. Killed {given.kills} times each: {', '.join(part.name for part in parts)}.")
    with (folder / "simulate.json").open("wb") as output:
        simulation = subprocess.Popen(command, cwd=folder, stdout=output)  # noqa: S603  # ourselves
    try:
        kill(parts, Traffic(folder / "truth.jsonl", simulation), given)
        code = simulation.wait()
    finally:
        simulation.kill()
        simulation.wait()
    if code:
        raise SystemExit(f"oncegate simulate exited with {code}: {(folder / 'simulate.json').read_text()[-2_000:]}")


def kill(parts: list[Part], traffic: "Traffic", given: argparse.Namespace) -> None:
    """Kill each part at random times, spread evenly over the traffic."""
    chance = random.Random(given.seed)  # noqa: S311  # must be repeatable
    turns = [(number, part) for number in range(1, given.kills + 1) for part in chance.sample(parts, len(parts))]
    for turn, (number, part) in enumerate(turns):
        traffic.wait_for(given.events * (turn + chance.uniform(0.1, 0.9)) / len(turns), parts)
        part.crash()
        print(f"  killed and started again: {part.name} ({number} of {given.kills})")
    traffic.wait_for(math.inf, parts)


class Traffic:
    """How far the simulator is. It writes a line to the truth file for each event that it sends, and for each delivery
    that was answered."""

    def __init__(self, truth: Path, simulation: subprocess.Popen[bytes]) -> None:
        self._truth = truth
        self._simulation = simulation
        self._read = self._events = self._deliveries = 0

    def wait_for(self, events: float, parts: list[Part]) -> None:
        """Wait until this many events were sent and the service has answered, or until the simulator has ended.
        Meanwhile, parts that have exited are started again."""
        while self._simulation.poll() is None:
            for part in parts:
                part.revive()
            self._count()
            if self._events >= events and self._deliveries:
                return
            time.sleep(0.05)

    def _count(self) -> None:
        if not self._truth.exists():
            return
        with self._truth.open("rb") as file:
            file.seek(self._read)
            written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._read += len(whole)
        self._events += whole.count(b'{"line":"event"')
        self._deliveries += whole.count(b'{"line":"delivery"')


# ── the verdict ───────────────────────────────────────────────────────────────────────────────────────────────


def wait_for_effects(url: str, given: argparse.Namespace, worker: Part) -> None:
    """Wait until every event has its effect, or until there was no new effect for a long time."""
    seen, since = -1, time.monotonic()
    while seen < given.events and time.monotonic() - since < given.patience:
        worker.revive()
        ((count,),) = query(url, "SELECT count(*) FROM effects")
        if count != seen:
            seen, since = count, time.monotonic()
            print(f"  {seen} of {given.events} effects")
        time.sleep(1)


def verdict(folder: Path, url: str, begun: float) -> Verdict:
    # An event that waited for Postgres in the store of the worker has no published key any more.
    rows = query(url, "SELECT coalesce(published_key, key), type, entity FROM effects ORDER BY number")
    ((counted,),) = query(url, "SELECT coalesce(sum(events), 0) FROM cases")
    ((repeats,),) = query(url, "SELECT count(*) FROM repeats")
    lines = (json.dumps({"key": key, "type": kind, "entity": entity}) for key, kind, entity in rows)
    (folder / "effects.jsonl").write_text("\n".join(lines) + "\n")
    changed_nothing = f"{repeats} later {'attempt' if repeats == 1 else 'attempts'} changed nothing."
    print(
        f"{counted} effects are committed.",
        changed_nothing if repeats else "No event was attempted again after its effect.",
    )
    command = [sys.executable, "-m", "oncegate", "verify", "--truth", "truth.jsonl", "--effects", "effects.jsonl"]
    code = subprocess.run(command, cwd=folder, check=False).returncode  # noqa: S603  # ourselves
    return Verdict(code if counted == len(rows) else 1, counted, repeats, time.monotonic() - begun)


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    with connected(url) as db:
        return db.execute(statement.encode()).fetchall()


def connected(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection. Postgres may need some seconds after its start."""
    deadline = time.monotonic() + START_WITHIN
    while True:
        try:
            return psycopg.connect(url)
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    main()
