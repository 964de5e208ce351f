"""The room: how much may be in hand at a time, whoever sent it."""

from msgspec import Struct


class NoRoom(Exception):
    """There is more in hand than may be."""


class Room(Struct):
    """What is in hand: requests that are being taken, and the bytes of their bodies.

    A request that is still arriving does not count: unfinished requests would take the room of finished ones. The
    protocol has a budget for them.
    """

    most: int = 1_000
    most_bytes: int = 64 * 1024 * 1024
    requests: int = 0
    bytes: int = 0

    def enter(self) -> None:
        if self.requests >= self.most:
            raise NoRoom
        self.requests += 1

    def leave(self) -> None:
        self.requests -= 1

    def hold(self, size: int) -> None:
        if self.bytes + size > self.most_bytes:
            raise NoRoom
        self.bytes += size

    def let_go(self, size: int) -> None:
        self.bytes -= size
