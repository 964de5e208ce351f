"""Lambda invocations: time, leases, retries, async handlers, and the log."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from oncegate import Event, Gate
from oncegate.errors import NotTaken, RetryLater, SettingError
from oncegate.gate import Notice
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from oncegate.testing.race_contract import race
from tests.gate.conftest import Stumbling, left_by_another
from tests.ingress.invocations import Context, Handler, envelope, fifo, function_url, gateway, message, missed, nothing


def fail(event: Event) -> None:
    raise ValueError(f"a secret: {event.body}")


# ── time ──────────────────────────────────────────────────────────────────────────────────────────────────


class SlowHandler:
    """A handler that advances a clock by so many seconds for each event."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.seen: list[int] = []

    def __call__(self, event: Event) -> None:
        self.seen.append(event.body["number"])
        self.clock.advance(int(self.seconds * 1e6))


def batch(*numbers: int) -> dict[str, Any]:
    return {"Records": [message(envelope(n), f"m-{n}") for n in numbers]}


class TestTime:
    def test_a_batch_stops_before_the_end(self, store: MemoryStore, clock: ManualClock) -> None:
        """Of ten events that take 4 s each, those that can start within 15 s minus the reserve run. The rest is not
        claimed."""
        handler = SlowHandler(clock, 4)
        handle = Gate(store, boot=clock).lambda_handler(handler, reserve="5s")
        assert missed(handle(batch(*range(10)), Context(15_000, clock))) == [f"m-{n}" for n in range(3, 10)]
        assert missed(handle(batch(*range(3, 10)), Context(60_000, clock))) == []
        assert handler.seen == list(range(10))

    def test_a_short_time_is_not_all_reserve(self, store: MemoryStore, clock: ManualClock) -> None:
        """A function with less time than the reserve still runs: the reserve is at most half of the time."""
        handler = SlowHandler(clock, 0.1)
        handle = Gate(store, boot=clock).lambda_handler(handler, reserve="1m")
        assert missed(handle(batch(1, 2), Context(1_000, clock))) == []

    def test_no_time_left(self, stumbling: Stumbling, clock: ManualClock) -> None:
        """Without time left, no request is sent to the store."""
        context = Context(1_000, clock)
        clock.advance("2s")
        with pytest.raises(NotTaken, match="too little time"):
            Gate(stumbling, boot=clock).lambda_handler(fail)(envelope(), context)
        assert stumbling.calls == []

    def test_suspects_are_not_claimed_late(self, clock: ManualClock) -> None:
        """Suspects, which run alone after the others, are not claimed after the time is over."""
        stumbling = Stumbling(clock=clock)
        gate = Gate(stumbling, boot=clock)
        left_by_another(stumbling, clock, envelope(1), envelope(2))
        stumbling.calls.clear()
        handler = SlowHandler(clock, 10)
        assert missed(gate.lambda_handler(handler)(batch(1, 2, 3, 4), Context(15_000, clock))) == ["m-1", "m-2"]
        assert handler.seen == [3, 4]
        assert [size for verb, size in stumbling.calls if verb == "claim"] == [4]
        assert sorted(entry.record.attempts for entry in stumbling.browse()) == [0, 0, 1, 1]

    def test_by_http(self, store: MemoryStore, clock: ManualClock) -> None:
        """A request that can no longer start is 503."""
        context = Context(1_000, clock)
        clock.advance("1s")
        assert Gate(store, boot=clock).lambda_handler(fail)(gateway(envelope()), context)["statusCode"] == 503

    def test_mark_first_claims_one_by_one(self, store: MemoryStore, clock: ManualClock) -> None:
        """In mark_first mode an event that cannot run is not marked as done."""
        handler = SlowHandler(clock, 4)
        handle = Gate(store, boot=clock, mode="mark_first").lambda_handler(handler)
        assert missed(handle(batch(1, 2, 3, 4), Context(9_000, clock))) == ["m-3", "m-4"]
        assert (len(store.browse()), store.dead_letters()) == (2, [])

    def test_without_a_context(self, gate: Gate) -> None:
        """Without a context there is no time limit."""
        assert gate.lambda_handler(nothing)(envelope(), None)["statusCode"] == 200

    @pytest.mark.parametrize("reserve", ["", "1", 5, "0s"])
    def test_invalid_reserve(self, gate: Gate, reserve: Any) -> None:
        """An invalid reserve is rejected when the handler is created."""
        with pytest.raises(SettingError, match="reserve="):
            gate.lambda_handler(nothing, reserve=reserve)


