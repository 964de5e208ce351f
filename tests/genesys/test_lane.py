"""Lanes: a channel is replaced before it ends, and a time without a channel is a gap."""

import asyncio
import re
import time
from typing import Any

import pytest
from msgspec.structs import replace

from oncegate.errors import QueueError
from oncegate.genesys.notifications import Channel, ChannelReader
from tests.genesys.conftest import Listen
from tests.genesys.listening import MEMBERS, PRESENCE, QUICK, handled, presence, until_replaced
from tests.genesys.server import FakeGenesys, problem
from tests.stores.servers import until


class TestReplacement:
    def test_before_the_end(self, fake: FakeGenesys, listen: Listen) -> None:
        """A channel is replaced before it ends. While both are read, each event arrives twice and runs once. No event
        is missed, and no gap is recorded."""
        fake.channel_life = 2.0
        times = replace(QUICK, renew_before=1.2, overlap=0.5)
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

    def test_a_notice_of_maintenance(self, fake: FakeGenesys, listen: Listen) -> None:
        """When Genesys announces that it closes the socket, the channel is replaced at once, without a gap."""
        listening = listen()
        fake.announce_closing()
        until_replaced(fake)
        assert len(fake.channels) == 2
        fake.publish(PRESENCE, presence(1))
        handled(listening, 1)
        assert listening.gaps == []

    def test_a_copy_that_is_admitted_later(
        self, fake: FakeGenesys, listen: Listen, monkeypatch: pytest.MonkeyPatch
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

    def test_the_next_channel_is_refused(self, fake: FakeGenesys, listen: Listen) -> None:
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

    def test_a_channel_that_does_not_exist_any_more(self, fake: FakeGenesys, listen: Listen) -> None:
        """If Genesys has removed the channel of an attempt, the next attempt makes another one."""
        listening = listen()
        subscribe = "PUT /api/v2/notifications/channels/{channelId}/subscriptions"
        fake.fail(re.escape(subscribe), problem(404, "not.found", "no such channel"))
        fake.announce_closing()
        until_replaced(fake)
        assert (len(fake.channels), listening.gaps) == (3, [])

    def test_the_next_channel_is_lost(self, fake: FakeGenesys, listen: Listen) -> None:
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


def test_a_stop_while_a_channel_is_closed() -> None:
    """A listener that is stopped while it waits for the end of a channel stops."""

    async def stopped() -> bool:
        async def slow_end() -> None:
            try:
                await asyncio.sleep(20)
            finally:
                await asyncio.sleep(0.05)

        reader = ChannelReader(Channel("c-1", "", 0, 60), QUICK, lambda _reader, _raw: None)
        reader._task = asyncio.create_task(slow_end())
        await asyncio.sleep(0)
        closing = asyncio.create_task(reader.close())
        await asyncio.sleep(0.01)
        closing.cancel()
        await asyncio.wait([closing])
        return closing.cancelled()

    assert asyncio.run(stopped())


def test_a_stop_while_genesys_does_not_answer(fake: FakeGenesys, listen: Listen) -> None:
    """A stop does not wait long for a server that does not answer the closing of the socket."""
    listening = listen()
    fake._loop.call_soon_threadsafe(time.sleep, 4)
    began = time.monotonic()
    listening.stop()
    assert time.monotonic() - began < 3


class TestSockets:
    def test_a_socket_that_drops(self, fake: FakeGenesys, listen: Listen) -> None:
        """If the socket is lost, the listener opens another channel. The journal has the time from the last ping to
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

    def test_a_socket_that_is_silent(self, fake: FakeGenesys, listen: Listen) -> None:
        """A socket without heartbeats and without an answer to a ping is lost, although it is open."""
        times = replace(QUICK, silence=0.3)
        listening = listen(times=times)
        fake.is_silent = True
        until(lambda: fake.count("POST /api/v2/notifications/channels") >= 2, "the next channel")
        fake.is_silent = False
        until(lambda: bool(listening.gaps), "the gap")
        assert "no frame and no answer to a ping for 0.3 s" in listening.gaps[0].reason

    def test_a_quiet_socket_is_asked(self, fake: FakeGenesys, listen: Listen) -> None:
        """A socket without frames that answers a ping is kept."""
        listening = listen(times=replace(QUICK, silence=0.5))
        time.sleep(1.2)
        fake.publish(PRESENCE, presence(1))
        handled(listening, 1)
        assert (fake.count("POST /api/v2/notifications/channels"), listening.gaps) == (1, [])

    def test_genesys_is_away(self, fake: FakeGenesys, listen: Listen, caplog: pytest.LogCaptureFixture) -> None:
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

    def test_a_topic_that_is_allowed_again(self, fake: FakeGenesys, listen: Listen) -> None:
        """The time in which a topic was rejected is a gap. If the listener ends before, the next start records it."""
        listening = listen(PRESENCE, MEMBERS)
        until(lambda: len(listening.worker._mark.read()) == 2, "the mark")
        fake.rejected[PRESENCE] = "presence:user:view"
        before = time.time_ns() // 1_000
        fake.announce_closing()
        until(lambda: len(fake.connected) == 1 and fake.connected[0].topics == {MEMBERS}, "the next channel")
        after = time.time_ns() // 1_000
        time.sleep(0.3)  # the mark is written every 50 ms
        mark = listening.worker._mark.read()
        assert mark[MEMBERS] - mark[PRESENCE] > 100_000
        fake.rejected.clear()
        fake.announce_closing()
        until(lambda: bool(listening.gaps), "the gap")
        (gap,) = listening.gaps
        assert (gap.kind, f"rejected the topic {PRESENCE}" in gap.reason) == ("rejected", True)
        assert before <= (gap.since or 0) <= after
        assert gap.at - after > 300_000

    def test_a_topic_that_is_allowed_on_a_lost_channel(self, fake: FakeGenesys, listen: Listen) -> None:
        """If the channel on which a rejected topic is allowed again is lost, a new gap begins."""
        listening = listen(PRESENCE, MEMBERS, times=replace(QUICK, overlap=0.6))
        fake.rejected[PRESENCE] = "presence:user:view"
        fake.announce_closing()
        until(lambda: len(fake.connected) == 1 and fake.connected[0].topics == {MEMBERS}, "the second channel")
        fake.rejected.clear()
        fake.announce_closing()
        until(lambda: len(fake.connected) == 2, "the third channel")
        fake.drop(list(fake.channels)[2])
        until(lambda: len(fake.connected) == 1, "the third channel to be lost")
        lost_at = time.time_ns() // 1_000
        fake.publish(PRESENCE, presence(1))
        assert fake.lost == [PRESENCE]
        until(lambda: len(listening.gaps) == 2, "the second gap")
        assert [gap.kind for gap in listening.gaps] == ["rejected", "rejected"]
        first, second = listening.gaps
        assert first.at <= (second.since or 0) <= lost_at < second.at


class TestStart:
    def test_a_rejected_topic(self, fake: FakeGenesys, listen: Listen) -> None:
        """A topic that is not allowed ends the start, with the permission that is missing."""
        fake.rejected[PRESENCE] = "presence:user:view"
        listening = listen(PRESENCE, MEMBERS, waits=False)
        listening.join()
        assert isinstance(listening.error, QueueError)
        assert str(listening.error) == (
            f"Genesys Cloud rejected 1 of 2 topics: {PRESENCE} (the permission presence:user:view is missing)"
        )

    def test_a_topic_that_is_rejected_later(
        self, fake: FakeGenesys, listen: Listen, caplog: pytest.LogCaptureFixture
    ) -> None:
        """If a topic is rejected when the channel is replaced, the others go on, and the log has the rejection."""
        listening = listen(PRESENCE, MEMBERS)
        fake.rejected[PRESENCE] = "presence:user:view"
        fake.announce_closing()
        until(lambda: any("rejected 1 of 2 topics" in line.getMessage() for line in caplog.records), "the log")
        until(lambda: len(fake.connected) == 1 and MEMBERS in fake.connected[0].topics, "the next channel")
        fake.publish(MEMBERS, {"id": "u", "joined": True})
        handled(listening, 1)

    def test_a_request_that_is_refused(self, fake: FakeGenesys, listen: Listen) -> None:
        """What Genesys refuses at the start ends the listener: a retry would be refused, too."""
        fake.fail("POST /api/v2/notifications/channels", problem(400, "bad.request", "not like this"))
        listening = listen(waits=False)
        listening.join()
        assert isinstance(listening.error, QueueError)
        assert "not like this" in str(listening.error)

    def test_wrong_credentials(self, fake: FakeGenesys, listen: Listen) -> None:
        """A login that is refused ends the listener."""
        fake.fail("POST /oauth/token", *[problem(401, "invalid", "client not found")] * 1)
        listening = listen(waits=False)
        listening.join()
        assert isinstance(listening.error, QueueError)
        assert "refused the login" in str(listening.error)
