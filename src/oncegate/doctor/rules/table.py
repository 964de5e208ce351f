"""Rules for the DynamoDB table."""

from collections.abc import Iterator
from typing import Final

from oncegate.doctor.facts import Facts, new_table
from oncegate.doctor.findings import Finding, error, warning

_SWEPT: Final = "expiresAt"
_SWEEPING: Final = f"Enabled=true,AttributeName={_SWEPT}"


def shape(facts: Facts) -> Iterator[Finding]:
    """The table is one that the store takes."""
    if facts.table is not None and facts.table.problem is not None:
        yield error(
            facts.table.name,
            facts.table.problem,
            "The store refuses to open it, so no event is taken.",
            new_table(facts.table.name),
        )


def sweep(facts: Facts) -> Iterator[Finding]:
    """DynamoDB deletes what has expired, by the attribute that says when."""
    table = facts.table
    if table is None or table.sweeps_by == _SWEPT:
        return
    say = warning if table.sweeps_by is None else error
    found = "its time to live is off" if table.sweeps_by is None else f"it sweeps by {table.sweeps_by}, not by {_SWEPT}"
    lost = "Records may be deleted before their time, and their events run again."
    yield say(
        table.name,
        found,
        "It grows, and is paid for, for ever." if table.sweeps_by is None else lost,
        facts.aws("dynamodb update-time-to-live", table_name=table.name, time_to_live_specification=_SWEEPING),
    )


def capacity(facts: Facts) -> Iterator[Finding]:
    """The table takes as many requests as come."""
    if facts.table is not None and not facts.table.on_demand:
        yield warning(
            facts.table.name,
            "its capacity is provisioned",
            "A storm of events is throttled: claims fail, and deliveries come again and make it worse.",
            facts.aws("dynamodb update-table", table_name=facts.table.name, billing_mode="PAY_PER_REQUEST"),
        )


RULES: Final = (shape, sweep, capacity)
