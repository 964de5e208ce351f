"""The steps of a worker, in the order of the gate.

    receive ─▶ claim ─▶ conflicts: store a copy ─▶ events of a batch with a lost attempt: release, to run alone later
            ─▶ for each grant: bury it without running, release it or start its effect ─▶ finish ─▶ settle ─▶ reply

The store applies a request in one instant. Any number of other steps may happen before and after it. The time that an
answer takes is the time until the next step of the worker. Each request may, at the cost of one fault, be lost, lose
its answer, or arrive late. The worker then sends it again with the same owner, or gives up. A worker can crash at every
step.
"""

from collections.abc import Callable, Iterator
from itertools import permutations, product
from typing import Final

from msgspec.structs import replace

from tests.model.ledger import Ruling
from tests.model.parts import Job, Move, Shared, Violation, Worker, changed
from tests.model.turn import ASKING, HOLDING, Game, Turn

# The request of a job in this stage.
_VERBS: Final = {
    "claim": "claim",
    "admit": "admit",
    "admit and run": "admit and run",
    "mark": "mark",
    "copy": "claim",
    "bury copy": "bury",
    "yield": "give back",
    "premature": "complete",
    "commit": "complete",
    "complete": "complete",
    "release": "release",
    "unavailable": "unavailable",
    "bury": "bury",
    "give back": "give back",
}
# The stage after a settlement: if it was accepted, and if the lease was lost or the store did not answer.
_AFTER: Final = {
    "bury copy": ("ack", "nack"),
    "yield": ("again", "again"),
    "premature": ("ran early", "nack"),
    "commit": ("ack", "nack"),
    "complete": ("ack", "nack"),
    "release": ("nack", "nack"),
    "unavailable": ("nack", "nack"),
    "bury": ("ack", "nack"),
    "give back": ("nack", "nack"),
}
# The order in which jobs have their turn, by stage.
_PHASES: Final = {
    **dict.fromkeys(ASKING, "claiming"),
    **dict.fromkeys(("copy", "bury copy", "yield"), "first"),
    **dict.fromkeys(("complete", "release", "unavailable", "bury", "give back", "commit", "premature"), "settling"),
    **dict.fromkeys(("running", "ran early"), "running"),
    **dict.fromkeys(("held", "reply"), "waiting"),
    "again": "again",
    **dict.fromkeys(("ack", "nack"), "ended"),
}


def moves(game: Game, shared: Shared, worker: Worker) -> Iterator[Move]:
    """All next moves of this worker, and of the network with its late request."""
    if worker.late is not None:
        yield _late(game, shared, worker)
    if worker.jobs:
        yield from _work(game, shared, worker)
        if shared.faults:
            yield _crash(game, shared, worker, "crashes", 1)
    else:
        yield from _receive(game, shared, worker)
        yield from _take(game, shared, worker)


# ── taking up work ────────────────────────────────────────────────────────────────────────────────────────


def _receive(game: Game, shared: Shared, worker: Worker) -> Iterator[Move]:
    waiting = [content for content, count in enumerate(shared.queue) if count]
    for size in range(1, game.setting.batch + 1):
        for contents, way in product(permutations(waiting, size), game.setting.ways):
            turn = Turn(game, shared, worker)
            jobs = tuple(Job(content, game.setting.contents[content].key, way) for content in contents)
            for content in contents:
                queue = changed(turn.shared.queue, content, turn.shared.queue[content] - 1)
                turn.shared = replace(turn.shared, queue=queue)
            turn.worker = replace(worker, jobs=jobs)
            yield turn.move(f"receives {_names(game, jobs)} and sends the {way}", "start")


def _take(game: Game, shared: Shared, worker: Worker) -> Iterator[Move]:
    for key, record in enumerate(shared.records):
        content = game.ledger.content(record)
        if content >= 0:
            name = game.setting.contents[content].name
            yield from _taken(game, shared, worker, Job(content, key, "take", kept=True), name)


def _taken(game: Game, shared: Shared, worker: Worker, job: Job, name: str) -> Iterator[Move]:
    turn = Turn(game, shared, replace(worker, jobs=(job,)))
    ruling = turn.ask(0, "take")
    if ruling.answer != "granted":
        return
    if shared.faults:
        lost = Turn(game, shared, replace(worker, jobs=(job,)))
        lost.ask(0, "take")
        lost.strike()
        lost.leave()
        yield lost.move(f"takes {name}, and the answer is lost", "fault")
    _grant(turn, 0, ruling)
    yield turn.move(f"takes {name}, which the store has kept: attempt {ruling.attempts}", "start")


# ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────


def _work(game: Game, shared: Shared, worker: Worker) -> Iterator[Move]:
    """One line for each thing that must come first, then the moves that may happen in any order."""
    turns: dict[str, list[int]] = {}
    for index, job in enumerate(worker.jobs):
        turns.setdefault(_PHASES[job.stage], []).append(index)
    if "claiming" in turns:
        yield from _request(game, shared, worker, turns["claiming"])
    elif "first" in turns:
        yield from _request(game, shared, worker, turns["first"][:1])
    else:
        for index in turns.get("settling", ()):
            yield from _request(game, shared, worker, [index])
        for index in (*turns.get("running", ()), *turns.get("waiting", ())):
            yield from _renew(game, shared, worker, index)
        yield from _run(game, shared, worker, turns)


def _run(game: Game, shared: Shared, worker: Worker, turns: dict[str, list[int]]) -> Iterator[Move]:
    if "running" in turns:
        yield from _finish(game, shared, worker, turns["running"][0])
    elif "waiting" in turns:
        yield _begin(game, shared, worker, turns["waiting"][0])
    elif "settling" not in turns:
        yield _again(game, shared, worker, turns["again"][0]) if "again" in turns else _reply(game, shared, worker)


def _renew(game: Game, shared: Shared, worker: Worker, index: int) -> Iterator[Move]:
    """The heartbeat. If the answer is lost, the worker keeps its old knowledge."""
    job, lease = worker.jobs[index], game.setting.lease
    if not job.hold or job.valid == lease or job.stage not in HOLDING or job.marked:
        return
    turn = Turn(game, shared, worker)
    renewed = turn.ask(index, "renew").answer == "yes"
    if renewed and shared.faults:
        lost = Turn(game, shared, worker)
        lost.ask(index, "renew")
        lost.strike()
        yield lost.move(f"renews its lease on {game.name(job)}, and the answer is lost", "fault")
    valid, hold = (lease, job.hold) if renewed else (0, 0)
    turn.put(index, replace(turn.worker.jobs[index], valid=valid, hold=hold))
    yield turn.move(f"{'renews' if renewed else 'finds it has lost'} its lease on {game.name(job)}")


def _begin(game: Game, shared: Shared, worker: Worker, index: int) -> Move:
    """The next grant is buried without running, released, or its effect starts. The check and the start are one
    step."""
    turn, job, name = Turn(game, shared, worker), worker.jobs[index], game.name(worker.jobs[index])
    if job.stage == "reply":
        turn.put(index, replace(job, stage="held"))
        return turn.move(f"hears that it was granted {name}")
    if game.rules.buries_beyond and job.attempts > game.setting.max_attempts and not job.marked:
        _end_with(turn, index, "bury")
        return turn.move(f"will not run {name} at attempt {job.attempts}")
    if game.rules.checks_validity and not job.valid:
        _end_with(turn, index, _kept_apart(game) if job.marked else "give back")
        return turn.move(f"will not start {name}: its lease may be over")
    if not game.rules.completes_after_effect:
        turn.put(index, replace(job, stage="premature", attempts=0, suspect=False, valid=0, hold=0))
        return turn.move(f"is to mark {name} completed before it runs it")
    turn.start(job)
    turn.put(index, replace(job, stage="running", suspect=False))
    return turn.move(f"starts the effect of {name}")


def _finish(game: Game, shared: Shared, worker: Worker, index: int) -> Iterator[Move]:
    job, name = worker.jobs[index], game.name(worker.jobs[index])
    if game.setting.contents[job.content].poison:
        yield _crash(game, shared, worker, f"is killed by the handler of {name}", 0)
        return
    done = Turn(game, shared, worker)
    if game.setting.transaction:
        _end_with(done, index, "commit")
        yield done.move(f"has prepared the effect of {name}")
    else:
        done.apply(job.key, job.content)
        _end_with(done, index, "ack" if job.marked or job.stage == "ran early" else "complete")
        once_more = " once more" if shared.effect_of[job.key] >= 0 else ""
        yield done.move(f"finishes the effect of {name}{once_more}")
    if job.stage == "running" and game.setting.failures:
        yield _fail(Turn(game, shared, worker), index)
        if shared.outages and not job.marked:
            held_up = Turn(game, replace(shared, outages=shared.outages - 1), worker)
            _end_with(held_up, index, "unavailable")
            yield held_up.move(f"finds something unavailable that {name} needs", "fault")


