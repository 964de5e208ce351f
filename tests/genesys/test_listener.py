"""The notification WebSocket as an ingress: channels, heartbeats, replacement, gaps, outages of the store, and stop."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from oncegate import Event, Gate
from oncegate.errors import QueueError, SettingError, StoreUnavailable
from oncegate.genesys.client import ClientCredentials, GenesysClient
from oncegate.genesys.listener import AliveMark, ArrivalTimes, Frame, NotificationWorker
from oncegate.genesys.notifications import ListenTimes, NotificationApi
from oncegate.genesys.regions import place_of
from oncegate.journal import GAP, GapLog, Row, RowFilter, open_journal
from oncegate.sources import read
from oncegate.stores import open_store
from tests.genesys.server import CLIENT_ID, SECRET, FakeGenesys, problem
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
        self._stack = ExitStack()
        self.handled: list[Event] = []
        self.journal = f"sqlite:///{folder}/journal.db"
        client = GenesysClient(place_of("", fake.address), ClientCredentials(CLIENT_ID, SECRET))
        self._stack.enter_context(closing(client))
        self.store = self._stack.enter_context(closing(open_store(f"sqlite:///{folder}/store.db")))
        self.gate = self._stack.enter_context(closing(Gate(self.store, remember=None, breaker=None)))
        gaps = GapLog(lambda: open_journal(self.journal), "genesys", "default")
        self._stack.enter_context(closing(gaps))
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
        try:
            with closing(open_journal(self.journal, create=False)) as journal:
                return journal.rows(RowFilter(status=GAP), limit=100)[::-1]
        except Exception:  # noqa: BLE001  # nothing was written yet
            return []


@pytest.fixture
def listen(fake: FakeGenesys, tmp_path: Path) -> Iterator[Callable[..., Listening]]:
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


def handled(listening: Listening, count: int) -> None:
    until(lambda: len(listening.handled) >= count, f"{count} events to be handled")
    assert len(listening.handled) == count


def until_replaced(fake: FakeGenesys) -> None:
    """Wait until the first channel is closed, and another one is read."""
    first = next(iter(fake.channels.values()))
    until(lambda: first.socket is None and len(fake.connected) == 1, "the first channel to be replaced")


class TestReceiving:
    def test_an_event(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """An event of a topic runs once. A heartbeat is not an event. A clean stop leaves no subscription behind."""
        fake.heartbeat = 0.05
        listening = listen()
        fake.publish(PRESENCE, presence(1))
        handled(listening, 1)
        assert (listening.handled[0].type, listening.handled[0].entity) == ("v2.users.{id}.presence", USER)
        until(lambda: listening.worker.figures.processed == 1, "the figures")
        figures = listening.worker.figures
        assert (figures.received, figures.processed, figures.duplicates) == (1, 1, 0)
        listening.stop()
        assert (fake.connected, listening.error, listening.gaps) == ([], None, [])

    def test_many_events(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """Frames that arrive together are admitted in batches, and each runs once."""
        listening = listen()
        for number in range(200):
            fake.publish(PRESENCE, presence(number))
        handled(listening, 200)

    def test_topics_of_several_channels(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """A channel has 1,000 topics, so 1,001 topics need two. Topics are subscribed in batches."""
        topics = [f"v2.users.{number}.presence" for number in range(1_001)]
        listening = listen(*topics, waits=False)
        until(lambda: sum(len(channel.topics) for channel in fake.connected) == 1_001, "all subscriptions")
        assert sorted(len(channel.topics) for channel in fake.connected) == [1, 1_000]
        fake.publish(topics[0], presence(1))
        fake.publish(topics[-1], presence(1))
        handled(listening, 2)
        assert fake.count("POST /api/v2/notifications/channels/{channelId}/subscriptions") == 4

    def test_a_frame_that_is_not_an_event(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """What cannot be read is kept as a dead letter, and the listener goes on. It also goes on after an event in an
        array, which Genesys does not send."""
        listening = listen()
        fake._in_loop(fake._send_all("not json"))
        fake._in_loop(fake._send_all(f'[{{"topicName": "{PRESENCE}", "eventBody": {{"id": "1"}}}}]'))
        handled(listening, 1)
        fake.publish(PRESENCE, presence(1))
        handled(listening, 2)
        until(lambda: len(listening.store.dead_letters()) == 1, "the dead letter")

    def test_too_many_topics(self, fake: FakeGenesys, tmp_path: Path) -> None:
        """More topics than the channels of an OAuth client can hold are refused at the start."""
        with pytest.raises(SettingError, match="10001 topics are too many; a listener can have 10000"):
            Listening(fake, tmp_path, [f"v2.users.{number}.presence" for number in range(10_001)])


class TestEventsWithoutATime:
    def test_the_same_content_again(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """Two frames with the same content on one channel are two events, if their body has no time."""
        listening = listen(MEMBERS)
        for joined in (True, False, True):
            fake.publish(MEMBERS, {"id": "u-1", "queueId": "q-1", "joined": joined})
        handled(listening, 3)

    def test_arrival_times(self) -> None:
        """The copy on another channel has the time of the first copy. A second frame of a channel is another event,
        and its copy belongs to it. What arrived before a channel was opened, or two seconds ago, has no copy on it."""
        times = ArrivalTimes()

        def of(content: bytes, channel: str, at: int, since: int = 0) -> int:
            return times.of(content, Frame(b"", channel, at, since))

        assert [of(b"x", channel, at) for channel, at in (("a", 1), ("b", 2), ("a", 3), ("a", 4))] == [1, 1, 3, 4]
        assert {of(b"x", "b", 5), of(b"x", "b", 6)} == {3, 4}
        assert [of(b"y", "b", 7), of(b"y", "b", 7)] == [7, 8]
        assert of(b"x", "c", 8, since=5) == 8
        assert of(b"x", "d", 3_000_000) == 3_000_000
        times.forget(9_000_000)
        assert times._seen == {}


class TestReplacement:
    def test_before_the_end(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """A channel is replaced before it ends. While both are read, each event arrives twice and runs once. No event
        is missed, and no gap is recorded."""
        fake.channel_life = 2.0
        times = ListenTimes(
            lifetime=60, renew_before=1.2, overlap=0.5, ping_every=0.2, silence=5, pong=1, mark_every=0.05
        )
        listening = listen(PRESENCE, MEMBERS, times=times)
        sent, copies = 0, 0
        ends = time.monotonic() + 3.2
        while time.monotonic() < ends:
            member = {"id": f"u-{sent % 120}", "joined": True}  # the same content again after more than two seconds
            copies += fake.publish(PRESENCE, presence(sent)) + fake.publish(MEMBERS, member) - 2
            sent += 1
            time.sleep(0.02)
        handled(listening, 2 * sent)
        assert (fake.lost, listening.gaps) == ([], [])
        assert fake.count("POST /api/v2/notifications/channels") >= 3
        # A frame that was sent to a channel while it was closed is not received.
        assert 10 < listening.worker.figures.duplicates <= copies

    def test_a_notice_of_maintenance(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """When Genesys announces that it closes the socket, the channel is replaced at once, without a gap."""
        listening = listen()
        fake.announce_closing()
        until_replaced(fake)
        assert len(fake.channels) == 2
        fake.publish(PRESENCE, presence(1))
        handled(listening, 1)
        assert listening.gaps == []

    def test_a_copy_that_is_admitted_later(
        self, fake: FakeGenesys, listen: Callable[..., Listening], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While both channels are read, an event without a time runs once, even if the store is slow."""
        monkeypatch.setattr("oncegate.genesys.listener._BATCH", 1)
        monkeypatch.setattr("oncegate.genesys.listener._SAME_WITHIN", 300_000)
        listening = listen(MEMBERS, times=replace(QUICK, overlap=1.0))
        kind: Any = type(listening.store)
        admit = kind.admit

        def slow(store: Any, events: Any) -> Any:
            time.sleep(0.5)
            return admit(store, events)

        fake.announce_closing()
        until(lambda: len(fake.connected) == 2, "the next channel")
        monkeypatch.setattr(kind, "admit", slow)
        assert fake.publish(MEMBERS, {"id": "u-1", "joined": True}) == 2
        until(lambda: listening.worker.figures.duplicates == 1, "the copy")
        handled(listening, 1)

    def test_the_next_channel_is_refused(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """While the next channel is refused, the old one is read. Each attempt uses the same channel."""
        listening = listen()
        subscribe = "PUT /api/v2/notifications/channels/{channelId}/subscriptions"
        fake.fail(re.escape(subscribe), *[problem(403, "denied", "not now")] * 2, problem(400, "bad", "not now"))
        fake.announce_closing()
        until(lambda: fake.count(subscribe) >= 2, "the first attempt")
        fake.publish(PRESENCE, presence(1))
        handled(listening, 1)
        until_replaced(fake)
        assert (fake.count("POST /api/v2/notifications/channels"), listening.error, listening.gaps) == (2, None, [])

    def test_a_channel_that_does_not_exist_any_more(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """If Genesys has removed the channel of an attempt, the next attempt makes another one."""
        listening = listen()
        subscribe = "PUT /api/v2/notifications/channels/{channelId}/subscriptions"
        fake.fail(re.escape(subscribe), problem(404, "not.found", "no such channel"))
        fake.announce_closing()
        until_replaced(fake)
        assert (len(fake.channels), listening.gaps) == (3, [])

    def test_the_next_channel_is_lost(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """If the next channel is lost while the old one is still read, the old one stays, and no event is missed."""
        listening = listen(times=replace(QUICK, overlap=0.6))
        fake.announce_closing()
        until(lambda: len(fake.connected) == 2, "the next channel")
        fake.drop(list(fake.channels)[-1])
        until(lambda: len(fake.connected) == 1, "the next channel to be lost")
        fake.publish(PRESENCE, presence(1))
        until_replaced(fake)
        fake.publish(PRESENCE, presence(2))
        handled(listening, 2)
        assert (fake.lost, listening.gaps) == ([], [])


class TestGaps:
    def test_a_socket_that_drops(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """If the socket is lost, the listener opens another channel. The journal has the time from the last frame to
        the new subscription, in which an event was lost."""
        listening = listen()
        fake.publish(PRESENCE, presence(1))
        handled(listening, 1)
        before = time.time_ns() // 1_000
        fake.drop()
        fake.publish(PRESENCE, presence(2))
        until(lambda: bool(listening.gaps), "the gap")
        (gap,) = listening.gaps
        assert (gap.status, gap.kind, gap.place, gap.source) == ("gap", "socket", "genesys", "genesys")
        assert (gap.since or 0) <= before <= gap.at
        assert "the notification socket was lost" in gap.reason
        assert fake.lost == [PRESENCE]
        fake.publish(PRESENCE, presence(3))
        handled(listening, 2)

    def test_a_kill_before_the_gap_is_recorded(
        self, fake: FakeGenesys, listen: Callable[..., Listening], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Until the gap is in the journal, the mark stays at its begin: after a kill, the next start records it."""
        listening = listen()
        until(lambda: bool(listening.worker._mark.read()), "the mark")
        record, marks = listening.worker._gaps.add, list[tuple[int, int]]()

        def add(kind: Any, since: int, until_: int, why: str) -> None:
            time.sleep(0.3)  # the mark is written every 50 ms
            marks.append((listening.worker._mark.read()[PRESENCE], since))
            record(kind, since, until_, why)

        monkeypatch.setattr(listening.worker._gaps, "add", add)
        fake.drop()
        until(lambda: bool(listening.gaps), "the gap")
        ((mark, since),) = marks
        assert mark <= since
        until(lambda: listening.worker._mark.read()[PRESENCE] > since, "the mark after the gap")

    def test_a_socket_that_is_silent(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """A socket without heartbeats and without an answer to a ping is lost, although it is open."""
        times = replace(QUICK, silence=0.3)
        listening = listen(times=times)
        fake.is_silent = True
        until(lambda: fake.count("POST /api/v2/notifications/channels") >= 2, "the next channel")
        fake.is_silent = False
        until(lambda: bool(listening.gaps), "the gap")
        assert "no frame and no answer to a ping for 0.3 s" in listening.gaps[0].reason

    def test_a_quiet_socket_is_asked(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """A socket without frames that answers a ping is kept."""
        times = replace(QUICK, silence=0.2)
        listening = listen(times=times)
        time.sleep(0.5)
        fake.publish(PRESENCE, presence(1))
        handled(listening, 1)
        assert (fake.count("POST /api/v2/notifications/channels"), listening.gaps) == (1, [])

    def test_genesys_is_away(
        self, fake: FakeGenesys, listen: Callable[..., Listening], caplog: pytest.LogCaptureFixture
    ) -> None:
        """While no channel can be opened, the listener retries. The outage is logged when it begins and when it ends,
        and the gap lasts until a channel is subscribed."""
        listening = listen()
        fake.fail("POST /api/v2/notifications/channels", problem(503, "down", "down"), problem(503, "down", "down"))
        fake.drop()
        until(lambda: bool(listening.gaps), "the gap")
        logged = [record.getMessage() for record in caplog.records]
        assert sum("no notification channel can be opened" in line for line in logged) == 1
        assert sum("notification channels can be opened again" in line for line in logged) == 1
        (gap,) = listening.gaps
        assert gap.at - (gap.since or 0) > 200_000

    def test_a_restart(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """The time in which no listener ran is a gap: from the last frame of the earlier run to the subscription."""
        first = listen()
        until(lambda: bool(first.worker._mark.read()), "the mark")
        first.stop()
        assert fake.publish(PRESENCE, presence(1)) == 0
        until(lambda: not fake.connected, "the first listener to end")
        again = listen()
        until(lambda: bool(again.gaps), "the gap")
        (gap,) = again.gaps
        assert (gap.kind, "did not run" in gap.reason, gap.at > (gap.since or 0)) == ("stopped", True, True)

    def test_a_restart_with_another_topic(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """A restart with more topics records the gap of those that were received before."""
        first = listen(PRESENCE)
        until(lambda: bool(first.worker._mark.read()), "the mark")
        first.stop()
        until(lambda: not fake.connected, "the first listener to end")
        again = listen(PRESENCE, MEMBERS)
        until(lambda: bool(again.gaps), "the gap")
        (gap,) = again.gaps
        assert (gap.kind, f"the listener of 1 of 2 topics ({PRESENCE}) did not run" in gap.reason) == ("stopped", True)

    def test_a_store_that_is_away_at_the_start(
        self, fake: FakeGenesys, listen: Callable[..., Listening], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The end of the last run is read before it is overwritten, even if the store does not answer at first."""
        first = listen()
        until(lambda: bool(first.worker._mark.read()), "the mark")
        first.stop()
        until(lambda: not fake.connected, "the first listener to end")
        failures = [StoreUnavailable("the disk is full")] * 2
        read_mark = AliveMark.read

        def failing(mark: AliveMark) -> dict[str, int]:
            if failures:
                raise failures.pop()
            return read_mark(mark)

        monkeypatch.setattr(AliveMark, "read", failing)
        again = listen()
        until(lambda: bool(again.gaps), "the gap")
        assert again.gaps[0].kind == "stopped"

    def test_a_topic_that_is_allowed_again(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """The time in which a topic was rejected is a gap. If the listener ends before, the next start records it."""
        listening = listen(PRESENCE, MEMBERS)
        until(lambda: len(listening.worker._mark.read()) == 2, "the mark")
        fake.rejected[PRESENCE] = "presence:user:view"
        fake.announce_closing()
        until(lambda: len(fake.connected) == 1 and fake.connected[0].topics == {MEMBERS}, "the next channel")
        time.sleep(0.3)  # the mark is written every 50 ms
        mark = listening.worker._mark.read()
        assert mark[MEMBERS] - mark[PRESENCE] > 100_000
        fake.rejected.clear()
        fake.announce_closing()
        until(lambda: bool(listening.gaps), "the gap")
        (gap,) = listening.gaps
        assert (gap.kind, f"rejected the topic {PRESENCE}" in gap.reason) == ("rejected", True)

    def test_the_first_start(self, listen: Callable[..., Listening]) -> None:
        """The first start with these topics has no gap."""
        listening = listen()
        until(lambda: bool(listening.worker._mark.read()), "the mark")
        assert listening.gaps == []


class TestStore:
    def test_the_store_is_away(
        self, fake: FakeGenesys, listen: Callable[..., Listening], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While the store does not answer, frames wait in memory. Then they are stored and run, and the journal has the
        time of the outage."""
        listening = listen()
        is_away = threading.Event()
        is_away.set()
        kind: Any = type(listening.store)
        admit = kind.admit

        def failing(store: Any, events: Any) -> Any:
            if is_away.is_set():
                raise StoreUnavailable("the disk is full")
            return admit(store, events)

        monkeypatch.setattr(kind, "admit", failing)
        for number in range(5):
            fake.publish(PRESENCE, presence(number))
        until(lambda: listening.worker._outage_since is not None, "the outage to be noticed")
        assert listening.handled == []
        is_away.clear()
        handled(listening, 5)
        until(lambda: bool(listening.gaps), "the gap")
        (gap,) = listening.gaps
        assert (gap.kind, "waited in memory" in gap.reason) == ("store", True)

    def test_a_socket_that_is_lost_meanwhile(
        self, fake: FakeGenesys, listen: Callable[..., Listening], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If so many frames wait that nothing is read, nobody knows when the socket was lost. The gap begins at the
        last answer to a ping, although frames of the lost socket are read later."""
        monkeypatch.setattr("oncegate.genesys.listener._MOST_WAITING", 2)
        monkeypatch.setattr("oncegate.genesys.listener._BATCH", 1)
        listening = listen()
        may_admit = threading.Event()
        kind: Any = type(listening.store)
        admit = kind.admit

        def waiting(store: Any, events: Any) -> Any:
            may_admit.wait(20)
            return admit(store, events)

        monkeypatch.setattr(kind, "admit", waiting)
        for number in range(6):
            fake.publish(PRESENCE, presence(number))
        until(lambda: len(listening.worker._unstored) == 4, "the frames that wait")
        time.sleep(0.3)  # a ping is sent every 100 ms
        lost_at = time.time_ns() // 1_000
        fake.drop()
        fake.publish(PRESENCE, presence(6))
        time.sleep(0.3)
        may_admit.set()
        until(lambda: bool(listening.gaps), "the gap")
        (gap,) = listening.gaps
        assert (gap.kind, fake.lost) == ("socket", [PRESENCE])
        assert (gap.since or 0) < lost_at
        handled(listening, 6)

    def test_an_event_that_another_worker_runs(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """An event whose claim another worker holds waits. Later events do not wait for it."""
        listening = listen()
        started, may_end = threading.Event(), threading.Event()

        def slow(event: Event) -> None:
            started.set()
            may_end.wait(20)

        with closing(Gate(listening.store, remember=None, breaker=None)) as other:
            frame = {"topicName": PRESENCE, "version": "2", "eventBody": presence(1)}
            elsewhere = threading.Thread(target=other.run, args=(frame, slow))
            elsewhere.start()
            assert started.wait(10)
            fake.publish(PRESENCE, presence(1))
            fake.publish(PRESENCE, presence(2))
            handled(listening, 1)
            assert listening.worker.figures.in_hand == 1
            may_end.set()
            elsewhere.join()
            until(lambda: listening.worker.figures.duplicates == 1, "the event to be a duplicate")
        until(lambda: listening.worker.figures.in_hand == 0, "the frames to be stored")
        handled(listening, 1)


class TestStart:
    def test_a_rejected_topic(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """A topic that is not allowed ends the start, with the permission that is missing."""
        fake.rejected[PRESENCE] = "presence:user:view"
        listening = listen(PRESENCE, MEMBERS, waits=False)
        listening.join()
        assert isinstance(listening.error, QueueError)
        assert str(listening.error) == (
            f"Genesys Cloud rejected 1 of 2 topics: {PRESENCE} (the permission presence:user:view is missing)"
        )

    def test_a_topic_that_is_rejected_later(
        self, fake: FakeGenesys, listen: Callable[..., Listening], caplog: pytest.LogCaptureFixture
    ) -> None:
        """If a topic is rejected when the channel is replaced, the others go on, and the log has the rejection."""
        listening = listen(PRESENCE, MEMBERS)
        fake.rejected[PRESENCE] = "presence:user:view"
        fake.announce_closing()
        until(lambda: any("rejected 1 of 2 topics" in line.getMessage() for line in caplog.records), "the log")
        until(lambda: len(fake.connected) == 1 and MEMBERS in fake.connected[0].topics, "the next channel")
        fake.publish(MEMBERS, {"id": "u", "joined": True})
        handled(listening, 1)

    def test_a_request_that_is_refused(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """What Genesys refuses at the start ends the listener: a retry would be refused, too."""
        fake.fail("POST /api/v2/notifications/channels", problem(400, "bad.request", "not like this"))
        listening = listen(waits=False)
        listening.join()
        assert isinstance(listening.error, QueueError)
        assert "not like this" in str(listening.error)

    def test_wrong_credentials(self, fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
        """A login that is refused ends the listener."""
        fake.fail("POST /oauth/token", *[problem(401, "invalid", "client not found")] * 1)
        listening = listen(waits=False)
        listening.join()
        assert isinstance(listening.error, QueueError)
        assert "refused the login" in str(listening.error)


def test_a_handler_that_runs_at_the_stop(fake: FakeGenesys, listen: Callable[..., Listening]) -> None:
    """A stop stores the frames that were received, and waits for the handler that runs. What did not start stays in
    the inbox for the next run."""
    listening = listen()
    started, may_end = threading.Event(), threading.Event()

    def slow(event: Event) -> None:
        started.set()
        may_end.wait(10)
        listening.handled.append(event)

    listening.worker._inbox._handler = slow
    fake.publish(PRESENCE, presence(1))
    assert started.wait(10)
    fake.publish(PRESENCE, presence(2))
    until(lambda: listening.worker.figures.received == 2, "the second frame")
    threading.Timer(0.3, may_end.set).start()
    listening.stop()
    assert (len(listening.handled), listening.error) == (1, None)
    again = listen()
    handled(again, 1)
    assert again.handled[0].body["presenceDefinition"] == {"id": "p2"}
