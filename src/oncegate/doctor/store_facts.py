"""Read facts about the store that the settings name.

The function that reads a kind of store imports the modules of that store. A user of Redis therefore does not need
psycopg.
"""

import os
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from oncegate.clocks import wall
from oncegate.doctor.facts import ClockFacts, RedisFacts, StoreFacts
from oncegate.errors import MissingExtra, NoStore, StoreError
from oncegate.stores import check_url, open_store, scheme_of

if TYPE_CHECKING:
    from oncegate.stores.redis.connection import RedisServer
    from oncegate.stores.redis.settings import RedisSettings

_MOUNTS: Final = "/proc/self/mounts"
_CHECK_LIMIT: Final = 10.0  # seconds; the integrity check of a large SQLite file takes longer and is stopped
_READABLE_BY_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH


class StoreReading(Struct, frozen=True, kw_only=True):
    """The facts about a store and about the clock of its server. `redis` has the facts about the server of a Redis
    store."""

    store: StoreFacts
    redis: RedisFacts | None = None
    clocks: tuple[ClockFacts, ...] = ()


def read_store(url: str, masked_url: str, check_limit: float | None = None) -> StoreReading:
    """Return the facts about the store at a URL. If the store cannot be used, no StoreError is raised:
    `StoreFacts.problem` is then the reason. `check_limit` is the longest time, in seconds, for the integrity check of
    an SQLite file."""
    scheme = scheme_of(url)
    read = _READERS.get("redis" if "redis" in scheme else scheme)
    if read is None:
        check_url(url)
        return StoreReading(store=StoreFacts(url=masked_url, scheme=scheme))
    try:
        return _read_sqlite(url, masked_url, check_limit) if scheme == "sqlite" else read(url, masked_url)
    except (StoreError, MissingExtra) as error:
        return StoreReading(store=StoreFacts(url=masked_url, scheme=scheme, problem=str(error)))


def _clock_facts(of: str, before: int, clock_us: int) -> ClockFacts:
    """Return the facts about a clock that showed `clock_us` at some time between `before` and now."""
    half = (wall() - before) // 2
    return ClockFacts(of=of, ahead=clock_us - before - half, within=half)


# ── SQLite ────────────────────────────────────────────────────────────────────────────────────────────────


def _read_sqlite(url: str, masked_url: str, check_limit: float | None = None) -> StoreReading:
    from oncegate.stores.sqlite import open_sqlite_read_only
    from oncegate.stores.sqlite.settings import read_url

    path = read_url(url).path
    absent = _sqlite_absent(path)
    damage, cut_short = None, False
    if absent is None:
        with closing(open_sqlite_read_only(url)) as store:
            try:
                damage = store.damage(_CHECK_LIMIT if check_limit is None else check_limit)
            except TimeoutError:
                cut_short = True
    facts = StoreFacts(
        url=masked_url,
        scheme="sqlite",
        absent=absent,
        file_system=file_system(path),
        path=path,
        damage=damage,
        cut_short=cut_short,
        readable=tuple(_readable_files(path)) if absent is None else (),
    )
    return StoreReading(store=facts)


def _readable_files(path: str) -> Iterator[str]:
    """Yield the files of the database that users other than the owner can read."""
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with suppress(OSError):
            if os.stat(name).st_mode & _READABLE_BY_OTHERS:
                yield name


def _sqlite_absent(path: str) -> str | None:
    """Return why the store does not exist yet; None if it exists. Raises StoreRefused if the folder is missing, because
    no gate creates the folder."""
    from oncegate.stores.sqlite.connection import check_folder
    from oncegate.stores.sqlite.read_only import is_absent

    if not is_absent(path):
        return None
    check_folder(path)
    return "the file is empty" if os.path.exists(path) else "the file does not exist yet"


def file_system(path: str, mounts: str = _MOUNTS) -> str | None:
    """Return the type of the file system that holds a file, which is the type of the innermost mount. Returns None if
    the machine has no list of mounts."""
    real_path = os.path.realpath(path)
    found, innermost = None, ""
    for mount, kind in _mounts(mounts):
        inside = real_path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(innermost):
            found, innermost = kind, mount
    return found


