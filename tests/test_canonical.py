"""Canonical JSON: one encoding for each value, and the errors for invalid JSON."""

import json
from hashlib import blake2b, sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate import keys, read
from oncegate.canonical import content_digest, decode, digest, digest_of, encode, normal

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
).filter(lambda value: "\\ud" not in json.dumps(value))


def spelt(raw: str) -> bytes:
    return encode(decode(raw.encode()))


@pytest.mark.parametrize(
    "spellings",
    [
        ['{"a":1,"b":2}', '{"b":2,"a":1}', ' { "b" : 2 , "a" : 1 } '],
        ["[1]", "[1.0]", "[1e0]", "[10e-1]", "[1.000]"],
        ["100", "1e2", "1E+2", "100.0"],
        ["0", "-0", "0.0", "-0.0", "0e9"],
        ["0.1", "0.10", "1e-1"],
        ["1765551752433000001", "1765551752433000001.0", "1.765551752433000001e18", "17655517524330000010E-1"],
        ["-1765551752433000000", "-1765551752433000000.00", "-1765551752433e6", "-1.765551752433E+18"],
        ["1e300", "1.0e300", "10e299"],
        ['"\\u00e9"', '"é"'],
        ['"\\ud83d\\ude00"', '"😀"'],
        ['"a/b"', '"a\\/b"'],
        ['{"x":{"b":[1.0],"a":2}}', '{"x":{"a":2.0,"b":[1]}}'],
    ],
)
def test_one_encoding(spellings: list[str]) -> None:
    """Member order, white space, escapes and number forms do not change the encoding."""
    assert len({spelt(raw) for raw in spellings}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('"1"', "1"),
        ("null", '""'),
        ("false", "0"),
        ("[1,2]", "[2,1]"),
        ("[[1],2]", "[[1,2]]"),
        ("123456789012345678901", "123456789012345678902"),
        ("9007199254740993", "9007199254740992"),
        ("9007199254740993.0", "9007199254740992.0"),
        ("0.1", "0.2"),
        ('{"a":null}', "{}"),
    ],
)
def test_different_values_differ(one: str, other: str) -> None:
    """Different values have different encodings. Large whole numbers keep all their digits."""
    assert spelt(one) != spelt(other)


@given(JSON)
def test_parsed_and_written_agree(value: Any) -> None:
    """A Python value has the same hash as the same value in JSON text, in any member order."""
    text = json.dumps(value, ensure_ascii=True, sort_keys=False).encode()
    assert digest(encode(normal(value))) == digest(encode(decode(text)))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the text is empty"),
        (b'{"id":"a\\ud800"}', r"^an escape from \\ud800 to \\udfff stands alone"),
        (b"{", "not JSON"),
        (b"{} {}", "^the text is not JSON: trailing characters"),
        (b"NaN", "not JSON"),
        (b"[Infinity]", "not JSON"),
        (b"1e999", "^a number in it is out of range$"),
        (b"[-1E400]", "^a number in it is out of range$"),
        (b'{"card":4111111111111111e999}', "^a number in it is out of range$"),
        (b'{"card":' + b"4" * 5_000 + b"}", "^a number in it has more than 1000 digits; the maximum is 1000$"),
        (b'"\\ud800 and more"', r"^an escape from \\ud800 to \\udfff stands alone"),
        (b'"\xff"', "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"[" * 65 + b"]" * 65, "deeper than 64"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "deeper than 64"),
        (b"[" * 100_000, "deeper than 64"),
    ],
)
def test_invalid_json(raw: bytes, message: str) -> None:
    """Everything except strict JSON in strict UTF-8 is rejected with a clear message."""
    with pytest.raises(ValueError, match=message):
        decode(raw)


def test_the_length_of_a_number() -> None:
    """The limit on digits is exact, wherever the number is and whatever its digits are."""
    for at in range(120):
        assert decode(b" " * at + b"7" * 1_000) == int("7" * 1_000)
        with pytest.raises(ValueError, match="the maximum is 1000"):
            decode(b"[" + b" " * at + b"0.1234567890"[: 2 + at % 9] + b"5" * 1_001 + b"]")


def test_a_repeated_member() -> None:
    """If a member occurs twice, the last value counts, for key and content alike."""
    doubled, plain = (read(raw)[0] for raw in (b'{"id":"a","n":{"x":1,"x":2},"id":"b"}', b'{"n":{"x":2},"id":"b"}'))
    assert doubled.body == {"id": "b", "n": {"x": 2}}
    assert keys.auto(doubled) == keys.auto(plain)
    assert keys.content(doubled) == keys.content(plain)


def test_depth_counts_brackets_outside_strings() -> None:
    """64 levels are accepted, and brackets in strings do not count."""
    assert decode(b"[" * 64 + b"]" * 64)
    assert decode(b'["' + b"[" * 200 + b'\\"{{{"]')
    with pytest.raises(ValueError, match="deeper"):
        decode(b'["\\\\"' + b",[" * 64 + b"]" * 65)


@given(JSON, st.integers(50, 80))
def test_depth_is_exact(value: Any, levels: int) -> None:
    """The 65th level is rejected, whatever strings contain: quotes, backslashes or brackets."""
    wrapped, depth = value, _levels(value)
    for _ in range(levels):
        wrapped, depth = ([wrapped, '\\"[{'] if depth % 2 else {"]": "}", "[": wrapped}), depth + 1
    text = json.dumps(wrapped).encode()
    if depth > 64:
        with pytest.raises(ValueError, match="deeper"):
            decode(text)
    else:
        assert decode(text) is not None


def _levels(value: Any) -> int:
    if isinstance(value, dict | list):
        return 1 + max(map(_levels, value.values() if isinstance(value, dict) else value), default=0)
    return 0


@pytest.mark.parametrize("value", [{1: 2}, {"a": object()}, "\ud800", {"a": {"b": print}}])
def test_not_a_json_value(value: Any) -> None:
    """Python values that JSON cannot represent are rejected, not converted."""
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        normal(value)


@given(st.lists(JSON, min_size=1, max_size=3))
def test_hashes_are_independent(values: list[Any]) -> None:
    """A hash does not depend on earlier hashes: BLAKE2b for keys, the start of SHA-256 for content."""
    for value in values:
        spelling = encode(value)
        assert digest_of(value) == digest(spelling) == blake2b(spelling, digest_size=16).digest()
        assert content_digest(value) == sha256(spelling).digest()[:16]
