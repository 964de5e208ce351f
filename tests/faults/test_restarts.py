"""Servers that are killed and started again while workers run."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import grounds
from tests.faults.grounds import Ground
from tests.faults.restarts import restart
from tests.kills.worker import Way

_FORGOTTEN = ("neither completed nor buried", "it was ended under 2 claims")


@pytest.mark.parametrize("way", ["run", "transaction"])
def test_postgres(ground_of: Callable[[str], Ground], way: Way, seed: int) -> None:
    """After an immediate stop of Postgres, work continues on its own. Acknowledged events have their effect, once."""
    run = restart(ground_of("postgres"), way, 2, seed)
    assert run.complaints == []
    assert run.history.unanswered > 0, "nobody asked while the server was away: nothing was tested"


def test_redis(seed: int) -> None:
    """The same after Redis was killed: with appendfsync always it keeps everything that it answered. The circuit
    breaker closes again."""
    with grounds.redis("--appendfsync", "always") as ground:
        assert restart(ground, "run", 2, seed).complaints == []
        assert restart(ground, "run", 1, seed, breaker="50ms").complaints == []


def test_a_server_that_forgets_is_caught(seed: int) -> None:
    """A Redis server that restarts without its file has lost acknowledged events, and redeliveries run again."""
    with grounds.redis() as ground:
        run = restart(ground, "run", 1, seed, meanwhile=lambda: _forget(ground))
        assert any(sign in complaint for sign in _FORGOTTEN for complaint in run.complaints)


def _forget(ground: Ground) -> None:
    assert isinstance(ground.folder, Path)
    shutil.rmtree(ground.folder / "appendonlydir")
