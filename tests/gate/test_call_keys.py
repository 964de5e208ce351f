"""What can be guarded, and what its calls are known by: names and keys."""

import math
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oncegate import Gate, keys
from oncegate.errors import (
    Conflict,
    SettingError,
    Unreadable,
)
from oncegate.stores.memory import MemoryStore
from tests.gate.functions import Charge, Generator, Shop, calls, charge, charge_later, explode, generate, generate_later


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


class TestKeys:
    def test_a_strategy(self, gate: Gate) -> None:
        """With a key of one's own, only what it names tells calls apart, and other content is a conflict."""
        once = gate.once(name="pay", key=keys.fields("order_id"))(charge)
        once(1, 5.0)
        with pytest.raises(Conflict, match="but different content"):
            once(1, 6.0)
        assert calls == [(1, 5.0)]

    def test_a_callable(self, gate: Gate) -> None:
        """Any function of the event will do; its body is the arguments by name."""
        once = gate.once(name="pay", key=lambda event: [event.body["order_id"] % 10])(charge)
        once(1, 5.0)
        with pytest.raises(Conflict):
            once(11, 5.0)

    def test_what_is_no_json_is_left_out(self, gate: Gate) -> None:
        """A session or a client is no part of a key that does not name it."""

        @gate.once(name="pay", key=keys.fields("order_id"))
        def pay(session: object, order_id: int) -> int:
            calls.append(order_id)
            return order_id

        assert [pay(object(), 1), pay(object(), 1)] == [1, 1]
        assert calls == [1]

    def test_but_not_without_a_key(self, gate: Gate) -> None:
        """If all arguments count, one that cannot be compared is refused by name."""

        @gate.once(name="pay")
        def pay(order_id: int, session: object) -> None: ...

        with pytest.raises(SettingError, match="pay: the argument session is not a JSON value"):
            pay(1, object())

    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    def test_what_json_has_no_number_for(self, gate: Gate, number: float) -> None:
        """JSON would have nothing in its place, as for None: it is refused, or left out if the key is of others."""

        @gate.once(name="set")
        def set_rate(rate: Any) -> str:
            return "set"

        assert set_rate([None]) == "set"
        for rate in (number, [None, {"rate": number}]):
            with pytest.raises(SettingError, match=r"set: the argument rate is not a JSON value.*nan and infinity"):
                set_rate(rate)
        assert gate.once(name="pay", key=keys.fields("order_id"))(charge)(1, number) == {"charged": 1}

    def test_what_is_nested_too_deep(self, gate: Gate) -> None:
        """So is an argument that is nested deeper than any event may be."""
        deep: Any = []
        for _ in range(64):
            deep = [deep]
        with pytest.raises(SettingError, match=r"the argument order_id is not a JSON value.*deeper than 64"):
            gate.once(charge)(deep)

    def test_a_missing_part(self, gate: Gate) -> None:
        """A key that cannot be made is an error that names what is missing."""
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


def _said(folder: Path, arguments: list[str]) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestNames:
    def test_functions_do_not_share_keys(self, gate: Gate) -> None:
        """Two functions with equal arguments are two events."""
        assert gate.once(charge)(1) == {"charged": 1}
        with pytest.raises(ValueError, match="boom 1"):
            gate.once(explode)(1)

    def test_nor_with_events(self, gate: Gate) -> None:
        """A call and an event with the same content are two things."""
        gate.run({"order_id": 1, "amount": 1.0}, lambda event: "event")
        assert gate.once(charge)(1) == {"charged": 1}

    def test_a_name_stays(self, store: MemoryStore) -> None:
        """Under a given name a function may be renamed and moved; without one, its own name counts."""

        def renamed(order_id: int, amount: float = 1.0) -> None:
            raise AssertionError

        Gate(store).once(name="pay")(charge)(1)
        assert Gate(store).once(name="pay")(renamed)(1) == {"charged": 1}

    def test_two_functions_of_one_name(self, gate: Gate) -> None:
        """One gate refuses two functions under one name; the same function twice is fine."""
        gate.once(name="pay")(charge)
        gate.once(name="pay")(charge)
        with pytest.raises(SettingError, match="two functions have the name 'pay'"):
            gate.once(name="pay")(explode)

    def test_functions_without_a_lasting_name(self, gate: Gate) -> None:
        """A lambda, a local function, a partial or an object must be given a name."""

        def local(order_id: int) -> None: ...

        for function in (local, lambda order_id: order_id, partial(charge, 1), Charge()):
            with pytest.raises(SettingError, match="has no name that is the same in every process"):
                gate.once(function)

    @pytest.mark.parametrize(
        "ways",
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
    def test_run_or_imported(self, programs: Path, ways: Sequence[list[str]]) -> None:
        """A function has the same name whether its module is run or imported, whatever it is wrapped in."""
        said = [_said(programs, way) for way in ways]
        assert said == ["charged\nrefunded\n"] + [""] * (len(ways) - 1)

    def test_in_other_processes(self, programs: Path) -> None:
        """So it has in the processes of a pool, in which Python gives the program another name."""
        assert _said(programs, ["billing.py"]) == "charged\nrefunded\n"
        assert _said(programs, ["billing.py", "pool"]) == ""

    def test_one_decorator_for_two(self, programs: Path) -> None:
        """Functions of two programs that a decorator from a third module wraps are two."""
        assert _said(programs, ["billing.py"]) == "charged\nrefunded\n"
        assert _said(programs, ["other.py"]) == "charged\nrefunded\n"

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
        """A generator has done nothing when it returns, so it is refused."""
        with pytest.raises(SettingError, match="is a generator"):
            gate.once(name="generate")(function)

    @pytest.mark.parametrize("function", [generate, charge_later])
    def test_what_is_only_described(self, gate: Gate, function: Any) -> None:
        """A function that returns a coroutine or a generator, which cannot be known before, raises that it does."""

        @gate.once(name="describe")
        def once(order_id: int) -> Any:
            return function(order_id)

        with pytest.raises(TypeError, match="returned a coroutine or a generator, which was not run"):
            once(1)

    def test_what_does_not_tell_its_arguments(self, gate: Gate) -> None:
        """A function of which Python cannot tell what it takes is refused."""
        with pytest.raises(SettingError, match="greatest has no signature"):
            gate.once(name="greatest")(max)

    @pytest.mark.parametrize("thing", [Shop, 7])
    def test_what_is_no_function(self, gate: Gate, thing: Any) -> None:
        """A class or a number cannot be guarded."""
        with pytest.raises(SettingError):
            gate.once(thing)

    def test_not_in_mark_first_mode(self) -> None:
        """A mode that keeps no results has none to give."""
        with pytest.raises(SettingError, match="stores none"):
            Gate("memory://", mode="mark_first").once(charge)
