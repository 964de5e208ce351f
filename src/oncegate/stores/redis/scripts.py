"""The scripts: their text, and the digests by which servers know them."""

import hashlib
import pkgutil
from typing import Final

from msgspec import Struct
from msgspec.structs import replace


class Script(Struct, frozen=True):
    """`writes`: replicas are to confirm what it does, if that is wanted. `reads_first`: it takes the key of its first
    request, to read it with the clock. `notes`: told to, it notes the namespaces of its requests."""

    text: bytes
    digest: str
    writes: bool = True
    repeatable: bool = True
    reads_first: bool = False
    notes: bool = False


def script_of(text: bytes, **how: bool) -> Script:
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest(), **how)


def _script(*names: str, **how: bool) -> Script:
    return script_of(b"".join(map(_text, ("record", *names))), **how)


def _text(name: str) -> bytes:
    return pkgutil.get_data("oncegate.stores.redis", f"{name}.lua") or b""


CLAIM: Final = _script("claim", "records", "known", reads_first=True, notes=True)
SETTLE: Final = _script("settle", "records", "endings", reads_first=True)
# Nobody waits for replicas to know what is given back: it comes free by itself, when its lease ends.
GIVE_BACK: Final = replace(SETTLE, writes=False)
# Asked again after a lost answer, these would do more than was asked, or tell that what they did was not to be done.
TAKE: Final = _script("records", "take", repeatable=False)
OPERATE: Final = _script("records", "operate", repeatable=False)
SWAP: Final = _script("records", "swap", repeatable=False)
LOOK: Final = _script("records", "look", writes=False)
