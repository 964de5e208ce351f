"""The live tail: every new row arrives once and in order, over a real journal and over a running service."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from oncegate.clocks import wall
from oncegate.console.pages import tail as module
from oncegate.console.pages.conversation import conversation
from oncegate.console.pages.event import event
from oncegate.console.pages.events import events
from oncegate.console.pages.tail import Tails
from oncegate.console.requests import Request, fields
from oncegate.console.site import Site
from oncegate.journal import Journal, RowFilter, open_journal
from oncegate.journal.base import Page
from tests.console.pages.journals import HOSTILE, get, make_journal, make_site, row, write
from tests.console.running import ENVIRON, logged_in
from tests.service.running import Service

BURST = 5_000
LONG = 3_600.0  # seconds


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(make_journal(tmp_path)) as journal:
        write(journal, [row(0, wall())])
        yield journal


async def in_thread(call: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(call)


class Received:
    """What a browser has received: the numbers of the events in order, the last id, and everything else."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.events: list[str] = []
        self.others: list[tuple[str, str]] = []
        self.last_id = ""
        self.heartbeats = 0

    def add(self, text: str) -> None:
        """Parse one event of a stream as a browser does."""
        values = dict(line.split(": ", 1) for line in text.splitlines() if not line.startswith(":"))
        self.heartbeats += text.startswith(":")
        self.last_id = values.get("id", self.last_id)
        if values.get("event") == "rows":
            rows = json.loads(values["data"])
            self.ids += [each["id"] for each in rows]
            self.events += [each["event"] for each in rows]
        elif "event" in values:
            self.others.append((values["event"], values["data"]))


async def follow(
    tails: Tails, query: str, enough: Callable[[Received], bool], last_id: str | None = None, until: float = LONG
) -> Received:
    """Read a tail until enough has arrived."""
    received = Received()
    request = Request("GET", "/tail", fields(query.encode()), {})
    async with asyncio.timeout(20), aclosing(tails.events(request, last_id, time.time() + until)) as events:
        async for event in events:
            received.add(event.decode().removesuffix("\n\n"))
            if enough(received):
                break
    return received


def has(number: int) -> Callable[[Received], bool]:
    return lambda received: len(received.ids) >= number


def numbers(first: int, end: int) -> list[str]:
    return [f"evt-{number}" for number in range(first, end)]


def run(coroutine: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await coroutine

    return asyncio.run(main())


def test_every_row_of_a_burst_arrives_once_and_in_order(site: Site, journal: Journal) -> None:
    """5,000 rows are written in about a second, while the tail reads. Rows that arrive in one read are more than one
    page."""
    start = journal.rows()[0].id

    def burst() -> None:
        for first in range(1, BURST, 250):
            write(journal, [row(number, wall()) for number in range(first, min(first + 250, BURST))])
            time.sleep(0.03)

    writer = threading.Thread(target=burst)
    writer.start()
    received = run(follow(Tails(site, in_thread), f"after={start}", has(BURST - 1)))
    writer.join()

    assert received.events == numbers(1, BURST)
    assert [int(each) for each in received.ids] == sorted({int(each) for each in received.ids})
    assert received.last_id == received.ids[-1]


def test_rows_that_were_written_before_the_tail_opened_are_not_repeated(site: Site, journal: Journal) -> None:
    async def scenario() -> Received:
        tails = Tails(site, in_thread)
        reading = asyncio.ensure_future(follow(tails, "", has(1)))
        await asyncio.sleep(0.3)
        write(journal, [row(1, wall())])
        return await reading

    assert run(scenario()).events == ["evt-1"]


def test_a_browser_that_connects_again_continues_without_a_gap(site: Site, journal: Journal) -> None:
    """The header Last-Event-ID counts, not the parameter of the address, which is that of the first connection."""
    start = journal.rows()[0].id
    write(journal, [row(number, wall()) for number in range(1, 700)])
    tails = Tails(site, in_thread)

    first = run(follow(tails, f"after={start}", has(1)))
    write(journal, [row(number, wall()) for number in range(700, 900)])
    rest = 899 - len(first.ids)
    second = run(follow(Tails(site, in_thread), f"after={start}", has(rest), first.last_id))

    assert first.events + second.events == numbers(1, 900)


@pytest.mark.parametrize("last_id", ["x", "-1", "9" * 40, ""])
def test_an_invalid_last_id_is_ignored(site: Site, journal: Journal, last_id: str) -> None:
    start = journal.rows()[0].id
    write(journal, [row(1, wall())])

    assert run(follow(Tails(site, in_thread), f"after={start}", has(1), last_id)).events == ["evt-1"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("status=failed", ["evt-2", "evt-4"]),
        ("type=call.ended&route=default", ["evt-1", "evt-2", "evt-3", "evt-4"]),
        ("q=evt-3", ["evt-3"]),
        ("entity=conversation-4", ["evt-4"]),
        ("q=evt-3&status=failed", []),
        ("since=1h", ["evt-1", "evt-2", "evt-3", "evt-4"]),
    ],
)
def test_a_tail_has_the_filters_of_the_list(site: Site, journal: Journal, query: str, expected: list[str]) -> None:
    start = journal.rows()[0].id
    write(journal, [row(number, wall(), ("processed", "failed")[number % 2 == 0]) for number in range(1, 5)])

    received = run(follow(Tails(site, in_thread), f"{query}&after={start}", has(len(expected) or 1), until=1))

    assert received.events == expected


