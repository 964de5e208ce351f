"""Chance with a seed: the same each time, whatever else is drawn elsewhere."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar
from uuid import UUID

_Choice = TypeVar("_Choice")


class Chance:
    """Each has a name of its own, so that to ask for more copies changes nothing of what happens."""

    def __init__(self, seed: int, name: str) -> None:
        self._random = Random(f"{seed}/{name}")  # noqa: S311  # no secret

    def uuid(self) -> str:
        return str(UUID(int=self._random.getrandbits(128), version=4))

    def digits(self, length: int) -> str:
        return "".join(str(self.between(0, 9)) for _ in range(length))

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self._random.randint(low, high)

    def one_of(self, choices: Sequence[_Choice]) -> _Choice:
        return self._random.choice(choices)

    def comes_true(self, probability: float) -> bool:
        return self._random.random() < probability
