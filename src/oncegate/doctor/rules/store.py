"""Rules for the store of the settings, and for clocks."""

import shlex
from collections.abc import Iterator
from typing import Final

from oncegate.doctor.facts import ClockFacts, Facts
from oncegate.doctor.findings import Finding, error, note, warning
from oncegate.durations import spoken

_NETWORKS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "fuse.sshfs", "fuse.s3fs"}
)
_TOLERANCE: Final = 5_000_000


def reachable(facts: Facts) -> Iterator[Finding]:
    """The store can be used."""
    if facts.store is not None and facts.store.problem is not None:
        yield error(
            facts.store.url,
            facts.store.problem,
            "No event is taken while there is no store to claim it in.",
            "oncegate config show",
        )


def present(facts: Facts) -> Iterator[Finding]:
    """The store exists already."""
    if facts.store is not None and facts.store.absent is not None:
        yield note(
            facts.store.url,
            facts.store.absent,
            "It is made when the first gate opens it; or it is another one that is in use.",
            f"oncegate serve{_given(facts.store.url)}",
        )


def _given(url: str) -> str:
    """The option for a store, but where a secret is left out of it: then it is that of the settings."""
    return "" if "***" in url else f" --store {shlex.quote(url)}"


def memory(facts: Facts) -> Iterator[Finding]:
    """What was done is remembered over a restart."""
    if facts.store is not None and facts.store.scheme == "memory":
        yield warning(
            facts.store.url,
            "it lives within one process",
            "After a restart, or in a second process, every event is new.",
            "export ONCEGATE_STORE=sqlite:///oncegate.db",
        )


def disk(facts: Facts) -> Iterator[Finding]:
    """An SQLite file is on a local disk."""
    store = facts.store
    if store is not None and store.file_system in _NETWORKS:
        yield error(
            store.url,
            f"its file is on a network file system ({store.file_system})",
            "Locks are not kept there as SQLite needs them: two machines can be granted one event, or damage the file.",
            "export ONCEGATE_STORE=sqlite:////var/lib/oncegate.db",
        )


def integrity(facts: Facts) -> Iterator[Finding]:
    """SQLite finds no damage in its file."""
    store = facts.store
    if store is None or store.path is None:
        return
    if store.damage is not None:
        yield error(
            store.url,
            f"its file is damaged: {store.damage}",
            "Claims, dead letters and events that wait may be lost or wrong: stop all that uses it, and see"
            " docs/operations.md.",
            shlex.join(["sqlite3", store.path, "PRAGMA integrity_check"]),
        )
    elif store.cut_short:
        yield note(
            store.url,
            "its file is so large that it was not checked to the end",
            "What was checked is sound; the whole check reads every page of the file.",
            shlex.join(["sqlite3", store.path, "PRAGMA integrity_check"]),
        )


def private(facts: Facts) -> Iterator[Finding]:
    """Nobody but its owner can read an SQLite file."""
    store = facts.store
    if store is not None and store.readable:
        yield warning(
            store.url,
            f"others than its owner may read {', '.join(store.readable)}",
            "Payloads of dead letters and of events that wait are in there. New files are made for their owner only.",
            shlex.join(["chmod", "go-rwx", *store.readable]),
        )


def eviction(facts: Facts) -> Iterator[Finding]:
    """Redis refuses writes when it is full, instead of forgetting claims."""
    redis = facts.redis
    if redis is not None and redis.evicts_by is not None:
        yield error(
            f"{redis.host}:{redis.port}",
            f"its maxmemory-policy is {redis.evicts_by}",
            "When its memory is full it forgets events that were processed, and their copies take effect again.",
            f"redis-cli -h {redis.host} -p {redis.port} CONFIG SET maxmemory-policy noeviction",
        )


def persistence(facts: Facts) -> Iterator[Finding]:
    """Redis keeps an append-only file."""
    redis = facts.redis
    if redis is not None and not redis.append_only:
        yield warning(
            f"{redis.host}:{redis.port}",
            "it keeps no append-only file",
            "What was claimed and completed since its last snapshot is forgotten when it stops.",
            f"redis-cli -h {redis.host} -p {redis.port} CONFIG SET appendonly yes",
        )


def clock(facts: Facts) -> Iterator[Finding]:
    """This machine's clock agrees with those of AWS and of the store."""
    skew = facts.store.skew if facts.store is not None else None
    for each in facts.clocks:
        off = abs(each.ahead) - each.within
        if skew is not None and off > skew:
            why = (
                f"Leases in DynamoDB are judged by it, with {spoken(skew)} to spare: a handler may run beside another."
            )
            yield error(each.of, _said(each), why, "timedatectl set-ntp true")
        elif off > _TOLERANCE:
            why = "The age of events is told by this clock, and AWS refuses requests that are five minutes off."
            yield warning(each.of, _said(each), why, "timedatectl set-ntp true")


def _said(clock: ClockFacts) -> str:
    return f"this machine's clock is {spoken(abs(clock.ahead))} {'behind' if clock.ahead > 0 else 'ahead of'} it"


RULES: Final = (reachable, present, memory, disk, integrity, private, eviction, persistence, clock)