class TestLeases:
    """How long a claim outlives an invocation that is killed."""

    def lease(self, event: Any, milliseconds: int, **settings: Any) -> float:
        """The lease of the claim in seconds, when the handler starts."""
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        found: list[int] = []

        def look(event: Event) -> None:
            found.extend(entry.record.lease_until - clock() for entry in store.browse())

        Gate(store, boot=clock, **settings).lambda_handler(look)(event, Context(milliseconds, clock))
        return found[0] / 1e6

    @pytest.mark.parametrize("wrap", [lambda document: document, gateway, lambda document: [message(document)]])
    @pytest.mark.parametrize(
        ("lease", "milliseconds", "seconds"),
        [("30s", 900_000, 30), ("30s", 2_999, 5), ("10m", 900_000, 50), ("10m", 20_000, 22), ("1s", 900_000, 1)],
    )
    def test_leases_end_soon_after_the_invocation(
        self, wrap: Any, lease: str, milliseconds: int, seconds: float
    ) -> None:
        """A lease is at most the gate's lease, 50 s, and the time left plus two seconds."""
        assert self.lease(wrap(envelope()), milliseconds, lease=lease) == seconds

    def test_the_first_retry_is_not_wasted(self, store: MemoryStore, clock: ManualClock) -> None:
        """The claim of an invocation that was killed has ended when Lambda retries after a minute."""
        gate, answers = Gate(store, boot=clock, lease="10m"), []

        def hang(event: Event) -> None:
            retry = gate.lambda_handler(nothing)
            clock.advance("49s")
            with pytest.raises(NotTaken, match="In flight: another worker holds the claim"):
                retry(envelope(), Context(900_000, clock))
            clock.advance("11s")
            answers.append(retry(envelope(), Context(900_000, clock))["statusCode"])

        with pytest.raises(NotTaken, match="lost to another worker"):
            gate.lambda_handler(hang)(envelope(), Context(900_000, clock))
        assert answers == [200]


# ── retries ───────────────────────────────────────────────────────────────────────────────────────────────


class TestRetries:
    def test_the_platform_counts(self, store: MemoryStore) -> None:
        """An event of a queue or a bus is never buried, however often it fails, and runs when its cause is fixed."""
        gate = Gate(store, max_attempts=1)
        for _ in range(4):
            assert missed(gate.lambda_handler(fail)(batch(1), Context())) == ["m-1"]
            with pytest.raises(NotTaken):
                gate.lambda_handler(fail)(envelope(1), Context())
        assert store.dead_letters() == []
        assert gate.lambda_handler(nothing)(envelope(1), Context())["statusCode"] == 200

    def test_max_attempts_of_requests(self, store: MemoryStore) -> None:
        """An HTTP client may retry for ever, so the last attempt buries."""
        handle = Gate(store, max_attempts=2).lambda_handler(fail)
        codes = [handle(function_url(envelope(1)), Context())["statusCode"] for _ in range(3)]
        assert codes == [503, 200, 200]
        assert len(store.dead_letters()) == 1

    def test_attempts_are_counted(self, gate: Gate) -> None:
        """`event.attempt` counts the attempts over several invocations."""
        attempts = []

        def handle(event: Event) -> None:
            attempts.append(event.attempt)
            if len(attempts) < 3:
                raise ValueError

        for _ in range(2):
            with pytest.raises(NotTaken):
                gate.lambda_handler(handle)(envelope(), Context())
        gate.lambda_handler(handle)(envelope(), Context())
        assert attempts == [1, 2, 3]

    def test_two_invocations_at_once(self, gate: Gate) -> None:
        """Of two invocations with one event, one runs it and the other fails, so that AWS delivers it again."""
        both = threading.Barrier(2, timeout=10)
        ran = []

        def handle(event: Event) -> None:
            ran.append(event.id)
            both.wait()

        answer = gate.lambda_handler(handle)

        def invoked() -> str:
            try:
                return str(answer(envelope(), Context())["statusCode"])
            except NotTaken:
                both.wait()
                return "again"

        assert sorted(race([invoked, invoked])) == ["200", "again"]
        assert len(ran) == 1
        assert json.loads(answer(envelope(), Context())["body"])["status"] == "duplicate"


