"""What the errors of DynamoDB mean to whoever reads them: one sentence, and what to do."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from oncegate import forks
from oncegate.aws.clients import api_action, create_client
from oncegate.aws.failures import (
    FAILURES,
    ErrorHints,
    FailureKind,
    classify,
    code_of,
    is_transient,
    may_have_been_applied,
    message_of,
)
from oncegate.claims import Address
from oncegate.errors import StoreError, StoreRefused, StoreUnavailable, Unkeepable
from oncegate.stores.dynamodb.items import Item
from oncegate.stores.dynamodb.settings import DynamoSettings

_HINTS: Final = ErrorHints(
    "DynamoDB", "write dynamodb://Table?region=eu-central-1", "docs/stores/dynamodb.md lists what is needed"
)


class TableMissing(StoreRefused):
    """There is no such table."""


class TableInUse(StoreError):
    """Somebody else is making the table."""


_ERRORS: Final[dict[FailureKind, type[StoreError]]] = {
    "transient": StoreUnavailable,
    "not_sent": StoreRefused,
    "denied": StoreRefused,
    "missing": TableMissing,
    "not_aws": StoreRefused,
    "refused": StoreError,
}


def explained(error: Exception, place: str, action: str) -> StoreError:
    """An error that asking again would not help, or has not helped."""
    if isinstance(error, ClientError) and code_of(error) == "ResourceInUseException":
        return TableInUse(f"{place} is being created or changed ({message_of(error)}); try again later")
    if isinstance(error, ClientError) and "Item size" in message_of(error):
        return Unkeepable(
            f"a record for {place} is larger than the 400 kB that DynamoDB keeps; return a smaller result (max_result)"
            " or keep large payloads elsewhere"
        )
    found = classify(error, place, action, _HINTS)
    return _ERRORS[found.kind](found.message)


def unlike(place: str) -> StoreRefused:
    return StoreRefused(f"{place} does not answer as DynamoDB does; check the endpoint")


# Requests to DynamoDB: one client, asked again with a growing pause for as long as the error may pass.


_FIRST_PAUSE: Final = 0.025
_LONGEST_PAUSE: Final = 1.0
_A_TRY: Final = 0.45  # of the time there is, so that there is some to ask again
_CALLERS: Final = 16  # threads of the caller's own that ask beside those of batches; more of them reconnect
_CONDITION: Final = "ConditionalCheckFailedException"
_CANCELLED: Final = "TransactionCanceledException"


class ItemChanged(Exception):
    """A condition was not met: the item is as it is here. `unsure`: an earlier try may have been carried out."""

    def __init__(self, response: dict[str, Any], unsure: bool) -> None:
        super().__init__(response.get("Error"))
        self.item: Item | None = response.get("Item") or None
        self.reasons: list[dict[str, Any]] = response.get("CancellationReasons", [])
        self.unsure = unsure


class DynamoClient:
    """botocore's own retries are off: they would hide whether a request may have been carried out before."""

    def __init__(self, settings: DynamoSettings) -> None:
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
                    raise ItemChanged(error.response, unsure) from None
                pause = next(pauses, None) if is_transient(error) else None
                if pause is None:
                    raise explained(error, self.place, f"dynamodb:{api_action(action)}") from error
                unsure = unsure or may_have_been_applied(error)
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
            return create_client(
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


# Threads on which the keys of a batch are worked at side by side.


_Asked = TypeVar("_Asked", bound=Address)


class KeyWorkers:
    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        forks.watch(self)

    def each(self, work: Callable[[_Asked], Any], batch: Sequence[_Asked]) -> list[Any]:
        """What comes of each, in the order of the batch."""
        answers: list[Any] = [None] * len(batch)
        self.fill(answers, work, batch)
        return answers

    def fill(self, answers: list[Any], work: Callable[[_Asked], Any], batch: Sequence[_Asked]) -> None:
        """The same, put in its place as it comes; those of one key come one after the other."""
        places: dict[tuple[str, bytes], list[int]] = {}
        for place, asked in enumerate(batch):
            places.setdefault((asked.namespace, asked.key), []).append(place)

        def of_one_key(where: tuple[str, bytes]) -> None:
            for place in places[where]:
                answers[place] = work(batch[place])

        if len(places) > 1:
            self._together(of_one_key, list(places))
        else:
            list(map(of_one_key, places))

    def _together(self, work: Callable[[tuple[str, bytes]], None], wheres: Sequence[tuple[str, bytes]]) -> None:
        """After a failure nothing more is begun, and it is raised when all that was begun has ended."""
        executor = self._started()
        futures = [executor.submit(work, where) for where in wheres]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            begun = [future for future in futures if not future.cancel()]
            wait(begun)
        for future in begun:
            future.result()

    def _started(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, "oncegate-dynamodb")
            return self._executor

    def close(self) -> None:
        with self._lock:
            if self._executor is not None:
                self._executor.shutdown(wait=False)
                self._executor = None

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """Threads are not forked: the child starts its own."""
        if in_child:
            self._executor = None
        self._lock.release()
