"""Commit the writes of a handler and the completion of its claim in one TransactWriteItems."""

import os
import time
from typing import Any, Final

from botocore.exceptions import ClientError, ParamValidationError

from oncegate.aws.failures import code_of
from oncegate.claims import Complete, Record, Renew, step
from oncegate.errors import StoreError, StoreRefused, StoreUnavailable
from oncegate.stores.base import EffectFailed
from oncegate.stores.dynamodb.client import DynamoClient, ItemChanged
from oncegate.stores.dynamodb.conditional_writes import STAMP_SIZE, ConditionalWriter, SeenItem, seen_in
from oncegate.stores.dynamodb.items import AddressPair, item_of

_MAX_WRITES: Final = 99  # DynamoDB allows 100, one of which is the completion
_TOKEN_SIZE: Final = 16
_CONDITION_FAILED: Final = "ConditionalCheckFailed"
_TRANSIENT: Final = frozenset({"None", "TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})


class WriteRefused(Exception):
    """DynamoDB refused a write of the handler, so no write of the handler was applied. `reasons` are the cancellation
    reasons from DynamoDB."""

    def __init__(self, message: str, reasons: list[dict[str, Any]]) -> None:
        super().__init__(message)
        self.reasons = reasons


class Writes:
    """The writes of a handler, collected until the handler returns.

    Each method takes the parameters that botocore's `transact_write_items` takes for this kind of write:
    `writes.put(TableName="Cases", Item={"id": {"S": "case-1"}})`."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._open = True
        self.collected: list[dict[str, Any]] = []

    def put(self, **parameters: Any) -> None:
        self._add("Put", parameters)

    def update(self, **parameters: Any) -> None:
        self._add("Update", parameters)

    def delete(self, **parameters: Any) -> None:
        self._add("Delete", parameters)

    def check(self, **parameters: Any) -> None:
        """Add a condition check. It writes nothing, but the transaction commits only if the condition is met."""
        self._add("ConditionCheck", parameters)

    def _add(self, kind: str, parameters: dict[str, Any]) -> None:
        if not self._open:
            raise RuntimeError("the transaction is over; writes are collected only while the handler runs")
        if str(parameters.get("TableName")).rpartition("/")[2] == self._table:
            raise ValueError(f"the table {self._table} holds the claims; write to another table")
        if len(self.collected) >= _MAX_WRITES:
            raise ValueError(f"too many writes; DynamoDB allows {_MAX_WRITES} writes together with a completion")
        self.collected.append({kind: parameters})

    def close(self) -> None:
        self._open = False


class Transaction:
    """One claim, and the writes that are committed with its completion."""

    def __init__(self, client: DynamoClient, writer: ConditionalWriter, address: AddressPair) -> None:
        self._client = client
        self._writer = writer
        self._address = address
        self._seen = writer.expected(address)
        self._stamp = os.urandom(STAMP_SIZE)  # all tries use this stamp, so that a retry recognizes an earlier try

    def is_held(self, renew: Renew) -> bool:
        """Return whether the owner still holds the claim, so that the effect may start. Reads the record from the table
        if the remembered record does not prove the claim."""
        if self._record_after(renew) is None and not self._seen.was_read:
            self._seen = self._writer.read(self._address)
        return self._record_after(renew) is not None

    def commit(self, complete: Complete, writes: list[dict[str, Any]]) -> bool:
        """Commit the completion and all writes, or nothing. Returns False if the owner no longer holds the claim, and
        also if the claim is already completed: the writes were then committed with that completion."""
        pauses = self._client.retry_pauses()
        while (after := self._record_after(complete)) is not None:
            if self._try_commit(after, writes):
                self._writer.remember(self._address, SeenItem(after, self._stamp, was_read=False))
                return True
            pause = next(pauses, None)
            if pause is None:
                raise StoreUnavailable(
                    f"a transaction in {self._client.place} kept conflicting with other writes; retry"
                )
            time.sleep(pause)
        return False

    def _record_after(self, operation: Renew | Complete) -> Record | None:
        """Return the record as it would be after an operation of the owner; None if the owner does not hold the
        claim."""
        now = self._writer.now()
        before = self._writer.with_margin(self._seen.record, operation, now)
        after, answer = step(before, operation, now)
        return after if answer is True and after is not before else None

    def _try_commit(self, after: Record, writes: list[dict[str, Any]]) -> bool:
        """Send the transaction once. Returns False if DynamoDB cancelled the transaction and a retry may succeed."""
        item = item_of(self._address, after, self._stamp, self._writer.margin)
        condition = self._writer.if_unchanged(self._seen, 0)
        completion = {"Put": {"TableName": self._client.table, "Item": item, **condition}}
        # The client may send this request again. DynamoDB recognizes a repeated token for ten minutes, and returns the
        # result of the first request.
        request = {"TransactItems": [completion, *writes], "ClientRequestToken": os.urandom(_TOKEN_SIZE).hex()}
        try:
            self._client.call("transact_write_items", **request)
        except ItemChanged as changed:
            return self._check_reasons(changed.reasons, writes)
        except StoreError as error:
            if writes and _is_about_writes(error.__cause__):
                raise EffectFailed(WriteRefused(str(error.__cause__), [])) from error
            raise
        return True

    def _check_reasons(self, reasons: list[dict[str, Any]], writes: list[dict[str, Any]]) -> bool:
        """Evaluate why DynamoDB cancelled the transaction. Returns True if an earlier try was applied, and False if a
        retry may succeed. Raises StoreRefused or EffectFailed otherwise."""
        completion, *others = reasons
        if completion["Code"] == _CONDITION_FAILED:
            self._seen = seen_in(completion.get("Item"))
            return self._seen.stamp == self._stamp
        if completion["Code"] not in _TRANSIENT:
            raise StoreRefused(f"{self._client.place} refused the completion ({_reason_text(completion)})")
        for reason, write in zip(others, writes, strict=True):
            if reason["Code"] not in _TRANSIENT:
                ((kind, parameters),) = write.items()
                refusal = f"{kind} on {parameters['TableName']} was refused ({_reason_text(reason)})"
                raise EffectFailed(WriteRefused(refusal, others))
        return False


def _is_about_writes(error: BaseException | None) -> bool:
    """Return whether DynamoDB or botocore refused the request because of its content, and so because of a write of the
    handler."""
    if isinstance(error, ClientError):
        return code_of(error) in ("ValidationException", "ResourceNotFoundException")
    return isinstance(error, ParamValidationError)


def _reason_text(reason: dict[str, Any]) -> str:
    return f"{reason['Code']}: {reason.get('Message', '')}"
