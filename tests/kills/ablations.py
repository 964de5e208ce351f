"""Ablations: a worker's gate or store with one rule taken out, to show that the judge would notice."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from oncegate import claims
from oncegate.claims import COMPLETED, Answer, Claim, ClaimProof, Complete, Record, Release, Renew, Verdict
from oncegate.errors import StoreUnavailable
from oncegate.gate.handlers import Handler
from oncegate.gate.job import Job
from oncegate.gate.sync_runner import SyncRunner
from oncegate.instances import instance, instance_of
from oncegate.stores.postgres import arrays, schema
from oncegate.stores.redis import RedisStore, script_calls
from oncegate.stores.sqlite import SqliteStore
from oncegate.stores.sqlite.instance_locks import InstanceLocks


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
    _script("SETTLE", b"#proof == NO_OWNER or sub(value, PROOF, PROOF + #proof - 1) ~= proof then", b"false then")
    _schema(b" AND c.state = 'P' AND c.owner = a.owner AND c.fence = a.fence", b"")


def _settled_once() -> None:
    """The same settlement again is refused."""

    ended = claims._RULES[Complete]

    def complete(record: Record | None, complete: Complete, now: int) -> tuple[Record | None, Answer]:
        return (record, False) if record is not None and record.state == COMPLETED else ended(record, complete, now)

    claims._RULES[Complete] = complete
    _script("SETTLE", b"string.upper(state) == ENDS_IN[verb] and '1' or '0'", b"'0'")
    _schema(b"WHERE c.state = a.ending AND c.owner", b"WHERE c.state = 'P' AND c.owner")


def _stolen() -> None:
    """A claim is granted while the lease of another is alive."""

    claims._alive = lambda record, now: False
    _script("CLAIM", b"elseif leased then", b"elseif false then")
    _schema(b"WHEN c.state = 'P' AND c.lease_until > now THEN 'held'", b"")


def _redrawn() -> None:
    """The owner is drawn anew each time that a claim is sent."""

    setattr(script_calls, "_RETRY_PAUSES", ())  # noqa: B010  # it is fixed; asked again is here instead
    claim = RedisStore.claim

    def redrawing(self: RedisStore, requests: Sequence[Claim]) -> list[Verdict]:
        while True:
            try:
                return claim(self, [replace(each, owner=os.urandom(16)) for each in requests])
            except StoreUnavailable:
                self._open().servers.refresh()

    setattr(RedisStore, "claim", redrawing)  # noqa: B010  # mypy takes a method for fixed


def _script(name: str, text: bytes, instead: bytes) -> None:
    """Change the script that this process sends to Redis."""
    whole = getattr(script_calls, name).text
    if whole.count(text) != 1:
        raise ValueError(f"{text!r} must mean one place")
    setattr(script_calls, name, script_calls.build_script(whole.replace(text, instead)))


def _schema(text: bytes, instead: bytes) -> None:
    """Change the functions that this process creates in Postgres, where they are not there yet."""
    if b"".join(schema.migrations(arrays.statements("any"))).count(text) != 1:
        raise ValueError(f"{text!r} must mean one place")

    def changed(name: str) -> dict[str, bytes]:
        return {part: sql.replace(text, instead) for part, sql in arrays.statements(name).items()}

    setattr(schema, "statements", changed)  # noqa: B010  # it is not the module's own


def _committed_apart() -> None:
    """The effect is committed in a transaction of its own, and the completion after it."""

    def transact(self: SqliteStore, held: ClaimProof, effect: Callable[[Any], Complete]) -> bool:
        complete = self._transaction(lambda db, _now: effect(db))
        return self.settle([complete])[0]

    setattr(SqliteStore, "transact", transact)  # noqa: B010  # mypy takes a method for fixed


def _in_company() -> None:
    """What was tried before is run together with its batch."""

    def run(self: SyncRunner, jobs: Sequence[Job], handler: Handler) -> None:
        self._run_together([job for job in jobs if job.held], handler)

    setattr(SyncRunner, "run", run)  # noqa: B010  # mypy takes a method for fixed


def _started_late() -> None:
    """An effect starts without a look at the clock."""

    checked = SyncRunner._attempt_each

    def attempt_each(self: SyncRunner, jobs: Sequence[Job], handle: Any) -> None:
        self._context = replace(self._context, boot=lambda: 0)
        checked(self, jobs, handle)

    setattr(SyncRunner, "_attempt_each", attempt_each)  # noqa: B010  # mypy takes a method for fixed


def _abandons_the_living() -> None:
    """Every other process is taken for ended, whatever its lock says."""

    def has_ended(_locks: InstanceLocks, owner: bytes) -> bool:
        return instance_of(owner) != instance()

    setattr(InstanceLocks, "has_ended", has_ended)  # noqa: B010  # mypy takes a method for fixed


ABLATIONS: Final[dict[str, Callable[[], None]]] = {
    "unfenced": _unfenced,
    "settled once": _settled_once,
    "stolen": _stolen,
    "redrawn": _redrawn,
    "committed apart": _committed_apart,
    "in company": _in_company,
    "started late": _started_late,
    "abandons the living": _abandons_the_living,
}
