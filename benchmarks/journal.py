"""Measure the journal: what it costs a service and a program, and how quickly its lists are read."""

import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.events import BATCH
from benchmarks.measure import Sizes, by_turns, median, timed
from benchmarks.progress import Progress
from benchmarks.report import Aim, Row
from benchmarks.service import LoadResult, load, started
from oncegate import Event, Gate
from oncegate.console.pages.conversation import conversation
from oncegate.console.pages.event import event
from oncegate.console.pages.events import events
from oncegate.console.pages.keys import keys
from oncegate.console.pages.overview import overview
from oncegate.console.requests import Request, fields
from oncegate.console.site import Site
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.journal import open_journal, open_recorder
from oncegate.journal.base import MINUTE, Journal, NewRow, NewRows, RowFilter
from oncegate.journal.rows import Fields, Label
from oncegate.settings import load as load_settings
from tests.stores.redis_server import RedisServer

_SERVE = ["-m", "oncegate", "serve", "--port", "0", "--handler", "log", "--log", "off"]
_WITHOUT = ["--store", "sqlite:///without.db", "--journal", "off"]
_WITH = ["--store", "sqlite:///with.db"]
_WRITTEN_AT_ONCE = 5_000
_COMMON = "conversation-common"  # an entity with a row in every block of terms
_HOUR = 3_600_000_000
_SPREAD = 14 * 86_400_000_000 // 1_000_000  # microseconds between two rows: a million rows are the default maximum age


def rows(sizes: Sizes, folder: Path, progress: Progress) -> list[Row]:
    return [_webhooks(sizes, folder, progress), _batches(sizes, folder, progress), _lists(sizes, folder, progress)]


# ── what it costs ─────────────────────────────────────────────────────────────────────────────────────────


def _webhooks(sizes: Sizes, folder: Path, progress: Progress) -> Row:
    progress.stage("webhooks with a journal")
    with started(folder, "without", [*_SERVE, *_WITHOUT]) as plain, started(folder, "with", [*_SERVE, *_WITH]) as ours:
        rounds: list[dict[str, LoadResult]] = []
        for number in range(1 - sizes.warm_ups, sizes.rounds + 1):
            progress.step(f"round {number} of {sizes.rounds}" if number > 0 else "warming up")
            rounds.append({"off": load(plain, sizes.http_requests), "on": load(ours, sizes.http_requests)})
    counted = rounds[sizes.warm_ups :]
    return Row(
        "webhooks stored and run, with a journal",
        "requests/s",
        statistics.median(result["on"]["rate"] for result in counted),
        statistics.median(result["off"]["rate"] for result in counted),
        "without a journal",
        statistics.median(result["on"]["rate"] / result["off"]["rate"] for result in counted),
        Aim("at least", 0.85),
    )


def _batches(sizes: Sizes, folder: Path, progress: Progress) -> Row:
    """The journal is on the server of the store, as with journal="auto"."""
    progress.stage("run_batch on Redis with a journal")
    server = RedisServer(folder / "journal-redis", "--appendfsync", "everysec")
    events = 10 * sizes.redis_events  # a shorter turn would end before the recorder writes
    try:
        turns = {
            "off": partial(_batch_turn, server, events, None),
            "on": partial(_batch_turn, server, events, server.url),
        }
        rounds = by_turns(turns, sizes.rounds, sizes.warm_ups, progress)
    finally:
        server.stop()
    return Row(
        "Redis gate, by 100, with a journal",
        "events/s",
        median(rounds, lambda took: events / took["on"]),
        median(rounds, lambda took: events / took["off"]),
        "without a journal",
        median(rounds, lambda took: took["off"] / took["on"]),
        Aim("at least", 0.6),
    )


def _batch_turn(server: RedisServer, events: int, journal: str | None) -> float:
    server.client.flushall()
    recorder = None if journal is None else open_recorder(journal)
    gate = Gate(server.url, observers=[] if recorder is None else [recorder.of("batches")])
    payloads = [{"id": str(uuid.uuid4()), "type": "call.ended", "detail": {"number": n}} for n in range(events)]
    batches = [payloads[start : start + BATCH] for start in range(0, events, BATCH)]

    def work() -> None:
        for batch in batches:
            gate.run_batch(batch, _nothing)

    seconds = timed(work)
    if recorder is not None:
        recorder.close(60)
    gate.close()
    return seconds


def _nothing(_event: Event) -> None:
    """A handler that does nothing."""


# ── reading it ────────────────────────────────────────────────────────────────────────────────────────────


def _lists(sizes: Sizes, folder: Path, progress: Progress) -> Row:
    """The slowest first page of all lists and of the screens of the console. The file is in the cache of the system."""
    progress.stage(f"lists of {sizes.journal_rows:,} journal rows")
    journal = open_journal(f"sqlite:///{folder}/lists.journal.db")
    start = time.time_ns() // 1_000 - sizes.journal_rows * _SPREAD
    for first in range(0, sizes.journal_rows, _WRITTEN_AT_ONCE):
        progress.step(f"{first:,} rows written")
        journal.append(_batch(start, range(first, min(first + _WRITTEN_AT_ONCE, sizes.journal_rows))))
    settings = load_settings(environ={}, flags={"store": f"sqlite:///{folder}/lists.db"})
    site = Site(settings, settings.open_store)
    reads = _reads(journal, start, sizes.journal_rows) | _screens(site, sizes.journal_rows)
    took = {name: _milliseconds(read) for name, read in reads.items()}
    journal.close()
    site.close()
    slowest = max(took, key=lambda name: took[name])
    return Row(
        f"journal of {sizes.journal_rows:,} rows, slowest first page ({slowest})",
        "ms",
        took[slowest],
        took["all rows"],
        "the newest rows",
        took[slowest] / took["all rows"],
        Aim("at most", 100, on="ours"),
    )


