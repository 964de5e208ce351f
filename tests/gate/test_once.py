"""`@gate.once`: a function takes effect once for each set of arguments."""

import asyncio
import math
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate, keys
from oncegate.claims import Redrive
from oncegate.errors import (
    Buried,
    CallError,
    Conflict,
    InFlight,
    NoResult,
    SettingError,
    StoreUnavailable,
    Unconfirmed,
    Unreadable,
)
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.gate.conftest import Stumbling
from tests.gate.functions import (
    Branch,
    Charge,
    ChargeLater,
    Generator,
    School,
    Shop,
    calls,
    charge,
    charge_later,
    enrol,
    explode,
    generate,
    generate_later,
)


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


class TestResults:
    def test_once_for_each_set_of_arguments(self, gate: Gate) -> None:
        """The same arguments, however they are passed, run the function once and return the same result; other
        arguments run it."""
        once = gate.once(charge)
        assert [once(1), once(1, 1.0), once(order_id=1, amount=1)] == [{"charged": 1}] * 3
        assert once(2) == {"charged": 2}
        assert calls == [(1, 1.0), (2, 1.0)]

    def test_async(self, gate: Gate) -> None:
        """Of concurrent calls one runs, and the others wait for its result."""
        once = gate.once(charge_later)

        async def main() -> Any:
            return await asyncio.gather(*(once(number % 2) for number in range(10)))

        assert asyncio.run(main()) == [{"charged": 0}, {"charged": 1}] * 5
        assert sorted(calls) == [0, 1]

    def test_methods(self) -> None:
        """Methods of every kind are guarded; the object or class is not part of the key."""
        shop = Shop("A")
        assert [shop.sell("tea"), shop.sell("tea"), Shop("B").sell("tea")] == ["A sold tea"] * 3
        assert [Shop.open("monday"), shop.open("monday")] == ["Shop open on monday"] * 2
        assert [Shop.count(2), shop.count(2)] == [2, 2]
        assert [asyncio.run(shop.deliver("tea")) for _ in range(2)] == ["A delivered tea"] * 2
        assert calls == ["tea", "monday", 2, "tea"]

    def test_either_order(self) -> None:
        """`@gate.once` may stand above or below `@staticmethod` and `@classmethod`."""
        assert [Shop.weigh(3), Shop("A").weigh(3)] == [3, 3]
        assert [asyncio.run(shop.close("sunday")) for shop in (Shop, Shop("A"))] == ["Shop closed on sunday"] * 2
        assert calls == [3, "sunday"]

    @pytest.mark.parametrize("function", [partial(charge, 1), partial(Charge(), 1), partial(partial(charge), 1)])
    def test_other_callables(self, gate: Gate, function: Any) -> None:
        """Partials and callable objects are guarded like functions."""
        once = gate.once(name="charge")(function)
        assert [once(), once()] == [{"charged": 1}] * 2
        assert len(calls) == 1

    @pytest.mark.parametrize(
        "function", [partial(charge_later, 1), ChargeLater(), partial(ChargeLater(), 1), staticmethod(charge_later)]
    )
    def test_other_async_callables(self, gate: Gate, function: Any) -> None:
        """Async partials and callable objects are guarded, too."""
        once = gate.once(name="charge")(function)
        arguments = () if isinstance(function, partial) else (1,)
        assert [asyncio.run(once(*arguments)) for _ in range(2)] == [{"charged": 1}] * 2
        assert calls == [1]

    def test_inherited_methods(self) -> None:
        """A guarded method is the same function in the classes that inherit it."""
        assert [Branch("C").sell("milk"), Shop("A").sell("milk")] == ["C sold milk"] * 2
        assert [Branch.open("friday"), Shop.open("friday")] == ["Branch open on friday"] * 2

    @pytest.mark.parametrize("function", [enrol, School.enrol])
    def test_first_argument_of_a_function(self, gate: Gate, function: Any) -> None:
        """The first argument of a function that is not a method is part of the key, whatever its name is."""
        once = function if function is School.enrol else gate.once(function)
        assert [once("math", "ann"), once("art", "ann")] == ["ann in math", "ann in art"]

    def test_first_call_returns_the_object(self, gate: Gate) -> None:
        """The first call returns the object that the function returned; a further call returns it as decoded from
        JSON."""

        @gate.once(name="pair")
        def pair(number: int) -> Any:
            return (number, number)

        assert pair(1) == (1, 1)
        assert pair(1) == [1, 1]

    def test_wraps(self, gate: Gate) -> None:
        """The guarded function has the name and the `__wrapped__` of the function."""
        once = gate.once(charge)
        assert once.__name__ == "charge"
        assert once.__wrapped__ is charge  # type: ignore[attr-defined]

    def test_wrong_arguments(self, gate: Gate) -> None:
        """A call with arguments that the function does not take raises TypeError, and claims nothing."""
        with pytest.raises(TypeError, match="missing a required argument: 'order_id'"):
            gate.once(charge)()  # type: ignore[call-arg]
        assert gate.store.browse() == []


