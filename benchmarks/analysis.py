"""`oncegate analyze`: time, processor time and memory for a large recording, and whether its counts are exact."""

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.measure import Sizes
from benchmarks.progress import Progress
from benchmarks.report import Aim, Row

# The figures that a recording of a million deliveries must meet on two processors.
DELIVERIES: Final = 1_000_000
MOST_SECONDS: Final = 60.0
MOST_MEGABYTES: Final = 512.0
_START: Final = 1_767_603_600_000
_TOPICS: Final = ("customer.start", "acd.start", "acd.end", "user.start", "attributes", "attributes")
_NOTES: Final = "x" * 690  # so that a delivery has about 1.5 kB


def write_recording(path: Path, deliveries: int) -> dict[str, int]:
    """Write a recording, and return what the analysis must count. Of ten deliveries, six are new events, two are
    redeliveries, one is a re-emission in a new envelope, and one is an echo with another event time. The six events are
    one conversation; two of them are updates of attributes in the same millisecond."""
    counts = {"certain_copies": 0, "inferred_copies": 0}
    with path.open("wb", buffering=1024 * 1024) as stream:
        for number, (kind, line) in enumerate(_lines(Random(1))):
            if number == deliveries:
                break
            if kind is not None:
                counts[kind] += 1
            stream.write(line)
    return counts


def _lines(random: Random) -> Iterator[tuple[str | None, bytes]]:
    for number in count():
        group = [_event(random, number, place, topic) for place, topic in enumerate(_TOPICS)]
        for event in group:
            yield None, event()
        yield "certain_copies", group[0]()
        yield "certain_copies", group[1]()
        yield "certain_copies", group[3](is_new=True)
        yield "inferred_copies", group[2](is_new=True, later=120)


def _event(random: Random, number: int, place: int, topic: str) -> Callable[..., bytes]:
    """Makes the deliveries of an event: with `is_new` in a new envelope, and `later` milliseconds later."""
    name = f"{number:08x}-5e1f-4a52-9c1e-4f579a6e0c2b"
    at = _START + number * 40 + min(place, 4) * 1_000
    envelope_id = f"{random.getrandbits(128):032x}"
    state = '"disconnectType":"PEER",' if topic == "acd.end" else ""

    def line(*, is_new: bool = False, later: int = 0) -> bytes:
        told = f"{random.getrandbits(128):032x}" if is_new else envelope_id
        body = (
            f'{{"eventTime":{at + later},"conversationId":"{name}","participantId":"p{number}","sessionId":"s{number}",'
            f'{state}"mediaType":"VOICE","provider":"Edge","direction":"INBOUND","ani":"tel:+15550100",'
            f'"dnis":"tel:+15550199","wrapupNotes":"{_NOTES}","update":{place}}}'
        )
        kind = f"v2.detail.events.conversation.{{id}}.{topic}"
        return (
            f'{{"version":"0","id":"{told}","detail-type":"{kind}","source":"aws.partner/genesys.com/cloud/bench",'
            f'"account":"123456789012","time":"2026-01-05T09:00:00Z","region":"eu-central-1","resources":[],"detail":'
            f'{{"topicName":"v2.detail.events.conversation.{name}.{topic}","version":"2","eventBody":{body},'
            f'"metadata":{{"CorrelationId":"{told}"}},"timestamp":"2026-01-05T09:00:00.260Z"}}}}\n'
        ).encode()

    return line


def analyzed(path: Path) -> tuple[dict[str, Any], float, float, float]:
    """Analyze a recording in processes of its own. Returns the answer, the seconds, the seconds of processor time, and
    the largest resident memory of all processes together, in megabytes."""
    command = [sys.executable, "-m", "oncegate", "analyze", str(path), "--output", "json"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=path.parent, env={**os.environ, "TMPDIR": str(path.parent)}
    ) as run:
        watched = _Watched(run.pid)
        answer = run.stdout.read() if run.stdout is not None else b""
    watched.stop()
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(answer), seconds, used, watched.largest / 1e6


class _Watched:
    """Adds up the resident memory of a process and its children, twenty times a second. Pages that processes share
    count once for each process, so the sum is rather too large."""

    def __init__(self, pid: int) -> None:
        self.largest = 0.0
        self._pid, self._is_over = pid, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_over.wait(0.05):
            self.largest = max(self.largest, sum(map(_resident, _family(self._pid))))

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(each for child in children for each in _family(int(child)))]


def _resident(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0.0


def rows(sizes: Sizes, folder: Path, progress: Progress) -> list[Row]:
    """The time and the memory of a recording, and the memory of a recording with a tenth of its deliveries."""
    deliveries = sizes.analyzed_deliveries
    progress.stage(f"analysis of {deliveries:,} deliveries")
    large, small = _measured(folder, deliveries), _measured(folder, deliveries // 10)
    is_full = deliveries == DELIVERIES
    return [
        Row(
            f"analyze, {deliveries:,} deliveries of 1.5 kB (processor time {large[1]:.0f} s)",
            "s",
            large[0],
            MOST_SECONDS,
            "limit",
            large[0] / MOST_SECONDS,
            Aim("at most", MOST_SECONDS, on="ours") if is_full else None,
        ),
        Row(
            f"analyze, resident memory of all processes; a tenth is {deliveries // 10:,} deliveries",
            "MB",
            large[2],
            small[2],
            "a tenth:",
            large[2] / small[2],
            Aim("at most", MOST_MEGABYTES, on="ours") if deliveries >= DELIVERIES else None,
        ),
    ]


def _measured(folder: Path, count: int) -> tuple[float, float, float]:
    path = folder / f"recording-{count}.jsonl"
    expected = write_recording(path, count)
    answer, *figures = analyzed(path)
    path.unlink()
    found = {name: answer[name] for name in expected}
    if found != expected or answer["deliveries"] != count:
        sys.exit(f"the analysis of {count:,} deliveries counted {found}, not {expected}")
    return figures[0], figures[1], figures[2]
