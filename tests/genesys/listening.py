"""A listener that runs in a test."""

import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from oncegate import Event, Gate
from oncegate.genesys.client import ClientCredentials, GenesysClient
from oncegate.genesys.listener import AliveMark, NotificationWorker
from oncegate.genesys.notifications import ListenTimes, NotificationApi
from oncegate.genesys.regions import place_of
from oncegate.journal import GAP, GapLog, Row, RowFilter, open_journal
from oncegate.sources import read
from oncegate.stores import open_store
from tests.genesys.server import CLIENT_ID, SECRET, FakeGenesys
from tests.stores.servers import until

USER = "8b0cd5f1-5a3f-4e57-9c11-a1f05f1a3a11"
PRESENCE = f"v2.users.{USER}.presence"
MEMBERS = f"v2.routing.queues.{USER}.users"
QUICK = ListenTimes(lifetime=60, renew_before=10, overlap=0.2, ping_every=0.1, silence=5, pong=1, mark_every=0.05)


def presence(number: int) -> dict[str, Any]:
    """The body of a presence event, each with its own time."""
    at = f"2026-02-03T04:05:06.{number:03}Z"
    return {"source": "PURECLOUD", "presenceDefinition": {"id": f"p{number}"}, "modifiedDate": at}


class Listening:
    """A listener in a thread, what its handler was called with, and its gaps."""

    def __init__(self, fake: FakeGenesys, folder: Path, topics: list[str], times: ListenTimes = QUICK) -> None:
        with ExitStack() as stack:  # closes what is open, if the worker is refused
            self.handled: list[Event] = []
            self.folder = folder
            self.journal = f"sqlite:///{folder}/journal.db"
            client = GenesysClient(place_of("", fake.address), ClientCredentials(CLIENT_ID, SECRET))
            stack.enter_context(closing(client))
            self.store = stack.enter_context(closing(open_store(f"sqlite:///{folder}/store.db")))
            self.gate = stack.enter_context(closing(Gate(self.store, remember=None, breaker=None)))
            gaps = GapLog(lambda: open_journal(self.journal), "genesys", "default")
            stack.enter_context(closing(gaps))
            self.worker = NotificationWorker(
                self.gate,
                self.gate.inbox(self.handle, look="50ms"),
                NotificationApi(client, times),
                topics,
                read=read,
                mark=AliveMark(self.store, "default", "fake", topics),
                gaps=gaps,
                times=times,
                drain=5.0,
            )
            self._stack = stack.pop_all()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:  # noqa: BLE001  # the test looks at it
            self.error = error

    def handle(self, event: Event) -> None:
        self.handled.append(event)

    def start(self) -> "Listening":
        self._thread.start()
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self.worker.stop()
        self.join()

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._stack.close()

    @property
    def gaps(self) -> list[Row]:
        """The gaps in the journal, oldest first."""
        if not self.folder.joinpath("journal.db").exists():  # nothing was written yet
            return []
        with closing(open_journal(self.journal)) as journal:
            return journal.rows(RowFilter(status=GAP), limit=100)[::-1]


def handled(listening: Listening, count: int) -> None:
    until(lambda: len(listening.handled) >= count, f"{count} events to be handled")
    assert len(listening.handled) == count


def until_replaced(fake: FakeGenesys) -> None:
    """Wait until the first channel is closed, and another one is read."""
    first = next(iter(fake.channels.values()))
    until(lambda: first.socket is None and len(fake.connected) == 1, "the first channel to be replaced")
