"""The world around the workers: time, the operator, the queue, and the initial state.

Time is not bounded: leases, retention and validity are stored as the time left, and an expired one stays expired. A
tick is free while every worker with a claim keeps its lease. A tick that ends the lease of a worker costs a fault: the
worker was stopped or disconnected for that long, and continues afterwards.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from tests.model.ledger import ABSENT, Ledger
from tests.model.parts import IDLE, Job, Move, Setting, Shared, Violation, Worker, changed
from tests.model.turn import ASKING, HOLDING, PROVING, Game, Turn, struck


def beginning(setting: Setting) -> Shared:
    keys = setting.keys
    return Shared(
        records=(ABSENT,) * keys,
        queue=tuple(content.deliveries for content in setting.contents),
        faults=setting.faults,
        duplicates=setting.duplicates,
        skews=setting.skews,
        operators=setting.operators,
        outages=setting.outages,
        runs=(0,) * keys,
        counted=(0,) * keys,
        effect_of=(-1,) * keys,
        marked=(0,) * len(setting.contents),
    )


# ── time ──────────────────────────────────────────────────────────────────────────────────────────────────


def later(game: Game, shared: Shared, stopped: int = 0) -> Shared:
    """One tick later, past the lease of workers that hold the `stopped` keys."""
    if stopped:
        shared = struck(game, shared, 1, stopped)
    ledger, excused = game.ledger, shared.excused_bits | _failing(game, shared, stopped)
    records = tuple(map(ledger.aged, shared.records))
    for before, after in zip(shared.records, records, strict=True):
        if ledger.state(before) == "D" and not ledger.state(after):
            excused |= 1 << ledger.content(before)
    return replace(shared, records=records, excused_bits=excused)


def _failing(game: Game, shared: Shared, stopped: int) -> int:
    """Contents, as bits, that were marked, and of which a worker stopped at one of these keys may still have to store a
    copy."""
    copies = enumerate(content.copy_key for content in game.setting.contents)
    return _bits(content for content, key in copies if shared.marked[content] and stopped >> key & 1)


def worker_later(setting: Setting, worker: Worker) -> Worker:
    asking = any(job.stage in ASKING for job in worker.jobs)
    jobs = tuple(_job_later(setting, job) if job.stage in HOLDING else job for job in worker.jobs)
    longest = setting.retention if setting.expiry and "mark" in setting.ways else setting.lease
    return Worker(jobs, min(worker.waited + 1, longest) if asking else 0, worker.late)


def _job_later(setting: Setting, job: Job) -> Job:
    """A marked event belongs to its worker for longer than a lease, until it expires; in some worlds, for ever."""
    passes = setting.expiry or job.valid <= setting.lease
    return replace(job, valid=max(0, job.valid - passes), hold=max(0, job.hold - 1))


def lapsing(ledger: Ledger, shared: Shared) -> int:
    """Keys, as bits, whose lease is over one tick later."""
    return sum(1 << key for key, record in enumerate(shared.records) if ledger.lapses(record))


def claimed(worker: Worker) -> int:
    """Keys, as bits, whose claim the worker was granted and has not settled."""
    return _bits(job.key for job in worker.jobs if job.holds and job.stage in PROVING)


def trusted(worker: Worker) -> int:
    """Keys, as bits, that the worker believes to hold, and for which it may start, or has started, an effect."""
    keys = [job.key for job in worker.jobs if job.stage in HOLDING and job.valid]
    if len(set(keys)) < len(keys):
        raise Violation(1, "one worker holds two valid claims on one key")
    return _bits(keys)


def _bits(keys: Iterable[int]) -> int:
    bits = 0
    for key in keys:
        bits |= 1 << key
    return bits


# ── what the environment does ─────────────────────────────────────────────────────────────────────────────


def disturbances(game: Game, shared: Shared) -> Iterator[Move]:
    """Events that affect no single worker. These moves have no worker."""
    if shared.duplicates:
        name, queue = game.setting.contents[0].name, changed(shared.queue, 0, shared.queue[0] + 1)
        spent = replace(shared, queue=queue, duplicates=shared.duplicates - 1)
        yield Move(f"{name} is delivered once more", spent, IDLE, kind="fault")
    if shared.skews:
        yield Move("the store's clock jumps ahead by a tick", later(game, _skewed(game, shared)), IDLE, kind="fault")
    if shared.operators:
        spent = replace(shared, operators=shared.operators - 1)
        for key, record in enumerate(shared.records):
            yield from _operated(game, spent, key, game.ledger.state(record))
    if game.setting.abandons:
        yield from _abandoned(game, shared)


def _abandoned(game: Game, shared: Shared) -> Iterator[Move]:
    """The end of an instance may be noticed late: by then another worker may have been granted the claim."""
    anybody = -1 if not game.rules.abandons_the_ended else 0
    for key, record in enumerate(shared.records):
        bit = 1 << key
        if (shared.ended_bits | anybody) & bit and game.ledger.is_alive(record):
            turn = Turn(game, replace(shared, ended_bits=shared.ended_bits & ~bit), IDLE)
            turn.operate("abandon", key, proven=True)
            yield turn.move(f"key {key} is abandoned, as its worker has ended", "fault")
        if shared.outrun_bits & bit:
            turn = Turn(game, replace(shared, outrun_bits=shared.outrun_bits & ~bit), IDLE)
            turn.operate("abandon", key)
            yield turn.move(f"key {key} is abandoned too late", "fault")


def _skewed(game: Game, shared: Shared) -> Shared:
    """The holder of a claim may trust it beyond its lease, so the effect may happen twice."""
    held = _bits(key for key, record in enumerate(shared.records) if game.ledger.state(record) == "P")
    return replace(shared, skews=shared.skews - 1, skewed=True, struck_bits=shared.struck_bits | held)


def _operated(game: Game, shared: Shared, key: int, state: str) -> Iterator[Move]:
    acts = game.setting.acts
    contents = _bits(number for number, content in enumerate(game.setting.contents) if content.key == key)
    if "seed" in acts and contents:
        yield _seeded(game, shared, key, contents)
    if state == "D" and "redrive" in acts:
        turn = Turn(game, shared, IDLE)
        turn.operate("redrive", key)
        turn.shared = replace(
            turn.shared,
            runs=changed(shared.runs, key, 0),
            counted=changed(shared.counted, key, 0),
            meddled=shared.meddled or shared.skewed,
        )
        yield turn.move(f"an operator redrives key {key}", "fault")
    if state and "forget" in acts:
        yield from _forgotten(game, shared, key)
    if state and "reset" in acts:
        turn = Turn(game, replace(shared, meddled=True), IDLE)
        turn.operate("reset", key)
        turn.forget(key)
        turn.shared = _dropped(game, turn.shared, key, game.ledger.content(shared.records[key]))
        yield turn.move(f"an operator resets key {key}", "fault")


def _forgotten(game: Game, shared: Shared, key: int) -> Iterator[Move]:
    """An operator erases a record. An event whose payload is erased need not take effect any more."""
    content = game.ledger.content(shared.records[key])
    for verb, which in (("forget", ""), ("forget waiting", ", waiting or not")):
        turn = Turn(game, shared, IDLE)
        turn.operate(verb, key)
        if turn.shared.records[key] != shared.records[key]:
            if content >= 0:
                turn.shared = _dropped(game, turn.shared, key, content)
            yield turn.move(f"an operator erases key {key}{which}", "fault")


def _seeded(game: Game, shared: Shared, key: int, contents: int) -> Move:
    """An operator marks the events of a key as completed, because they took effect elsewhere. If the key had no record,
    no effect may start under this key any more."""
    turn = Turn(game, shared, IDLE)
    turn.operate("seed", key)
    if turn.shared.records[key] == shared.records[key]:
        return turn.move(f"an operator seeds key {key}, which has a record", "fault")
    turn.shared = replace(
        turn.shared,
        applied_bits=turn.shared.applied_bits | contents,
        owed_bits=turn.shared.owed_bits & ~contents,
        effect_of=changed(turn.shared.effect_of, key, contents.bit_length() - 1),
    )
    return turn.move(f"an operator seeds key {key}", "fault")


def _dropped(game: Game, shared: Shared, key: int, content: int) -> Shared:
    """An event that an operator drops need not take effect any more."""
    dropped = _failing(game, shared, 1 << key) if content < 0 else 1 << content
    return replace(shared, excused_bits=shared.excused_bits | dropped)


# ── what must hold of the shared part ─────────────────────────────────────────────────────────────────────


def check(game: Game, shared: Shared) -> None:
    for content, known in enumerate(game.setting.contents):
        owed = shared.owed_bits & ~shared.excused_bits
        if owed >> content & 1 and not shared.marked[content] and not _kept(game.ledger, shared.records, content):
            raise Violation(2, f"{known.name} was acknowledged, has no effect and is kept nowhere")
    if any(content.poison for content in game.setting.contents):
        _check_neighbours(game, shared)


def _check_neighbours(game: Game, shared: Shared) -> None:
    for content in game.setting.contents:
        if not content.poison and game.ledger.state(shared.records[content.key]) == "D":
            raise Violation(9, f"{content.name} is buried because of its neighbour")


def ended(game: Game, shared: Shared, workers: Iterable[Worker]) -> bool:
    """No work is left: every delivery is acknowledged, every record completed, buried or removed."""
    if any(shared.queue) or any(worker.jobs or worker.late for worker in workers):
        return False
    return all(_at_rest(game.ledger, shared, record) for record in shared.records)


def _at_rest(ledger: Ledger, shared: Shared, record: int) -> bool:
    """After an operator has reset a key, a late request may claim it although its worker has gone, and the worker that
    had to store a copy of a marked event may have crashed. Such a record only waits for its expiry: the deliveries are
    acknowledged, and `check` has verified that no effect is missing."""
    abandoned = shared.meddled or shared.excused_bits > 0
    return ledger.state(record) in ("", "C", "D") or (abandoned and ledger.content(record) < 0)


def _kept(ledger: Ledger, records: tuple[int, ...], content: int) -> bool:
    return any(ledger.content(record) == content for record in records)