# ── async handlers ────────────────────────────────────────────────────────────────────────────────────────


class TestAsync:
    def test_an_async_handler(self, gate: Gate) -> None:
        """An async handler is awaited, and its exceptions are failures."""
        seen = []

        async def handle(event: Event) -> None:
            await asyncio.sleep(0)
            seen.append(event.body["number"])
            if event.body["number"] == 2:
                raise ValueError

        assert missed(gate.lambda_handler(handle)(batch(1, 2, 3), Context())) == ["m-2"]
        assert seen == [1, 2, 3]

    def test_the_loop_is_kept(self, gate: Gate) -> None:
        """All invocations use one event loop, so clients that a handler keeps still work."""
        kept: list[asyncio.Future[str]] = []

        async def handle(event: Event) -> None:
            if not kept:
                kept.append(asyncio.get_running_loop().create_future())
            else:
                asyncio.get_running_loop().call_soon(kept[0].set_result, "done")
                assert await kept[0] == "done"

        answer = gate.lambda_handler(handle)
        assert [answer(envelope(n), Context())["statusCode"] for n in (1, 2)] == [200, 200]

    def test_a_handler_that_cancels_itself(self, gate: Gate) -> None:
        """A handler that cancels itself fails its event and no other."""

        async def handle(event: Event) -> None:
            if event.body["number"] == 1:
                raise asyncio.CancelledError

        assert missed(gate.lambda_handler(handle)(batch(1, 2), Context())) == ["m-1"]

    def test_an_object_with_an_async_call(self, gate: Gate) -> None:
        """A returned awaitable is awaited, even if the handler is not a coroutine function."""

        class Handler:
            async def __call__(self, event: Event) -> str:
                return "done"

        gate.lambda_handler(Handler())(envelope(), Context())
        assert gate.run(envelope(), nothing).result == "done"

    def test_a_generator_is_rejected(self, gate: Gate) -> None:
        """A generator function is rejected: a call of it would run nothing."""

        def handle(event: Event) -> Any:
            yield event

        with pytest.raises(SettingError, match="is a generator"):
            gate.lambda_handler(handle)


# ── the log and observers ─────────────────────────────────────────────────────────────────────────────────


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


