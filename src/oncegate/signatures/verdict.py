"""Verdicts on a request: whose secret it was signed with, or why it is refused."""

from typing import Literal, TypeAlias

from msgspec import Struct


class Verified(Struct, frozen=True):
    """It was sent by one who knows a secret: that of this label, which is at this place among the secrets."""

    label: str
    index: int

    def __bool__(self) -> Literal[True]:
        return True


class Refused(Struct, frozen=True):
    """The HTTP code and the sentence to answer with; neither a secret nor the right signature is ever in it.

    It counts as false, so that `if verifier.check(…):` cannot let everybody in by mistake.
    """

    code: Literal[400, 401]
    reason: str

    def __bool__(self) -> Literal[False]:
        return False


Verdict: TypeAlias = Verified | Refused
