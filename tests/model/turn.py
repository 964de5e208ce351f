"""One step under construction: it sends requests to the store and updates the history for the invariants."""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from tests.model.ledger import Ledger, Ruling
from tests.model.parts import Job, Late, Move, Rules, Setting, Shared, Stir, Violation, Worker, changed

# Stages in which a job has an owner and a fence to prove its claim.
PROVING: Final = frozenset(
    {
        "bury copy",
        "reply",
        "held",
        "running",
        "commit",
        "complete",
        "release",
        "unavailable",
        "bury",
        "give back",
        "yield",
        "premature",
    }
)
# Stages in which the worker may start, or has started, an effect. Its lease is renewed meanwhile.
HOLDING: Final = frozenset({"held", "running"})
# Stages in which a delivery waits for its verdict.
ASKING: Final = frozenset({"claim", "admit", "admit and run", "mark"})
_UNPROVED: Final = ASKING | {"take"}
_GIVEN: Final = ("granted", "admitted")


class Game:
    """The parts that do not change while a world is explored."""

    def __init__(self, setting: Setting, rules: Rules, ledger: Ledger) -> None:
        self.setting = setting
        self.rules = rules
        self.ledger = ledger

    def name(self, job: Job | Late) -> str:
        return self.setting.contents[job.content].name


