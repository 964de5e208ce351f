"""Unwrap a payload into deliveries, one for each event that its carriers (SQS, SNS, Kinesis, HTTP …) contain.

Each family of carriers is a module with MARKERS and `pieces(body)`. MARKERS are names of members. A document that has
none of these members is not a carrier of the family. `pieces` returns the contents of a carrier, or None if the
document is not a carrier of the family. Contents are unwrapped again, so carriers may be nested in any order. Content
that cannot be read becomes a delivery with a `problem`; the other contents of the carrier are not affected.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from oncegate.canonical import decode, encode, written
from oncegate.carriers import batches, brokers, buses, eventbridge, functions, queues, streams, topics, web
from oncegate.carriers.buses import BusMessage
from oncegate.carriers.pieces import HANDED_KEY, Piece, merged, without_key
from oncegate.errors import TooManyEvents
from oncegate.events import NO_EVIDENCE, Delivery, Evidence

DEEPEST = 8

_Family = tuple[set[str], Callable[[dict[str, Any]], Iterable[Piece] | None]]
_FAMILIES: tuple[_Family, ...] = tuple(
    (family.MARKERS, family.pieces) for family in (queues, topics, streams, brokers, functions, web, batches)
)
# Many documents have a member `detail`, so `detail` alone does not mark a carrier.
_MARKERS = set[str]().union(*(markers for markers, _ in _FAMILIES)) - {"detail"}
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")  # not allowed in JSON text, not even in strings
# A string without a closing quote is also one token (`"?`). Otherwise the search would start again at each quote inside
# the string, and would take quadratic time.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{}\[\]]', re.DOTALL)


T = TypeVar("T")


class _Found(list[Delivery]):
    """The deliveries found so far, the limit, and how many more pieces may be unwrapped."""

    most: int = 0
    left: float = float("inf")

    def expect(self, count: int) -> None:
        """Raise TooManyEvents if a carrier with `count` pieces exceeds the limit. The first piece replaces its carrier,
        so the first piece does not count. An empty carrier counts like one event, because unwrapping it takes time."""
        if count - 1 > self.left:
            raise TooManyEvents(self.most)

    def each(self, pieces: Iterable[T]) -> Iterator[T]:
        """Iterate over the pieces of a carrier and count them. The first piece beyond the limit raises TooManyEvents;
        later pieces are not created."""
        for index, piece in enumerate(pieces):
            if index:
                self.expect(2)
                self.left -= 1
            yield piece


def deliveries(payload: Any, headers: Mapping[str, Any] | None = None, most: int | None = None) -> list[Delivery]:
    """Unwrap a payload of bytes, text or parsed JSON, or a message of a bus. `headers` are the HTTP headers of the
    request, if the payload came with a request. Raises TooManyEvents as soon as more than `most` deliveries are
    found."""
    found = _Found()
    if most is not None:
        found.most, found.left = most, most - 1
    if type(payload) is BusMessage:
        _unwrap_piece(buses.piece(payload), NO_EVIDENCE, 0, found)
        return found
    try:
        raw = _bytes(payload)
    except ValueError as error:
        return [Delivery(None, repr(payload).encode("utf-8", "backslashreplace"), str(error))]
    if headers:
        _unwrap_piece(web.request(raw, headers, NO_EVIDENCE), NO_EVIDENCE, 0, found)
    else:
        _unwrap_text(raw, NO_EVIDENCE, 0, found)
    return found


def delivery(payload: Any) -> Delivery:
    """Return the payload as one delivery. The delivery has a `problem` if the payload does not contain exactly one
    event."""
    found = deliveries(payload)
    if len(found) == 1:
        return found[0]
    return Delivery(None, _bytes(payload), f"the payload contains {len(found)} events; exactly one is expected")


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
    """Add the deliveries of a value to `found`. `raw` has the bytes of the value, or None if the value was not received
    as bytes. `polled` says that the value is an event of a NICE CXone poll."""
    if type(value) is dict:
        pieces = None if "detail-type" in value and value.get("source") != "lambda" else _pieces(value)
        if pieces is None:
            raw = encode(value) if raw is None else raw
            inner = eventbridge.delivery(value, raw, evidence) if "detail" in value else None
            if HANDED_KEY in value:  # a detail without its envelope: an EventBridge rule may send only the detail
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
        found.append(Delivery(None, raw, f"the event is nested in more than {DEEPEST} carriers", evidence))
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
    # Most documents are not carriers and end here.
    if _MARKERS.isdisjoint(body) and not ("detail" in body and functions.is_in_detail(body)):
        return None
    for markers, pieces in _FAMILIES:
        if not markers.isdisjoint(body) and (found := pieces(body)) is not None:
            return found
    return None


def _nested(items: list[Any]) -> Piece:
    """Return a piece with a problem for an array inside an array. The piece keeps the outer bracket. Without the outer
    bracket, its bytes would be a valid list of events when they are read again."""
    return Piece([items], problem="an event is a JSON object, not an array")


def _split(raw: bytes) -> Iterator[bytes]:
    """Split bytes into JSON texts. Each text ends at the bracket that closes an outermost bracket. Bytes that do not
    begin with `{` or `[`, or that are not text, are returned whole, because brackets in binary data have no meaning."""
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