class TestLog:
    def test_one_line_for_each_event(self, gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
        """The log has one line for each event, in order, with the ids of the event and of the invocation."""
        records = [message({"id": n, "type": "call.ended", "conversationId": "conv-7"}, f"m-{n}") for n in (1, 2, 1)]
        gate.lambda_handler(nothing)({"Records": records}, Context(request_id="req-9"))
        first, *others = lines(capsys)
        key, when = first.pop("key"), first.pop("timestamp")
        assert first == {
            "level": "INFO",
            "status": "processed",
            "kind": None,
            "event_id": "1",
            "namespace": "default",
            "source": "plain",
            "type": "call.ended",
            "entity": "conv-7",
            "state": None,
            "occurred_at": None,
            "attempt": 1,
            "reason": "Processed at the first attempt.",
            "request_id": "req-9",
        }
        assert gate.store.browse(key=bytes.fromhex(key))
        assert when.endswith("Z")
        assert [(line["status"], line["kind"]) for line in others] == [("processed", None), ("duplicate", "redelivery")]

    def test_nothing_of_the_payload(self, gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
        """The log has no part of the payload and no message of an exception. A failure is one line, with the stack."""
        with pytest.raises(NotTaken) as raised:
            gate.lambda_handler(fail)(envelope(1, card="4111 1111"), Context())
        (line,) = lines(capsys)
        assert "secret" not in str(raised.value) + json.dumps(line)
        assert "4111" not in str(raised.value) + json.dumps(line)
        assert (line["level"], line["status"]) == ("ERROR", "failed")
        assert "ValueError" in line["reason"]
        assert line["stack"].endswith("in fail")

    def test_failure_of_an_async_function(self, gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
        """The failure of an async function is one line at ERROR, too. The stack ends in the function."""

        async def fail_later(event: Event) -> None:
            raise ValueError("secret")

        with pytest.raises(NotTaken):
            gate.lambda_handler(fail_later)(envelope(1), Context())
        (line,) = lines(capsys)
        assert (line["level"], line["status"]) == ("ERROR", "failed")
        assert line["stack"].endswith("fail_later")

    def test_failure_on_purpose(self, gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
        """RetryLater is logged at ERROR without a stack."""

        def later(event: Event) -> None:
            raise RetryLater("closed for today")

        with pytest.raises(NotTaken):
            gate.lambda_handler(later)(envelope(1), Context())
        (line,) = lines(capsys)
        assert (line["level"], line["status"], "stack" in line) == ("ERROR", "failed", False)

    def test_events_that_did_not_run_are_logged(self, gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
        """An event that has to wait for another one of its group is logged with the reason."""
        gate.lambda_handler(Handler())(fifo((1, "a", True), (2, "a", False)), Context())
        last = lines(capsys)[-1]
        assert (last["status"], last["reason"]) == (
            "in_flight",
            "Not run: an earlier event of its group or partition must be taken first; deliver it again.",
        )


def test_observers_are_called_before_the_return() -> None:
    """All observers were called when the handler returns, because the process may be frozen then."""
    told: list[str] = []

    def slow(notice: Notice) -> None:
        time.sleep(0.05)
        told.append(notice.name)

    Gate("memory://", observers=[slow]).lambda_handler(nothing)(envelope(), Context())
    assert told == ["claim.granted", "event.processed"]


def test_an_observer_that_hangs() -> None:
    """The handler waits for observers, but not for long."""
    never = threading.Event()
    began = time.monotonic()
    gate = Gate("memory://", observers=[lambda notice: never.wait(60)])
    assert gate.lambda_handler(nothing)(envelope(), Context())["statusCode"] == 200
    assert time.monotonic() - began < 5
    never.set()


def test_engines_share_completions(stumbling: Stumbling) -> None:
    """The engines for different leases share one cache of completions."""
    handle = Gate(stumbling).lambda_handler(nothing)
    handle(envelope(), Context(60_000))
    handle(envelope(), Context(3_000))
    handle(gateway(envelope()), Context(3_000))
    assert [verb for verb, _ in stumbling.calls] == ["claim", "settle"]


@pytest.mark.parametrize(("handler", "imported"), [("def handle", False), ("async def handle", True)])
def test_asyncio_is_imported_for_async_handlers_only(handler: str, imported: bool) -> None:
    """A plain handler does not pay for asyncio in the cold start. For an async handler it is imported at the start."""
    program = (
        "import sys\nfrom oncegate import Gate\n"
        f"{handler}(event): pass\n"
        "Gate('memory://').lambda_handler(handle)\nprint('asyncio' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert run.stdout.strip() == str(imported)
