"""Rules for what was asked for and could not be read."""

from collections.abc import Iterator
from typing import Final

from oncegate.doctor.facts import Facts
from oncegate.doctor.findings import Finding, error


def readable(facts: Facts) -> Iterator[Finding]:
    """Everything that was named could be read."""
    for unread in facts.unread:
        yield error(
            unread.what,
            unread.why,
            "What cannot be read cannot be judged.",
            facts.aws("sts get-caller-identity"),
        )


RULES: Final = (readable,)
