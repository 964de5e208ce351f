"""Random values that depend only on a seed and a name."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar
from uuid import UUID

_Choice = TypeVar("_Choice")


class RandomSource:
    """A sequence of random values. Sources with different names are independent: drawing more values from one source,
    for example for more copies, does not change the values of another source."""

    def __init__(self, seed: int, name: str) -> None:
        self._random = Random(f"{seed}/{name}")  # noqa: S311  # not used for secrets

    def uuid(self) -> str:
        return str(UUID(int=self._random.getrandbits(128), version=4))

    def digits(self, length: int) -> str:
        return "".join(str(self.integer(0, 9)) for _ in range(length))

    def integer(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return self._random.randint(low, high)

    def choose(self, choices: Sequence[_Choice]) -> _Choice:
        return self._random.choice(choices)

    def decide(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.random() < probability
