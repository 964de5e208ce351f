"""Cancelling: who has cancelled a handler, and how one is that has lost its claim."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Any, cast

from oncegate.gate.leases import Lease


def cancelling(task: asyncio.Task[Any] | None) -> int:
    return 0 if task is None else task.cancelling()


def by_itself(error: BaseException) -> RuntimeError:
    """Nobody has cancelled the handler: that it says so is a failure like any other."""
    failure = RuntimeError("the handler cancelled itself")
    failure.__cause__ = error
    return failure


class Lost(Exception):
    """The handler was cancelled because its claim was lost."""


class CancelledOnLoss:
    """Cancels the task that runs in it when the lease is lost, as `asyncio.timeout` does when the time is over."""

    __slots__ = ("_cancelling", "_fired", "_lease", "_task")

    def __init__(self, lease: Lease | None, task: asyncio.Task[Any] | None) -> None:
        self._lease = None if task is None else lease
        self._task = cast("asyncio.Task[Any]", task)
        self._fired = False

    def __enter__(self) -> None:
        if self._lease is None:
            return
        self._cancelling = self._task.cancelling()
        self._lease.on_lost = self._call_soon
        if self._lease.lost:
            self._cancel()

    def _call_soon(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and the task gone with it
            self._task.get_loop().call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._lease is not None and self._lease.on_lost is not None:
            self._fired = self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is None:
            return
        self._lease.on_lost = None
        if self._fired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise Lost from None
