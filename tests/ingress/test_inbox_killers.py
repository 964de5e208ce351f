"""Events that kill their process, among others that do not: only the killers are buried."""

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import pytest
from msgspec import Struct

from oncegate import Gate

WORKER = dedent("""
    import os, sys, time
    from oncegate import Gate

    url, effects, lease, attempts, pause = sys.argv[1:6]
    gate = Gate(url, lease=lease, max_attempts=int(attempts), backoff="10ms", backoff_limit="50ms")

    def handler(event):
        time.sleep(float(pause) / 2)
        if event.body["kills"]:
            os.kill(os.getpid(), 9)
        time.sleep(float(pause) / 2)
        with open(effects, "a") as file:
            file.write(f"{event.id}\\n")

    gate.inbox(handler, look="20ms").run()
""")


class Result(Struct):
    """The results for innocent events and for killers."""

    deaths: int
    buried_innocents: list[str | None]
    buried_killers: int
    effects: set[str]
    errors: set[str | None]
    seconds: float


def run_all(
    folder: Path, innocents: int, killers: int, *, pause: float, lease: str, attempts: int, within: float
) -> Result:
    """Admit all events, and start a new worker whenever one dies, until no event is left."""
    url, effects = f"sqlite:///{folder}/inbox.db", folder / "effects"
    effects.touch()
    command = [sys.executable, "-c", WORKER, url, str(effects), lease, str(attempts), str(pause)]
    begun, deaths = time.monotonic(), 0
    with closing(Gate(url)) as gate:
        names = [(f"good-{number}", False) for number in range(innocents)]
        step = max(1, innocents // killers)
        for number in range(killers):
            names.insert(number * (step + 1), (f"bad-{number}", True))
        gate.admit([{"id": name, "conversationId": name, "kills": kills} for name, kills in names])
        worker = subprocess.Popen(command, env=os.environ)
        try:
            while gate.store.kept("default"):  # type: ignore[attr-defined]
                assert time.monotonic() - begun < within
                time.sleep(0.02)
                if worker.poll() is not None:
                    deaths += 1
                    worker = subprocess.Popen(command, env=os.environ)
        finally:
            worker.kill()
            worker.wait()
        letters = gate.store.dead_letters(limit=1_000)
    buried = [entry.record.about.delivery_id for entry in letters]
    return Result(
        deaths,
        [name for name in buried if name is not None and name.startswith("good")],
        len([name for name in buried if name is not None and name.startswith("bad")]),
        set(effects.read_text().split()),
        {entry.record.error for entry in letters},
        time.monotonic() - begun,
    )


@pytest.mark.parametrize(
    ("innocents", "killers", "pause", "attempts"),
    [(6, 2, 0.05, 2), pytest.param(60, 5, 2.0, 5, marks=[pytest.mark.long, pytest.mark.timeout(700)])],
)
def test_no_innocent_is_buried(tmp_path: Path, innocents: int, killers: int, pause: float, attempts: int) -> None:
    """Every killer is buried after it died alone `max_attempts` times, and every innocent event runs."""
    found = run_all(tmp_path, innocents, killers, pause=pause, lease="500ms", attempts=attempts, within=600)
    assert (found.buried_innocents, found.buried_killers) == ([], killers)
    assert found.effects == {f"good-{number}" for number in range(innocents)}
    assert found.errors == {
        f"its worker died, or was stopped for longer than its lease, {attempts} times while it ran alone"
    }
