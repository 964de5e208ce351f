"""Lambda: the events of an invocation through the gate, in the time that the invocation has.

Lambda freezes the process when the answer is given and may never thaw it, so nothing is left to be done later: what
was claimed is settled or given back, the log is written and the observers have been told.
"""

import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from weakref import finalize

from msgspec import Struct

from oncegate.clocks import Clock
from oncegate.errors import NotTaken, SettingError, UnknownSource
from oncegate.events import Event, with_webhook_id
from oncegate.gate.engine import Engine
from oncegate.gate.handlers import AsyncHandler, Handler, check_handler, is_coroutine, publish_target_of
from oncegate.gate.job import NO_TIME, Identified, Job, handed_to
from oncegate.gate.observers import Observers, fields_of, spelt, write_line
from oncegate.gate.outcome import Outcome
from oncegate.ingress.http_answers import keep_refused, problem
from oncegate.ingress.lambda_events import (
    Invocation,
    LambdaRecord,
    Read,
    checked,
    invocation_of,
    response,
    unknown_source,
)

if TYPE_CHECKING:
    from oncegate.signatures import Verifier

# Lambda tries a failed event again after a minute: if it was killed, its lease must be over by then.
_LONGEST_LEASE: Final = 50_000_000
_PAST_THE_END: Final = 2
_SECOND: Final = 1_000_000
_FLUSH_WITHIN: Final = 0.5
_UNREPORTED: Final = "Some records were not taken, and report_failures is off: all of them have to be delivered again."
_BEHIND: Final = "one before it has to be taken first"


class _Time(Struct, frozen=True):
    """What is left of an invocation's time, None if nobody says, and until when handlers may start in it."""

    left: int | None
    start_by: int | None


