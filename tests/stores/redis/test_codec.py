"""Encoding of addresses, requests and records."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.claims import EventSummary
from oncegate.stores.base import Store
from oncegate.stores.redis.codec import (
    claimed_summary,
    decode_address,
    decode_answer,
    decode_document,
    decode_namespace,
    decode_single_answer,
    encode_claim,
    encode_namespace,
    encode_summary,
    encode_texts,
)
from oncegate.testing.requests import claim_of, granted, stored


@given(st.text(), st.text(), st.binary(max_size=3), st.binary(max_size=3))
def test_addresses(one: str, other: str, key: bytes, other_key: bytes) -> None:
    """Encoded addresses sort like (namespace, key), and decode to the same values, for any text and bytes."""
    first, second = encode_namespace(one) + key, encode_namespace(other) + other_key
    assert (first < second) == ((one, key) < (other, other_key))
    assert decode_address(first) == (one, key)
    assert decode_namespace(encode_namespace(other)) == other


@pytest.mark.parametrize(
    "delivery",
    [
        None,
        "",
        "0f0e0d0c-0b0a-0908-0706-050403020100",
        "0F0E0D0C-0B0A-0908-0706-050403020100",
        "x" * 36,
        "-" * 36,
        "y" * 300,
    ],
)
def test_delivery_ids(store: Store, delivery: str | None) -> None:
    """A delivery id decodes to the same text, whether it is stored as a UUID or as text."""
    about = EventSummary("plain", None, None, None, delivery)
    granted(store, about=about)
    record = stored(store)
    assert record is not None
    assert record.about == about


def test_summaries_are_small() -> None:
    """A UUID takes 16 bytes, and None values at the end take none."""
    short = EventSummary("plain", "t", None, None, None)
    with_uuid = EventSummary("plain", "t", None, None, str(uuid.uuid4()))
    assert len(encode_summary(with_uuid)) == len(encode_summary(short)) + 16


def test_the_summary_in_a_claim() -> None:
    """An encoded claim ends with its encoded summary, which the store compares with the one in a record."""
    claim = claim_of(about=EventSummary("plain", "type", "entity", 5, "d" * 300))
    assert claimed_summary(encode_claim(claim)) == encode_summary(claim.about)


def test_answers() -> None:
    """An answer has the time, one letter for each request, and the records in order."""
    time = (1_700_000_000_000_000).to_bytes(7)
    assert decode_single_answer(time + b"Krecord") == (1_700_000_000_000_000, ord("K"), b"record")
    for reply, expected in ((time + b"NKrecord", [b"record"]), ([time + b"KNK", b"one", b"two"], [b"one", b"two"])):
        letters = reply[7:9] if isinstance(reply, bytes) else reply[0][7:]
        now, found, records = decode_answer(reply, 2)
        assert (now, found, list(records)) == (1_700_000_000_000_000, letters, expected)


def test_documents_and_texts() -> None:
    """A document is version, expiry and body; each text of a query follows its length in four bytes."""
    assert decode_document((7).to_bytes(7) + (9).to_bytes(7) + b"body") == (7, 9, b"body")
    assert encode_texts([b"key", b""]) == b"\0\0\0\3key\0\0\0\0"
