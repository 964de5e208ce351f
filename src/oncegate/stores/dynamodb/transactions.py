"""Transactions: the writes of a handler, committed with the completion of its claim in one TransactWriteItems."""

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
from oncegate.stores.dynamodb.items import Where, item_of

_MOST_WRITES: Final = 99
_TOKEN_SIZE: Final = 16
_FAILED: Final = "ConditionalCheckFailed"
_PASSING: Final = frozenset({"None", "TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})


class WriteRefused(Exception):
    """A write of the handler's own was refused, and so none of its writes was made. `reasons` are DynamoDB's."""

    def __init__(self, said: str, reasons: list[dict[str, Any]]) -> None:
        super().__init__(said)
        self.reasons = reasons


class Writes:
    """What a handler wants written, collected until it returns.

    Each method takes the parameters of its part of `TransactWriteItems`, as botocore's client does:
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
        """Write nothing, but only commit if a condition holds."""
        self._add("ConditionCheck", parameters)

    def _add(self, kind: str, parameters: dict[str, Any]) -> None:
        if not self._open:
            raise RuntimeError("the transaction is over; writes are collected only while the handler runs")
        if str(parameters.get("TableName")).rpartition("/")[2] == self._table:
            raise ValueError(f"the table {self._table} holds the claims; keep what handlers write in another")
        if len(self.collected) >= _MOST_WRITES:
            raise ValueError(f"DynamoDB takes {_MOST_WRITES} writes together with a completion; write fewer")
        self.collected.append({kind: parameters})

    def close(self) -> None:
        self._open = False


class Transaction:
    """One claim and the writes that shall be made with its completion."""

    def __init__(self, calls: DynamoClient, judge: ConditionalWriter, where: Where) -> None:
        self._calls = calls
        self._judge = judge
        self._where = where
        self._seen = judge.held(where)
        self._stamp = os.urandom(STAMP_SIZE)  # one for all tries, so that each knows the work of the others

    def holds(self, renew: Renew) -> bool:
        """Whether the claim is still the asker's, so that its effect may begin."""
        if self._after(renew) is None and not self._seen.sure:
            self._seen = self._judge.look(self._where)
        return self._after(renew) is not None

    def commit(self, complete: Complete, writes: list[dict[str, Any]]) -> bool:
        """Write all or nothing. False: the claim is no longer the asker's. A completion that was made before does not
        count: its writes were made then."""
        pauses = self._calls.pauses()
        while (after := self._after(complete)) is not None:
            if self._committed(after, writes):
                self._judge.remember(self._where, SeenItem(after, self._stamp, sure=False))
                return True
            pause = next(pauses, None)
            if pause is None:
                raise StoreUnavailable(
                    f"others kept writing what a transaction in {self._calls.place} writes; try again"
                )
            time.sleep(pause)
        return False

    def _after(self, operation: Renew | Complete) -> Record | None:
        """The record after an operation that only the holder of the claim may do; None: it is not the holder."""
        now = self._judge.now()
        before = self._judge.present(self._seen.record, operation, now)
        after, answer = step(before, operation, now)
        return after if answer is True and after is not before else None

    def _committed(self, after: Record, writes: list[dict[str, Any]]) -> bool:
        """Send it all. False: it was not done, for a reason that may be gone at the next try."""
        item = item_of(self._where, after, self._stamp, self._judge.margin)
        condition = self._judge.unless_changed(self._seen, 0)
        ours = {"Put": {"TableName": self._calls.table, "Item": item, **condition}}
        # By the token DynamoDB knows a repeated request for ten minutes, and answers it as it did the first time.
        together = {"TransactItems": [ours, *writes], "ClientRequestToken": os.urandom(_TOKEN_SIZE).hex()}
        try:
            self._calls.ask_of_any("transact_write_items", **together)
        except ItemChanged as changed:
            return self._cancelled(changed.reasons, writes)
        except StoreError as error:
            if writes and _is_about_writes(error.__cause__):
                raise EffectFailed(WriteRefused(str(error.__cause__), [])) from error
            raise
        return True

    def _cancelled(self, reasons: list[dict[str, Any]], writes: list[dict[str, Any]]) -> bool:
        """Why it was cancelled. True: it was not needed, since an earlier try had been carried out."""
        ours, *others = reasons
        if ours["Code"] == _FAILED:
            self._seen = seen_in(ours.get("Item"))
            return self._seen.stamp == self._stamp
        if ours["Code"] not in _PASSING:
            raise StoreRefused(f"{self._calls.place} refused a completion ({_said(ours)})")
        for reason, write in zip(others, writes, strict=True):
            if reason["Code"] not in _PASSING:
                raise EffectFailed(WriteRefused(_sentence(reason, write), others))
        return False


def _is_about_writes(error: BaseException | None) -> bool:
    """Whether a request was refused for what it says, and not for who asks or when."""
    if isinstance(error, ClientError):
        return code_of(error) in ("ValidationException", "ResourceNotFoundException")
    return isinstance(error, ParamValidationError)


def _sentence(reason: dict[str, Any], write: dict[str, Any]) -> str:
    ((kind, parameters),) = write.items()
    return f"{kind} on {parameters['TableName']} was refused ({_said(reason)})"


def _said(reason: dict[str, Any]) -> str:
    return f"{reason['Code']}: {reason.get('Message', '')}"