class TestFailures:
    def test_exception_of_the_function(self, gate: Gate) -> None:
        """An exception of the function is raised, and the next call runs it again."""
        once = gate.once(explode)
        for _ in range(2):
            with pytest.raises(ValueError, match="boom 1"):
                once(1)
        assert calls == [1, 1]

    def test_buried(self, store: MemoryStore) -> None:
        """After the last attempt calls raise Buried. After a redrive they raise NoResult: only a caller can run the
        function."""
        once = Gate(store, max_attempts=1).once(explode)
        with pytest.raises(ValueError, match="boom 1"):
            once(1)
        with pytest.raises(Buried, match="dead letter") as raised:
            once(1)
        assert raised.value.outcome.status == "buried"
        store.redrive([Redrive("default", raised.value.outcome.key.digest)])
        with pytest.raises(NoResult, match="waits to be run"):
            once(1)

    def test_no_handler_runs_a_call(self, store: MemoryStore) -> None:
        """A redriven call is not given to a handler, whose result would pass for the function's: the call is buried
        again, without a run."""
        gate = Gate(store, max_attempts=1)
        once = gate.once(explode)
        with pytest.raises(ValueError, match="boom 1"):
            once(1)
        (dead,) = store.dead_letters()
        store.redrive([Redrive(dead.namespace, dead.key)])
        (outcome,) = gate.run_waiting(calls.append)
        assert outcome.status == "buried"
        assert "it is a call of tests.gate.functions.explode, which only its callers can run" in outcome.reason
        with pytest.raises(Buried):
            once(1)
        assert calls == [1]

    def test_event_with_the_source_of_calls(self, store: MemoryStore) -> None:
        """An event whose source has the name that calls have runs like any other event."""
        gate = Gate(store, max_attempts=1)
        event = Event(source="call", id="7", type="call.ended", body={"id": "7"}, raw=b'{"id":"7"}')
        outcome = gate.run(event, lambda event: explode(7))
        assert outcome.key is not None
        store.redrive([Redrive("default", outcome.key.digest)])
        assert [outcome.status for outcome in gate.run_waiting(lambda event: None)] == ["processed"]

    def test_result_not_stored(self, gate: Gate) -> None:
        """A further call raises NoResult if the result could not be stored."""

        @gate.once(name="object")
        def make(number: int) -> object:
            return object()

        make(1)
        with pytest.raises(NoResult, match="not a JSON value"):
            make(1)

    @pytest.mark.parametrize("result", [math.nan, {"rate": [None, -math.inf]}])
    def test_result_with_nan_or_infinity(self, gate: Gate, result: Any) -> None:
        """A number that JSON cannot encode is not returned as None by a further call."""
        once = gate.once(name="rate")(lambda number: result)
        assert once(1) is result
        with pytest.raises(NoResult, match="nan and infinity are not JSON values"):
            once(1)

    def test_store_away(self, stumbling: Stumbling) -> None:
        """Without a claim the function does not run; without a confirmation the call raises Unconfirmed, because the
        function has run."""
        once = Gate(stumbling).once(charge)
        stumbling.failures = {"claim": 1}
        with pytest.raises(StoreUnavailable, match="the store is away"):
            once(1)
        assert calls == []
        stumbling.failures = {"settle": 9}
        with pytest.raises(Unconfirmed, match="did not confirm"):
            once(1)
        assert calls == [(1, 1.0)]

    def test_call_error(self) -> None:
        """Every exception for a call without a result is a CallError."""
        assert all(issubclass(error, CallError) for error in (InFlight, Conflict, Buried, NoResult, Unconfirmed))


