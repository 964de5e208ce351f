"""Random values of a simulation."""

from oncegate.simulate.random_source import RandomSource


def drawn(source: RandomSource) -> list[object]:
    return [source.uuid(), source.digits(5), source.integer(1, 6), source.choose("abc"), source.decide(0.5)]


def test_a_seed_and_a_name_decide() -> None:
    """The same seed and name give the same values; another name gives others."""
    assert drawn(RandomSource(1, "a")) == drawn(RandomSource(1, "a"))
    assert drawn(RandomSource(1, "a"))[0] != drawn(RandomSource(1, "b"))[0]


def test_sources_are_independent() -> None:
    """Values drawn from one source do not change those of another."""
    first, second = RandomSource(1, "a"), RandomSource(1, "b")
    first.uuid()
    assert drawn(second) == drawn(RandomSource(1, "b"))


def test_probabilities() -> None:
    """A decision is never true with probability 0, and always true with probability 1."""
    source = RandomSource(1, "a")
    assert [source.decide(0) for _ in range(100)] == [False] * 100
    assert [source.decide(1) for _ in range(100)] == [True] * 100