def test_rows_of_operators_arrive_only_if_the_filter_asks_for_them(site: Site, journal: Journal) -> None:
    start = journal.rows()[0].id
    write(journal, [row(1, wall(), "operator", "redrive"), row(2, wall())])

    assert run(follow(Tails(site, in_thread), f"after={start}", has(1))).events == ["evt-2"]
    assert run(follow(Tails(site, in_thread), f"status=operator&after={start}", has(1))).events == ["evt-1"]


def test_hostile_text_is_json_on_one_line(site: Site, journal: Journal) -> None:
    start = journal.rows()[0].id
    write(journal, [row(1, wall(), named=HOSTILE, event_id=HOSTILE, entity=HOSTILE, reason=f"{HOSTILE}\n\nid: 7\n\n")])

    received = run(follow(Tails(site, in_thread), f"after={start}", has(1)))

    assert received.events == [HOSTILE]
    assert received.last_id == received.ids[0]


def test_a_long_absence_is_reported_as_a_gap(site: Site, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser that was away for hours gets the newest rows, and is not sent all rows of these hours."""
    monkeypatch.setattr(module, "_MOST_ROWS", 1_000)
    start = journal.rows()[0].id
    write(journal, [row(number, wall()) for number in range(1, 2_600)])

    received = run(follow(Tails(site, in_thread), f"after={start}", has(1_000)))

    assert received.others == [("gap", "1000")]
    assert received.events == numbers(1_600, 2_600)


def test_a_silent_tail_has_a_heartbeat_that_moves_the_position(
    site: Site, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that do not match are not read again after a reconnect."""
    monkeypatch.setattr(module, "_HEARTBEAT", 0.2)
    write(journal, [row(1, wall())])

    received = run(follow(Tails(site, in_thread), "q=absent", lambda received: received.heartbeats > 1))

    assert received.last_id == str(journal.rows()[0].id)


def test_a_tail_ends_with_its_session(site: Site, journal: Journal) -> None:
    began = time.monotonic()

    run(follow(Tails(site, in_thread), "", has(1), until=0.7))

    assert time.monotonic() - began < 5


def test_the_tail_waits_for_the_first_row(site: Site, tmp_path: Path) -> None:
    """The journal is created with the first event. Its first rows arrive although the browser knows no row."""
    assert site.journal is None

    async def scenario() -> Received:
        reading = asyncio.ensure_future(follow(Tails(site, in_thread), "after=0", has(2)))
        await asyncio.sleep(0.6)
        with closing(make_journal(tmp_path)) as journal:
            write(journal, [row(1, wall()), row(2, wall())])
        return await reading

    assert run(scenario()).events == ["evt-1", "evt-2"]


def test_a_failure_of_the_journal_is_reported_and_ends(site: Site, journal: Journal, tmp_path: Path) -> None:
    start = journal.rows()[0].id
    journal.close()
    path = tmp_path / "oncegate.journal.db"
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        if each.exists():
            os.rename(each, f"{each}.away")
    path.write_bytes(b"not a database" * 100)

    async def scenario() -> Received:
        tails = Tails(site, in_thread)
        waiting = asyncio.ensure_future(follow(tails, "", has(1)))  # it knows no row, and gets only new rows
        received = await follow(tails, f"after={start}", lambda received: bool(received.others))
        reading = asyncio.ensure_future(follow(tails, "", lambda received: ("solved", "null") in received.others))
        await asyncio.sleep(1)
        path.unlink()
        os.rename(f"{path}.away", path)
        await reading  # the end of the problem is reported without a new row
        await asyncio.sleep(0.5)
        write(again := make_journal(tmp_path), [row(1, wall())])
        again.close()
        later = await follow(tails, f"after={start}", has(1))
        assert later.events == (await waiting).events == ["evt-1"]
        return received

    ((name, text),) = run(scenario()).others[:1]
    assert name == "problem"
    assert "oncegate.journal.db" in json.loads(text)


class CountingJournal:
    """A real journal that counts its reads."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.reads = 0

    def rows(self, where: RowFilter, **options: Any) -> Page:
        self.reads += 1
        return self._journal.rows(where, **options)


def test_tails_with_the_same_filter_share_their_reads(
    site: Site, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = CountingJournal(journal)
    monkeypatch.setattr(Site, "journal", counting)
    start = journal.rows()[0].id

    async def scenario(number: int) -> int:
        tails, before = Tails(site, in_thread), counting.reads
        reading = [asyncio.ensure_future(follow(tails, f"after={start}", has(40))) for _ in range(number)]
        for first in range(1, 41, 10):
            await asyncio.sleep(0.3)
            write(journal, [row(each, wall()) for each in range(first, first + 10)])
        assert {tuple(each.events) for each in await asyncio.gather(*reading)} == {tuple(numbers(1, 41))}
        return counting.reads - before

    assert run(scenario(8)) <= 2 * (1.2 / module.INTERVAL + 2) + 2


# ── over a running service ────────────────────────────────────────────────────────────────────────────────


def receive(client: httpx2.Client, number: int, query: str = "", last_id: str = "") -> Received:
    """Read the tail of a service until this number of rows has arrived."""
    received, headers = Received(), {"last-event-id": last_id} if last_id else {}
    with client.stream("GET", f"/console/tail?{query}", headers=headers) as stream:
        assert stream.status_code == 200
        text = ""
        for part in stream.iter_text():
            *events, text = (text + part).split("\n\n")
            for event in events:
                received.add(event)
            if len(received.ids) >= number:
                break
    return received


def test_two_clients_follow_a_service(tmp_path: Path) -> None:
    """Both clients get every event of a burst of webhooks. One of them disconnects and continues without a gap."""
    with Service(tmp_path, environ=ENVIRON) as service, logged_in(service) as one, logged_in(service, "Bob") as other:
        results: dict[str, Received] = {}

        def read_twice() -> None:
            first = receive(one, 1, "status=processed&after=0")
            second = receive(one, 300 - len(first.ids), "status=processed&after=0", first.last_id)
            first.events += second.events
            results["one"] = first

        def read_once() -> None:
            results["other"] = receive(other, 300, "status=processed&after=0")

        readers = [threading.Thread(target=read) for read in (read_twice, read_once)]
        for reader in readers:
            reader.start()
        for number in range(300):
            assert service.post({"id": f"evt-{number}", "type": "call.ended"}).status_code == 200
        for reader in readers:
            reader.join(20)
        assert not any(reader.is_alive() for reader in readers)

    assert sorted(results["one"].events) == sorted(numbers(0, 300))
    assert results["one"].events == results["other"].events


# ── other journals ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_other_journals(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The list, the event, the conversation and the tail read a journal on Redis and on Postgres."""
    server = request.getfixturevalue("redis_server" if kind == "redis" else "postgres")
    if kind == "redis":
        server.client.flushall()
    url = server.url if kind == "redis" else f"{server.url()}?oncegate_schema=screens"
    with closing(open_journal(url)) as journal, closing(make_site(tmp_path, store=url)) as site:
        journal.secret()  # as the recorder does; on Redis, it marks the journal as existing
        write(journal, [row(number, wall(), ("processed", "failed")[number % 2]) for number in range(120)])
        known = journal.rows(limit=200)
        shown = get(events, site, "/events?status=failed")
        assert len(shown.find("a", rel="next")) == 1
        assert "All 120 processed 60 failed 60" in shown.text
        assert "evt-77" in get(events, site, "/events?q=evt-77").text
        assert "12 rows of 12 events" in get(conversation, site, "/conversation?id=conversation-7").text
        assert "Reason 77." in get(event, site, f"/event?key={(77).to_bytes(16, 'big').hex()}&namespace=crm").text
        write(journal, [row(number, wall()) for number in range(120, 1_400)])
        received = run(follow(Tails(site, in_thread), f"after={known[0].id}", has(1_280)))
    assert received.events == numbers(120, 1_400)


def test_a_long_burst_is_shortened(site: Site, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a burst, the tails send at most 1,000 rows a second, the newest, and say that rows are missing."""
    monkeypatch.setattr(module, "_MOST_ROWS", 300)
    monkeypatch.setattr(module, "_MOST_RATE", 0)
    tails = Tails(site, in_thread)
    position = journal.rows(limit=1)[0].id
    numbers = []
    for start in range(1, 1_201, 400):
        write(journal, [row(number, wall()) for number in range(start, start + 400)])
        news = tails._read(RowFilter(), position)
        sent = [json.loads(event.split(b"data: ")[1]) for event in news.events if b"event: rows" in event]
        numbers.append([each["event"] for page in sent for each in page])
        assert news.events[0].startswith(b"event: gap")
        assert news.last is not None
        position = news.last
    assert [len(each) for each in numbers] == [300, 100, 100]
    assert [each[-1] for each in numbers] == ["evt-400", "evt-800", "evt-1200"]