def _reads(journal: Journal, start: int, number: int) -> dict[str, Callable[[], Any]]:
    middle = start + number // 2 * _SPREAD
    return {
        "all rows": journal.rows,
        "all rows, older": lambda: journal.rows(RowFilter(until=middle)),
        "a common status": lambda: journal.rows(RowFilter(status="processed")),
        "a rare status": lambda: journal.rows(RowFilter(status="conflict")),
        "a rare status, older": lambda: journal.rows(RowFilter(status="conflict", until=middle)),
        "an absent status": lambda: journal.rows(RowFilter(status="buried")),
        "a kind": lambda: journal.rows(RowFilter(kind="redelivery")),
        "a type": lambda: journal.rows(RowFilter(type="type-7")),
        "a place": lambda: journal.rows(RowFilter(place="calls")),
        "a type and a rare status": lambda: journal.rows(RowFilter(type="type-7", status="conflict")),
        "an entity": lambda: journal.rows(RowFilter(entity="conversation-77")),
        "an entity and a status": lambda: journal.rows(RowFilter(entity="conversation-73", status="duplicate")),
        "an entity of every block": lambda: journal.rows(RowFilter(entity=_COMMON, status="conflict", until=middle)),
        "an old event id": lambda: journal.rows(RowFilter(term="event-00000077")),
        "an absent term": lambda: journal.rows(RowFilter(term="absent")),
        "a key": lambda: journal.rows(RowFilter(term=(number // 2).to_bytes(16, "big").hex())),
        "totals of 14 days": lambda: journal.totals(RowFilter(), start, start + 14 * 24 * _HOUR, 12 * _HOUR),
        "totals of a day": lambda: journal.totals(RowFilter(), middle, middle + 24 * _HOUR, _HOUR),
    }


def _screens(site: Site, number: int) -> dict[str, Callable[[], Any]]:
    """The Events screen with each filter, the screens that it leads to, and the totals of the Overview and of Keys."""
    key, common = [each.to_bytes(16, "big").hex() for each in (number // 2, number // 600 * 300 + 1)]
    filters = (
        "",
        *("status=processed", "status=conflict", "kind=redelivery", "type=type-7", "route=calls"),
        *("entity=conversation-77", "q=event-00000077", "q=absent", f"q={key}", "since=24h", "since=14d", "until=5d"),
    )
    return {
        **{f"Events screen, {query or 'no filter'}": partial(_show, events, site, query) for query in filters},
        "Event screen": partial(_show, event, site, f"key={key}&namespace=default"),
        "Event screen, an entity of every block": partial(_show, event, site, f"key={common}&namespace=default"),
        "Conversation screen": partial(_show, conversation, site, "id=conversation-77"),
        "Conversation screen, an entity of every block": partial(_show, conversation, site, f"id={_COMMON}"),
        "Overview": partial(_show, overview, site, "range=14d"),
        "Keys screen": partial(_show, keys, site, "range=14d"),
    }


def _show(page: Callable[[Site, Request], HttpAnswer], site: Site, query: str) -> HttpAnswer:
    return page(site, Request("GET", "/events", fields(query.encode()), {}))


def _milliseconds(read: Callable[[], Any]) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        read()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def _batch(start: int, numbers: Sequence[int]) -> NewRows:
    made = [_row(start, number) for number in numbers]
    counts: dict[tuple[int, Label], int] = {}
    for row in made:
        name = (row.fields.at // MINUTE, row.label)
        counts[name] = counts.get(name, 0) + 1
    return NewRows(made, counts, {})


def _row(start: int, number: int) -> NewRow:
    """A row of a journal with 80 labels. One row in 50,000 is a conflict."""
    status, kind = ("conflict", "") if number % 50_000 == 0 else ("processed", "")
    if number % 10 == 3:
        status, kind = "duplicate", ("redelivery", "replay")[number % 4 == 3]
    label = (("calls", "crm")[number % 2], "default", "genesys", f"type-{number % 20}", status, kind)
    fields = Fields(
        number.to_bytes(16, "big"),
        f"event-{number:08}",
        _COMMON if number % 300 == 1 else f"conversation-{number % 200_000}",
        str(uuid.UUID(int=number)),
        b"",
        start + number * _SPREAD,
        "auto",
        None,
        "connected",
        1,
        250_000,
        1_200,
        "Processed at the first attempt.",
        None,
        None,
        "host:1234",
        1,
        None,
        b"12345678",
        b"1234" * 20,
        b"12345678" * 3,
    )
    return NewRow(label, fields)