def _fail(turn: Turn, index: int) -> Move:
    job, rules = turn.worker.jobs[index], turn.game.rules
    last = job.attempts >= turn.game.setting.max_attempts
    if job.marked:
        _end_with(turn, index, _kept_apart(turn.game))
    else:
        _end_with(turn, index, "bury" if last else "release" if rules.counts_failures else "give back")
    return turn.move(f"fails at {turn.game.name(job)}", "fail")


def _kept_apart(game: Game) -> str:
    """A marked event that was not done is stored as a copy, like a conflict."""
    return "copy" if game.rules.keeps_marked else "ack"


def _end_with(turn: Turn, index: int, stage: str) -> None:
    """Choose the settlement of the claim."""
    job = turn.worker.jobs[index]
    if stage in ("complete", "bury") and not turn.game.rules.acks_after_settle:
        turn.acknowledge(job)
        job = replace(job, kept=True)
    turn.put(index, replace(job, stage=stage, attempts=0, suspect=False, valid=0, hold=0))


def _again(game: Game, shared: Shared, worker: Worker, index: int) -> Move:
    turn, job = Turn(game, shared, worker), worker.jobs[index]
    turn.put(index, Job(job.content, job.key, "claim"))
    return turn.move(f"sends the claim for {game.name(job)} alone")


def _reply(game: Game, shared: Shared, worker: Worker) -> Move:
    turn = Turn(game, shared, worker)
    for job in worker.jobs:
        if job.stage == "ack" and not job.kept:
            turn.acknowledge(job)
    turn.requeue(job for job in worker.jobs if job.stage == "nack")
    turn.leave()
    return turn.move(" and ".join(f"{job.stage}s {game.name(job)}" for job in worker.jobs))


def _crash(game: Game, shared: Shared, worker: Worker, how: str, cost: int) -> Move:
    turn = Turn(game, shared, worker)
    turn.strike(cost)
    for index, job in enumerate(worker.jobs):
        turn.lose(index)
        if game.setting.abandons and job.holds:
            turn.shared = replace(turn.shared, ended_bits=turn.shared.ended_bits | 1 << job.key)
    turn.requeue(worker.jobs)
    turn.leave()
    return turn.move(how, "fault" if cost else "go")


def _late(game: Game, shared: Shared, worker: Worker) -> Move:
    assert worker.late is not None
    turn, what = Turn(game, shared, worker), f"{worker.late.verb} for {game.name(worker.late)}"
    return turn.move(f"sent a {what} that arrives only now: {turn.arrive().answer}")


# ── a request and its answer ──────────────────────────────────────────────────────────────────────────────


def _request(game: Game, shared: Shared, worker: Worker, indexes: list[int]) -> Iterator[Move]:
    stage = worker.jobs[indexes[0]].stage
    what = f"{_VERBS[stage]} for {_names(game, [worker.jobs[index] for index in indexes])}"
    turn = Turn(game, shared, worker)
    rulings = [_ask(turn, index) for index in indexes]
    for index, ruling in zip(indexes, rulings, strict=True):
        _answered(turn, index, ruling)
    _set_apart(turn, indexes)
    spins = all(ruling.answer == "inflight" for ruling in rulings) and all(
        job.stage == "nack" for job in turn.worker.jobs
    )
    answers = " and ".join(map(_spoken, rulings))
    yield turn.move(f"has its {what} judged: {answers}", "spin" if spins else "go")
    if shared.faults:
        yield from _disturbed(game, shared, worker, indexes, what, any(ruling.changed for ruling in rulings))


def _disturbed(
    game: Game, shared: Shared, worker: Worker, indexes: list[int], what: str, matters: bool
) -> Iterator[Move]:
    """The same request with a fault of the network."""

    def send(turn: Turn) -> None:
        for index in indexes:
            _ask(turn, index)

    def delay(turn: Turn) -> None:
        stage = worker.jobs[indexes[0]].stage
        turn.send_late(indexes[0], "commit" if stage == "commit" else _VERBS[stage])

    harms: list[tuple[str, Callable[[Turn], None]]] = []
    if matters:
        harms.append((f"has the answer to its {what} lost", send))
    if worker.late is None and len(indexes) == 1:
        harms.append((f"has its {what} delayed", delay))
    for label, harm in harms:
        yield _harmed(Turn(game, shared, worker), harm, [], f"{label}, and will send it again")
        yield _harmed(Turn(game, shared, worker), harm, indexes, f"{label}, and gives up")
    yield _harmed(Turn(game, shared, worker), _nothing, indexes, f"has its {what} lost, and gives up")


