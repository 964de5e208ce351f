"""Addresses, forms and headers of the console."""

from urllib.parse import parse_qsl

import htpy as h
import pytest

from oncegate.console.requests import Request, fields, header, link, page, redirect


def request(**query: str) -> Request:
    return Request("GET", "/events", query, {})


def test_a_link_quotes_what_it_is_given() -> None:
    hostile = '"><script>&a=b#c\r\nd: e/../?ä\u2028'

    address = link("/event", {"key": hostile})

    assert address.isascii()
    assert not set(address) & set('"<>#\r\n ')
    assert dict(parse_qsl(address.partition("?")[2])) == {"key": hostile}


def test_a_sender_cannot_reorder_the_words_of_a_page() -> None:
    """A character that changes the direction of text is shown as its code. An attribute keeps it, for the clipboard."""
    shown = page(h.p(data_copy="a\u202eb")["It runs ", h.b["x\u202ey<z"], " again. \u2066"]).body.decode()
    assert shown == '<p data-copy="a\u202eb">It runs <b>x\\u202ey&lt;z</b> again. \\u2066</p>'


def test_a_link_leaves_out_empty_parameters() -> None:
    assert link("/event") == "/console/event"
    assert link("/event", {"a": None, "b": "", "c": 0, "d": False}) == "/console/event?c=0&d=False"


def test_the_address_of_this_page_with_other_parameters() -> None:
    assert request(q="a b", before="12").url(before=None, status="failed") == "/console/events?q=a+b&status=failed"


def test_the_last_value_of_a_field_counts() -> None:
    assert fields(b"a=1&b=&a=2&c") == {"a": "2", "b": "", "c": ""}


@pytest.mark.parametrize("encoded", [b"\xff=1", b"%ff=1", b"a=%c0%80", b"a=%ed%a0%80"])
def test_broken_text_is_replaced(encoded: bytes) -> None:
    for name, value in fields(encoded).items():
        assert (name + value).encode()


def test_too_many_fields() -> None:
    assert len(fields(b"&".join(b"f%d=" % number for number in range(200)))) == 200
    with pytest.raises(ValueError, match="fields"):
        fields(b"a=1&" * 201)


def test_the_first_header_counts() -> None:
    scope = {"headers": [(b"host", b"a"), (b"host", b"b"), (b"x", b"\xe4")]}

    assert (header(scope, b"host"), header(scope, b"x"), header(scope, b"y")) == ("a", "ä", None)


def test_a_redirect_is_loaded_with_get() -> None:
    answer = redirect("/console/events?q=a")

    assert (answer.code, answer.headers) == (303, [(b"location", b"/console/events?q=a")])
