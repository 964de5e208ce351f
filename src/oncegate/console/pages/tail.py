"""The live tail: new rows of the journal as server-sent events."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from oncegate.clocks import wall
from oncegate.console.event_filter import read_filter, row_id
from oncegate.console.event_rows import encode_rows, shown_row
from oncegate.console.requests import Request
from oncegate.console.site import Site
from oncegate.errors import OncegateError
from oncegate.journal import RowFilter

INTERVAL: Final = 0.5  # seconds between two reads of the journal
_HEARTBEAT: Final = 15.0  # seconds without an event; proxies close a connection that is silent for longer
_PAGE: Final = 100  # rows of one read, and of one event of the stream
# All tails together send the rows of a burst. If more rows arrive for a longer time, the oldest of them are left out:
# no person can read them, and to read them from the journal would slow down the events of the service.
_MOST_ROWS: Final = 10_000  # rows of a burst
_MOST_RATE: Final = 1_000  # rows per second for a longer time
_RETRY: Final = 2_000  # milliseconds after which a browser connects again


class _News(Struct, frozen=True):
    """The rows since the last read, as events of the stream. `last` is the id up to which the journal was read; None if
    it was not read yet. If the journal could not be read, the event says why."""

    events: tuple[bytes, ...]
    last: int | None
    is_problem: bool = False


class Tails:
    """All open tails of the console. They read the journal at the same moments, so that one read serves all tails that
    have the same filter and the same position. `in_thread` runs a function in a thread of the console."""

    def __init__(self, site: Site, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._site = site
        self._in_thread = in_thread
        self._allowance = _Allowance()
        self._round = 0
        self._reads: dict[tuple[RowFilter, int | None], asyncio.Future[_News]] = {}

    async def events(self, request: Request, last_id: str | None, until: float) -> AsyncGenerator[bytes, None]:
        """Yields the rows that match the query of the request, as soon as they are written. `last_id` is the id of the
        last event that the browser has received; without it, the parameter `after` counts. The stream ends at `until`,
        in seconds since 1970."""
        # New rows are always in the range of the page. Without times, tails with the same filter are equal.
        where = replace(read_filter(request.query).where, since=None, until=None)
        position = row_id(last_id) or row_id(request.query.get("after"))
        loop = asyncio.get_running_loop()
        yield b"retry: %d\n\n" % _RETRY
        sent_at = loop.time()
        has_problem = False
        while wall() < until * 1e6:
            news = await self._news(where, position)
            position = news.last
            if has_problem and not news.is_problem:
                yield b"event: solved\ndata: null\n\n"
            has_problem = news.is_problem
            for event in news.events:
                yield event
                sent_at = loop.time()
            if loop.time() - sent_at >= _HEARTBEAT:
                # The id moves the position of the browser over rows that do not match.
                yield b": heartbeat\n\n" if position is None else b": heartbeat\nid: %d\n\n" % position
                sent_at = loop.time()
            await asyncio.sleep(INTERVAL - loop.time() % INTERVAL)

    async def _news(self, where: RowFilter, position: int | None) -> _News:
        number = int(asyncio.get_running_loop().time() / INTERVAL)
        if number != self._round:
            self._round, self._reads = number, {}
        name = (where, position)
        if name not in self._reads:
            self._reads[name] = asyncio.ensure_future(self._in_thread(partial(self._read, where, position)))
        return await asyncio.shield(self._reads[name])

    def _read(self, where: RowFilter, position: int | None) -> _News:
        try:
            return self._read_journal(where, position)
        except OncegateError as error:
            return _News((b"event: problem\ndata: %b\n\n" % encode_rows(str(error)),), position, is_problem=True)

    def _read_journal(self, where: RowFilter, position: int | None) -> _News:
        """Read all rows above the position. Pages come newest first, so they are read to the end before the first event
        is made. If there are more rows than the allowance, the oldest of them are left out: a browser that connects
        again after hours would get all rows of these hours. After each page, other threads get the interpreter."""
        journal = self._site.journal
        newest = [] if journal is None else journal.rows(RowFilter(operators=True), limit=1)
        if journal is None or not newest:
            return _News((), position or 0)
        last = newest[0].id
        if position is None or position >= last:
            return _News((), last if position is None else position)
        events: list[bytes] = []
        before: int | None = last + 1
        count, most = 0, self._allowance.now()
        while before is not None and count < most:
            page = journal.rows(where, before=before, after=position, limit=_PAGE)
            if page:
                rows = [shown_row(row) for row in reversed(page)]
                events.append(b"id: %b\nevent: rows\ndata: %b\n\n" % (rows[-1].id.encode(), encode_rows(rows)))
                count += len(page)
            before = page.next
            time.sleep(0)
        self._allowance.use(count)
        if before is not None:
            events.append(b"event: gap\ndata: %d\n\n" % count)
        return _News(tuple(reversed(events)), last)


class _Allowance:
    """How many rows the tails may read now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows = float(_MOST_ROWS)
        self._at = time.monotonic()

    def now(self) -> int:
        """Returns the number of rows; at least one page."""
        with self._lock:
            now = time.monotonic()
            self._rows = min(float(_MOST_ROWS), self._rows + (now - self._at) * _MOST_RATE)
            self._at = now
            return max(_PAGE, int(self._rows))

    def use(self, rows: int) -> None:
        with self._lock:
            self._rows = max(0.0, self._rows - rows)