class TestWaiting:
    def test_for_the_result(self, store: MemoryStore) -> None:
        """A call that arrives while another one runs waits, and returns the result of that one."""
        gate = Gate(store)
        go_on = threading.Event()

        @gate.once(name="slow", wait="5s")
        def slow(number: int) -> str:
            calls.append(number)
            go_on.wait(10)
            return "done"

        results: list[str] = []
        threads = [threading.Thread(target=lambda: results.append(slow(1))) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        assert results == []
        go_on.set()
        for thread in threads:
            thread.join()
        assert (results, calls) == (["done"] * 3, [1])

    def test_timeout(self, gate: Gate) -> None:
        """After `wait` a call raises InFlight."""

        @gate.once(name="nested", wait="50ms")
        def nested(number: int) -> None:
            start = time.monotonic()
            with pytest.raises(InFlight, match="In flight: another worker holds the claim"):
                nested(number)
            assert 0.02 < time.monotonic() - start < 1

        nested(1)

    def test_async_timeout(self, gate: Gate) -> None:
        """After `wait` an async call raises InFlight."""

        @gate.once(name="nested", wait="50ms")
        async def nested(number: int) -> None:
            with pytest.raises(InFlight):
                await nested(number)

        asyncio.run(nested(1))

    def test_last_poll_at_the_deadline(self, gate: Gate) -> None:
        """The last poll is when `wait` is over."""
        ends = threading.Event()

        @gate.once(name="slow", wait="800ms")
        def slow(number: int) -> str:
            ends.wait(10)
            return "done"

        first = threading.Thread(target=slow, args=(1,))
        first.start()
        time.sleep(0.05)
        threading.Timer(0.65, ends.set).start()  # the polls before the last are at 0, 10, 30, 70, 150, 310 and 560 ms
        assert slow(1) == "done"
        first.join()

    @pytest.mark.parametrize("wait", [0, "0s", timedelta()])
    def test_no_wait(self, stumbling: Stumbling, wait: Any) -> None:
        """Without `wait`, a call that arrives while another one runs raises InFlight after one claim."""

        @Gate(stumbling).once(name="nested", wait=wait)
        def nested(number: int) -> None:
            with pytest.raises(InFlight):
                nested(number)

        nested(1)
        assert [verb for verb, _ in stumbling.calls] == ["claim", "claim", "settle"]

    def test_ended_lease_is_taken_over(self, store: MemoryStore, clock: ManualClock) -> None:
        """When the lease of the running call ends, the waiting call runs the function."""

        def dying(number: int) -> str:
            calls.append(number)
            if len(calls) == 1:
                clock.advance("30s")
                return elsewhere(number)
            return "second"

        here, elsewhere = (Gate(store).once(name="dying", wait="5s")(dying) for _ in range(2))
        with pytest.raises(Unconfirmed, match="lost to another worker"):
            here(1)
        assert dying(1) == "second"

    def test_wait_must_be_a_duration(self, gate: Gate) -> None:
        """An invalid `wait` is refused when the function is guarded, not when it is called."""
        with pytest.raises(SettingError, match="wait=10"):
            gate.once(wait=10)  # type: ignore[call-overload]
        with pytest.raises(SettingError, match=r"wait=.*must be longer than (nothing|0)"):
            gate.once(wait=timedelta(seconds=-1))


def test_calls_are_counted(gate: Gate) -> None:
    """A call has one outcome, however often it polled."""
    once = gate.once(charge)
    once(1)
    once(1)
    assert gate.counts["event.processed"] == 1
    assert gate.counts["event.duplicate"] == 1


def test_once_on_a_handler(gate: Gate) -> None:
    """A handler that is guarded with `once` runs once for each key of its argument, which is an Event."""
    event = Event(source="plain", id="1", body={"id": 1}, raw=b"{}")
    once = gate.once(name="handle", key=lambda call: call.body["event"]["id"])(lambda event: calls.append(event.id))
    once(event)
    once(event)
    assert calls == ["1"]


# ── names and keys ──────────────────────────────────────────────────────────────────────────────────────


class TestKeys:
    def test_strategy(self, gate: Gate) -> None:
        """With a key strategy, only the parts of the key identify a call, and other content is a conflict."""
        once = gate.once(name="pay", key=keys.fields("order_id"))(charge)
        once(1, 5.0)
        with pytest.raises(Conflict, match="but different content"):
            once(1, 6.0)
        assert calls == [(1, 5.0)]

    def test_callable(self, gate: Gate) -> None:
        """Any function of the event can be the key; the body of the event is the arguments by name."""
        once = gate.once(name="pay", key=lambda event: [event.body["order_id"] % 10])(charge)
        once(1, 5.0)
        with pytest.raises(Conflict):
            once(11, 5.0)

    def test_argument_outside_the_key(self, gate: Gate) -> None:
        """An argument that is not a JSON value, such as a session, is allowed if the key does not use it."""

        @gate.once(name="pay", key=keys.fields("order_id"))
        def pay(session: object, order_id: int) -> int:
            calls.append(order_id)
            return order_id

        assert [pay(object(), 1), pay(object(), 1)] == [1, 1]
        assert calls == [1]

    def test_argument_that_is_not_json(self, gate: Gate) -> None:
        """Without a key all arguments count, so an argument that is not a JSON value is refused by name."""

        @gate.once(name="pay")
        def pay(order_id: int, session: object) -> None: ...

        with pytest.raises(SettingError, match="pay: the argument session is not a JSON value"):
            pay(1, object())

    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    def test_nan_and_infinity(self, gate: Gate, number: float) -> None:
        """JSON encodes nan and infinity as null, like None: such an argument is refused, or left out if the key does
        not use it."""

        @gate.once(name="set")
        def set_rate(rate: Any) -> str:
            return "set"

        assert set_rate([None]) == "set"
        for rate in (number, [None, {"rate": number}]):
            with pytest.raises(SettingError, match=r"set: the argument rate is not a JSON value.*nan and infinity"):
                set_rate(rate)
        assert gate.once(name="pay", key=keys.fields("order_id"))(charge)(1, number) == {"charged": 1}

    def test_deeply_nested_argument(self, gate: Gate) -> None:
        """An argument that is nested deeper than an event may be is refused."""
        deep: Any = []
        for _ in range(64):
            deep = [deep]
        with pytest.raises(SettingError, match=r"the argument order_id is not a JSON value.*deeper than 64"):
            gate.once(charge)(deep)

    def test_missing_part(self, gate: Gate) -> None:
        """A key with a missing part is an error that names the part."""
        with pytest.raises(Unreadable, match="the fields key needs other"):
            gate.once(name="pay", key=keys.fields("other"))(charge)(1)


PROGRAM = """
import sys
from multiprocessing import get_context
from oncegate import Gate
from helpers import audited

gate = Gate("sqlite:///a.db")

@gate.once
def charge(order):
    print("charged", flush=True)
    return order

@gate.once
@audited
def refund(order):
    print("refunded", flush=True)
    return order

def both(order):
    return charge(order), refund(order)

if "pool" not in sys.argv:
    both(1)
    gate.close()
elif __name__ == "__main__":
    with get_context("spawn").Pool(1) as pool:
        pool.map(both, [1])
"""
HELPERS = """
from functools import wraps

def audited(function):
    @wraps(function)
    def wrapped(*args):
        return function(*args)
    return wrapped
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    for name in ("billing.py", "other.py", "shop/billing.py"):
        (tmp_path / name).write_text(PROGRAM)
    (tmp_path / "helpers.py").write_text(HELPERS)
    return tmp_path


def _output_of(folder: Path, arguments: list[str]) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestNames:
    def test_functions_do_not_share_keys(self, gate: Gate) -> None:
        """Two functions with equal arguments have different keys."""
        assert gate.once(charge)(1) == {"charged": 1}
        with pytest.raises(ValueError, match="boom 1"):
            gate.once(explode)(1)

    def test_calls_and_events_do_not_share_keys(self, gate: Gate) -> None:
        """A call and an event with the same content have different keys."""
        gate.run({"order_id": 1, "amount": 1.0}, lambda event: "event")
        assert gate.once(charge)(1) == {"charged": 1}

    def test_given_name(self, store: MemoryStore) -> None:
        """A function with a given name may be renamed and moved."""

        def renamed(order_id: int, amount: float = 1.0) -> None:
            raise AssertionError

        Gate(store).once(name="pay")(charge)(1)
        assert Gate(store).once(name="pay")(renamed)(1) == {"charged": 1}

    def test_same_name_twice(self, gate: Gate) -> None:
        """One gate refuses two functions with one name; the same function may be guarded twice."""
        gate.once(name="pay")(charge)
        gate.once(name="pay")(charge)
        with pytest.raises(SettingError, match="two functions have the name 'pay'"):
            gate.once(name="pay")(explode)

    def test_functions_without_a_name(self, gate: Gate) -> None:
        """A lambda, a local function, a partial and a callable object need a name."""

        def local(order_id: int) -> None: ...

        for function in (local, lambda order_id: order_id, partial(charge, 1), Charge()):
            with pytest.raises(SettingError, match="has no name that is the same in every process"):
                gate.once(function)

    @pytest.mark.parametrize(
        "commands",
        [
            (
                ["billing.py"],
                ["-c", "import billing"],
                ["-m", "billing"],
                ["-m", "cProfile", "-o", "out", "billing.py"],
            ),
            (["-m", "shop.billing"], ["-c", "import shop.billing"]),
        ],
    )
    def test_run_or_imported(self, programs: Path, commands: Sequence[list[str]]) -> None:
        """A function has the same name whether its module is run or imported, also inside a decorator of another
        module."""
        outputs = [_output_of(programs, command) for command in commands]
        assert outputs == ["charged\nrefunded\n"] + [""] * (len(commands) - 1)

    def test_in_other_processes(self, programs: Path) -> None:
        """A function has the same name in the processes of a pool, where Python gives the main module another name."""
        assert _output_of(programs, ["billing.py"]) == "charged\nrefunded\n"
        assert _output_of(programs, ["billing.py", "pool"]) == ""

    def test_decorator_of_another_module(self, programs: Path) -> None:
        """Functions of two programs that are wrapped by a decorator of a third module have different names."""
        assert _output_of(programs, ["billing.py"]) == "charged\nrefunded\n"
        assert _output_of(programs, ["other.py"]) == "charged\nrefunded\n"

    @pytest.mark.parametrize(
        "function",
        [
            generate,
            generate_later,
            partial(generate, 1),
            partial(generate_later, 1),
            staticmethod(generate),
            classmethod(generate),  # type: ignore[arg-type]  # it is no method
            Generator(),
            partial(Generator(), 1),
        ],
    )
    def test_generators(self, gate: Gate, function: Any) -> None:
        """A generator function is refused: calling it runs nothing."""
        with pytest.raises(SettingError, match="is a generator"):
            gate.once(name="generate")(function)

    @pytest.mark.parametrize("function", [generate, charge_later])
    def test_returned_coroutine_or_generator(self, gate: Gate, function: Any) -> None:
        """A function that returns a coroutine or a generator raises TypeError: that cannot be known before the call."""

        @gate.once(name="describe")
        def once(order_id: int) -> Any:
            return function(order_id)

        with pytest.raises(TypeError, match="returned a coroutine or a generator, which was not run"):
            once(1)

    def test_function_without_a_signature(self, gate: Gate) -> None:
        """A function whose signature Python cannot read is refused."""
        with pytest.raises(SettingError, match="greatest has no signature"):
            gate.once(name="greatest")(max)

    @pytest.mark.parametrize("thing", [Shop, 7])
    def test_not_a_function(self, gate: Gate, thing: Any) -> None:
        """A class or a number cannot be guarded."""
        with pytest.raises(SettingError):
            gate.once(thing)

    def test_not_in_mark_first_mode(self) -> None:
        """`once` is refused in mark_first mode, which stores no results."""
        with pytest.raises(SettingError, match="stores none"):
            Gate("memory://", mode="mark_first").once(charge)
