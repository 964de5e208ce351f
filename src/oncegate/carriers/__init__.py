"""Carriers: from what arrived to deliveries, one for each thing that it carries.

Each family of carriers is a module with `pieces(body)`: what such a carrier holds, or None for what is none, as all is
that has none of the members that are TELLING of it. What is inside is unwrapped in turn, so they may be nested in any
order. What cannot be read is a delivery too, with its problem, and its neighbours are none the worse for it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from oncegate.canonical import decode, encode, written
from oncegate.carriers import batches, brokers, eventbridge, functions, queues, streams, topics, web
from oncegate.carriers.pieces import HANDED_KEY, Piece, merged, without_key
from oncegate.errors import TooManyEvents
from oncegate.events import NO_EVIDENCE, Delivery, Evidence

DEEPEST = 8

_Family = tuple[set[str], Callable[[dict[str, Any]], Iterable[Piece] | None]]
_FAMILIES: tuple[_Family, ...] = tuple(
    (family.TELLING, family.pieces) for family in (queues, topics, streams, brokers, functions, web, batches)
)
# Many documents have a detail: by itself it tells nothing.
_TELLING = set[str]().union(*(telling for telling, _ in _FAMILIES)) - {"detail"}
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")  # JSON text has none of them, not even in strings
# A string that does not end is one token too: looked at from each of its quotes anew, it would take quadratic time.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{}\[\]]', re.DOTALL)


T = TypeVar("T")


class _Found(list[Delivery]):
    """What was found, and how many more pieces may be looked into."""

    left: float = float("inf")

    def expect(self, count: int) -> None:
        """The first piece stands for its carrier; the others are more than there was. What holds nothing counts too,
        as it takes its time all the same."""
        if count - 1 > self.left:
            raise TooManyEvents

    def each(self, pieces: Iterable[T]) -> Iterator[T]:
        """The pieces as they are looked into: those beyond what may be are not even made."""
        for place, piece in enumerate(pieces):
            if place:
                self.expect(2)
                self.left -= 1
            yield piece


def deliveries(payload: Any, headers: Mapping[str, Any] | None = None, most: int | None = None) -> list[Delivery]:
    """Unwrap bytes, text or parsed JSON, that came with these HTTP headers if there were any. TooManyEvents as soon as
    it shows that there are more than `most`."""
    try:
        raw = _bytes(payload)
    except ValueError as error:
        return [Delivery(None, repr(payload).encode("utf-8", "backslashreplace"), str(error))]
    found = _Found()
    if most is not None:
        found.left = most - 1
    if headers:
        _unwrap_piece(web.request(raw, headers, NO_EVIDENCE), NO_EVIDENCE, 0, found)
    else:
        _unwrap_text(raw, NO_EVIDENCE, 0, found)
    return found


def delivery(payload: Any) -> Delivery:
    """The payload as one delivery, whatever it holds."""
    found = deliveries(payload)
    if len(found) == 1:
        return found[0]
    return Delivery(None, _bytes(payload), f"one event was expected here, not {len(found)}")


def _bytes(payload: Any) -> bytes:
    if type(payload) is bytes:
        return payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    return payload.encode("utf-8", "surrogatepass") if isinstance(payload, str) else written(payload)


def _unwrap_text(raw: bytes, evidence: Evidence, depth: int, found: _Found) -> None:
    try:
        value = decode(raw)
    except ValueError as error:
        found.append(Delivery(None, raw, str(error), evidence))
    else:
        _unwrap(value, raw, evidence, depth, found)


def _unwrap(
    value: Any, raw: bytes | None, evidence: Evidence, depth: int, found: _Found, *, polled: bool = False
) -> None:
    """Add the deliveries within a value. `raw` are the bytes it came as, if it came as such."""
    if type(value) is dict:
        pieces = None if "detail-type" in value and value.get("source") != "lambda" else _pieces(value)
        if pieces is None:
            raw = encode(value) if raw is None else raw
            inner = eventbridge.delivery(value, raw, evidence) if "detail" in value else None
            if HANDED_KEY in value:  # the detail of an envelope that a rule has taken off
                value, evidence = without_key(value, evidence)
            found.append(inner or Delivery(value, raw, None, evidence, polled=polled))
            return
    elif type(value) is list:
        found.expect(len(value))
        pieces = (Piece(item) if type(item) is not list else _nested(item) for item in value)
    elif type(value) is str and value[:1] in ("{", "[", '"'):
        pieces = [Piece(value)]
    else:
        found.append(Delivery(value, encode(value) if raw is None else raw, None, evidence))
        return
    if depth == DEEPEST:
        raw = encode(value) if raw is None else raw
        found.append(Delivery(None, raw, f"it is wrapped more than {DEEPEST} times", evidence))
        return
    for piece in found.each(pieces):
        _unwrap_piece(piece, evidence, depth + 1, found)


def _unwrap_piece(piece: Piece, outer: Evidence, depth: int, found: _Found) -> None:
    evidence = merged(outer, piece.evidence)
    content = piece.content
    if piece.problem is not None or piece.frame is not None:
        raw = content if type(content) is bytes else encode(content)
        found.append(Delivery(None, raw, piece.problem, evidence, None, piece.frame))
    elif type(content) is bytes and piece.several:
        for raw in found.each(_split(content)):
            _unwrap_text(raw, evidence, depth, found)
    elif type(content) is bytes or type(content) is str:
        _unwrap_text(_bytes(content), evidence, depth, found)
    else:
        _unwrap(content, None, evidence, depth, found, polled=piece.polled)


def _pieces(body: dict[str, Any]) -> Iterable[Piece] | None:
    if _TELLING.isdisjoint(body) and not ("detail" in body and functions.is_in_detail(body)):  # as nearly always
        return None
    for telling, pieces in _FAMILIES:
        if not telling.isdisjoint(body) and (found := pieces(body)) is not None:
            return found
    return None


def _nested(items: list[Any]) -> Piece:
    """It keeps a bracket around it: read again, it must not become the events within."""
    return Piece([items], problem="an event is a JSON object, not an array")


def _split(raw: bytes) -> Iterator[bytes]:
    """The JSON texts in these bytes, which are cut after every bracket that closes an outermost one. What does not
    begin like JSON, or is no text, is one piece: brackets and newlines in binary data mean nothing."""
    if raw.lstrip()[:1] not in (b"{", b"[") or _CONTROLS.search(raw) or not _is_utf8(raw):
        yield raw
        return
    depth = start = 0
    for token in _TOKENS.finditer(raw):
        if token[0] in (b"{", b"["):
            depth += 1
        elif token[0] in (b"}", b"]"):
            depth = max(depth - 1, 0)
            if depth == 0:
                yield raw[start : token.end()].strip()
                start = token.end()
    rest = raw[start:].strip()
    if rest or not start:
        yield rest or raw


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
