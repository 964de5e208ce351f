"""What a worker does, on a terminal: a line of figures that moves, and above it what was not taken."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from oncegate.cli.output import clean
from oncegate.clocks import since_boot
from oncegate.gate import Notice
from oncegate.gate.observers import outcome_of
from oncegate.ingress.worker import Figures, Worker

_BEGIN_AFTER: Final = 0.5  # in seconds: what cannot start says why before
_OVER: Final = 5_000_000  # in microseconds: the time over which the rate is taken


class LiveFigures:
    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._worker: Worker | None = None
        self._seen: deque[tuple[int, int]] = deque()

    @contextmanager
    def of(self, worker: Worker) -> Iterator[None]:
        """Show the figures of this worker until the block ends."""
        self._worker = worker
        live = Live(get_renderable=self._line, console=self._console, refresh_per_second=4)
        begin = threading.Timer(_BEGIN_AFTER, live.start)
        begin.daemon = True
        begin.start()
        try:
            yield
        finally:
            begin.cancel()
            begin.join()
            live.stop()

    def told(self, notice: Notice) -> None:
        """An observer. What an exception said is part of the line: whoever started the worker is looking at it."""
        outcome = outcome_of(notice)
        if outcome is None or outcome.status in ("processed", "duplicate", "skipped", "unguarded"):
            return
        colour = "yellow" if outcome.status == "in_flight" else "red"
        said = f"  {clean(outcome.event.id or '-')}  {clean(outcome.reason)}"
        self._console.print(Text.assemble((outcome.status.ljust(9), colour), said))

    def _line(self) -> Text:
        figures = Figures() if self._worker is None else self._worker.figures
        named = {
            "received": figures.received,
            "processed": figures.processed,
            "duplicates": figures.duplicates,
            "failed": figures.failed,
            "in hand": figures.in_hand,
        }
        parts: list[str | tuple[str, str]] = []
        for name, value in named.items():
            parts += [(f"{name} ", "dim"), f"{value:,}   "]
        return Text.assemble(*parts, f"{self._rate(figures):,.0f}/s")

    def _rate(self, figures: Figures) -> float:
        """Events that came to an outcome, per second, over the last few."""
        now, done = since_boot(), figures.processed + figures.duplicates + figures.failed
        self._seen.append((now, done))
        while now - self._seen[0][0] > _OVER:
            self._seen.popleft()
        then, before = self._seen[0]
        return (done - before) * 1e6 / (now - then) if now > then else 0.0
