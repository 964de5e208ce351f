"""Asking: requests to a store with what is to follow them, each kind by its verb or several kinds with one write."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any

from msgspec import Struct

from oncegate.claims import Operation
from oncegate.clocks import Clock
from oncegate.errors import StoreError, StoreReadOnly
from oncegate.stores.base import Together


class Asking(Struct, frozen=True):
    """Requests of one kind, and what they are for. `answered` gets that, the answers and when they were asked for;
    `failed` gets it and why there are none. Where the store takes no writes, `known` gets the requests and what they
    are for, and gives back what it could not answer by reading."""

    verb: Callable[[Sequence[Any]], Sequence[Any]]
    requests: Sequence[Operation]
    about: Sequence[Any]
    answered: Callable[[Sequence[Any], Sequence[Any], int], None]
    failed: Callable[[Sequence[Any], str], None]
    known: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]] | None = None

    def ask(self, boot: Clock) -> None:
        sent_at = boot()
        try:
            answers = self.verb(self.requests)
        except StoreReadOnly as error:
            if left := self.about if self.known is None else self.known(self.requests, self.about):
                self.failed(left, str(error))
        except StoreError as error:
            self.failed(self.about, str(error))
        else:
            self.answered(self.about, answers, sent_at)


def ask_all(askings: Sequence[Asking], store: Together | None, boot: Clock) -> None:
    """All of them, in order: with one write if there is a store that can do that. If that fails, for whatever reason,
    each is asked for by itself: what is to follow differs, and what is wrong with one must not stop another."""
    if len(askings) > 1 and store is not None and _asked_together(askings, store, boot):
        return
    with ExitStack() as each_of_them:
        for asking in reversed(askings):
            each_of_them.callback(asking.ask, boot)


def _asked_together(askings: Sequence[Asking], store: Together, boot: Clock) -> bool:
    sent_at = boot()
    try:
        answers = iter(store.together([request for asking in askings for request in asking.requests]))
    except Exception:  # noqa: BLE001  # it is raised again by the one that it is about
        return False
    for asking in askings:
        asking.answered(asking.about, list(islice(answers, len(asking.requests))), sent_at)
    return True
