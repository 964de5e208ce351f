"""Ablations: a worker's gate or store with one rule taken out, to show that the judge would notice."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from oncegate import claims
from oncegate.claims import Complete, Held, Record, Release, Renew
from oncegate.gate.handlers import Handler
from oncegate.gate.jobs import Job
from oncegate.gate.running import Runner
from oncegate.stores.sqlite import SqliteStore


def ablate(name: str) -> None:
    """Take a rule out of this process."""
    ABLATIONS[name]()


def _unfenced() -> None:
    """Whoever asks is taken for the owner, and what it writes is accepted."""

    def renew(record: Record | None, renew: Renew, now: int) -> tuple[Record, bool]:
        assert record is not None
        return replace(record, lease_until=now + renew.lease), True

    def complete(record: Record | None, complete: Complete, now: int) -> tuple[Record, bool]:
        assert record is not None
        mine = replace(record, owner=complete.owner, fence=complete.fence)
        return claims._completed(mine, complete, now), True

    def release(record: Record | None, release: Release, now: int) -> tuple[Record, bool]:
        assert record is not None
        return claims._released(record, release, now), True

    claims._RULES[Renew] = renew
    claims._RULES[Complete] = complete
    claims._RULES[Release] = release


def _committed_apart() -> None:
    """The effect is committed in a transaction of its own, and the completion after it."""

    def transact(self: SqliteStore, held: Held, effect: Callable[[Any], Complete]) -> bool:
        with self._writing() as (db, _):
            complete = effect(db)
        return self.settle([complete])[0]

    setattr(SqliteStore, "transact", transact)  # noqa: B010  # mypy takes a method for fixed


def _in_company() -> None:
    """What was tried before is run together with its batch."""

    def run(self: Runner, jobs: Sequence[Job], handler: Handler) -> None:
        self._run_together([job for job in jobs if job.held], handler)

    setattr(Runner, "run", run)  # noqa: B010  # mypy takes a method for fixed


def _started_late() -> None:
    """An effect starts without a look at the clock."""

    checked = Runner._attempt_each

    def attempt_each(self: Runner, jobs: Sequence[Job], handle: Any) -> None:
        self._boot = lambda: 0
        checked(self, jobs, handle)

    setattr(Runner, "_attempt_each", attempt_each)  # noqa: B010  # mypy takes a method for fixed


ABLATIONS: Final[dict[str, Callable[[], None]]] = {
    "unfenced": _unfenced,
    "committed apart": _committed_apart,
    "in company": _in_company,
    "started late": _started_late,
}
