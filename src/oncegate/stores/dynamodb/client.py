"""Requests to DynamoDB with retries, threads for the keys of a batch, and errors as store errors."""

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
    not_aws,
)
from oncegate.backoff import Backoff
from oncegate.claims import Address
from oncegate.errors import StoreError, StoreRefused, StoreUnavailable, Unkeepable
from oncegate.stores.dynamodb.items import AddressPair, Item
from oncegate.stores.dynamodb.settings import DynamoSettings

_HINTS: Final = ErrorHints(
    "DynamoDB", "write dynamodb://Table?region=eu-central-1", "docs/stores/dynamodb.md lists what is needed"
)
_FIRST_PAUSE: Final = 0.025  # seconds
_LONGEST_PAUSE: Final = 1.0
_CONNECT_TIMEOUT: Final = 2.0
_TRY_SHARE: Final = 0.45  # of the timeout for one try, which leaves time for a retry
_CALLING_THREADS: Final = 16  # connections for threads of the application; further threads have to reconnect
_CONDITION_FAILED: Final = ("ConditionalCheckFailedException", "TransactionCanceledException")
_Request = TypeVar("_Request", bound=Address)


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────


class TableMissing(StoreRefused):
    """The table does not exist."""


class TableInUse(StoreError):
    """Another process is creating or changing the table."""


class ItemChanged(Exception):
    """The condition of a write was not met. `item` is the item as it is now.

    `maybe_applied`: an earlier try of the same request may have been applied."""

    def __init__(self, response: dict[str, Any], maybe_applied: bool) -> None:
        super().__init__(response.get("Error"))
        self.item: Item | None = response.get("Item") or None
        self.reasons: list[dict[str, Any]] = response.get("CancellationReasons", [])
        self.maybe_applied = maybe_applied


_ERRORS: Final[dict[FailureKind, type[StoreError]]] = {
    "transient": StoreUnavailable,
    "not_sent": StoreRefused,
    "denied": StoreRefused,
    "missing": TableMissing,
    "not_aws": StoreRefused,
    "refused": StoreError,
}


def store_error(error: Exception, place: str, action: str) -> StoreError:
    """The store error for an error that a retry does not fix, or has not fixed."""
    if isinstance(error, ClientError) and code_of(error) == "ResourceInUseException":
        return TableInUse(f"{place} is being created or changed ({message_of(error)}); retry later")
    if isinstance(error, ClientError) and "Item size" in message_of(error):
        return Unkeepable(
            f"a record for {place} is larger than the 400 kB that DynamoDB allows; return a smaller result (max_result)"
            " or store large payloads elsewhere"
        )
    failure = classify(error, place, action, _HINTS)
    return _ERRORS[failure.kind](failure.message)


def not_dynamodb(place: str) -> StoreRefused:
    return StoreRefused(not_aws(place, _HINTS).message)


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────


class DynamoClient:
    """Sends requests and retries transient errors until the timeout.

    botocore's own retries are off: they would hide whether an earlier try may have been applied."""

    def __init__(self, settings: DynamoSettings) -> None:
        self.table = settings.table
        self.place = settings.place
        self._settings = settings
        self._client: Any = None
        self._closed = False
        self._lock = threading.Lock()
        forks.watch(self)

    def call_table(self, action: str, **parameters: Any) -> dict[str, Any]:
        """Like `call`, with the name of the table."""
        return self.call(action, TableName=self.table, **parameters)

    def call(self, action: str, **parameters: Any) -> dict[str, Any]:
        """Return the response. Raises ItemChanged if a condition was not met, and StoreError for any other failure."""
        method = getattr(self.botocore_client(), action)
        pauses = self.retry_pauses()
        maybe_applied = False
        while True:
            try:
                response: dict[str, Any] = method(**parameters)
            except FAILURES as error:
                if isinstance(error, ClientError) and code_of(error) in _CONDITION_FAILED:
                    raise ItemChanged(error.response, maybe_applied) from None
                pause = next(pauses, None) if is_transient(error) else None
                if pause is None:
                    raise store_error(error, self.place, f"dynamodb:{api_action(action)}") from error
                maybe_applied = maybe_applied or may_have_been_applied(error)
                time.sleep(pause)
            else:
                return response

    def retry_pauses(self) -> Iterator[float]:
        """The pauses before each retry, in seconds. The timeout counts from this call."""
        return _retry_pauses(time.monotonic(), self._settings.timeout)

    def botocore_client(self) -> Any:
        with self._lock:
            if self._closed:
                raise StoreRefused(f"the store in {self.place} was closed; open it again")
            if self._client is None:
                self._client = self._create_client()
            return self._client

    def _create_client(self) -> Any:
        settings = self._settings
        try_timeout = settings.timeout * _TRY_SHARE
        try:
            return create_client(
                "dynamodb",
                settings.region,
                settings.endpoint,
                self.place,
                connect_timeout=min(_CONNECT_TIMEOUT, try_timeout),
                read_timeout=try_timeout,
                max_pool_connections=settings.parallel + _CALLING_THREADS,
            )
        except BotoCoreError as error:
            raise store_error(error, self.place, "") from error

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop_client()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """The child opens new connections: two processes on one connection would read each other's responses."""
        if in_child:
            self._drop_client()
        self._lock.release()

    def _drop_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _retry_pauses(started: float, timeout: float) -> Iterator[float]:
    """Stops before a retry that would end after the timeout if it took as long as the last try."""
    deadline = started + timeout
    backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    while True:
        now = time.monotonic()
        pause = backoff.next_pause()
        if now + pause + (now - started) > deadline:
            return
        started = now + pause
        yield pause


# ── threads ───────────────────────────────────────────────────────────────────────────────────────────────


class KeyWorkers:
    """Threads that process the keys of a batch in parallel."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        forks.watch(self)

    def map(self, work: Callable[[_Request], Any], batch: Sequence[_Request]) -> list[Any]:
        """Return the result of `work` for each request, in the order of the batch."""
        answers: list[Any] = [None] * len(batch)
        self.fill(answers, work, batch)
        return answers

    def fill(self, answers: list[Any], work: Callable[[_Request], Any], batch: Sequence[_Request]) -> None:
        """Like `map`, but write each result into `answers` as soon as it is known, so that it survives a failure.

        Requests with the same key are processed one after the other."""
        indexes: dict[AddressPair, list[int]] = {}
        for index, request in enumerate(batch):
            indexes.setdefault((request.namespace, request.key), []).append(index)

        def process_key(address: AddressPair) -> None:
            for index in indexes[address]:
                answers[index] = work(batch[index])

        if len(indexes) > 1:
            self._run_parallel(process_key, list(indexes))
        else:  # a single key needs no thread
            for address in indexes:
                process_key(address)

    def _run_parallel(self, work: Callable[[AddressPair], None], addresses: Sequence[AddressPair]) -> None:
        """After a failure, start no further work, wait for the work that runs, and raise the failure."""
        executor = self._started_executor()
        futures = [executor.submit(work, address) for address in addresses]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            started = [future for future in futures if not future.cancel()]
            wait(started)
        for future in started:
            future.result()

    def _started_executor(self) -> ThreadPoolExecutor:
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
        """Threads do not survive a fork: the child starts its own."""
        if in_child:
            self._executor = None
        self._lock.release()