class LambdaHandler:
    """Called by Lambda with an event and a context; answers as whoever invoked the function expects it."""

    def __init__(
        self,
        function: Handler | AsyncHandler,
        reserve: int,
        *,
        engine: Engine,
        read: Read,
        identify: Callable[..., Identified],
        observers: Observers,
        wall: Clock,
        signature: "Verifier | None",
        report_failures: bool | None,
        allow_unknown_sources: bool,
    ) -> None:
        check_handler(function, may_await=True)
        if not isinstance(report_failures, bool | None):
            raise SettingError(f"report_failures={report_failures!r} must be True, False or None")
        if not isinstance(allow_unknown_sources, bool):
            raise SettingError(f"allow_unknown_sources={allow_unknown_sources!r} must be True or False")
        if signature is not None and not hasattr(signature, "check"):
            raise SettingError("signature is a verifier, such as oncegate.signatures.cxone(secret) makes")
        self._function = function
        self._reserve = reserve
        self._engine = engine
        self._engines: dict[tuple[int, bool], Engine] = {}
        self._read = read
        self._identify = identify
        self._observers = observers
        self._wall = wall
        self._signature = signature
        self._report_failures = report_failures
        self._allow_unknown_sources = allow_unknown_sources
        self._loop = _Loop()
        if is_coroutine(function):
            import asyncio  # noqa: F401  # now, where Lambda gives a start all of a processor, not with the first event

    def __call__(self, event: Any, context: Any = None) -> dict[str, Any]:
        time = self._time(context)
        if not self._allow_unknown_sources and (source := unknown_source(event)) is not None:
            raise UnknownSource(source)
        signed_id = None
        if self._signature is not None:
            request = checked(event, self._signature, self._wall())
            if isinstance(request, tuple):
                return self._refuse(*request, context)
            event, signed_id = request.event, request.id
        reports = self._report_failures is True
        arrived = invocation_of(event, lambda each: with_webhook_id(self._read(each), signed_id), kafka_reports=reports)
        outcomes = self._through(arrived, time)
        self._observers.outcomes(outcomes)
        self._log(outcomes, getattr(context, "aws_request_id", None))
        self._observers.flush(_FLUSH_WITHIN)
        rest = iter(outcomes)
        answer = arrived.answer([list(islice(rest, len(record.events))) for record in arrived.records])
        if self._report_failures is False and answer.get("batchItemFailures"):
            raise NotTaken([outcome for outcome in outcomes if not outcome.acked], _UNREPORTED)
        return answer

    def _refuse(self, code: int, reason: str, context: Any) -> dict[str, Any]:
        request_id = getattr(context, "aws_request_id", None)
        self._say("WARNING", message="a request was refused", code=code, reason=reason, request_id=request_id)
        return response(problem(code, reason))

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────

    def _time(self, context: Any) -> _Time:
        """The reserve is at most half of the time there is, so that a short one does not run out before it begins."""
        tell = getattr(context, "get_remaining_time_in_millis", None)
        if tell is None:
            return _Time(None, None)
        left = int(tell()) * 1_000
        return _Time(left, self._engine.boot() + left - min(self._reserve, left // 2))

    def _engine_for(self, arrived: Invocation, time: _Time) -> Engine:
        """Leases end soon after the invocation must, however it ends, so that the next delivery does not find a claim
        that nobody is at. They are counted in whole seconds: the same few engines then do for all invocations."""
        config = self._engine.config
        lease = min(config.lease, _LONGEST_LEASE)
        if time.left is not None:
            lease = min(lease, (-(-max(time.left, 0) // _SECOND) + _PAST_THE_END) * _SECOND)
        known = self._engines.get((lease, arrived.ours))
        if known is None:
            most = config.max_attempts if arrived.ours else None
            known = self._engines[lease, arrived.ours] = self._engine.under(lease=lease, max_attempts=most)
        return known

    # ── running ───────────────────────────────────────────────────────────────────────────────────────────

    def _through(self, arrived: Invocation, time: _Time) -> list[Outcome]:
        """All events, wave by wave: one of each lane, and all that are in none. An outcome for each, in order. A lane
        stops at what has to be delivered again; what is refused for good and kept does not stop it."""
        engine = self._engine_for(arrived, time)
        events = [event for record in arrived.records for event in record.events]
        lanes = _lanes(arrived.records)
        outcomes: dict[int, Outcome] = {}
        # What is marked as done before it runs must be marked one by one, or time could run out on it.
        beside = 1 if engine.config.marks_first else None
        while lanes:
            wave = list(islice(lanes, beside))
            heads = [lanes[lane].popleft() for lane in wave]
            found = self._run([events[i] for i in heads], engine, time, arrived)
            if arrived.keeps:
                found = keep_refused(found, self._engine.dead_letters.keep)
            for lane, head, outcome in zip(wave, heads, found, strict=True):
                outcomes[head] = outcome
                goes_on = outcome.acked or outcome.kept is not None
                behind = lanes.pop(lane) if not (goes_on and lanes[lane]) else ()
                outcomes.update((index, Outcome("in_flight", events[index], error=_BEHIND)) for index in behind)
        return [outcomes[index] for index in range(len(events))]

    def _run(self, events: Sequence[Event], engine: Engine, time: _Time, arrived: Invocation) -> list[Outcome]:
        if time.start_by is not None and engine.boot() >= time.start_by:
            return [Outcome("in_flight", event, error=NO_TIME) for event in events]
        identified = [self._identify(event, trusted=arrived.trusted) for event in events]
        handed_to(publish_target_of(self._function), identified)
        for item in identified:
            if isinstance(item, Job) and time.start_by is not None:
                item.start_by = time.start_by
        return engine.run_batch(identified, self._handle)

    def _handle(self, event: Event) -> Any:
        """The handler; the gate keeps the text of its error, which may be of the payload, and the log says where it
        came from."""
        try:
            result = self._function(event)
            return self._loop.run(result) if hasattr(type(result), "__await__") else result
        except Exception as error:
            self._say(
                "ERROR",
                message="the handler failed",
                event_id=event.id,
                error=type(error).__name__,
                trace="".join(traceback.format_tb(error.__traceback__)),
            )
            raise

    # ── the log ───────────────────────────────────────────────────────────────────────────────────────────

    def _log(self, outcomes: Sequence[Outcome], request_id: str | None) -> None:
        for outcome in outcomes:
            self._say("INFO", **fields_of(outcome, self._engine.config.namespace), request_id=request_id)

    def _say(self, level: str, **fields: Any) -> None:
        """To stdout, with the two members by which Lambda knows a line's level. Lambda's own logging handler was turned
        down: it leaves out what is below WARNING, and writes its own prefix before the JSON."""
        write_line({"level": level, "timestamp": spelt(self._wall()), **fields})


def _lanes(records: Sequence[LambdaRecord]) -> dict[object, deque[int]]:
    """The numbers of the events, by the lane in which they run; those in none have one each."""
    lanes: dict[object, deque[int]] = {}
    index = 0
    for record in records:
        for _ in record.events:
            lanes.setdefault(index if record.lane is None else record.lane, deque()).append(index)
            index += 1
    return lanes


class _Loop:
    """The event loop of async handlers: one for all invocations, since the clients that they keep belong to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: Any = None

    def run(self, awaitable: Any) -> Any:
        import asyncio  # only here: it would cost every cold start that does without it

        with self._lock:
            if self._runner is None:
                self._runner = asyncio.Runner()
                finalize(self, self._runner.close)
            try:
                return self._runner.run(_awaited(awaitable))
            except asyncio.CancelledError as error:  # it cancelled itself: a failure like any other
                raise RuntimeError("the handler was cancelled") from error


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
