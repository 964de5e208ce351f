"""Check the store that the settings name, and the clocks."""

import shlex
from collections.abc import Iterator
from typing import Final

from oncegate.doctor.facts import ClockFacts, Facts, RedisFacts
from oncegate.doctor.findings import Finding, error, note, warning
from oncegate.durations import spoken

_NETWORKS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "fuse.sshfs", "fuse.s3fs"}
)
_TOLERANCE: Final = 5_000_000
_SET_CLOCK: Final = "timedatectl set-ntp true"
_AWS: Final = "AWS"


def reachable(facts: Facts) -> Iterator[Finding]:
    """The store can be used."""
    if facts.store is not None and facts.store.problem is not None:
        yield error(
            facts.store.url,
            facts.store.problem,
            "No event can be claimed without the store.",
            "oncegate config show",
            "Correct the URL, or make the store reachable.",
        )


def present(facts: Facts) -> Iterator[Finding]:
    """The store exists."""
    if facts.store is not None and facts.store.absent is not None:
        yield note(
            facts.store.url,
            facts.store.absent,
            "The first gate that opens the store creates it. If events were processed already, they use another store.",
            f"oncegate serve{_store_option(facts.store.url)}",
        )


def _store_option(url: str) -> str:
    """Return the option --store for a command line. Returns an empty text if the URL has a masked secret: the command
    then takes the full URL from the settings."""
    return "" if "***" in url else f" --store {shlex.quote(url)}"


def memory(facts: Facts) -> Iterator[Finding]:
    """The store survives a restart."""
    if facts.store is not None and facts.store.scheme == "memory":
        yield warning(
            facts.store.url,
            "the store is in the memory of one process",
            "After a restart, and in a second process, every event counts as new.",
            {"store": "sqlite:///oncegate.db"},
        )


def disk(facts: Facts) -> Iterator[Finding]:
    """The SQLite file is on a local disk."""
    store = facts.store
    if store is not None and store.file_system in _NETWORKS:
        yield error(
            store.url,
            f"the file is on a network file system ({store.file_system})",
            "SQLite locks do not work reliably there: two machines can claim the same event or damage the file.",
            {"store": "sqlite:////var/lib/oncegate.db"},
            "Choose a folder on a local disk. Stop all processes that use the file before you move it.",
        )


def integrity(facts: Facts) -> Iterator[Finding]:
    """The SQLite file is not damaged."""
    store = facts.store
    if store is None or store.path is None:
        return
    if store.damage is not None:
        yield error(
            store.url,
            f"the file is damaged: {store.damage}",
            "Claims, dead letters and waiting events may be lost or wrong.",
            shlex.join(["sqlite3", store.path, "PRAGMA integrity_check"]),
            "Stop all processes that use the file, and restore or repair it as docs/operations.md says.",
        )
    elif store.cut_short:
        yield note(
            store.url,
            "the integrity check was stopped after 10 s because the file is large",
            "The part that was checked is not damaged; a complete check reads every page of the file.",
            shlex.join(["sqlite3", store.path, "PRAGMA integrity_check"]),
            "Run the complete check when the load is low.",
        )


def private(facts: Facts) -> Iterator[Finding]:
    """Only the owner can read the SQLite file."""
    store = facts.store
    if store is not None and store.readable:
        yield warning(
            store.url,
            f"users other than the owner can read {', '.join(store.readable)}",
            "The file holds the payloads of dead letters and of waiting events. Oncegate creates new files that only"
            " the owner can read.",
            shlex.join(["chmod", "go-rwx", *store.readable]),
        )


def eviction(facts: Facts) -> Iterator[Finding]:
    """When its memory is full, Redis rejects writes and does not evict claims."""
    redis = facts.redis
    if redis is not None and redis.evicts_by is not None:
        yield error(
            f"{redis.host}:{redis.port}",
            f"maxmemory-policy is {redis.evicts_by}",
            "When its memory is full, Redis evicts the records of processed events, and their duplicates take effect"
            " again.",
            _config_set(redis, "maxmemory-policy", "noeviction"),
        )


def persistence(facts: Facts) -> Iterator[Finding]:
    """Redis has an append-only file."""
    redis = facts.redis
    if redis is not None and not redis.append_only:
        yield warning(
            f"{redis.host}:{redis.port}",
            "appendonly is off",
            "If Redis stops, all claims and completions since the last snapshot are lost.",
            _config_set(redis, "appendonly", "yes"),
        )


def _config_set(redis: RedisFacts, name: str, value: str) -> str:
    place = ["-h", redis.host, "-p", str(redis.port), *redis.login]
    return shlex.join(["redis-cli", *place, "CONFIG", "SET", name, value])


def clock(facts: Facts) -> Iterator[Finding]:
    """The clock of this machine agrees with the clocks of AWS and of the store."""
    skew = facts.store.skew if facts.store is not None else None
    for server in facts.clocks:
        off = abs(server.ahead) - server.within
        if skew is not None and off > skew:
            why = (
                f"Leases in DynamoDB depend on the clock of this machine and tolerate a difference of {spoken(skew)}:"
                " two handlers may run the same event at once."
            )
            yield error(server.of, _difference(server), why, _SET_CLOCK, _which_clock(server))
        elif off > _TOLERANCE:
            why = (
                "The age of an event is computed with the clock of this machine, and AWS rejects requests whose time is"
                " five minutes off."
            )
            yield warning(server.of, _difference(server), why, _SET_CLOCK, _which_clock(server))


def _which_clock(clock: ClockFacts) -> str | None:
    """Return the decision that the finding needs. The clock of AWS is right; the clock of another server may be
    wrong."""
    if clock.of == _AWS:
        return None
    return "Find out which of the two clocks is wrong. The command corrects the clock of this machine."


def _difference(clock: ClockFacts) -> str:
    direction = "behind" if clock.ahead > 0 else "ahead of"
    return f"the clock of this machine is {spoken(abs(clock.ahead))} {direction} the clock of {clock.of}"


RULES: Final = (reachable, present, memory, disk, integrity, private, eviction, persistence, clock)
