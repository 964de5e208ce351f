"""Limits: how much one route may send, so that none takes what the others need."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from oncegate.claims import DEAD
from oncegate.clocks import Clock, wall
from oncegate.errors import TooManyEvents
from oncegate.events import Event, with_webhook_id
from oncegate.gate.outcome import Outcome
from oncegate.ingress.handler_wrappers import trace
from oncegate.ingress.http_answers import HttpAnswer, answer_of, problem
from oncegate.service.admission import Admission, InFlightBudget
from oncegate.service.log import RepeatedWarning
from oncegate.service.monitoring import Metrics
from oncegate.signatures import Refused, Verifier
from oncegate.sources import NO_HINTS, Hints, read
from oncegate.stores.base import Entry

_SECOND: Final = 1_000_000
_BUCKETS: Final = 64
_NEW_RECORDS: Final = frozenset({"processed", "accepted"})
_COPIED: Final = frozenset({"conflict", "invalid"})


class Rate:
    """So many events a second: a second's worth may come at once, and what was sent beyond is waited for."""

    def __init__(self, most: int, clock: Clock) -> None:
        self._most = most
        self._clock = clock
        self._left = float(most)
        self._at = clock()

    def wait(self) -> int:
        """The seconds until more is taken; 0: now."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._most / _SECOND)
        self._at = now
        return 0 if self._left >= 1 else 1 + int((1 - self._left) / self._most)

    def spend(self, events: int) -> None:
        """A request with more events than are left is taken as a whole, and those after it wait the longer."""
        self._left -= events


class LiveKeys:
    """So many records at a time, counted by when they expire, in a few buckets instead of one by one."""

    def __init__(self, most: int, retention: int, clock: Clock) -> None:
        self._most = most
        self._retention = retention
        self._width = max(1, retention // _BUCKETS)
        self._clock = clock
        self._live: Counter[int] = Counter()
        self._count = 0
        self._kept: dict[bytes, int] = {}

    def count_in(self, entries: Iterable[Entry]) -> None:
        """What the store remembers already."""
        later = self._clock() + self._retention
        for entry in entries:
            expires_at = entry.record.expires_at or later
            self._add(expires_at, 1)
            if entry.record.state == DEAD and self._count <= self._most:
                self._kept[entry.key] = expires_at

    def wait(self) -> int:
        """The seconds until the first is forgotten; 0: there is room."""
        if self._count < self._most:
            return 0
        now = self._clock()
        self._forget(now // self._width)
        if self._count < self._most:
            return 0
        return 1 + max(0, (min(self._live) + 1) * self._width - now) // _SECOND

    def _forget(self, now: int) -> None:
        gone = [bucket for bucket in self._live if bucket < now]
        for bucket in gone:
            self._count -= self._live.pop(bucket)
        if gone:
            self._kept = {key: until for key, until in self._kept.items() if until // self._width >= now}

    def spend(self, outcomes: Sequence[Outcome]) -> None:
        until = self._clock() + self._retention
        new = sum(_made_a_record(outcome) or self._is_first_copy(outcome, until) for outcome in outcomes)
        if new:
            self._add(until, new)

    def _is_first_copy(self, outcome: Outcome, until: int) -> bool:
        """Whether a dead letter was made of what is refused: equal ones share theirs, and say nothing of it."""
        if outcome.status not in _COPIED or outcome.kept is None or outcome.kept.digest in self._kept:
            return False
        self._kept[outcome.kept.digest] = until
        return True

    def _add(self, expires_at: int, records: int) -> None:
        self._live[expires_at // self._width] += records
        self._count += records


def _made_a_record(outcome: Outcome) -> bool:
    """A failure at a later attempt, and what was buried then, made theirs at the first."""
    return outcome.status in _NEW_RECORDS or (outcome.status in ("failed", "buried") and outcome.event.attempt == 1)


# The door of a route: who may come in, how much of it, and what then takes it.


_log = logging.getLogger("oncegate.service")

_MOST_COPIES = 256
_LARGEST_COPY = 16 * 1024

Header = tuple[bytes, bytes]


class Limits(Struct, frozen=True):
    rate: Rate | None = None
    live_keys: LiveKeys | None = None

    def wait(self) -> int:
        """For how many seconds nothing more is taken."""
        return max((limit.wait() for limit in (self.rate, self.live_keys) if limit is not None), default=0)

    def spend(self, outcomes: Sequence[Outcome]) -> None:
        if self.rate is not None:
            self.rate.spend(len(outcomes))
        if self.live_keys is not None:
            self.live_keys.spend(outcomes)


NO_LIMITS = Limits()


class _Copies:
    """What was read from the bodies of duplicates. A storm is of few, the same to the byte: they are not read again.

    They are lent to one request at a time, and come back if it was a duplicate: what was given to a handler, which may
    change it, is read anew."""

    def __init__(self) -> None:
        self._read: dict[bytes, list[Event]] = {}

    def lend(self, body: bytes) -> list[Event] | None:
        return self._read.pop(body, None)

    def take_back(self, body: bytes, events: list[Event], outcomes: Sequence[Outcome]) -> None:
        if len(body) > _LARGEST_COPY or any(outcome.status != "duplicate" for outcome in outcomes):
            return
        if len(self._read) >= _MOST_COPIES:
            self._read.clear()
        self._read[body] = events


class Route:
    """One route. Nothing of a request is read, and no store is asked, before its signature was found to be right."""

    def __init__(
        self,
        name: str,
        taking: Admission,
        metrics: Metrics,
        *,
        verifier: Verifier | None = None,
        hints: Hints = NO_HINTS,
        limits: Limits = NO_LIMITS,
        most: int | None = None,
        wall: Clock = wall,
    ) -> None:
        self.name = name
        self.taking = taking
        self.limits = limits
        self._verifier = verifier
        self._hints = hints
        self._most = most
        self._copies = _Copies()
        self._wall = wall
        self.latency = metrics.latency(name)
        self._refused = metrics.refusals(name)
        self._limited = metrics.limited(name)
        self._count_kinds = metrics.kinds(name)
        self._told_refused, self._told_many, self._told_limited = (RepeatedWarning(_log) for _ in range(3))

    async def answer(
        self, body: bytes, headers: Sequence[Header], sender: Callable[[], str], room: InFlightBudget
    ) -> HttpAnswer:
        """Whatever goes wrong here is no acknowledgement. Only what may come in takes a place in the room."""
        signed_id = None
        if self._verifier is not None:
            verdict = self._verifier.check(headers, body, self._wall())
            if isinstance(verdict, Refused):
                return self._refuse(verdict, sender())
            signed_id = self._verifier.signed_id(headers)
        if self.limits is not NO_LIMITS and (wait := self.limits.wait()):
            return self._limit(wait, sender())
        room.enter()
        try:
            outcomes = await self._taken(body, headers, signed_id)
        except TooManyEvents:
            return self._refuse_many(sender())
        except BaseException as error:  # noqa: BLE001  # a handler may even call sys.exit
            _log.error("a request failed with %s\n%s", type(error).__name__, trace(error))
            return problem(503, "the event could not be taken; send it again")
        finally:
            room.leave()
        if self.limits is not NO_LIMITS:
            self.limits.spend(outcomes)
        self._count_kinds(outcomes)
        return answer_of(outcomes, discreet=True)

    async def _taken(self, body: bytes, headers: Sequence[Header], signed_id: str | None) -> list[Outcome]:
        """Headers are no part of what is signed, but for the id of a Standard Webhook: all others say something of an
        event only where nothing is signed."""
        if self._verifier is None and b"ce-specversion" in dict(headers):
            return await self.taking.take(read(body, _texts(headers), self._hints, most=self._most))
        events = self._copies.lend(body) or read(body, hints=self._hints, most=self._most)
        outcomes = await self.taking.take(events if signed_id is None else with_webhook_id(events, signed_id))
        self._copies.take_back(body, events, outcomes)
        return outcomes

    def _refuse(self, refused: Refused, sender: str) -> HttpAnswer:
        self._refused()
        self._told_refused("route %s: a request from %s was refused: %s", self.name, sender, refused.reason)
        return problem(refused.code, refused.reason)

    def _refuse_many(self, sender: str) -> HttpAnswer:
        """As a body that is too large: nothing is written for it, and nothing of it was done."""
        self._told_many("route %s: a request from %s held more than %s events", self.name, sender, self._most)
        return problem(413, f"the request holds more than {self._most} events (serve.max_events); send it in parts")

    def _limit(self, wait: int, sender: str) -> HttpAnswer:
        self._limited()
        self._told_limited("route %s: a request from %s was one too many", self.name, sender)
        return problem(429, "this route has sent too much; send it again later", retry_after=wait)


def _texts(headers: Sequence[Header]) -> Mapping[str, str]:
    """Headers as text. Attributes of a CloudEvent are UTF-8; bytes that are not stay apart, and are refused as such."""
    return {
        name.decode("latin-1"): value.decode("utf-8", "surrogateescape")
        if name[:3] == b"ce-"
        else value.decode("latin-1")
        for name, value in headers
    }