def _mounts(mounts: str) -> list[tuple[str, str]]:
    try:
        with open(mounts, encoding="utf-8", errors="replace") as lines:
            words = [line.split() for line in lines]
    except OSError:  # not Linux
        return []
    return [(mount.replace("\\040", " "), kind) for _, mount, kind, *_ in words]


# ── DynamoDB ──────────────────────────────────────────────────────────────────────────────────────────────


def _read_dynamodb(url: str, masked_url: str) -> StoreReading:
    """Return only the tolerated clock skew. `oncegate.doctor.reading` reads the table together with the other AWS
    resources."""
    from oncegate.stores.dynamodb.settings import read_url

    skew = read_url(url).margin(tested=False)
    return StoreReading(store=StoreFacts(url=masked_url, scheme="dynamodb", skew=skew))


# ── Postgres ──────────────────────────────────────────────────────────────────────────────────────────────


def _read_postgres(url: str, masked_url: str) -> StoreReading:
    from oncegate.stores.postgres.connections import Connections
    from oncegate.stores.postgres.settings import read_url

    settings = read_url(url)
    absent = None
    try:
        open_store(url, create=False).close()
    except NoStore:
        absent = f"the database has no schema {settings.schema} yet"
    with closing(Connections(settings)) as connections, connections.borrow() as db:
        before = wall()
        ((time,),) = db.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchall()
        clock = _clock_facts(settings.place, before, time)
    return StoreReading(store=StoreFacts(url=masked_url, scheme="postgresql", absent=absent), clocks=(clock,))


# ── Redis ─────────────────────────────────────────────────────────────────────────────────────────────────


def _read_redis(url: str, masked_url: str) -> StoreReading:
    """Read the facts about a Redis store. In a cluster, only the node in the URL is read."""
    from oncegate.stores.redis.checks import eviction_policy, has_append_only_file, parse_info
    from oncegate.stores.redis.connection import RedisServer
    from oncegate.stores.redis.errors import CommandFailed, store_error
    from oncegate.stores.redis.settings import settings_of

    settings = settings_of(url)
    with closing(RedisServer(settings, settings.host, settings.port)) as server:
        before = wall()
        replies = server.execute([("TIME",), ("INFO", "everything")])
        for reply in replies:
            if isinstance(reply, CommandFailed):
                raise store_error(reply.error, server.name)
        (seconds, rest), info_text = replies
        clock = _clock_facts(f"Redis at {server.name}", before, int(seconds) * 1_000_000 + int(rest))
        info = parse_info(info_text)
        redis = RedisFacts(
            host=settings.host,
            port=settings.port,
            login=(
                *(("--tls",) if settings.tls else ()),
                *(("--user", settings.username) if settings.username else ()),
                *(("--askpass",) if settings.password else ()),
            ),
            evicts_by=eviction_policy(info),
            append_only=has_append_only_file(info),
        )
        refused = settings.cluster and redis.evicts_by is not None  # the rule store.eviction reports this
        absent = None if refused else _redis_absent(url, settings, server)
    return StoreReading(store=StoreFacts(url=masked_url, scheme="redis", absent=absent), redis=redis, clocks=(clock,))


def _redis_absent(url: str, settings: "RedisSettings", server: "RedisServer") -> str | None:
    """Return why the store does not exist yet; None if it exists. In a cluster the store is opened, because only the
    store can find the right node."""
    from oncegate.stores.redis.checks import check_layout

    try:
        if settings.cluster:
            with warnings.catch_warnings(action="ignore"):  # the rules report the same problems
                open_store(url, create=False).close()
        else:
            check_layout(server, settings, create=False)
    except NoStore:
        return f"the server has no store with the prefix {settings.prefix} yet"
    return None


_READERS: Final[Mapping[str, Callable[[str, str], StoreReading]]] = {
    "sqlite": _read_sqlite,
    "dynamodb": _read_dynamodb,
    "postgres": _read_postgres,
    "postgresql": _read_postgres,
    "redis": _read_redis,
}