def _harmed(turn: Turn, harm: Callable[[Turn], None], given_up: list[int], label: str) -> Move:
    harm(turn)
    turn.strike()
    for index in given_up:
        turn.lose(index)
        _end(turn, index, _gives_up(turn, index), "no answer")
    if given_up:
        turn.worker = replace(turn.worker, waited=0)
    return turn.move(label, "fault")


def _nothing(_turn: Turn) -> None:
    """The request is lost before it is applied."""


def _ask(turn: Turn, index: int) -> Ruling:
    job = turn.worker.jobs[index]
    ruling = turn.ask(index, _VERBS[job.stage])
    if job.stage == "commit":
        turn.commit(ruling, job)
    return ruling


def _answered(turn: Turn, index: int, ruling: Ruling) -> None:
    stage = turn.worker.jobs[index].stage
    if stage in ASKING:
        _verdict(turn, index, ruling)
    elif stage != "copy":
        _end(turn, index, _AFTER[stage][ruling.answer != "yes"], "")
    elif ruling.answer == "granted":
        turn.put(index, replace(turn.worker.jobs[index], stage="bury copy", stale=False))
    else:
        _end(turn, index, "nack" if ruling.answer == "inflight" else "ack", "")


def _verdict(turn: Turn, index: int, ruling: Ruling) -> None:
    rules = turn.game.rules
    match ruling.answer:
        case "granted":
            _accept(turn, index)
            _grant(turn, index, ruling)
        case "inflight":
            _end(turn, index, "nack" if rules.nacks_in_flight else "ack", "in flight")
        case "conflict":
            _end(turn, index, "copy" if rules.keeps_conflicts else "ack", "a conflict without a copy")
        case _:
            _end(turn, index, "ack", "")


def _accept(turn: Turn, index: int) -> None:
    """An event that the store holds and this worker runs is acknowledged before it runs."""
    job = turn.worker.jobs[index]
    if job.stage == "admit and run":
        turn.acknowledge(job)
        turn.put(index, replace(job, kept=True))


def _grant(turn: Turn, index: int, ruling: Ruling) -> None:
    """Validity is counted from before the request was first sent."""
    setting, waited = turn.game.setting, turn.worker.waited
    job = turn.worker.jobs[index]
    job = replace(job, stage="held", stale=False, attempts=ruling.attempts, marked=job.stage == "mark")
    job = replace(job, suspect=ruling.suspect)
    if turn.game.rules.counts_from_sending:
        job = replace(job, valid=max(0, ruling.left - waited), hold=max(0, setting.max_hold - waited))
    else:
        job = replace(job, stage="reply", valid=ruling.left, hold=setting.max_hold)
    turn.put(index, job)


def _set_apart(turn: Turn, indexes: list[int]) -> None:
    """In a batch, an event with a lost attempt is released first and run last, so that it cannot kill a worker with
    other events."""
    turn.worker = replace(turn.worker, waited=0)
    held = [index for index in indexes if turn.worker.jobs[index].stage == "held"]
    for index in held:
        job = turn.worker.jobs[index]
        if turn.game.rules.retries_alone and len(held) > 1 and job.suspect:
            turn.put(index, replace(job, stage="yield", attempts=0, suspect=False, valid=0, hold=0))


def _end(turn: Turn, index: int, stage: str, because: str) -> None:
    if stage == "ack" and because:
        raise Violation(6, f"{turn.game.name(turn.worker.jobs[index])} is acknowledged on {because}")
    turn.put(index, replace(turn.worker.jobs[index], stage=stage))


def _gives_up(turn: Turn, index: int) -> str:
    stage = turn.worker.jobs[index].stage
    if stage in _AFTER:
        return _AFTER[stage][1]
    return "nack" if turn.game.rules.nacks_unanswered else "ack"


def _names(game: Game, jobs: tuple[Job, ...] | list[Job]) -> str:
    return " and ".join(game.name(job) for job in jobs)


def _spoken(ruling: Ruling) -> str:
    return f"granted, attempt {ruling.attempts}" if ruling.answer == "granted" else ruling.answer
