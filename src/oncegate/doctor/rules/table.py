"""Check the DynamoDB table."""

from collections.abc import Iterator
from typing import Final

from oncegate.doctor.facts import Facts, new_table
from oncegate.doctor.findings import Finding, error, warning

_TTL_ATTRIBUTE: Final = "expiresAt"
_TTL_ON: Final = f"Enabled=true,AttributeName={_TTL_ATTRIBUTE}"


def shape(facts: Facts) -> Iterator[Finding]:
    """The table has the key and the index that the store needs."""
    if facts.table is not None and facts.table.problem is not None:
        yield error(
            facts.table.name,
            facts.table.problem,
            "The store cannot open the table, so no event can be claimed.",
            new_table(facts.table.name),
            "Create a table with this command, and set the store to its URL. The records of the old table are not"
            " copied.",
        )


def sweep(facts: Facts) -> Iterator[Finding]:
    """Time to live is enabled on the attribute expiresAt."""
    table = facts.table
    if table is None or table.sweeps_by == _TTL_ATTRIBUTE:
        return
    if table.sweeps_by is None:
        report, found, change = warning, "time to live is off", _TTL_ON
        why = "Expired records are never deleted: the table and its cost grow without limit."
    else:
        report, found = error, f"time to live uses the attribute {table.sweeps_by}, not {_TTL_ATTRIBUTE}"
        why = (
            "DynamoDB may delete records too early, and their events run again. DynamoDB must turn time to live off"
            " before it accepts another attribute; that takes up to an hour."
        )
        change = f"Enabled=false,AttributeName={table.sweeps_by}"
    command = facts.aws("dynamodb update-time-to-live", table_name=table.name, time_to_live_specification=change)
    yield report(table.name, found, why, command)


def capacity(facts: Facts) -> Iterator[Finding]:
    """The table has on-demand capacity."""
    if facts.table is not None and not facts.table.on_demand:
        yield warning(
            facts.table.name,
            "the capacity of the table is provisioned",
            "DynamoDB throttles bursts: claims fail, and the redeliveries add more load.",
            facts.aws("dynamodb update-table", table_name=facts.table.name, billing_mode="PAY_PER_REQUEST"),
        )


RULES: Final = (shape, sweep, capacity)
