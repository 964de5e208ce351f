"""Errors keep their content when they are pickled or copied."""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from oncegate import Event, Gate, Outcome, errors, keys
from oncegate.errors import OncegateError

OUTCOME = Outcome("in_flight", Event(source="call", id="1", body={"id": "1"}, raw=b"{}"), error="another is at it")
MADE: dict[type[OncegateError], Callable[[], OncegateError]] = {
    errors.SettingError: lambda: errors.SettingError("a=0 is too small", settings=["a"], or_none="to turn it off"),
    errors.MissingExtra: lambda: errors.MissingExtra("oncegate serve", "serve"),
    errors.SeveralEvents: lambda: errors.SeveralEvents(2),
    errors.TooManyEvents: lambda: errors.TooManyEvents(4),
    errors.MissingKey: lambda: errors.MissingKey("fields", ("id", "detail.id")),
    errors.RetryLater: lambda: errors.RetryLater("not now", 3.5, public=True),
    errors.Bury: lambda: errors.Bury("never", public=True),
    errors.NotTaken: lambda: errors.NotTaken([OUTCOME], "deliver it again"),
}
KINDS = [thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, OncegateError)]


def made(kind: type[OncegateError]) -> OncegateError:
    if issubclass(kind, errors.CallError):
        return kind(OUTCOME)
    return MADE.get(kind, lambda: kind("a sentence"))()


def pickled(error: OncegateError) -> Any:
    return pickle.loads(pickle.dumps(error))  # noqa: S301  # our own data


def test_the_settings_at_fault() -> None:
    """A SettingError names its settings in a field, and the text for Python users offers None if that is allowed."""
    error = made(errors.SettingError)
    assert isinstance(error, errors.SettingError)
    assert (error.settings, error.text) == (("a",), "a=0 is too small")
    assert str(error) == "a=0 is too small, or None to turn it off"


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"retention": "1s", "lease": "30s"}, {"retention", "lease"}),
        ({"on_too_old": "bury"}, {"on_too_old", "max_age"}),
        ({"max_attempts": 0}, {"max_attempts"}),
        ({"lease": "30"}, {"lease"}),
        ({"mode": "once"}, {"mode"}),
        ({"namespace": ""}, {"namespace"}),
    ],
)
def test_a_gate_names_the_settings(options: dict[str, Any], settings: set[str]) -> None:
    """Each refusal of a gate names the options at fault, so that no caller has to parse the sentence."""
    with pytest.raises(errors.SettingError) as caught:
        Gate("memory://", **options)
    assert set(caught.value.settings) == settings


def test_a_pause_that_is_no_number() -> None:
    """A pause that is not a number of seconds is rejected with a clear message."""
    after: Any = "30s"
    with pytest.raises(ValueError, match="after='30s' must be a number of seconds"):
        errors.RetryLater("x", after=after)


@pytest.mark.parametrize("again", [pickled, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", KINDS)
def test_pickled_and_copied(kind: type[OncegateError], again: Callable[[OncegateError], Any]) -> None:
    """Every error has the same text and attributes after it was pickled or copied."""
    error = made(kind)
    error.add_note("seen on a Monday")
    other = again(error)
    assert (type(other), str(other), other.args, vars(other)) == (kind, str(error), error.args, vars(error))


def test_built_in_attributes() -> None:
    """The attributes of Python's built-in errors survive, too."""
    assert pickled(errors.MissingExtra("oncegate serve", "serve")).msg.startswith("oncegate serve needs")


def conflict() -> Any:
    once = Gate("memory://").once(name="pay", key=keys.fields("order"))(lambda order, amount: amount)
    once("a", 1)
    return once("a", 2)


def test_out_of_a_pool_of_processes() -> None:
    """An error of a guarded call comes out of a process pool unchanged, and the pool keeps working."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(errors.Conflict) as raised:
            pool.submit(conflict).result(60)
        assert raised.value.outcome.status == "conflict"
        assert pool.submit(len, "abc").result(60) == 3
