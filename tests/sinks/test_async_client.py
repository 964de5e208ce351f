"""An asyncio client in plain handlers."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from oncegate.sinks.async_client import AsyncClient


class Client:
    """A client that is slow to connect."""

    def __init__(self) -> None:
        self.is_open = True

    async def disconnect(self) -> None:
        self.is_open = False


class Clients:
    def __init__(self) -> None:
        self.made: list[Client] = []

    async def connect(self) -> Client:
        await asyncio.sleep(0.05)
        self.made.append(Client())
        return self.made[-1]

    def opened(self) -> AsyncClient[Client]:
        return AsyncClient("test-client", self.connect, lambda client: client.is_open, Client.disconnect)


async def itself(client: Client) -> Client:
    return client


def test_one_client_for_all_threads() -> None:
    """Threads that call at once share one client, and close ends it with its thread."""
    clients = Clients()
    with closing(clients.opened()) as client, ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: client.call(itself, 5), range(8)))
        assert found == clients.made * 8
    assert not clients.made[0].is_open
    assert not [thread for thread in threading.enumerate() if thread.name == "test-client"]


def test_a_client_that_has_ended_is_replaced() -> None:
    """The next call after the end of a client connects again; so does a call after close."""
    clients = Clients()
    with closing(clients.opened()) as client:
        client.call(Client.disconnect, 5)
        assert client.call(itself, 5) is clients.made[1]
        client.close()
        assert client.call(itself, 5) is clients.made[2]


def test_a_call_that_takes_too_long() -> None:
    """A call ends with TimeoutError, and what it waited for is cancelled."""
    cancelled = threading.Event()

    async def wait(_client: Client) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with closing(Clients().opened()) as client:
        with pytest.raises(TimeoutError):
            client.call(wait, 0.3)
        assert cancelled.wait(5)


def test_errors_reach_the_caller() -> None:
    async def fail(_client: Client) -> None:
        raise ConnectionResetError("gone")

    with closing(Clients().opened()) as client, pytest.raises(ConnectionResetError, match="gone"):
        client.call(fail, 5)
