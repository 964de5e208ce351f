"""A listener: frames are admitted and run, outages of the store, gaps between two runs, and stop."""

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate
from oncegate.errors import SettingError, StoreUnavailable
from oncegate.genesys.listener import AliveMark, ArrivalTimes, Frame, NotificationWorker
from oncegate.stores import open_store
from tests.genesys.conftest import Listen
from tests.genesys.listening import MEMBERS, PRESENCE, USER, Listening, handled, presence
from tests.genesys.server import FakeGenesys
from tests.stores.servers import until


class TestReceiving:
    def test_an_event(self, fake: FakeGenesys, listen: Listen) -> None:
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

    def test_many_events(self, fake: FakeGenesys, listen: Listen) -> None:
        """Frames that arrive together are admitted in batches, and each runs once."""
        listening = listen()
        for number in range(200):
            fake.publish(PRESENCE, presence(number))
        handled(listening, 200)

    def test_topics_of_several_channels(self, fake: FakeGenesys, listen: Listen) -> None:
        """A channel has 1,000 topics, so 1,001 topics need two. Topics are subscribed in batches."""
        topics = [f"v2.users.{number}.presence" for number in range(1_001)]
        listening = listen(*topics, waits=False)
        until(lambda: sum(len(channel.topics) for channel in fake.connected) == 1_001, "all subscriptions")
        assert sorted(len(channel.topics) for channel in fake.connected) == [1, 1_000]
        fake.publish(topics[0], presence(1))
        fake.publish(topics[-1], presence(1))
        handled(listening, 2)
        assert fake.count("POST /api/v2/notifications/channels/{channelId}/subscriptions") == 4

    def test_a_frame_that_is_not_an_event(self, fake: FakeGenesys, listen: Listen) -> None:
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
    def test_the_same_content_again(self, fake: FakeGenesys, listen: Listen) -> None:
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


class TestGaps:
    def test_a_kill_before_the_gap_is_recorded(
        self, fake: FakeGenesys, listen: Listen, monkeypatch: pytest.MonkeyPatch
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

    def test_a_restart(self, fake: FakeGenesys, listen: Listen) -> None:
        """The time in which no listener ran is a gap: from the last ping of the earlier run to the subscription."""
        first = listen()
        until(lambda: bool(first.worker._mark.read()), "the mark")
        stopped_at = time.time_ns() // 1_000
        first.stop()
        assert fake.publish(PRESENCE, presence(1)) == 0
        until(lambda: not fake.connected, "the first listener to end")
        ended_at = time.time_ns() // 1_000
        again = listen()
        until(lambda: bool(again.gaps), "the gap")
        (gap,) = again.gaps
        assert (gap.kind, "did not run" in gap.reason) == ("stopped", True)
        assert stopped_at - 500_000 < (gap.since or 0) < ended_at < gap.at  # a ping is sent every 100 ms

    def test_a_restart_with_another_topic(self, fake: FakeGenesys, listen: Listen) -> None:
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
        self, fake: FakeGenesys, listen: Listen, monkeypatch: pytest.MonkeyPatch
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

    def test_a_stop_before_the_gap_is_recorded(
        self, fake: FakeGenesys, listen: Listen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A listener that is stopped before it has recorded the gap of the last run leaves this to the next start."""
        first = listen()
        until(lambda: bool(first.worker._mark.read()), "the mark")
        first.stop()
        stopped_at = time.time_ns() // 1_000

        def failing(_mark: AliveMark) -> dict[str, int]:
            raise StoreUnavailable("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(AliveMark, "read", failing)
            second = listen()
            time.sleep(0.3)
            second.stop()
        until(lambda: not fake.connected, "the second listener to end")
        third = listen()
        until(lambda: bool(third.gaps), "the gap")
        assert (third.gaps[0].since or 0) <= stopped_at

    def test_marks(self, tmp_path: Path) -> None:
        """A time never goes back. Each listener has its own topics. A topic that was not received for a year is
        forgotten."""
        with closing(open_store(f"sqlite:///{tmp_path}/store.db")) as store:
            one, other = (AliveMark(store, "default", "fake", [topic]) for topic in (PRESENCE, MEMBERS))
            one.write({PRESENCE: 5})
            other.write({MEMBERS: 7})
            one.write({PRESENCE: 3})
            assert (one.read(), other.read()) == ({PRESENCE: 5}, {MEMBERS: 7})
            other.write({MEMBERS: 400 * 86_400 * 1_000_000})
            assert one.read() == {}

    def test_the_first_start(self, listen: Listen) -> None:
        """The first start with these topics has no gap."""
        listening = listen()
        until(lambda: bool(listening.worker._mark.read()), "the mark")
        assert listening.gaps == []


class TestStore:
    def test_the_store_is_away(self, fake: FakeGenesys, listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
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
        self, fake: FakeGenesys, listen: Listen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If so many frames wait that nothing is read, nobody knows when the socket was lost. The gap begins at the
        last answer to a ping, although frames of the lost socket are read later."""
        monkeypatch.setattr("oncegate.genesys.listener._MOST_WAITING", 2)
        monkeypatch.setattr("oncegate.genesys.listener._BATCH", 1)
        listening = listen()
        sent_at, may_admit = time.time_ns() // 1_000, threading.Event()
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
        assert listening.worker._mark.read()[PRESENCE] <= sent_at
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

    def test_an_event_that_another_worker_runs(self, fake: FakeGenesys, listen: Listen) -> None:
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
            until(lambda: listening.worker.figures.in_hand == 1, "the second event to be done")
            may_end.set()
            elsewhere.join()
            until(lambda: listening.worker.figures.duplicates == 1, "the event to be a duplicate")
        until(lambda: listening.worker.figures.in_hand == 0, "the frames to be stored")
        handled(listening, 1)


def test_an_error_while_events_wait(fake: FakeGenesys, listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is not one of the store ends the listener, also while an event waits for another worker."""
    listening = listen()

    async def all_in_flight(_worker: NotificationWorker, waiting: Any) -> Any:
        return waiting

    async def broken(_worker: NotificationWorker, _waiting: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(NotificationWorker, "_admit", all_in_flight)
    monkeypatch.setattr(NotificationWorker, "_admit_until_stored", broken)
    fake.publish(PRESENCE, presence(1))
    listening.join()
    assert isinstance(listening.error, ExceptionGroup)
    assert str(listening.error.exceptions[0]) == "broken"


def test_a_handler_that_runs_at_the_stop(fake: FakeGenesys, listen: Listen) -> None:
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
