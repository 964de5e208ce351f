"""A route checks the signature and the limits of a request, reads the events of the request and admits them."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from oncegate.claims import DEAD
from oncegate.clocks import Clock, wall
from oncegate.errors import TooManyEvents
from oncegate.events import Event, with_webhook_id
from oncegate.gate.outcome import Outcome
from oncegate.ingress.handler_wrappers import trace
from oncegate.ingress.http_answers import HttpAnswer, answer_of, problem
from oncegate.service.admission import Admission, InFlightBudget
from oncegate.service.log import RateLimitedWarning
from oncegate.service.monitoring import Metrics
from oncegate.signatures import Refused, Verifier
from oncegate.sources import NO_HINTS, Hints, read
from oncegate.stores.base import Entry

_log = logging.getLogger("oncegate.service")

_SECOND: Final = 1_000_000
_BUCKETS: Final = 64
_NEW_RECORDS: Final = frozenset({"processed", "accepted"})
_DEAD_LETTERS: Final = frozenset({"conflict", "invalid"})
_MAX_CACHED_BODIES = 256
_MAX_CACHED_BYTES = 16 * 1024

Header = tuple[bytes, bytes]


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────


class Rate:
    """The limit `max_rate`, as a token bucket with one token for each event. The bucket holds the tokens of one second.
    A request may take more tokens than are left. Later requests are then rejected until a token is available again."""

    def __init__(self, per_second: int, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._left = float(per_second)
        self._at = clock()

    def wait(self) -> int:
        """The number of seconds until another request is allowed; 0 if a request is allowed now."""
        now = self._clock()
        self._left = min(self._per_second, self._left + (now - self._at) * self._per_second / _SECOND)
        self._at = now
        return 0 if self._left >= 1 else 1 + int((1 - self._left) / self._per_second)

    def spend(self, events: int) -> None:
        """Take one token for each event. A request is admitted as a whole, even if too few tokens are left."""
        self._left -= events


class LiveKeys:
    """The limit `max_live_keys`. Counts the live records of a route by their expiry time. The counts are in about 64
    buckets of time, because one entry for each record would take more memory."""

    def __init__(self, limit: int, retention: int, clock: Clock) -> None:
        self._limit = limit
        self._retention = retention
        self._width = max(1, retention // _BUCKETS)
        self._clock = clock
        self._live: Counter[int] = Counter()
        self._count = 0
        self._dead_letters: dict[bytes, int] = {}  # the expiry time of each dead letter, by key

    def count_in(self, entries: Iterable[Entry]) -> None:
        """Count the records that are already in the store. A record that changes during the scan may count twice."""
        latest = self._clock() + self._retention
        for entry in entries:
            expires_at = entry.record.expires_at or latest
            self._add(expires_at, 1)
            if entry.record.state == DEAD and self._count <= self._limit:
                self._dead_letters[entry.key] = expires_at

    def wait(self) -> int:
        """The number of seconds until the first records expire; 0 if the limit is not reached."""
        if self._count < self._limit:
            return 0
        now = self._clock()
        self._remove_expired(now // self._width)
        if self._count < self._limit:
            return 0
        return 1 + max(0, (min(self._live) + 1) * self._width - now) // _SECOND

    def _remove_expired(self, now: int) -> None:
        expired = [bucket for bucket in self._live if bucket < now]
        for bucket in expired:
            self._count -= self._live.pop(bucket)
        if expired:
            self._dead_letters = {
                key: expires_at for key, expires_at in self._dead_letters.items() if expires_at // self._width >= now
            }

    def spend(self, outcomes: Sequence[Outcome]) -> None:
        """Count the records that the events of these outcomes have created."""
        expires_at = self._clock() + self._retention
        new = sum(_created_record(outcome) or self._note_dead_letter(outcome, expires_at) for outcome in outcomes)
        if new:
            self._add(expires_at, new)

    def _note_dead_letter(self, outcome: Outcome, expires_at: int) -> bool:
        """Return whether a conflict or an invalid event has created a dead letter, and remember the dead letter. Equal
        events share one dead letter, and their outcomes do not say which event created it. Therefore `_dead_letters`
        has the dead letters that are already counted."""
        if outcome.status not in _DEAD_LETTERS or outcome.kept is None or outcome.kept.digest in self._dead_letters:
            return False
        self._dead_letters[outcome.kept.digest] = expires_at
        return True

    def _add(self, expires_at: int, records: int) -> None:
        self._live[expires_at // self._width] += records
        self._count += records


def _created_record(outcome: Outcome) -> bool:
    """Whether the event created a record. If an event fails or is buried in a later attempt than the first, its record
    existed before this attempt."""
    return outcome.status in _NEW_RECORDS or (outcome.status in ("failed", "buried") and outcome.event.attempt == 1)


class Limits(Struct, frozen=True):
    """The limits of a route."""

    rate: Rate | None = None
    live_keys: LiveKeys | None = None

    def wait(self) -> int:
        """The number of seconds until another request is allowed; 0 if a request is allowed now."""
        return max((limit.wait() for limit in (self.rate, self.live_keys) if limit is not None), default=0)

    def spend(self, outcomes: Sequence[Outcome]) -> None:
        if self.rate is not None:
            self.rate.spend(len(outcomes))
        if self.live_keys is not None:
            self.live_keys.spend(outcomes)


NO_LIMITS = Limits()


# ── the route ─────────────────────────────────────────────────────────────────────────────────────────────


class _ParsedBodies:
    """A cache of the parsed events of a request body, for duplicates only. In a redelivery storm, a few bodies arrive
    again and again with identical bytes. With the cache they are not parsed each time.

    A request removes its entry from the cache while it uses the entry, and puts the entry back only if all events were
    duplicates. A handler may have changed the events that it received, so these events do not return to the cache."""

    def __init__(self) -> None:
        self._events: dict[bytes, list[Event]] = {}

    def pop(self, body: bytes) -> list[Event] | None:
        return self._events.pop(body, None)

    def put(self, body: bytes, events: list[Event], outcomes: Sequence[Outcome]) -> None:
        if len(body) > _MAX_CACHED_BYTES or any(outcome.status != "duplicate" for outcome in outcomes):
            return
        if len(self._events) >= _MAX_CACHED_BODIES:
            self._events.clear()
        self._events[body] = events


class Route:
    """One route of the service. Before the signature is verified, it neither parses the request nor calls the store."""

    def __init__(
        self,
        name: str,
        admission: Admission,
        metrics: Metrics,
        *,
        verifier: Verifier | None = None,
        hints: Hints = NO_HINTS,
        limits: Limits = NO_LIMITS,
        most: int | None = None,
        wall: Clock = wall,
    ) -> None:
        """`most` is the maximum number of events in a request."""
        self.name = name
        self.admission = admission
        self.limits = limits
        self._verifier = verifier
        self._hints = hints
        self._most = most
        self._parsed_bodies = _ParsedBodies()
        self._wall = wall
        self.latency = metrics.latency(name)
        self._count_refusal = metrics.refusals(name)
        self._count_limited = metrics.limited(name)
        self._kinds = metrics.kinds(name)
        self._warn_signature, self._warn_events, self._warn_limit = (RateLimitedWarning(_log) for _ in range(3))

    async def respond(
        self, body: bytes, headers: Sequence[Header], sender: Callable[[], str], budget: InFlightBudget
    ) -> HttpAnswer:
        """Return the response to a complete request. Any unexpected error is answered with 503, and never
        acknowledged. A request counts against the in-flight limit only after its signature was verified."""
        signed_id = None
        if self._verifier is not None:
            verdict = self._verifier.check(headers, body, self._wall())
            if isinstance(verdict, Refused):
                return self._reject_signature(verdict, sender())
            signed_id = self._verifier.signed_id(headers)
        if self.limits is not NO_LIMITS and (wait := self.limits.wait()):
            return self._reject_over_limit(wait, sender())
        budget.acquire()
        try:
            outcomes = await self._admit(body, headers, signed_id)
        except TooManyEvents:
            return self._reject_too_many_events(sender())
        except BaseException as error:  # noqa: BLE001  # a handler may even call sys.exit
            _log.error("a request failed with %s\n%s", type(error).__name__, trace(error))
            return problem(503, "the request failed; send it again")
        finally:
            budget.release()
        if self.limits is not NO_LIMITS:
            self.limits.spend(outcomes)
        for outcome in outcomes:
            if outcome.kind is not None:
                self._kinds[outcome.status, outcome.kind] += 1
        return answer_of(outcomes, discreet=True)

    async def _admit(self, body: bytes, headers: Sequence[Header], signed_id: str | None) -> list[Outcome]:
        """Read the events and admit them. A signature covers no header that describes the event, except the id of a
        Standard Webhook. A signed route therefore ignores all other headers that describe the event. X-Request-ID
        describes the delivery. It is evidence, by which people find the delivery in the journal."""
        if self._verifier is None and b"ce-specversion" in dict(headers):
            return await self.admission.admit(read(body, _decode(headers), self._hints, most=self._most))
        events = self._parsed_bodies.pop(body) or read(body, hints=self._hints, most=self._most)
        identified = events if signed_id is None else with_webhook_id(events, signed_id)
        outcomes = await self.admission.admit(_with_request_id(identified, headers))
        self._parsed_bodies.put(body, events, outcomes)
        return outcomes

    def _reject_signature(self, refused: Refused, sender: str) -> HttpAnswer:
        self._count_refusal()
        self._warn_signature("route %s: rejected a request from %s: %s", self.name, sender, refused.reason)
        return problem(refused.code, refused.reason)

    def _reject_too_many_events(self, sender: str) -> HttpAnswer:
        """Answer with 413, like a body that is too large: no event of the request was stored or run."""
        self._warn_events("route %s: a request from %s had more than %s events", self.name, sender, self._most)
        return problem(413, f"the request has more than {self._most} events (serve.max_events); send it in parts")

    def _reject_over_limit(self, wait: int, sender: str) -> HttpAnswer:
        self._count_limited()
        self._warn_limit("route %s: rejected a request from %s: max_rate or max_live_keys reached", self.name, sender)
        return problem(429, "rejected: the limit of this route is reached; send the request later", retry_after=wait)


def _with_request_id(events: Sequence[Event], headers: Sequence[Header]) -> Sequence[Event]:
    for name, value in headers:
        if name == b"x-request-id" and value:
            request_id = value.decode("latin-1")
            return [replace(event, evidence=replace(event.evidence, request_id=request_id)) for event in events]
    return events


def _decode(headers: Sequence[Header]) -> Mapping[str, str]:
    """Return the headers as text. The attributes of a CloudEvent are UTF-8. Invalid bytes become surrogates, and an
    event with surrogates is invalid."""
    return {
        name.decode("latin-1"): value.decode("utf-8", "surrogateescape")
        if name[:3] == b"ce-"
        else value.decode("latin-1")
        for name, value in headers
    }
