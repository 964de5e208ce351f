"""This module takes the events of a Lambda invocation through a gate, within the time of the invocation.

Lambda freezes the process after the answer and may never resume it. So no work is done after the answer. Before the
handler returns, every claim is settled or released, the log is written and the observers have been called.
"""

import threading
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
from oncegate.gate.job import NO_TIME, Identified, Job, set_destination
from oncegate.gate.observers import Observers, line_fields, spelt, write_line
from oncegate.gate.outcome import Outcome
from oncegate.ingress.http_answers import keep_refused, problem
from oncegate.ingress.lambda_events import (
    Invocation,
    LambdaRecord,
    Read,
    http_response,
    invocation_of,
    unknown_source,
    verify_request,
)

if TYPE_CHECKING:
    from oncegate.signatures import Verifier

# Lambda retries an asynchronous invocation after a minute. If the first invocation was killed, its leases must have
# ended before the retry.
_LONGEST_LEASE: Final = 50_000_000  # microseconds
_LEASE_SLACK: Final = 2  # seconds by which a lease outlasts the invocation
_SECOND: Final = 1_000_000
_FLUSH_WITHIN: Final = 0.5  # seconds
_UNREPORTED: Final = (
    "Some records were not taken, and report_failures is False: the whole batch has to be delivered again."
)
_BEHIND: Final = "an earlier event of its group or partition must be taken first"


class _Time(Struct, frozen=True):
    """The time of an invocation. `left` is the remaining time in microseconds. `start_by` is the time on the boot clock
    from which handlers must not start any more. Both are None if Lambda passed no context."""

    left: int | None
    start_by: int | None


