"""The erasure of an entity: on every store and journal, nothing is left that identifies the entity."""

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from oncegate import Event, Gate, keys, open_store
from oncegate.claims import (
    COMPLETED,
    ERASED,
    Address,
    Admit,
    Claim,
    Complete,
    EventSummary,
    Forget,
    Granted,
    Redrive,
    Reset,
)
from oncegate.errors import StoreUnavailable
from oncegate.inspection import erasure
from oncegate.inspection.erasure import ErasurePlan, ErasureResult, erase, plan_erasure, recorded_erasure
from oncegate.inspection.operators import all_dead_letters
from oncegate.inspection.records import sentence
from oncegate.journal import Journal, OperatorLog, RowFilter, open_journal, open_recorder
from oncegate.journal.base import NewRow, NewRows
from oncegate.journal.rows import Fields
from oncegate.settings import Settings, examine
from oncegate.stores.base import Inbox, Store
from tests.stores.dynamo_server import DynamoServer
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisCluster, RedisServer

ENTITY = "conversation-4711"
OTHER = "conversation-4712"
NAME = "Annabel"
UUID = "0b0f3f34-5a3c-4d43-8e2b-5a1f0f6f7a10"
UUID_BYTES = bytes.fromhex(UUID.replace("-", ""))
MINUTE = 60_000_000


class Place:
    """A store, its journal, and everything that is stored in them as bytes."""

    def __init__(self, url: str, journal: str, read: Callable[[], bytes]) -> None:
        self.url = url
        self.journal = journal
        self.read = read


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.db*")) if path.is_file())


def dump(*servers: RedisServer) -> bytes:
    found = []
    for server in servers:
        server.client.config_set("rdbcompression", "no")
        found += [key + (server.client.dump(key) or b"") for key in server.client.scan_iter()]
    return b"".join(found)


def rows(server: PostgresServer, *schemas: str) -> bytes:
    found = b""
    with server.connect() as db:
        query = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = ANY(%s)"
        for schema, table in db.execute(query, (list(schemas),)).fetchall():
            copying = f'COPY (SELECT * FROM "{schema}"."{table}") TO STDOUT (FORMAT binary)'  # noqa: S608
            with db.cursor().copy(copying.encode()) as copy:
                found += b"".join(bytes(each) for each in copy)
    return found


def items(server: DynamoServer, table: str) -> bytes:
    scanned = server.client_of("dynamodb").scan(TableName=table)["Items"]
    values = [value for item in scanned for each in item.values() for value in each.values()]
    return b"\n".join(value if isinstance(value, bytes) else str(value).encode() for value in values)