class Turn:
    def __init__(self, game: Game, shared: Shared, worker: Worker) -> None:
        self.game = game
        self.shared = shared
        self.worker = worker
        self._stirs: tuple[Stir, ...] = ()

    def move(self, label: str, kind: str = "go") -> Move:
        return Move(label, self.shared, self.worker, self._stirs, kind)

    # ── the store ─────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, index: int, verb: str) -> Ruling:
        """Apply the request of a job. The caller decides whether the answer arrives."""
        job = self.worker.jobs[index]
        if verb == "claim" and not self.game.rules.claims_first:
            return self.game.ledger.judge(self.shared.records[job.key], verb, job.content, job.holds, job.stale)
        ruling = self._judged(job, verb)
        if ruling.handed_over and ruling.answer in _GIVEN:
            self._hold(index, job.key)
        return ruling

    def arrive(self) -> Ruling:
        """A late request reaches the store. Its answer is lost."""
        late = self.worker.late
        assert late is not None
        ruling = self._judged(late, "complete" if late.verb == "commit" else late.verb)
        if ruling.handed_over and ruling.answer in _GIVEN and late.job >= 0:
            self._hold(late.job, late.key)
        if late.verb == "commit":
            self.commit(ruling, late)
        self.worker = replace(self.worker, late=None)
        return ruling

    def operate(self, verb: str, key: int, *, proven: bool = False) -> None:
        """An operation of an operator, or an abandon with a valid or an old proof."""
        ruling = self.game.ledger.judge(self.shared.records[key], verb, 0, proven, verb == "abandon" and not proven)
        self._write(key, ruling)

    def _judged(self, job: Job | Late, verb: str) -> Ruling:
        record = self.shared.records[job.key]
        ruling = self.game.ledger.judge(record, verb, job.content, job.holds, job.stale)
        self._write(job.key, ruling)
        if verb == "mark" and ruling.handed_over:
            self._count_marked(job.content, 1)
        if verb == "unavailable" and ruling.changed:
            self._uncount(job.key, 1)
        return ruling

    def _write(self, key: int, ruling: Ruling) -> None:
        if not ruling.changed:
            return
        self.shared = replace(self.shared, records=changed(self.shared.records, key, ruling.record))
        if ruling.forgot:
            self.forget(key)
        if ruling.handed_over:
            self._hand_over(key, ruling)
            stir = Stir(key, ruling.refenced)
            self._stirs += (stir,)
            self.worker = told(self.worker, stir)

    def _hand_over(self, key: int, ruling: Ruling) -> None:
        """The previous holder of the key loses it."""
        if ruling.forgiven:
            self._uncount(key, 0)
        shared, bit = self.shared, 1 << key
        self.shared = replace(
            shared,
            started_bits=shared.started_bits & ~bit,
            ended_bits=shared.ended_bits & ~bit,
            outrun_bits=shared.outrun_bits | (shared.ended_bits & bit),
        )

    def _hold(self, index: int, key: int) -> None:
        """The job holds the record, and so does every request with the same owner."""
        for other, job in enumerate(self.worker.jobs):
            twin = not self.game.rules.owner_for_each and job.stage == "claim" and job.key == key
            if other == index or twin:
                self._set(other, replace(job, holds=True))
        late = self.worker.late
        if late is not None and late.job == index and late.key == key:
            self.worker = replace(self.worker, late=replace(late, holds=True))

    # ── the worker ────────────────────────────────────────────────────────────────────────────────────────

    def put(self, index: int, job: Job) -> None:
        """Move a job to a stage. A job that does not use its owner any more drops the late request with that owner."""
        if job.stage in ("ack", "nack", "copy", "again"):
            content = self.game.setting.contents[job.content]
            key = content.copy_key if job.stage == "copy" else content.key
            marked = job.marked and job.stage == "copy"
            if job.marked and not marked:
                self._count_marked(job.content, -1)
            job = Job(job.content, key, job.stage, kept=job.kept, marked=marked)
            self._unlink(index)
        self._set(index, job)

    def leave(self) -> None:
        """The worker has no job any more."""
        late = self.worker.late
        self.worker = Worker((), 0, None if late is None else replace(late, job=-1))

    def send_late(self, index: int, verb: str) -> None:
        job = self.worker.jobs[index]
        late = Late(verb, job.content, job.key, job.holds, job.stale, index)
        self.worker = replace(self.worker, late=late)

    def _unlink(self, index: int) -> None:
        late = self.worker.late
        if late is not None and late.job == index:
            self.worker = replace(self.worker, late=replace(late, job=-1))

    def _set(self, index: int, job: Job) -> None:
        jobs = self.worker.jobs
        self.worker = replace(self.worker, jobs=(*jobs[:index], job, *jobs[index + 1 :]))

    # ── the history ───────────────────────────────────────────────────────────────────────────────────────

    def strike(self, cost: int = 1) -> None:
        """A fault: effects that were started and not completed may be repeated because of it."""
        self.shared = struck(self.game, self.shared, cost, ~0)

    def requeue(self, jobs: Iterable[Job]) -> None:
        """Unacknowledged deliveries are queued again."""
        queue = list(self.shared.queue)
        for job in jobs:
            queue[job.content] += not job.kept
        self.shared = replace(self.shared, queue=tuple(queue))

    def acknowledge(self, job: Job) -> None:
        owed = 1 << job.content & ~self.shared.applied_bits
        self.shared = replace(self.shared, owed_bits=self.shared.owed_bits | owed)

    def _count_marked(self, content: int, more: int) -> None:
        marked = self.shared.marked
        self.shared = replace(self.shared, marked=changed(marked, content, marked[content] + more))

    def lose(self, index: int) -> None:
        """No worker continues this job. If it is marked, or if a marking request may have reached or may still reach
        the store, it counts as completed and may never take effect."""
        job, late = self.worker.jobs[index], self.worker.late
        sent = job.holds or (late is not None and late.job == index)
        if job.marked or (job.stage == "mark" and sent):
            self.shared = replace(self.shared, excused_bits=self.shared.excused_bits | 1 << job.content)

    def start(self, job: Job) -> None:
        """An effect starts. If the clock of the store has jumped, the claim may belong to another by now; then the
        effect belongs to a grant that was given up as lost."""
        runs = self.shared.runs[job.key] + 1
        if runs > 1 and self.game.setting.ways == ("mark",) and job.marked and not self.shared.meddled:
            raise Violation(16, f"the effect of {self.game.name(job)} was marked first, and starts a second time")
        if job.valid <= 0:
            raise Violation(12, f"the effect of {self.game.name(job)} starts after the validity of its lease")
        counted, most = self.shared.counted[job.key] + job.holds, self.game.setting.max_attempts
        if (counted > most or runs > 2 * most) and not self.shared.meddled and not job.marked:
            times = f"{runs - 1} times, of which {counted - 1} count"
            raise Violation(9, f"the effect of {self.game.name(job)} starts once more after {times}")
        self.shared = replace(
            self.shared,
            runs=changed(self.shared.runs, job.key, runs),
            counted=changed(self.shared.counted, job.key, counted),
            started_bits=self.shared.started_bits | job.holds << job.key,
        )

    def _uncount(self, key: int, runs: int) -> None:
        """A started effect does not count as an attempt, and maybe not as a run."""
        shared = self.shared
        if shared.started_bits >> key & 1:
            self.shared = replace(
                shared,
                runs=changed(shared.runs, key, shared.runs[key] - runs),
                counted=changed(shared.counted, key, shared.counted[key] - 1),
                started_bits=shared.started_bits & ~(1 << key),
            )

    def apply(self, key: int, content: int) -> None:
        """An effect is applied."""
        shared = self.shared
        first = content if shared.effect_of[key] < 0 else shared.effect_of[key]
        self._check_once(key, content, first)
        self.shared = replace(
            shared,
            effect_of=changed(shared.effect_of, key, first),
            applied_bits=shared.applied_bits | 1 << content,
            owed_bits=shared.owed_bits & ~(1 << content),
        )

    def _check_once(self, key: int, content: int, first: int) -> None:
        """A transaction is exact in all cases. A plain effect is repeated only after a fault. A worker that outlived
        the record of its key may still finish its effect."""
        shared, names = self.shared, self.game.setting.contents
        if not self.game.setting.transaction and shared.forgotten_bits >> key & 1:
            return
        if content != first:
            raise Violation(1, f"both {names[first].name} and {names[content].name} take effect under one key")
        excused = shared.struck_bits >> key & 1 and not self.game.setting.transaction
        if shared.effect_of[key] >= 0 and not excused:
            raise Violation(1, f"{names[content].name} takes effect again, and no fault fell before its completion")

    def commit(self, ruling: Ruling, job: Job | Late) -> None:
        """Effect and completion in one transaction. On a retry, the store still answers yes to the same completion, but
        the effect must not be committed again. So the effect depends on whether the record changed."""
        if ruling.answer == "yes" and (ruling.changed or not self.game.rules.commits_once):
            self.apply(job.key, job.content)

    def forget(self, key: int) -> None:
        """The key starts a new life."""
        shared, bit = self.shared, 1 << key
        self.shared = replace(
            shared,
            runs=changed(shared.runs, key, 0),
            counted=changed(shared.counted, key, 0),
            started_bits=shared.started_bits & ~bit,
            effect_of=changed(shared.effect_of, key, -1),
            struck_bits=shared.struck_bits & ~bit,
            forgotten_bits=shared.forgotten_bits | bit,
        )


def told(worker: Worker, stir: Stir) -> Worker:
    """The requests of a worker after a record was granted to another."""
    jobs = tuple(
        replace(job, holds=False, stale=job.stale or (stir.refenced and job.stage in PROVING))
        if job.key == stir.key
        else job
        for job in worker.jobs
    )
    late = worker.late
    if late is not None and late.key == stir.key:
        late = replace(late, holds=False, stale=late.stale or (stir.refenced and late.verb not in _UNPROVED))
    return replace(worker, jobs=jobs, late=late)


def struck(game: Game, shared: Shared, cost: int, keys: int) -> Shared:
    """Mark the keys whose effect was started and not completed."""
    bits = shared.struck_bits
    for key, record in enumerate(shared.records):
        if keys >> key & 1 and shared.runs[key] and game.ledger.state(record) != "C":
            bits |= 1 << key
    return replace(shared, faults=shared.faults - cost, struck_bits=bits)