class LambdaHandler:
    """The function that Lambda calls with an event and a context. The answer has the format of the event source."""

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
            raise SettingError("signature must be a verifier, such as oncegate.signatures.cxone(secret)")
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
            import asyncio  # noqa: F401  # import it during the cold start, which has a full CPU

    def __call__(self, event: Any, context: Any = None) -> dict[str, Any]:
        time = self._time(context)
        if not self._allow_unknown_sources and (source := unknown_source(event)) is not None:
            raise UnknownSource(source)
        signed_id = None
        if self._signature is not None:
            request = verify_request(event, self._signature, self._wall())
            if isinstance(request, tuple):
                return self._reject(*request, context)
            event, signed_id = request.event, request.id
        reports = self._report_failures is True
        invocation = invocation_of(
            event, lambda each: with_webhook_id(self._read(each), signed_id), kafka_reports=reports
        )
        outcomes = self._run_lanes(invocation, time)
        self._observers.outcomes(outcomes)
        self._log(outcomes, getattr(context, "aws_request_id", None))
        self._observers.flush(_FLUSH_WITHIN)
        rest = iter(outcomes)
        answer = invocation.answer([list(islice(rest, len(record.events))) for record in invocation.records])
        if self._report_failures is False and answer.get("batchItemFailures"):
            raise NotTaken([outcome for outcome in outcomes if not outcome.acked], _UNREPORTED)
        return answer

    def _reject(self, code: int, reason: str, context: Any) -> dict[str, Any]:
        request_id = getattr(context, "aws_request_id", None)
        self._write_line("WARNING", message="a request was rejected", code=code, reason=reason, request_id=request_id)
        return http_response(problem(code, reason))

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────

    def _time(self, context: Any) -> _Time:
        """Returns the time of this invocation. At most half of the remaining time is reserved, so that a short
        invocation can still start handlers."""
        remaining = getattr(context, "get_remaining_time_in_millis", None)
        if remaining is None:
            return _Time(None, None)
        left = int(remaining()) * 1_000
        return _Time(left, self._engine.boot() + left - min(self._reserve, left // 2))

    def _engine_for(self, invocation: Invocation, time: _Time) -> Engine:
        """Returns an engine whose leases end soon after the invocation. If the invocation is killed, its claims have
        then ended before the next delivery. The leases are in whole seconds, so that a small number of engines is
        enough for all invocations."""
        config = self._engine.config
        lease = min(config.lease, _LONGEST_LEASE)
        if time.left is not None:
            lease = min(lease, (-(-max(time.left, 0) // _SECOND) + _LEASE_SLACK) * _SECOND)
        engine = self._engines.get((lease, invocation.ours))
        if engine is None:
            max_attempts = config.max_attempts if invocation.ours else None
            engine = self._engine.under(lease=lease, max_attempts=max_attempts)
            self._engines[lease, invocation.ours] = engine
        return engine

    # ── running ───────────────────────────────────────────────────────────────────────────────────────────

    def _run_lanes(self, invocation: Invocation, time: _Time) -> list[Outcome]:
        """Run all events in rounds: the first event of each lane, then the second event of each lane, and so on.
        Returns one outcome for each event, in order. A lane stops at an event that has to be delivered again. An event
        that is rejected permanently and stored as a dead letter does not stop its lane."""
        engine = self._engine_for(invocation, time)
        events = [event for record in invocation.records for event in record.events]
        lanes = _lanes(invocation.records)
        outcomes: dict[int, Outcome] = {}
        # In mark_first mode an event is completed before its handler runs. The time of the invocation may end before
        # the handlers of all claimed events have started, so events are claimed one at a time.
        claims_per_round = 1 if engine.config.marks_first else None
        while lanes:
            names = list(islice(lanes, claims_per_round))
            heads = [lanes[name].popleft() for name in names]
            found = self._run([events[index] for index in heads], engine, time, invocation)
            if invocation.keeps:
                found = keep_refused(found, self._engine.dead_letters.keep)
            for name, head, outcome in zip(names, heads, found, strict=True):
                outcomes[head] = outcome
                continues = outcome.acked or outcome.kept is not None
                behind = lanes.pop(name) if not (continues and lanes[name]) else ()
                outcomes.update((index, Outcome("in_flight", events[index], error=_BEHIND)) for index in behind)
        return [outcomes[index] for index in range(len(events))]

    def _run(self, events: Sequence[Event], engine: Engine, time: _Time, invocation: Invocation) -> list[Outcome]:
        if time.start_by is not None and engine.boot() >= time.start_by:
            return [Outcome("in_flight", event, error=NO_TIME) for event in events]
        identified = [self._identify(event, trusted=invocation.trusted) for event in events]
        set_destination(publish_target_of(self._function), identified)
        for item in identified:
            if isinstance(item, Job) and time.start_by is not None:
                item.start_by = time.start_by
        return engine.run_batch(identified, self._handle)

    def _handle(self, event: Event) -> Any:
        result = self._function(event)
        return self._loop.run(result) if hasattr(type(result), "__await__") else result

    # ── the log ───────────────────────────────────────────────────────────────────────────────────────────

    def _log(self, outcomes: Sequence[Outcome], request_id: str | None) -> None:
        """Write one line for each outcome. The message of an exception is not logged, because it may contain parts of
        the payload. The gate stores the message with the event."""
        for outcome in outcomes:
            level = "INFO" if outcome.raised is None else "ERROR"
            fields = line_fields(outcome, self._engine.config.namespace)
            self._write_line(level, **fields, request_id=request_id)

    def _write_line(self, level: str, **fields: Any) -> None:
        """Write JSON to stdout, with the fields `level` and `timestamp` in the format of Lambda's JSON logs. The
        logging handler of Lambda was rejected, because it drops lines below WARNING and puts a prefix before the
        JSON."""
        write_line({"level": level, "timestamp": spelt(self._wall()), **fields})


def _lanes(records: Sequence[LambdaRecord]) -> dict[object, deque[int]]:
    """Returns the indexes of the events by lane. Each event without a lane gets a separate lane."""
    lanes: dict[object, deque[int]] = {}
    index = 0
    for record in records:
        for _ in record.events:
            lanes.setdefault(index if record.lane is None else record.lane, deque()).append(index)
            index += 1
    return lanes


class _Loop:
    """One event loop for the async handlers of all invocations. A client that a handler keeps between invocations is
    bound to its event loop, so all invocations use the same loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: Any = None

    def run(self, awaitable: Any) -> Any:
        import asyncio  # imported here because it slows down the cold start of functions with plain handlers

        with self._lock:
            if self._runner is None:
                self._runner = asyncio.Runner()
                finalize(self, self._runner.close)
            try:
                return self._runner.run(_await(awaitable))
            except asyncio.CancelledError as error:  # the handler cancelled itself
                raise RuntimeError("the handler was cancelled") from error


async def _await(awaitable: Any) -> Any:
    return await awaitable