@pytest.fixture(params=["sqlite", "redis", "redis+cluster", "postgresql", "dynamodb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    beside = f"sqlite:///{tmp_path}/journal.db"
    match request.param:
        case "sqlite":
            return Place(f"sqlite:///{tmp_path}/oncegate.db", beside, lambda: files(tmp_path))
        case "redis":
            server: RedisServer = request.getfixturevalue("redis_server")
            server.client.flushall()
            return Place(server.url, server.url, lambda: dump(server))
        case "redis+cluster":
            cluster: RedisCluster = request.getfixturevalue("redis_cluster")
            cluster.flush()
            return Place(cluster.url, cluster.url, lambda: dump(*cluster.primaries()))
        case "postgresql":
            postgres: PostgresServer = request.getfixturevalue("postgres")
            with postgres.connect() as db:
                db.execute("DROP SCHEMA IF EXISTS erasing, erasing_journal CASCADE")
            url = f"{postgres.url()}?oncegate_schema=erasing"
            return Place(url, url, lambda: rows(postgres, "erasing", "erasing_journal"))
        case _:
            dynamo: DynamoServer = request.getfixturevalue("dynamo_server")
            table: str = request.getfixturevalue("table")
            return Place(dynamo.url(table), beside, lambda: items(dynamo, table) + files(tmp_path))


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    with closing(open_store(place.url)) as store:
        yield store


@pytest.fixture
def settings() -> Settings:
    return examine(flags={"retention": "7d"})[0]


def event(id_: str, entity: str = ENTITY, **more: Any) -> bytes:
    return msgspec.json.encode({"id": id_, "type": "call.ended", "conversationId": entity, "customer": NAME} | more)


def fail(event: Event) -> None:
    raise ValueError(f"no mail for {NAME}")


def answer(event: Event) -> dict[str, Any]:
    return {"customer": event.body["customer"], "call": event.entity}


def fill(store: Store, journal: str) -> None:
    """Events of an entity in every state, and an event of another entity."""
    recorder = open_recorder(journal, payload_age=60 * MINUTE)
    observers = [recorder.of("calls")]
    gate = Gate(store, max_attempts=1, remember=None, observers=observers)
    assert gate.run(event("evt-1"), answer).status == "processed"
    assert gate.run(event("evt-1"), answer).status == "duplicate"
    assert gate.run(event("evt-1", changed=True), answer).status == "conflict"
    assert gate.run(event(UUID), fail).status == "buried"
    assert gate.run(event("evt-2"), fail).status == "buried"
    assert gate.run(event("other-1", OTHER, customer="Bernd"), answer).status == "processed"
    retrying = Gate(store, max_attempts=None, remember=None, observers=observers)
    assert retrying.run(event("evt-3"), fail).status == "failed"
    changes = Gate(store, key=keys.state_change(window="1s", entity="conversationId", state="state"), remember=None)
    changed = event("evt-4", state="connected", timestamp="2026-07-01T10:00:00Z")
    assert changes.run(changed, answer).status == "processed"
    assert recorder.flush(20)
    recorder.close()


def waiting_event(store: Store) -> bytes:
    """Redrive one of the dead letters. Returns its key."""
    entry = next(each for each in all_dead_letters(store, None) if each.record.about.delivery_id == "evt-2")
    assert store.redrive([Redrive(entry.namespace, entry.key)]) == [True]
    return entry.key


def running_event(store: Store) -> Granted:
    about = EventSummary("plain", "call.ended", ENTITY, None, "evt-5")
    (granted,) = store.claim([Claim("default", b"r" * 16, b"o" * 16, b"h" * 16, MINUTE, 60 * MINUTE, about)])
    assert isinstance(granted, Granted)
    return granted


def needles(*ids: str) -> list[bytes]:
    """What must not be found: ids and names, and the payloads in the form in which journals compress them."""
    payloads = [event(id_) for id_ in ids] + [event("evt-1", changed=True)]
    packed = [zlib.compress(each, 1)[2:-4] for each in payloads]
    texts = [ENTITY, NAME, *ids]
    return [*(text.encode() for text in texts), UUID_BYTES, *packed]


def run(store: Store, journal: Journal | None, settings: Settings, **options: Any) -> tuple[ErasurePlan, ErasureResult]:
    plan, result = plan_erasure(store, journal, ENTITY), ErasureResult()
    erase(plan, store, journal, settings, result, rewrite=True, **options)
    return plan, result


def test_nothing_is_left(place: Place, store: Store, settings: Settings) -> None:
    """After the erasure, neither the store nor the journal has a trace of the entity, not even in free space. Other
    entities are unchanged, and every event of the entity is still a duplicate."""
    fill(store, place.journal)
    waiting_event(store)
    running = running_event(store)
    before = place.read()
    forms = {UUID.encode(), UUID_BYTES}  # Redis stores a UUID as 16 bytes, and the others as text
    assert [needle for needle in needles("evt-1", UUID) if needle not in before and needle not in forms] == []
    assert any(form in before for form in forms)
    with closing(open_journal(place.journal)) as journal:
        plan, result = run(store, journal, settings)
        found = (len(plan.records), len(plan.dead_letters), len(plan.waiting), len(plan.in_progress), plan.rows)
        assert found == (3, 2, 1, 1, 6)
        assert result == ErasureResult(records=3, dead_letters=2, rows=6, left=2, tried=5, total=5)
        (done,) = store.settle([Complete("default", b"r" * 16, b"o" * 16, running.record.fence, MINUTE, b'"Annabel"')])
        assert done
        plan = plan_erasure(store, journal, ENTITY)
        with (
            closing(OperatorLog(lambda: open_journal(place.journal), "tester")) as log,
            recorded_erasure(log, plan) as result,
        ):
            erase(plan, store, journal, settings, result, waiting=True, rewrite=True)
        assert result == ErasureResult(records=1, waiting=1, rows=0, tried=2, total=2)
        (action,) = journal.rows(RowFilter(status="operator"))
        assert (action.kind, action.reason) == (
            "forget",
            "Erased 1 record, 0 dead letters, 1 waiting event and 0 journal rows.",
        )
        assert plan_erasure(store, journal, ENTITY).is_empty
        assert [row.entity for row in journal.rows()] == [OTHER]
        after = place.read()
        ids = ("evt-1", UUID, "evt-2", "evt-3", "evt-4", "evt-5")
        assert [needle for needle in needles(*ids) if needle in after] == []
    with closing(Gate(store, max_attempts=None, remember=None)) as gate:
        first = gate.run(event("evt-1"), answer)
        assert (first.status, first.result) == ("duplicate", None)
        assert gate.run(event(UUID), answer).status == gate.run(event("evt-2"), answer).status == "duplicate"
        assert gate.run(event("evt-3"), answer).status == "processed"
        other = gate.run(event("other-1", OTHER, customer="Bernd"), answer)
        assert (other.status, other.result) == ("duplicate", {"customer": "Bernd", "call": OTHER})


def test_memory(settings: Settings) -> None:
    """The memory store has no files. Without a journal, the records are found by their entity."""
    with closing(open_store("memory://")) as store:
        for name in ("evt-1", "evt-2"):
            Gate(store, max_attempts=1).run(event(name), answer if name == "evt-1" else fail)
        plan, result = run(store, None, settings)
        assert (plan.rows, result) == (None, ErasureResult(records=1, dead_letters=1, tried=2, total=2))
        assert result.sentence == "Erased 1 record and 1 dead letter."
        assert NAME not in repr(store.browse())
        assert ENTITY not in repr(store.browse())


@pytest.fixture
def memory() -> Iterator[Store]:
    with closing(open_store("memory://")) as store:
        yield store


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(open_journal(f"sqlite:///{tmp_path}/journal.db")) as journal:
        yield journal


def test_an_event_that_could_not_be_read(tmp_path: Path, settings: Settings) -> None:
    """A dead letter that could not be read has no entity. It and its row are found by the text of the payload. Payloads
    with a similar id are left."""
    url, cut = f"sqlite:///{tmp_path}/journal.db", b'{"conversationId": "%s", "customer": "Annabel'
    recorder = open_recorder(url, payload_age=60 * MINUTE)
    with closing(open_store(f"sqlite:///{tmp_path}/oncegate.db")) as store, closing(open_journal(url)) as journal:
        gate = Gate(store, remember=None, observers=[recorder.of("calls")])
        ids = [ENTITY, f"{ENTITY}0", f"a-{ENTITY}", "c-7"]
        gate.keep([gate.run(cut % each.encode(), answer) for each in ids])
        assert recorder.flush(20)
        recorder.close()
        plan, result = run(store, journal, settings)
        assert (len(plan.dead_letters), result) == (1, ErasureResult(dead_letters=1, rows=1, tried=1, total=1))
        assert cut % ENTITY.encode() not in files(tmp_path)
        payloads = [journal.payload(row.id) or b"" for row in journal.rows()]
        assert payloads == [cut % each.encode() for each in reversed(ids[1:])]
        assert sorted(entry.record.payload or b"" for entry in all_dead_letters(store, None)) == sorted(payloads)
        assert plan_erasure(store, journal, ENTITY).is_empty
        for entity, found in (("c-7", 1), ("7", 0), ("c", 0)):
            assert len(plan_erasure(store, journal, entity).dead_letters) == found, entity
        assert plan_erasure(store, journal, "c-7", "other").is_empty


@pytest.mark.parametrize(
    "written", ['{"id": "kund\u00e9-1', '{"id": "kund\\u00e9-1', '{"m": "{\\"id\\": \\"kund\u00e9-1\\"']
)
def test_forms_of_an_id(memory: Store, written: str) -> None:
    """An id is found in a payload also if JSON writes its letters as escapes, or in a document within a document."""
    gate = Gate(memory)
    gate.keep([gate.run(written.encode(), answer)])
    assert len(plan_erasure(memory, None, "kund\u00e9-1").dead_letters) == 1


def test_an_erased_event_says_so(memory: Store, settings: Settings) -> None:
    """A record without its dead letter says that its event was erased, and so does the outcome of a duplicate."""
    gate = Gate(memory, max_attempts=1)
    gate.run(event("evt-1"), fail)
    run(memory, None, settings)
    (entry,) = memory.browse()
    assert (entry.record.state, entry.record.error) == (COMPLETED, ERASED)
    assert re.match(
        r"Erased .* ago, before it was processed\. Until .*, every further delivery with the same content is a",
        sentence(entry.record),
    )
    duplicate = gate.run(event("evt-1"), fail)
    assert re.match(r"Duplicate of an event without an id, erased by an operator .* ago; the handler", duplicate.reason)


def test_the_retention_of_the_namespace(memory: Store) -> None:
    """The key of an erased event is remembered for the retention of its namespace."""
    found, problems = examine(flags={"retention": "2d"})
    assert problems == []
    Gate(memory, max_attempts=1).run(event("evt-1"), fail)
    run(memory, None, found)
    (entry,) = memory.browse()
    assert entry.record.completed_at is not None
    assert entry.record.expires_at == entry.record.completed_at + 2 * 86_400_000_000


def test_a_namespace(memory: Store, settings: Settings) -> None:
    """With a namespace, records of other namespaces are left."""
    for name in ("a", "b"):
        Gate(memory, namespace=name).run(event("evt-1"), answer)
    erase(plan_erasure(memory, None, ENTITY, "a"), memory, None, settings, ErasureResult())
    assert [entry.record.about.entity for entry in memory.browse()] == [None, ENTITY]


def test_a_long_entity(memory: Store, journal: Journal, settings: Settings) -> None:
    """An entity that is shortened in records and rows is found by its full text."""
    entity = "x" * 5_000
    Gate(memory).run(event("evt-1", entity), answer)
    plan, result = plan_erasure(memory, journal, entity), ErasureResult()
    assert len(plan.records) == 1
    erase(plan, memory, journal, settings, result)
    assert result.records == 1
    assert "xxxxx" not in repr(memory.browse())


def test_a_record_that_only_the_journal_knows(memory: Store, journal: Journal, settings: Settings) -> None:
    """A record without an entity is erased if the journal knows its key for the entity. A record of another entity with
    such a key is left."""
    keys_of = {name: name.encode() * 16 for name in "abc"}
    for name, entity in (("a", None), ("b", OTHER), ("c", None)):
        about = EventSummary("plain", "call.ended", entity, None, f"evt-{name}")
        memory.claim([Claim("default", keys_of[name], b"o" * 16, b"h" * 16, 0, 60 * MINUTE, about, marks=True)])
    label = ("calls", "default", "plain", "call.ended", "processed", "")
    new = [NewRow(label, Fields(keys_of["a"], kept=keys_of["b"], entity=ENTITY, at=1))]
    journal.append(NewRows(new, {}, {}))
    plan, result = run(memory, journal, settings)
    assert (list(plan.records), result.rows) == ([Address("default", keys_of["a"])], 1)
    assert [entry.record.about.delivery_id for entry in memory.browse()] == [None, "evt-b", "evt-c"]


@pytest.mark.parametrize("is_running", [False, True])
def test_an_event_that_only_the_journal_knows_is_left(
    memory: Store, journal: Journal, settings: Settings, is_running: bool
) -> None:
    """If an event is left and only the journal has its key, the rows of the key are left, so that the next erasure
    finds the event. Other rows of the entity are erased."""
    key, about = b"a" * 16, EventSummary("plain", "call.ended", None, None, "evt-1")
    if is_running:
        memory.claim([Claim("default", key, b"o" * 16, b"h" * 16, MINUTE, 60 * MINUTE, about)])
    else:
        assert isinstance(memory, Inbox)
        memory.admit([Admit("default", key, b"o" * 16, b"h" * 16, event("evt-1"), about)])
    label = ("calls", "default", "plain", "call.ended", "duplicate", "")
    new = [NewRow(label, Fields(each, entity=ENTITY, at=1)) for each in (key, b"b" * 16)]
    new += [NewRow(label, Fields(b"c" * 16, kept=key, at=1))]
    journal.append(NewRows(new, {}, {}))
    _, result = run(memory, journal, settings)
    assert result == ErasureResult(rows=1, left=1, rows_left=2)
    assert result.sentence.endswith(
        "and 1 journal row. Left 2 journal rows, because only the journal shows that the events that are left belong to"
        " the entity."
    )
    if is_running:
        memory.reset([Reset("default", key)])
    _, result = run(memory, journal, settings, waiting=True)
    assert (result.waiting, result.rows, result.left) == (0 if is_running else 1, 2, 0)
    assert journal.rows(RowFilter(term=ENTITY)) == []
    assert all(entry.record.payload is None for entry in memory.browse())


def test_actions_that_name_the_entity(memory: Store, journal: Journal, settings: Settings) -> None:
    """A row about an action of an operator is deleted if its text names the entity or one of its events. A part of a
    word does not count, and neither does a short id."""
    Gate(memory).run(event("evt-4711"), answer)
    Gate(memory).run(event("1"), answer)
    with closing(OperatorLog(lambda: journal, "tester")) as log:
        for reason in (f"Dropped 1 dead letter (error with {ENTITY}).", "Redrove 1 dead letter (id evt-4711)."):
            log.add("drop", reason)
        log.add("drop", f"Dropped 1 dead letter (error with {ENTITY}0 or evt-47110).")
        plan, result = run(memory, journal, settings)
        assert (plan.rows, result.rows) == (2, 2)
        (left,) = journal.rows(RowFilter(status="operator"))
        assert f"{ENTITY}0" in left.reason


def test_records_that_another_process_changes(memory: Store, settings: Settings) -> None:
    """A record that was reset after the plan is not reported. An event that was claimed again after the plan is left,
    and is reported."""
    gate = Gate(memory, max_attempts=None)
    for name in ("evt-1", "evt-2"):
        gate.run(event(name), fail)
    plan, result = plan_erasure(memory, None, ENTITY), ErasureResult()
    one, two = memory.browse()
    memory.reset([Reset(one.namespace, one.key)])
    memory.claim([Claim("default", two.key, b"o" * 16, two.record.payload_hash, MINUTE, MINUTE, two.record.about)])
    erase(plan, memory, None, settings, result)
    assert result == ErasureResult(left=1, tried=2, total=2)
    assert memory.browse()[0].record.about.entity == ENTITY


def test_very_many_records(memory: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan has a largest number of records. The next plan has the rest."""
    monkeypatch.setattr(erasure, "MOST_RECORDS", 150)
    Gate(memory).run_batch([event(f"evt-{number}") for number in range(250)], answer)
    seen: list[tuple[str, int]] = []
    plan = plan_erasure(memory, None, ENTITY, progress=lambda what, count: seen.append((what, count)))
    assert (len(plan.records), plan.is_cut, seen[-1]) == (150, True, ("records", 250))
    result = ErasureResult()
    erase(plan, memory, None, settings, result, progress=lambda what, count: seen.append((what, count)))
    assert result.records == 150
    assert seen[-2:] == [("erased records", 100), ("erased records", 150)]
    plan, result = run(memory, None, settings)
    assert (plan.is_cut, result.records) == (False, 100)


# ── an erasure that ends early ────────────────────────────────────────────────────────────────────────────


class FailsLater:
    """A store whose third batch fails with this error."""

    def __init__(self, store: Store, error: BaseException) -> None:
        self._store = store
        self._error = error
        self._batches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def forget(self, requests: Sequence[Forget]) -> list[bool]:
        self._batches += 1
        if self._batches == 3:
            raise self._error
        return self._store.forget(requests)


def fill_and_plan(store: Store, journal: Journal, count: int) -> ErasurePlan:
    Gate(store, remember=None).run_batch([event(f"evt-{number}") for number in range(count)], answer)
    return plan_erasure(store, journal, ENTITY)


def actions(journal: Journal) -> list[str]:
    return [row.reason for row in journal.rows(RowFilter(status="operator"))]


@pytest.mark.parametrize(
    ("error", "end"), [(StoreUnavailable("gone"), "stopped by an error"), (KeyboardInterrupt(), "cancelled")]
)
def test_an_error(memory: Store, journal: Journal, settings: Settings, error: BaseException, end: str) -> None:
    """If an erasure is interrupted, the record says what was erased. The next erasure erases the rest."""
    plan, store = fill_and_plan(memory, journal, 250), cast(Store, FailsLater(memory, error))
    with closing(OperatorLog(lambda: journal, "tester")) as log:
        with pytest.raises(type(error)), recorded_erasure(log, plan) as result:
            erase(plan, store, journal, settings, result)
        reason = f"Erased 200 records and 0 dead letters. Interrupted after 200 of 250 records ({end})."
        assert (result.sentence, actions(journal)) == (reason, [reason])
        assert run(memory, journal, settings)[1].records == 50


def test_a_reason_to_stop(memory: Store, journal: Journal, settings: Settings) -> None:
    """An erasure that has to stop ends after its batch, and before the journal: its rows lead to the other records. An
    erasure of more than 1,000 records also has a row about its start."""
    plan, reasons = fill_and_plan(memory, journal, 1_200), iter([None, "cancelled"])
    with closing(OperatorLog(lambda: journal, "tester")) as log:
        with recorded_erasure(log, plan) as result:
            erase(plan, memory, journal, settings, result, stop_reason=lambda: next(reasons))
        assert (result.records, result.rows) == (200, None)
        assert actions(journal) == [
            "Erased 200 records and 0 dead letters. Interrupted after 200 of 1200 records (cancelled).",
            "Started to erase up to 1200 records.",
        ]


def test_the_rows_of_a_plan_that_is_cut(
    memory: Store, journal: Journal, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are erased with the last records: only the journal has the keys of records that do not name the
    entity."""
    monkeypatch.setattr(erasure, "MOST_RECORDS", 2)
    label, about = ("calls", "default", "plain", "call.ended", "processed", ""), EventSummary("plain", delivery_id="e")
    for name in (b"a", b"b"):
        memory.claim([Claim("default", name * 16, b"o" * 16, b"h" * 16, 0, 60 * MINUTE, about, marks=True)])
        journal.append(NewRows([NewRow(label, Fields(name * 16, entity=ENTITY, at=1))], {}, {}))
    Gate(memory).run(event("evt-1"), answer)
    _, result = run(memory, journal, settings)
    assert (result.records, result.rows, result.rows_left) == (2, 0, 2)
    _, result = run(memory, journal, settings)
    assert (result.records, result.rows, result.rows_left) == (1, 2, 0)
    assert {entry.record.about.delivery_id for entry in memory.browse()} == {None}
