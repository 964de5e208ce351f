"""The judge: the final state of the events of a world."""

from collections import Counter
from contextlib import closing

from msgspec import Struct

from oncegate import open_store
from oncegate.claims import COMPLETED, DEAD, Record
from tests.kills.worker import Plan, Way
from tests.kills.world import World


class Finding(Struct, frozen=True):
    """`attempted` counts the effects that were started, `applied` the effects that remain. The other fields name
    events.

    `wronged` are buried events that did not kill a worker.
    """

    events: int
    attempted: int
    applied: int
    lost: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()
    buried: tuple[str, ...] = ()
    wronged: tuple[str, ...] = ()

    def __add__(self, other: "Finding") -> "Finding":
        return Finding(*(getattr(self, field) + getattr(other, field) for field in self.__struct_fields__))

    @property
    def redos(self) -> int:
        return self.attempted - self.events

    @property
    def complaints(self) -> list[str]:
        """The violations."""
        wrong = {
            "lost": self.lost,
            "doubled": self.doubled,
            "neither completed nor buried": self.unsettled,
            "buried for nothing": self.wronged,
        }
        return [f"{what}: {', '.join(events)}" for what, events in wrong.items() if events]


def judge(plan: Plan) -> Finding:
    """Check the sinks and the records of a finished world. A dead letter without its payload does not count as one."""
    world = plan.world
    effects, records = _effects(world, plan.way), records_of(world)
    completed = {event for event, record in records.items() if record.state == COMPLETED}
    buried = {event for event, record in records.items() if record.state == DEAD and record.payload is not None}
    settled = completed | buried if plan.way != "bare" else set(world.events)
    return Finding(
        events=len(world.events),
        attempted=len(world.attempts()),
        applied=sum(min(counts) for counts in effects.values()),
        lost=tuple(event for event in world.events if min(effects[event]) < 1 and event not in buried),
        doubled=tuple(event for event in world.events if max(effects[event]) > 1),
        unsettled=tuple(event for event in world.events if event not in settled),
        buried=tuple(event for event in world.events if event in buried),
        wronged=tuple(event for event in world.events if event in buried and event not in plan.poison),
    )


def _effects(world: World, way: Way) -> dict[str, list[int]]:
    """For each event, how often each half of its effect was written. Without the gate, an attempt is an effect."""
    if way == "bare":
        attempts = Counter(world.attempts())
        return {event: [attempts[event]] for event in world.events}
    rows = world.rows() if way == "transaction" else world.kept()
    counts = Counter((event, half) for event, half, _ in rows)
    halves = (1, 2) if way == "transaction" else (1,)
    return {event: [counts[event, half] for half in halves] for event in world.events}


def records_of(world: World) -> dict[str, Record]:
    """The record of every event that has one."""
    with closing(open_store(world.url)) as store:
        entries = store.browse(limit=len(world.events) + 1)
    return {str(entry.record.about.delivery_id): entry.record for entry in entries}
