"""Requests to DynamoDB: one client, asked again with a growing pause for as long as the error may pass."""

import random
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from oncegate import forks
from oncegate.aws.clients import camel, client
from oncegate.aws.failures import FAILURES, code_of, may_have_landed, passes
from oncegate.errors import StoreRefused
from oncegate.stores.dynamodb.failures import explained
from oncegate.stores.dynamodb.items import Item
from oncegate.stores.dynamodb.settings import Settings

_FIRST_PAUSE: Final = 0.025
_LONGEST_PAUSE: Final = 1.0
_A_TRY: Final = 0.45  # of the time there is, so that there is some to ask again
_CALLERS: Final = 16  # threads of the caller's own that ask beside those of batches; more of them reconnect
_CONDITION: Final = "ConditionalCheckFailedException"
_CANCELLED: Final = "TransactionCanceledException"


class Changed(Exception):
    """A condition was not met: the item is as it is here. `unsure`: an earlier try may have been carried out."""

    def __init__(self, response: dict[str, Any], unsure: bool) -> None:
        super().__init__(response.get("Error"))
        self.item: Item | None = response.get("Item") or None
        self.reasons: list[dict[str, Any]] = response.get("CancellationReasons", [])
        self.unsure = unsure


class Calls:
    """botocore's own retries are off: they would hide whether a request may have been carried out before."""

    def __init__(self, settings: Settings) -> None:
        self.table = settings.table
        self.place = settings.place
        self._settings = settings
        self._client: Any = None
        self._closed = False
        self._lock = threading.Lock()
        forks.watch(self)

    def ask(self, action: str, **parameters: Any) -> dict[str, Any]:
        """Ask about the table."""
        return self.ask_of_any(action, TableName=self.table, **parameters)

    def ask_of_any(self, action: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a request; Changed if its condition was not met, StoreError if there is none in time."""
        request = getattr(self.client(), action)
        pauses = self.pauses()
        unsure = False
        while True:
            try:
                answer: dict[str, Any] = request(**parameters)
            except FAILURES as error:
                if isinstance(error, ClientError) and code_of(error) in (_CONDITION, _CANCELLED):
                    raise Changed(error.response, unsure) from None
                pause = next(pauses, None) if passes(error) else None
                if pause is None:
                    raise explained(error, self.place, f"dynamodb:{camel(action)}") from error
                unsure = unsure or may_have_landed(error)
                time.sleep(pause)
            else:
                return answer

    def pauses(self) -> Iterator[float]:
        """How long to wait before each further try, at random so that many do not come back at once; none for one that
        would end, if it took as long as the one before, after the time there is for all of them."""
        return self._pauses(time.monotonic())

    def _pauses(self, asked_at: float) -> Iterator[float]:
        deadline = asked_at + self._settings.timeout
        longest = _FIRST_PAUSE
        while True:
            now = time.monotonic()
            pause = random.uniform(longest / 2, longest)  # noqa: S311  # no secret
            if now + pause + (now - asked_at) > deadline:
                return
            asked_at = now + pause
            yield pause
            longest = min(2 * longest, _LONGEST_PAUSE)

    # ── the client ────────────────────────────────────────────────────────────────────────────────────────

    def client(self) -> Any:
        with self._lock:
            if self._closed:
                raise StoreRefused(f"{self.place} was closed")
            if self._client is None:
                self._client = self._made()
            return self._client

    def _made(self) -> Any:
        settings = self._settings
        try:
            return client(
                "dynamodb",
                settings.region,
                settings.endpoint,
                self.place,
                connect_timeout=min(2.0, settings.timeout * _A_TRY),
                read_timeout=settings.timeout * _A_TRY,
                max_pool_connections=settings.parallel + _CALLERS,
            )
        except BotoCoreError as error:
            raise explained(error, self.place, "") from error

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._let_go()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """Two processes on one connection would read each other's answers."""
        if in_child:
            self._let_go()
        self._lock.release()

    def _let_go(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
