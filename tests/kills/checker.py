"""The checker: whether a history is possible under the claim protocol, key by key.

It reports what no order of the operations could explain:

- two owners at once: a grant before the end of the previous lease, or two owners of one fence;
- a fence that does not rise from one grant to the next;
- a settlement or renewal that was accepted without a grant, or after a later grant was known;
- a completed or buried record that changed, or a claim that ended twice;
- a settlement or renewal of the owner that was rejected although no other grant is possible in between;
- a record whose owner never sent a request.

An operation without an answer may have been done or not, at any time since it began. A store may send a request again
after a lost answer. Both are one operation here, which was done at any time until its answer.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from oncegate.claims import COMPLETED, DEAD
from oncegate.instances import instance_of
from tests.kills.history import Operation, Shown
from tests.kills.linear import explained

_ENDS: Final = frozenset({"complete", "transact", "bury"})
_SETTLES: Final = _ENDS | {"release"}
_COUNTS: Final = ("operations", "keys", "unanswered", "grants", "takeovers", "refused")
_TOLD: Final = 12


class Check(Struct, frozen=True):
    """`unanswered` operations ended in an error or with their process. `takeovers` are grants after the first."""

    operations: int = 0
    keys: int = 0
    unanswered: int = 0
    grants: int = 0
    takeovers: int = 0
    refused: int = 0
    broken: tuple[str, ...] = ()

    def __add__(self, other: "Check") -> "Check":
        return Check(*(getattr(self, field) + getattr(other, field) for field in self.__struct_fields__))

    @property
    def complaints(self) -> list[str]:
        return [f"history: {each}" for each in self.broken[:_TOLD]]


def check(history: Iterable[Operation], *, search: bool = False, abandons: bool = False) -> Check:
    """Check a history. With `search`, also search an order of all operations; for histories in which every request was
    answered. With `abandons`, the store may end the lease of a process that has ended: it sends no request from then
    on."""
    by_key: dict[tuple[str, bytes], list[Operation]] = defaultdict(list)
    heard: dict[bytes | None, int] = defaultdict(int)
    for operation in history:
        by_key[operation.item.namespace, operation.item.key].append(operation)
        process = instance_of(operation.item.owner) if abandons else None
        heard[process] = max(heard[process], operation.begin)
    ahead = _ahead(each for operations in by_key.values() for each in operations)
    found = _sum([_Key(key.hex()[-8:], each, ahead, heard).check() for (_, key), each in by_key.items()])
    if not search:
        return found
    inexplicable = [key for (_, key), operations in by_key.items() if not explained(operations, ahead)]
    return replace(
        found, broken=(*found.broken, *(f"key {key.hex()[-8:]}: no order explains it" for key in inexplicable))
    )


def _ahead(operations: Iterable[Operation]) -> int:
    """How far the clock of the store is ahead of ours at least: it showed its time before the answer arrived here."""
    shown = (each.answer.at - each.end for each in operations if each.end and isinstance(each.answer, Shown))
    return max(shown, default=0)


def _sum(checks: list[Check]) -> Check:
    counts = {field: sum(getattr(each, field) for each in checks) for field in _COUNTS}
    return Check(**counts, broken=tuple(line for each in checks for line in each.broken))


class _Key:
    """The history of one key."""

    def __init__(self, name: str, operations: list[Operation], ahead: int, heard: Mapping[bytes | None, int]) -> None:
        self._name = name
        self._heard = heard  # the time of the last request of each process
        self._ahead = ahead
        self._all = operations
        self._claims = [each for each in operations if each.item.verb == "claim"]
        self._held = [each for each in operations if each.item.verb != "claim"]
        self._shown = [(each, each.answer) for each in self._claims if isinstance(each.answer, Shown)]
        self._grants = [(each, answer) for each, answer in self._shown if answer.verdict == "Granted"]
        by_end = sorted((each.end or 0, answer.fence) for each, answer in self._grants)
        self._answered = [end for end, _ in by_end]
        self._highest = list(accumulate((fence for _, fence in by_end), max))

    def check(self) -> Check:
        broken = [
            *self._two_owners(),
            *self._fences(),
            *self._stale(),
            *self._left(),
            *self._otherwise(),
            *self._from_nowhere(),
        ]
        first = {(answer.owner, answer.fence): answer.attempts + answer.lost for _, answer in self._grants}
        return Check(
            operations=len(self._all),
            keys=1,
            unanswered=sum(each.answer is None for each in self._all),
            grants=len(first),
            takeovers=sum(tries > 1 for tries in first.values()),
            refused=sum(each.answer is False for each in self._held),
            broken=tuple(f"key {self._name}: {line}" for line in broken),
        )

    # ── one owner at a time ───────────────────────────────────────────────────────────────────────────────

    def _two_owners(self) -> Iterator[str]:
        owners: dict[int, bytes] = {}
        for _, answer in self._shown:
            if owners.setdefault(answer.fence, answer.owner) != answer.owner:
                yield f"fence {answer.fence} has two owners"
        first = self._first_grants()
        for (_, before), (operation, after) in pairwise(first):
            until = self._held_until(before, operation)
            if after.at < until and not self._given_back(before, operation) and not self._ended(before, operation):
                yield f"two owners at once: {after.fence} was granted {until - after.at} µs before {before.fence} ended"

    def _first_grants(self) -> list[tuple[Operation, Shown]]:
        """Each grant once, as first shown, by its fence."""
        first: dict[int, tuple[Operation, Shown]] = {}
        for operation, answer in self._grants:
            known = first.get(answer.fence)
            if known is None or answer.at < known[1].at:
                first[answer.fence] = operation, answer
        return [first[fence] for fence in sorted(first)]

    def _held_until(self, grant: Shown, by: Operation) -> int:
        """The earliest possible end of the lease of a grant: as granted, or as renewed before the request `by`."""
        renewed = (
            each.begin + self._ahead + each.item.lease
            for each in self._of(grant)
            if each.item.verb == "renew" and each.answer is True and each.end is not None and each.end < by.begin
        )
        return max([grant.lease_until, *renewed])

    def _given_back(self, grant: Shown, by: Operation) -> bool:
        """A rejected release may have been accepted when it was first sent. Then the grant happened in between."""
        releases = [each for each in self._of(grant) if each.item.verb == "release" and _begun(each, by)]
        return any(each.answer is not False or _begun(by, each) for each in releases)

    def _ended(self, grant: Shown, by: Operation) -> bool:
        """Whether the holder of a grant can have ended before the next grant."""
        last = self._heard.get(instance_of(grant.owner) or b"")
        return last is not None and by.end is not None and last < by.end

    def _of(self, grant: Shown) -> list[Operation]:
        return [each for each in self._held if (each.item.owner, each.item.fence) == (grant.owner, grant.fence)]

    # ── fences ────────────────────────────────────────────────────────────────────────────────────────────

    def _highest_before(self, moment: int) -> int:
        """The highest fence whose grant was answered by then."""
        known = bisect_left(self._answered, moment)
        return self._highest[known - 1] if known else 0

    def _fences(self) -> Iterator[str]:
        for operation, answer in self._grants:
            before = self._highest_before(operation.begin)
            if answer.fence < before:
                yield f"the fence fell from {before} to {answer.fence}"

    def _stale(self) -> Iterator[str]:
        asked = {each.item.owner for each in self._claims}
        granted = {(answer.owner, answer.fence) for _, answer in self._shown}
        silent = {each.item.owner for each in self._claims if each.answer is None}
        for each in self._held:
            if each.answer is not True:
                continue
            item = each.item
            if item.owner not in asked or ((item.owner, item.fence) not in granted and item.owner not in silent):
                yield f"{item.verb} of {item.fence} was accepted from one who was not granted it"
            elif (later := self._highest_before(each.begin)) > item.fence:
                yield f"stale {item.verb} of {item.fence} was accepted after {later} was granted"

    # ── endings ───────────────────────────────────────────────────────────────────────────────────────────

    def _left(self) -> Iterator[str]:
        ends = self._ends()
        if len({proof for proof, _ in ends}) > 1:
            yield f"it was ended under {len({proof for proof, _ in ends})} claims"
        for (owner, fence), known in ends[:1]:
            for operation, answer in self._grants:
                if answer.fence > fence:
                    yield f"{answer.fence} was granted although {fence} ended it"
                elif operation.begin > known and answer.owner != owner:
                    yield f"{answer.fence} was granted after {fence} had ended it"
            for operation, answer in self._shown:
                if operation.begin > known and answer.state not in (COMPLETED, DEAD):
                    yield f"it was {answer.state} after {fence} had ended it"

    def _ends(self) -> list[tuple[tuple[bytes, int], int]]:
        """The proofs of all settlements, each with the time when it was known; the earliest first."""
        accepted = [
            ((each.item.owner, each.item.fence), each.end or 0)
            for each in self._held
            if each.item.verb in _ENDS and each.answer is True
        ]
        seen = [
            ((answer.owner, answer.fence), operation.end or 0)
            for operation, answer in self._shown
            if answer.state in (COMPLETED, DEAD)
        ]
        return sorted(accepted + seen, key=lambda end: end[1])

    # ── answers ───────────────────────────────────────────────────────────────────────────────────────────

    def _otherwise(self) -> Iterator[str]:
        for operation, answer in self._grants:
            if answer.owner != operation.item.owner:
                yield f"{answer.fence} was granted to one who did not ask"
        granted = {(answer.owner, answer.fence) for _, answer in self._grants}
        for each in self._held:
            mine = (each.item.owner, each.item.fence) in granted
            if each.answer is False and mine and not self._has_reason(each):
                yield f"{each.item.verb} of {each.item.fence} was refused to its owner"

    def _has_reason(self, refused: Operation) -> bool:
        """Whether another grant, or another settlement of the same claim, is possible."""
        item = refused.item
        if any(_begun(each, refused) for each, answer in self._grants if answer.fence > item.fence):
            return True
        if any(each.answer is None and _begun(each, refused) for each in self._claims):
            return True
        proof, again = (item.owner, item.fence), () if item.verb == "transact" else (item.verb,)
        return any(
            each.item.verb in _SETTLES and each.item.verb not in again and _begun(each, refused)
            for each in self._held
            if each is not refused and each.answer is not False and (each.item.owner, each.item.fence) == proof
        )

    def _from_nowhere(self) -> Iterator[str]:
        first: dict[bytes, int] = {}
        for each in self._claims:
            first[each.item.owner] = min(first.get(each.item.owner, each.begin), each.begin)
        for operation, answer in self._shown:
            if answer.owner not in first or first[answer.owner] > (operation.end or 0):
                yield f"{answer.verdict} showed an owner who had not asked"


def _begun(one: Operation, other: Operation) -> bool:
    """Whether one operation can have been done before the other was answered."""
    return other.end is None or one.begin < other.end
