"""The history: every request of a worker and its answer, one line before and one after each call."""

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from oncegate.claims import Bury, Claim, ClaimProof, Complete, Release, Renew
from oncegate.stores.base import EffectFailed, Store

_PREFIX: Final = "history-"


class Shown(Struct, frozen=True, array_like=True, gc=False):
    """A verdict: its name, the time of the store, and the record."""

    verdict: str
    at: int
    state: str
    owner: bytes
    fence: int
    attempts: int
    lease_until: int
    lost: int = 0


class Item(Struct, frozen=True, array_like=True, gc=False):
    """One item of a batch. A claim has no fence. Only claims and renewals have a lease."""

    namespace: str
    key: bytes
    owner: bytes
    verb: str
    fence: int = 0
    lease: int = 0


class Asked(Struct, frozen=True, array_like=True, tag="asked", gc=False):
    number: int
    at: int
    items: list[Item]


class Answered(Struct, frozen=True, array_like=True, tag="answered", gc=False):
    """The answers to a batch; None if certainly nothing was done."""

    number: int
    at: int
    answers: list[Shown | bool] | None


class Operation(Struct, frozen=True, gc=False):
    """One item for the checker. Without an answer, it may have been done or not, at any time since `begin`.

    `begin` and `end` are times of the monotonic clock, which all processes of the machine share.
    """

    item: Item
    begin: int
    end: int | None = None
    answer: Shown | bool | None = None


_VERBS: Final[dict[type, str]] = {
    Claim: "claim",
    Renew: "renew",
    Complete: "complete",
    Release: "release",
    Bury: "bury",
}
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Asked | Answered)
_Answer = TypeVar("_Answer")


class Recorder:
    """Writes the calls of one process. Each line is one write, so a killed process leaves a whole line or none."""

    def __init__(self, folder: str, worker: str) -> None:
        path = Path(folder) / f"{_PREFIX}{worker}"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._numbers = itertools.count()

    def watch(self, store: Store) -> None:
        """Record all calls of this store."""
        for verb in ("claim", "settle", "renew"):
            setattr(store, verb, partial(self._call, getattr(store, verb)))
        if hasattr(store, "transact"):
            transact = partial(self._transact, store.transact)
            setattr(store, "transact", transact)  # noqa: B010  # the class has no such slot

    def _call(self, verb: Callable[[Any], list[Any]], batch: Sequence[Any]) -> list[Any]:
        number = self._ask([_item(each) for each in batch])
        answers = verb(batch)
        self._answer(number, [each if isinstance(each, bool) else _shown(each) for each in answers])
        return answers

    def _transact(self, transact: Callable[..., bool], held: ClaimProof, effect: Callable[[Any], Complete]) -> bool:
        number = self._ask([Item(held.namespace, held.key, held.owner, "transact", held.fence)])
        try:
            answer = transact(held, effect)
        except EffectFailed:
            self._answer(number, None)
            raise
        self._answer(number, [answer])
        return answer

    def _ask(self, items: list[Item]) -> int:
        number = next(self._numbers)
        self._write(Asked(number, _now(), items))
        return number

    def _answer(self, number: int, answers: list[Shown | bool] | None) -> None:
        self._write(Answered(number, _now(), answers))

    def _write(self, line: Asked | Answered) -> None:
        os.write(self._file, _encoder.encode(line) + b"\n")


def read_history(folder: str) -> Iterator[Operation]:
    """All operations of all workers, in any order."""
    for path in sorted(Path(folder).glob(f"{_PREFIX}*")):
        with path.open("rb") as lines:
            yield from _operations(_decoder.decode(line) for line in lines)


def _operations(lines: Iterable[Asked | Answered]) -> Iterator[Operation]:
    open_: dict[int, Asked] = {}
    for line in lines:
        if isinstance(line, Asked):
            open_[line.number] = line
            continue
        asked = open_.pop(line.number)
        for item, answer in zip(asked.items, line.answers or (), strict=line.answers is not None):
            yield Operation(item, asked.at, line.at, answer)
    for asked in open_.values():
        yield from (Operation(item, asked.at) for item in asked.items)


def _item(asked: Any) -> Item:
    fence, lease = getattr(asked, "fence", 0), getattr(asked, "lease", 0)
    return Item(asked.namespace, asked.key, asked.owner, _VERBS[type(asked)], fence, lease)


def _shown(verdict: Any) -> Shown:
    record = verdict.record
    return Shown(
        type(verdict).__name__,
        verdict.at,
        record.state,
        record.owner,
        record.fence,
        record.attempts,
        record.lease_until,
        record.lost,
    )


def _now() -> int:
    return time.monotonic_ns() // 1_000
