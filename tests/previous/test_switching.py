"""The switch from an earlier guard to a gate: events that the guard has processed do not run again."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate, Outcome, keys
from oncegate.cli import exit_codes
from oncegate.errors import SettingError, StoreUnavailable
from oncegate.previous.base import read_place_url
from oncegate.previous.sqlite import SqlitePlace
from oncegate.settings.parsing import parsed
from tests.cli.conftest import Run
from tests.gate.conftest import Stumbling
from tests.ingress.sqs.queues import Queue, working
from tests.previous.old_places import (
    OldCode,
    OldDynamo,
    OldDynamoText,
    OldPostgres,
    OldRedis,
    OldRedisPairs,
    OldSqlite,
    payload,
)
from tests.stores.redis_server import RedisServer

OLD = range(100)
ALL = range(200)
KINDS = ["redis", "redis-pairs", "dynamodb", "dynamodb-text", "sqlite", "postgres"]


@pytest.fixture(params=KINDS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> OldCode:
    makers: dict[str, Callable[[], OldCode]] = {
        "redis": lambda: OldRedis(request.getfixturevalue("redis_server")),
        "redis-pairs": lambda: OldRedisPairs(request.getfixturevalue("redis_server")),
        "dynamodb": lambda: OldDynamo(request.getfixturevalue("dynamo_server")),
        "dynamodb-text": lambda: OldDynamoText(request.getfixturevalue("dynamo_server")),
        "sqlite": lambda: OldSqlite(tmp_path),
        "postgres": lambda: OldPostgres(request.getfixturevalue("postgres")),
    }
    return makers[request.param]()


@pytest.fixture
def sqlite(tmp_path: Path) -> OldSqlite:
    return OldSqlite(tmp_path)


class Effects:
    """Counts the effects of a handler."""

    def __init__(self) -> None:
        self.of: list[str | None] = []

    def __call__(self, event: Event) -> None:
        self.of.append(event.id)


def statuses(outcomes: list[Outcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]


def new_events() -> list[str]:
    return [f"evt-{number}" for number in ALL if number not in OLD]


class TestSeed:
    def test_the_old_events_do_not_run(self, old: OldCode, oncegate: Run, tmp_path: Path) -> None:
        """After `seed`, 100 old and 100 new events that arrive twice have exactly 100 effects."""
        old.mark(OLD)
        code, out, err = oncegate("seed", *old.arguments, "--key", old.key, "--source", "genesys", "--retention", "7d")
        assert (code, out) == (0, "Read 100 rows: 100 seeded, 0 already there, 0 expired, 0 unreadable.\n"), err
        effects = Effects()
        with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db", key=parsed(old.key))) as gate:
            for _ in range(2):
                gate.run_batch([payload(number) for number in ALL], effects)
        assert sorted(map(str, effects.of)) == sorted(new_events())

    def test_repeated(self, old: OldCode, oncegate: Run) -> None:
        """A second run seeds nothing, and a later run seeds only what is new."""
        old.mark(range(5))
        command = ("seed", *old.arguments, "--key", old.key, "--source", "genesys", "--output", "json")
        counts = [json.loads(oncegate(*command)[1]) for _ in range(2)]
        old.mark([5, 6])
        counts.append(json.loads(oncegate(*command)[1]))
        assert [(each["read"], each["seeded"], each["already_there"]) for each in counts] == [
            (5, 5, 0),
            (5, 0, 5),
            (7, 2, 5),
        ]

    def test_expiry(self, old: OldCode, oncegate: Run, tmp_path: Path) -> None:
        """A record lives as long as its row; without an expiry, for the retention. An expired row is skipped."""
        old.mark([1], ttl=3_600)
        old.mark([2], ttl=None)
        if not isinstance(old, OldRedis | OldRedisPairs):  # Redis deletes keys when they expire
            old.mark([3], ttl=-60)
        command = ("seed", *old.arguments, "--key", old.key, "--source", "genesys", "--retention", "2d")
        assert oncegate(*command)[0] == 0
        with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db", key=parsed(old.key))) as gate:
            assert statuses(gate.run_batch(map(payload, (1, 2, 3)), Effects())) == ["duplicate"] * 2 + ["processed"]
            left = sorted(
                (entry.record.expires_at or 0) - entry.record.first_seen
                for entry in gate.store.browse("default")
                if not entry.record.payload_hash
            )
        assert [pytest.approx(3_600e6, abs=10e6), pytest.approx(2 * 86_400e6, abs=1e6)] == left
        assert left[0] <= 3_600e6

    def test_refused(self, old: OldCode, oncegate: Run, tmp_path: Path) -> None:
        """Rows without the content cannot make the key `auto`. The refusal offers a line that works."""
        old.mark(range(3))
        sample = tmp_path / "sample.jsonl"
        sample.write_text("\n".join(json.dumps(payload(number)) for number in range(5)))
        code, out, err = oncegate("seed", *old.arguments, "--source", "genesys", "--sample", "sample.jsonl")
        assert code == 2
        assert "lack the content of the event, which the key auto needs; nothing was written" in err
        assert not (tmp_path / "oncegate.db").exists()
        (line,) = [line for line in out.splitlines() if line.startswith("previous = ")]
        assert "until" not in line
        assert "Of 5 recent events, 3 are marked there." in out
        (tmp_path / "oncegate.toml").write_text(line)
        assert oncegate("config", "check")[0] == 0
        with closing(Gate("memory://", previous=json.loads(line.removeprefix("previous = ")))) as gate:
            outcomes = gate.run_batch(map(payload, range(5)), Effects())
        assert statuses(outcomes) == ["duplicate"] * 3 + ["processed"] * 2

    def test_the_time_of_the_last_expiry(self, old: OldCode, oncegate: Run) -> None:
        """The refusal names a time only if the old program has stopped: until then, it may write later marks."""
        old.mark([1], ttl=3_600)
        old.mark([2], ttl=7_200)
        command = ("seed", *old.arguments, "--source", "genesys", "--output", "json")
        assert read_place_url(json.loads(oncegate(*command)[1])["previous"]).until is None
        until = read_place_url(json.loads(oncegate(*command, "--stopped")[1])["previous"]).until
        assert until is not None
        assert until / 1e6 == pytest.approx(time.time() + 7_200, abs=30)
        old.mark([3], ttl=None)
        out = oncegate("seed", *old.arguments, "--source", "genesys", "--stopped")[1]
        assert "until=20" not in out
        assert "Some rows do not expire, so the line has no until=TIME." in out


class TestRedisPatterns:
    """The keys of Redis, and the template that reads them."""

    COMMAND = ("--key", "event_id", "--source", "genesys", "--dry-run")

    def test_a_template_alone(self, redis_server: RedisServer, oncegate: Run) -> None:
        """A template without a pattern reads the keys of its form."""
        old = OldRedis(redis_server)
        old.mark([1, 2])
        old.client.set("event:other", "1")
        for arguments in (
            (old.previous,),
            (redis_server.url, "--template", "event:dedup:{id}"),
            (redis_server.url, "--match", "event:*:*", "--template", "event:dedup:{id}"),
        ):
            code, out, err = oncegate("seed", *arguments, *self.COMMAND)
            assert (code, out) == (
                0,
                "Read 2 rows: 2 would be seeded, 0 expired, 0 unreadable. Nothing was written.\n",
            ), err

    def test_the_default_template(self, redis_server: RedisServer, oncegate: Run) -> None:
        """One * is the only part of the key. The command says so."""
        OldRedis(redis_server).client.set("{tag}:evt-1", "1")
        code, out, err = oncegate("seed", redis_server.url, "--match", "{tag}:*", *self.COMMAND)
        assert (code, out.startswith("Read 1 row: 1 would be seeded")) == (0, True)
        assert err == "The * of --match is read as id: --template '{{tag}}:{id}'\n"

    @pytest.mark.parametrize("match", ["*:*", "event:?*", "event:[ab]*", "event"])
    def test_no_default_template(self, match: str, redis_server: RedisServer, oncegate: Run) -> None:
        """With other patterns, the template must be named."""
        OldRedis(redis_server)
        code, _, err = oncegate("seed", redis_server.url, "--match", match, *self.COMMAND)
        assert (code, "such as --template 'event:{id}'" in err) == (2, True)

    def test_bad_keys(self, redis_server: RedisServer, oncegate: Run) -> None:
        """Binary keys and keys of another form are unreadable rows, and no keys at all get a note."""
        old = OldRedis(redis_server)
        command = ("seed", redis_server.url, "--match", "event:*", "--template", "event:dedup:{id}", *self.COMMAND)
        assert oncegate(*command)[2].startswith("There are no rows in Redis at 127.0.0.1:")
        old.mark([1])
        old.client.set(b"event:dedup:\xff", "1")
        old.client.set("event:x", "1")
        out = oncegate(*command)[1]
        assert out.startswith("Read 3 rows: 1 would be seeded, 0 expired, 2 unreadable. Nothing was written.\n")
        assert "  key 'event:x': its key does not have the form event:dedup:{id}\n" in out


class TestPrevious:
    def test_the_old_events_do_not_run(self, old: OldCode) -> None:
        """With `previous`, 100 old and 100 new events that arrive twice have exactly 100 effects."""
        old.mark(OLD)
        effects = Effects()
        with closing(Gate("memory://", key=keys.auto, previous=old.previous)) as gate:
            first = gate.run_batch([payload(number) for number in ALL], effects)
            again = [gate.run(payload(number), effects) for number in ALL]
        assert statuses(first) == ["duplicate"] * 100 + ["processed"] * 100
        assert statuses(again) == ["duplicate"] * 200
        assert sorted(map(str, effects.of)) == sorted(new_events())
        assert gate.counts["previous.found"] == 100
        assert first[0].reason == "Duplicate: earlier code has processed this event; the handler was not run."

    def test_expiry(self, old: OldCode) -> None:
        """A record lives as long as its mark. An expired mark is no mark."""
        old.mark([1], ttl=3_600)
        old.mark([2], ttl=None)
        if not isinstance(old, OldRedis | OldRedisPairs):
            old.mark([3], ttl=-60)
        with closing(Gate("memory://", previous=old.previous, retention="2d")) as gate:
            outcomes = gate.run_batch(map(payload, (1, 2, 3)), Effects())
            assert statuses(outcomes) == ["duplicate"] * 2 + ["processed"]
            records = [outcome.original for outcome in outcomes[:2]]
            left = [(record.expires_at or 0) - record.first_seen for record in records if record is not None]
        assert [pytest.approx(3_600e6, abs=10e6), pytest.approx(2 * 86_400e6, abs=1e6)] == left

    def test_strange_events(self, old: OldCode) -> None:
        """Events whose values no old key can have are not marked, and do not fail the other events of their batch."""
        old.mark([1])
        values = ["", None, True, [1], {"a": 1}, "x" * 5_000, "\0", "\ud800", 10**60, -1, 1.5, "not a number"]
        strange = [payload(1000 + number) for number in range(len(values))]
        for each, value in zip(strange, values, strict=True):
            each["detail"] |= {"conversationId": value, "timestamp": value}
        events = [Event(source="genesys", id=str(n), body=each["detail"]) for n, each in enumerate(strange)]
        with closing(Gate("memory://", key=keys.event_id, previous=old.previous)) as gate:
            outcomes = gate.run_batch([payload(1), *events], Effects())
        found = statuses(outcomes)
        assert found[0] == "duplicate"
        assert set(found[1:]) <= {"processed", "invalid"}


WAYS = ["run", "run_batch", "arun", "transaction", "seen", "admit", "aadmit", "lambda", "mark_first"]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_into_the_gate(way: str, sqlite: OldSqlite, tmp_path: Path) -> None:
    """Every way into the gate asks the old place: the marked event is a duplicate, the other one is new."""
    sqlite.mark([1])
    effects = Effects()

    def in_transaction(event: Event, _db: Any) -> None:
        effects(event)

    options: dict[str, Any] = {"mode": "mark_first"} if way == "mark_first" else {}
    with closing(Gate(f"sqlite:///{tmp_path}/store.db", previous=sqlite.previous, **options)) as gate:
        ways: dict[str, Callable[[], list[Any]]] = {
            "run": lambda: [gate.run(payload(n), effects).status for n in (1, 2)],
            "mark_first": lambda: [gate.run(payload(n), effects).status for n in (1, 2)],
            "run_batch": lambda: statuses(gate.run_batch([payload(1), payload(2)], effects)),
            "arun": lambda: [asyncio.run(gate.arun(payload(n), effects)).status for n in (1, 2)],
            "transaction": lambda: [
                gate.transaction(payload(n), lambda event, _db: effects(event)).status for n in (1, 2)
            ],
            "seen": lambda: [gate.seen(payload(n)) for n in (1, 2)],
            "admit": lambda: statuses(gate.admit([payload(1), payload(2)])),
            "aadmit": lambda: statuses([asyncio.run(gate.aadmit(payload(n)))[0] for n in (1, 2)]),
            "lambda": lambda: _invoke(gate, effects),
        }
        found = ways[way]()
    expected = {"seen": [True, False], "lambda": []}
    fallback = ["duplicate", "accepted" if way in ("admit", "aadmit") else "processed"]
    assert found == expected.get(way, fallback)
    assert effects.of == ([] if way in ("seen", "admit", "aadmit") else ["evt-2"])


def _invoke(gate: Gate, effects: Effects) -> list[Any]:
    records = [
        {"messageId": str(n), "eventSource": "aws:sqs", "body": json.dumps(payload(n)), "attributes": {}}
        for n in (1, 2)
    ]
    failures: list[Any] = gate.lambda_handler(effects)({"Records": records}, None)["batchItemFailures"]
    return failures


def test_a_worker_of_a_queue(queue: Queue, sqlite: OldSqlite, tmp_path: Path) -> None:
    """A worker of a queue asks the old place, too, and deletes the messages of marked events."""
    sqlite.mark([1])
    effects = Effects()
    queue.send(payload(1), payload(2), payload(1))
    gate = Gate(f"sqlite:///{tmp_path}/store.db", previous=sqlite.previous)
    with closing(gate), working(gate.worker(queue.source, effects, wait="1s")):
        queue.until_empty()
    assert effects.of == ["evt-2"]


def test_the_inbox(sqlite: OldSqlite, tmp_path: Path) -> None:
    """An inbox runs the events that were not marked, each once."""
    sqlite.mark(range(5))
    effects = Effects()
    with closing(Gate(f"sqlite:///{tmp_path}/store.db", previous=sqlite.previous)) as gate:
        for _ in range(2):
            gate.admit([payload(number) for number in range(10)])
        gate.run_waiting(effects)
    assert sorted(map(str, effects.of)) == [f"evt-{number}" for number in range(5, 10)]


class TestUnavailable:
    @pytest.fixture
    def gate(self, sqlite: OldSqlite) -> Iterator[Gate]:
        with closing(Gate("memory://", previous=sqlite.previous)) as gate:
            assert gate.run(payload(3), Effects()).status == "processed"
            sqlite.file.unlink()
            yield gate

    @pytest.mark.parametrize("way", ["run", "run_batch", "arun", "admit"])
    def test_the_event_fails(self, way: str, gate: Gate) -> None:
        """If the old place does not answer, the event is not acknowledged and does not run."""
        effects = Effects()
        ways: dict[str, Callable[[], Outcome]] = {
            "run": lambda: gate.run(payload(1), effects),
            "run_batch": lambda: gate.run_batch([payload(1)], effects)[0],
            "arun": lambda: asyncio.run(gate.arun(payload(1), effects)),
            "admit": lambda: gate.admit([payload(1)])[0],
        }
        outcome = ways[way]()
        assert (outcome.status, outcome.acked, effects.of) == ("failed", False, [])
        assert "there is no file" in outcome.reason

    def test_an_event_without_the_old_key_runs(self, gate: Gate) -> None:
        """An event that lacks a part of the old key cannot be marked there, so it does not wait for the old place."""
        assert gate.run({"id": "evt-1"}, Effects()).status == "processed"

    @pytest.mark.parametrize("remember", ["10s", None])
    def test_a_known_event_is_a_duplicate(self, sqlite: OldSqlite, tmp_path: Path, remember: str | None) -> None:
        """A copy of an event that the gate has processed does not need the old place."""
        options: dict[str, Any] = {"previous": sqlite.previous, "remember": remember}
        with closing(Gate(f"sqlite:///{tmp_path}/store.db", **options)) as gate:
            assert gate.run(payload(1), Effects()).status == "processed"
            sqlite.file.unlink()
            assert gate.run(payload(1), Effects()).status == "duplicate"
            assert asyncio.run(gate.arun(payload(1), Effects())).status == "duplicate"
            assert gate.admit([payload(1)])[0].status == "duplicate"
            assert gate.seen(payload(1)) is True

    def test_seen(self, gate: Gate) -> None:
        """`seen` raises while the old place does not answer."""
        with pytest.raises(StoreUnavailable, match=r"there is no file .* remove the setting"):
            gate.seen(payload(1))
        assert gate.seen({"id": "evt-1"}) is False

    def test_the_mark_cannot_be_recorded(self, sqlite: OldSqlite) -> None:
        """An event that is marked does not run if the store of the gate does not answer."""
        sqlite.mark([1])
        stumbling, effects = Stumbling(), Effects()
        stumbling.failures["claim"] = 100
        with closing(Gate(stumbling, previous=sqlite.previous)) as gate:
            outcomes = gate.run_batch([payload(1)], effects) + gate.run_batch([payload(2)], effects)
            with pytest.raises(StoreUnavailable):
                gate.seen(payload(1))
        assert (statuses(outcomes), effects.of) == (["failed", "failed"], [])

    @pytest.mark.parametrize(
        "options",
        [
            {"on_store_error": "unguarded", "unguarded_types": ["call.ended"]},
            {"on_missing_key": "unguarded"},
        ],
    )
    def test_unguarded_events_are_refused(self, sqlite: OldSqlite, options: Any) -> None:
        """A gate with `previous` runs no event unguarded: such an event would not be looked up."""
        with pytest.raises(SettingError, match="cannot be combined with previous"):
            Gate("memory://", previous=sqlite.previous, **options)


def test_the_settings(oncegate: Run, tmp_path: Path) -> None:
    """`config show` shows the URL without its password, and `config check` finds an invalid URL."""
    (tmp_path / "oncegate.toml").write_text('previous = "redis://u:hunter2@h/0?key=event:dedup:{id}&token=x"\n')
    shown = json.loads(oncegate("config", "show", "--output", "json")[1])["previous"]["value"]
    assert shown == "redis://u:***@h/0?token=***&key=event:dedup:{id}"
    (tmp_path / "oncegate.toml").write_text('previous = "redis://h/0?key=event:dedup"\n')
    code, _, err = oncegate("config", "check")
    assert (code, err.startswith("Error: oncegate.toml, previous: 'event:dedup' has no field in braces")) == (2, True)
    (tmp_path / "oncegate.toml").write_text('previous = "memory://"\n')
    assert "previous='memory://' must be a URL that starts with dynamodb" in oncegate("config", "check")[2]


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("part", "wrong", "problem"),
    [
        ("?", "x?", "there is no file"),
        ("table=", "table=x", "there is no table"),
        ("key=", "key=x", "there is no column"),
    ],
)
@pytest.mark.parametrize("command", ["serve --handler log --port 0", "work sqs://q --handler log"])
def test_a_wrong_place_at_start(
    command: str, part: str, wrong: str, problem: str, sqlite: OldSqlite, oncegate: Run, tmp_path: Path
) -> None:
    """The service and a worker do not start if events cannot be looked up."""
    assert part in sqlite.previous
    (tmp_path / "oncegate.toml").write_text(f'previous = "{sqlite.previous.replace(part, wrong)}"\n')
    code, _, err = oncegate(*command.split())
    assert (code, problem in err) == (exit_codes.STORE, True), err


def test_explain(sqlite: OldSqlite, oncegate: Run, tmp_path: Path) -> None:
    """`explain` says that an event which the store does not know may be marked in the old place."""
    (tmp_path / "oncegate.toml").write_text(f'previous = "{sqlite.previous}"\n')
    (tmp_path / "event.json").write_text(json.dumps(payload(1)))
    Gate(f"sqlite:///{tmp_path}/oncegate.db").close()
    out = oncegate("explain", "--file", "event.json")[1]
    assert "so a delivery now is run, unless the old place of the setting previous has marked the event." in out


def test_replays_run(sqlite: OldSqlite) -> None:
    """With on_replay="run", a replayed event runs once for each replay, although the old place has marked it."""
    sqlite.mark([1])
    effects = Effects()
    with closing(Gate("memory://", previous=sqlite.previous, on_replay="run")) as gate:
        found = [gate.run(payload(1) | {"replay-name": name}, effects).status for name in ("a", "a", "b")]
        assert gate.seen(payload(1) | {"replay-name": "c"}) is False
        assert gate.run(payload(1), effects).status == "duplicate"
    assert found == ["processed", "duplicate", "processed"]


class TestWeakKeys:
    """A key that several events share. Only the first event is marked."""

    @pytest.fixture
    def gate(self, sqlite: OldSqlite) -> Iterator[Gate]:
        sqlite.mark([1])
        with closing(Gate("memory://", key=keys.fields("source"), previous=sqlite.previous, remember=None)) as gate:
            yield gate

    def test_another_event_is_not_lost(self, gate: Gate) -> None:
        """The mark counts for the content of its event only: another event with the same key is a conflict."""
        assert statuses([gate.run(payload(number), Effects()) for number in (1, 2)]) == ["duplicate", "conflict"]
        assert len(gate.store.dead_letters()) == 1

    @pytest.mark.parametrize("numbers", [(2, 1), (1, 2)])
    def test_in_one_batch(self, gate: Gate, numbers: tuple[int, int]) -> None:
        """In any order, the marked event is a duplicate, and the other event runs or is a dead letter."""
        outcomes = gate.run_batch(map(payload, numbers), Effects())
        found = dict(zip(numbers, statuses(outcomes), strict=True))
        assert found == {1: "duplicate", 2: "processed" if numbers[0] == 2 else "conflict"}

    def test_a_marked_event_is_no_dead_letter(self, gate: Gate) -> None:
        """A marked event is a duplicate, even if another event has its key."""
        assert statuses([gate.run(payload(number), Effects()) for number in (2, 1)]) == ["processed", "duplicate"]
        assert gate.store.dead_letters() == []


def test_a_failed_event_that_is_marked_later(sqlite: OldSqlite) -> None:
    """If the old program marks an event that has failed here, the event is a duplicate."""

    def fail(event: Event) -> None:
        raise ValueError

    with closing(Gate("memory://", previous=sqlite.previous)) as gate:
        assert gate.run(payload(1), fail).status == "failed"
        sqlite.mark([1])
        assert gate.run(payload(1), Effects()).status == "duplicate"


def test_a_slow_look_up_delays_no_settlement(sqlite: OldSqlite, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the old place is slow to answer about one event, the completion of another event is written."""
    asked, answer = threading.Event(), threading.Event()
    find = SqlitePlace.find

    def slow(self: SqlitePlace, keys: Any) -> Any:
        if any("000000000002" in str(key) for key in keys):
            asked.set()
            answer.wait(30)
        return find(self, keys)

    monkeypatch.setattr(SqlitePlace, "find", slow)

    async def both(gate: Gate) -> list[str]:
        late = asyncio.create_task(gate.arun(payload(2), Effects()))
        await asyncio.to_thread(asked.wait, 30)
        first = await gate.arun(payload(1), Effects())
        answer.set()
        return [first.status, (await late).status]

    with closing(Gate("memory://", previous=sqlite.previous)) as gate:
        assert asyncio.run(asyncio.wait_for(both(gate), 60)) == ["processed"] * 2


def test_calls_are_not_looked_up(sqlite: OldSqlite) -> None:
    """A guarded function runs, even if its arguments have the names and values of an old key."""
    sqlite.mark([1])
    detail = payload(1)["detail"]
    with closing(Gate("memory://", previous=sqlite.previous)) as gate:

        @gate.once(name="notify")
        def notify(conversationId: str, timestamp: int) -> str:  # noqa: N803  # named like the members of the event
            return "sent"

        assert notify(detail["conversationId"], detail["timestamp"]) == "sent"


def test_the_old_place_is_only_read(sqlite: OldSqlite) -> None:
    """Neither a gate nor `seed` writes to the old place: a file without write permission is enough."""
    sqlite.mark([1])
    sqlite.file.chmod(0o400)
    before = sqlite.file.read_bytes()
    with closing(Gate("memory://", previous=sqlite.previous)) as gate:
        assert statuses(gate.run_batch([payload(1), payload(2)], Effects())) == ["duplicate", "processed"]
    assert sqlite.file.read_bytes() == before
