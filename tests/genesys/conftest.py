"""A fake of Genesys Cloud, and the commands that use it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncegate.genesys.client import ClientCredentials, GenesysClient
from oncegate.genesys.notifications import ListenTimes
from oncegate.genesys.regions import place_of
from tests.cli.conftest import Run, oncegate
from tests.genesys.listening import PRESENCE, QUICK, Listening
from tests.genesys.server import CLIENT_ID, SECRET, FakeGenesys, running
from tests.stores.servers import until

__all__ = ["oncegate"]

Genesys = Callable[..., tuple[int, str, str]]
Listen = Callable[..., Listening]


@pytest.fixture
def fake() -> Iterator[FakeGenesys]:
    with running() as fake:
        yield fake


@pytest.fixture
def waits() -> list[float]:
    """The pauses of the client, which does not wait."""
    return []


@pytest.fixture
def client(fake: FakeGenesys, waits: list[float]) -> Iterator[GenesysClient]:
    client = GenesysClient(place_of("", fake.address), ClientCredentials(CLIENT_ID, SECRET), sleep=waits.append)
    yield client
    client.close()


@pytest.fixture
def genesys(oncegate: Run, fake: FakeGenesys, monkeypatch: pytest.MonkeyPatch) -> Genesys:
    """Run `oncegate genesys …` against the fake. The settings come from the environment."""
    for name, value in settings_of(fake).items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str) -> tuple[int, str, str]:
        return oncegate("genesys", *arguments)

    return call


@pytest.fixture
def listen(fake: FakeGenesys, tmp_path: Path) -> Iterator[Listen]:
    """Start a listener, and wait until it receives."""
    started: list[Listening] = []

    def start(*topics: str, times: ListenTimes = QUICK, waits: bool = True) -> Listening:
        listening = Listening(fake, tmp_path, list(topics or (PRESENCE,)), times)
        started.append(listening)
        listening.start()
        if waits:
            until(lambda: bool(fake.connected), "the channel to be subscribed")
        return listening

    yield start
    for listening in started:
        listening.stop()


def settings_of(fake: FakeGenesys) -> dict[str, str]:
    return {
        "ONCEGATE_GENESYS_ENDPOINT": fake.address,
        "ONCEGATE_GENESYS_CLIENT_ID": CLIENT_ID,
        "ONCEGATE_GENESYS_CLIENT_SECRET": SECRET,
    }
