"""Templates make old keys from values, and read the values from old keys."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.errors import SettingError
from oncegate.previous.templates import Template, typed


@pytest.mark.parametrize(
    ("template", "values", "key"),
    [
        ("event:dedup:{id}", {"id": "evt-1"}, "event:dedup:evt-1"),
        ("event:{conversationId}:{timestamp}", {"conversationId": "c", "timestamp": 5}, "event:c:5"),
        ("{detail.conversationId}#{timestamp:int}", {"detail.conversationId": "c", "timestamp": "5"}, "c#5"),
        ("{{tag}}:{id}", {"id": "1"}, "{tag}:1"),
        ("{id}", {"id": 5}, 5),
        ("{id:text}", {"id": 5}, "5"),
        ("{id:int}", {"id": "5"}, 5),
    ],
)
def test_a_key_from_values(template: str, values: dict[str, Any], key: Any) -> None:
    """Fields are replaced by values. A template of one field keeps the type of the value."""
    assert Template(template).make(values) == key


@pytest.mark.parametrize("value", [None, "", True, [1], {"a": 1}, "\ud800"])
def test_a_value_that_is_no_part_of_a_key(value: Any) -> None:
    """A key is never made from an absent value, a list, an object or text that is not Unicode."""
    assert Template("event:{id}").make({"id": value}) is None
    assert Template("{id}").make({"id": value}) is None
    assert Template("event:{id}").make({}) is None


@pytest.mark.parametrize("value", ["x", "1.5", 1.5, "", "\uff11", "9" * 50])
def test_a_value_that_is_no_number(value: Any) -> None:
    """A field of the type int has no other values."""
    assert Template("event:{id:int}").make({"id": value}) is None


@pytest.mark.parametrize(
    ("template", "key", "values"),
    [
        ("event:dedup:{id}", "event:dedup:evt-1", {"id": "evt-1"}),
        ("event:{c}:{t}", "event:a:2026-01-01T00:00:00Z", {"c": "a", "t": "2026-01-01T00:00:00Z"}),
        ("event:{c}:{t:int}", "event:a:5", {"c": "a", "t": 5}),
        ("{c}#{t}.{n}", "a.b#c#d.e", {"c": "a.b", "t": "c#d", "n": "e"}),
        ("event:{id}", "event:a\nb", {"id": "a\nb"}),
    ],
)
def test_values_from_a_key(template: str, key: str, values: dict[str, Any]) -> None:
    """Only the last field may contain the separators of the key."""
    assert Template(template).read(key) == values


@pytest.mark.parametrize("key", ["event:a", "event:a:x", "event::5", "xevent:a:5", "event:a:5 ", ""])
def test_a_key_of_another_form(key: str) -> None:
    """A key that does not have the form of the template has no values."""
    assert Template("event:{c}:{t:int}").read(key) is None


def test_a_long_key_of_another_form() -> None:
    """A key with many separators is refused in a time that is linear in its length."""
    template = Template("e:{a}:{b}:{c}:{d}:end")
    started = time.perf_counter()
    assert template.read("e:" + "a:" * 5_000 + "x") is None
    assert time.perf_counter() - started < 1
    assert template.read("e:" + "a:" * 5_000 + "end") is not None


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("event", "has no field in braces"),
        ("event:{id", "has a single brace"),
        ("event:{}", "has a single brace"),
        ("event:{id:float}", "has a single brace"),
        ("event:{id}:{id}", "has the same field twice"),
        ("event:{a}{b}", "put a separator"),
    ],
)
def test_invalid(template: str, problem: str) -> None:
    """An invalid template is refused with the reason."""
    with pytest.raises(SettingError, match=problem):
        Template(template)


@given(st.text(st.characters(exclude_characters=":", exclude_categories=["Cs"]), min_size=1), st.text(min_size=1))
def test_what_is_made_is_read(first: str, last: str) -> None:
    """The values of a key are those that it was made from, if only the last one contains the separator."""
    template = Template("event:{a}:{b}")
    key = template.make({"a": first, "b": last})
    if key is not None:
        assert template.read(str(key)) == {"a": first, "b": last}


@pytest.mark.parametrize(
    ("template", "glob"),
    [("event:dedup:{id}", "event:dedup:*"), ("a*{x}?{y}[", r"a\**\?*\["), ("{{t}}{x}", "{t}*")],
)
def test_the_pattern_of_redis(template: str, glob: str) -> None:
    """A field becomes a *, and characters with a meaning in a pattern are escaped."""
    assert Template(template).glob == glob


def test_typed() -> None:
    """Values keep their type unless a type is named."""
    assert [typed("5"), typed(5), typed(5, "text"), typed("5", "int"), typed(1.5)] == ["5", 5, "5", 5, 1.5]
