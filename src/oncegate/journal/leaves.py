"""The details of a row: the keys under each strategy, and a keyed hash of each leaf of the body.

The hashes show at which paths two bodies differ, without the bodies. The secret of the hashes is stored in the journal.
So the hashes do not protect a short value from a reader of the journal who can guess it.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from oncegate import keys, sources
from oncegate.canonical import decode
from oncegate.errors import MissingKey
from oncegate.events import Event, Key
from oncegate.gate.job import CALL
from oncegate.sources import NO_HINTS, Hints

STRATEGIES: Final[Mapping[str, Callable[[Event], Key]]] = {
    "auto": keys.auto,
    "event_id": keys.event_id,
    "content": keys.content,
}
DIGEST_SIZE: Final = 8  # bytes of each key
HASH_SIZE: Final = 4  # bytes of each leaf
SHAPE_SIZE: Final = 8
SECRET_SIZE: Final = 32
REST: Final = "…"  # the path of the last leaf, if the body has more leaves than are hashed one by one

_NO_DIGEST: Final = bytes(DIGEST_SIZE)
_MOST_LEAVES: Final = 64
_DEEPEST: Final = 8
LONGEST_NAME: Final = 60  # characters of the name of one member
_LARGEST_EVENT: Final = 256 * 1024  # bytes; a larger event has no details
_SEPARATOR: Final = "\0"  # between the paths of a stored shape
_encode: Final = msgspec.json.Encoder(order="sorted").encode

Shape = tuple[str, ...]


def digests_of(event: Event, key: Key | None) -> bytes:
    """Returns the first 8 bytes of the key under each strategy, one after the other. For a strategy that gives no key,
    they are zero."""
    found = []
    for name, strategy in STRATEGIES.items():
        if key is not None and name == "auto" and key.strategy in ("auto", "auto.content"):
            found.append(key.digest[:DIGEST_SIZE])
            continue
        try:
            found.append(strategy(event).digest[:DIGEST_SIZE])
        except (MissingKey, TypeError, ValueError, RecursionError):
            found.append(_NO_DIGEST)
    return b"".join(found)


def has_details(event: Event) -> bool:
    """Whether the details of an event can be made in bounded time. An event that a program made has no raw document,
    so its size is unknown."""
    return 0 < len(event.raw) <= _LARGEST_EVENT and event.problem is None


def body_of(event: Event) -> Any:
    """Returns the body of an event as its document has it: a handler may have changed `event.body`, or may change it
    now. Raises ValueError if the document does not show the body.

    The settings of the gate are not known here. They decide which fields of a plain document are its id or its type,
    but its body is always the whole document. A Genesys document without a topic is read with the topic of the event.
    If settings made a document plain that another source would read, its body is not known."""
    if event.source == CALL:
        return decode(event.raw)
    hints = Hints(topic=event.type) if event.source == "genesys" and event.type else NO_HINTS
    found = sources.read(event.raw, hints=hints)
    if len(found) != 1 or found[0].problem is not None or found[0].source not in (event.source, "plain"):
        raise ValueError("the document does not show the body of the event")
    return found[0].body


class LeafHasher:
    """Hashes the leaves of bodies under the secret of one journal."""

    def __init__(self, secret: bytes) -> None:
        self._hash = hashlib.blake2b(digest_size=HASH_SIZE, key=secret)

    def leaves(self, body: Any) -> tuple[Shape, bytes]:
        """Returns the paths of the leaves, and their hashes one after the other. A list is one leaf, as in the
        differences of a conflict."""
        paths: list[str] = []
        hashes: list[bytes] = []
        start = self._hash
        for path, value in _leaves(body, "", _DEEPEST):
            if len(paths) == _MOST_LEAVES:
                path, value = REST, body  # noqa: PLW2901  # one last leaf for everything that is left
            leaf = start.copy()
            leaf.update(_bytes_of(value))
            paths.append(path)
            hashes.append(leaf.digest())
            if path is REST:
                break
        return tuple(paths), b"".join(hashes)


def _bytes_of(value: Any) -> bytes:
    """Returns different bytes for different JSON values. Most leaves are strings."""
    if type(value) is str:
        return b'"' + value.encode(errors="surrogatepass")
    return _encode(value)


def _leaves(value: Any, at: str, depth: int) -> Iterator[tuple[str, Any]]:
    if type(value) is not dict or not value or not depth:
        yield at, value
        return
    for member in sorted(value):
        name = (member if len(member) <= LONGEST_NAME else f"{member[:LONGEST_NAME]}…") or '""'
        name = name.replace(_SEPARATOR, "\N{REPLACEMENT CHARACTER}")
        path = f"{at}.{name}" if at else name
        inner = value[member]
        if type(inner) is dict:
            yield from _leaves(inner, path, depth - 1)
        else:
            yield path, inner


def shape_id(shape: Shape) -> bytes:
    text = _SEPARATOR.join(shape).encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=SHAPE_SIZE).digest()


def packed_shape(shape: Shape) -> bytes:
    return _SEPARATOR.join(shape).encode(errors="replace")


def unpacked_shape(data: bytes) -> Shape:
    return tuple(data.decode().split(_SEPARATOR))


def differing(one: tuple[Shape, bytes], other: tuple[Shape, bytes]) -> list[str]:
    """Returns the paths at which two bodies differ: paths with different hashes, and paths that only one body has."""
    first, second = _by_path(*one), _by_path(*other)
    return sorted(path for path in first.keys() | second.keys() if first.get(path) != second.get(path))


def _by_path(shape: Shape, hashes: bytes) -> dict[str, bytes]:
    return {
        path: hashes[HASH_SIZE * number : HASH_SIZE * (number + 1)]
        for number, path in enumerate(shape)
        if len(hashes) >= HASH_SIZE * (number + 1)
    }
