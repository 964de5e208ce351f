"""Check that the requested parts could be read."""

from collections.abc import Iterator
from typing import Final

from oncegate.doctor.facts import Facts
from oncegate.doctor.findings import Finding, error


def readable(facts: Facts) -> Iterator[Finding]:
    """Every requested part can be read."""
    for unread in facts.unread:
        mend, decision = unread.mend, unread.decision
        if mend is None:
            mend = facts.aws("sts get-caller-identity")
            decision = "Check the name, the region and the permissions of this identity."
        yield error(unread.what, unread.why, "The rules for this part cannot be checked.", mend, decision)


RULES: Final = (readable,)
