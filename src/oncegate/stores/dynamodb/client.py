"""Send requests to DynamoDB, retry them, and turn errors into store errors. Run the keys of a batch in threads."""

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
    "DynamoDB", "write 'dynamodb://Table?region=eu-central-1'", "docs/stores/dynamodb.md lists what is needed"
)
_FIRST_PAUSE: Final = 0.025  # seconds
_LONGEST_PAUSE: Final = 1.0
_CONNECT_TIMEOUT: Final = 2.0
_TRY_SHARE: Final = 0.45  # one try may use this share of the timeout, which leaves time for a retry
_CALLING_THREADS: Final = 16  # connections for threads of the application; if there are more threads, they reconnect
_CONDITION_FAILED: Final = ("ConditionalCheckFailedException", "TransactionCanceledException")
_Request = TypeVar("_Request", bound=Address)


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────


class TableMissing(StoreRefused):
    """The table does not exist."""


class TableInUse(StoreError):
    """Another process is creating or changing the table."""


class ItemChanged(Exception):
    """The condition of a write was not met. `item` is the item as it is now.

    `maybe_applied` is true if an earlier try of the same request may have been applied."""

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
    """Return the store error for an error that is not retried, or that is still there after the retries."""
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
    """Sends requests, and retries them after transient errors until the timeout.

    The retries of botocore are off: they would hide whether an earlier try may have been applied."""

    def __init__(self, settings: DynamoSettings) -> None:
        self.table = settings.table
        self.place = settings.place
        self._settings = settings
        self._client: Any = None
        self._closed = False
        self._lock = threading.Lock()
        forks.watch(self)

    def call_table(self, action: str, **parameters: Any) -> dict[str, Any]:
        """Send a request like `call`, and add the name of the table to the parameters."""
        return self.call(action, TableName=self.table, **parameters)

    def call(self, action: str, **parameters: Any) -> dict[str, Any]:
        """Send a request and return the response.

        Raises ItemChanged if a condition was not met, and StoreError for any other failure."""
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
        """Return an iterator over the pauses before the retries, in seconds. The timeout begins with this call."""
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
        """Drop the client in the child, so that the child opens new connections. If two processes used one connection,
        each would read responses to requests of the other."""
        if in_child:
            self._drop_client()
        self._lock.release()

    def _drop_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _retry_pauses(started: float, timeout: float) -> Iterator[float]:
    """Yield the pauses before the retries. Stop if the next try would end after the timeout, assuming that it takes as
    long as the last try."""
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
        """Write the result of `work` for each request into `answers`. Each result is written as soon as it is known, so
        that `answers` has it even if another request fails.

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
        """Call `work` for each address in the threads. If a call fails, start no further calls, wait for the running
        calls, and raise the error of the failed call."""
        executor = self._get_executor()
        futures = [executor.submit(work, address) for address in addresses]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            started = [future for future in futures if not future.cancel()]
            wait(started)
        for future in started:
            future.result()

    def _get_executor(self) -> ThreadPoolExecutor:
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
        """Drop the executor in the child. Threads do not survive a fork, so the child starts new threads."""
        if in_child:
            self._executor = None
        self._lock.release()
