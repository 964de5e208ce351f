"""The order of events within an entity."""

from collections.abc import Collection

from msgspec.structs import replace

from oncegate.claims import Admit, Admitted, Claim, Duplicate, EventSummary, Granted, Operation, step
from oncegate.stores.entity_order import Entity, batch_positions, keep_first_leases, step_at_position

LEASE = 30_000_000
NOW = 1_000_000


def admit(key: bytes, entity: str | None = "call-1", occurred_at: int | None = None, namespace: str = "n") -> Admit:
    about = EventSummary("plain", entity=entity, occurred_at=occurred_at)
    return Admit(namespace, key, key * 16, b"h" * 16, b"{}", about, lease=LEASE)


def leased(operations: list[Admit | Claim], busy: Collection[Entity] = ()) -> list[bytes]:
    """Return the keys of the admissions that keep their lease."""
    returned = keep_first_leases(operations, lambda entities: set(entities) & set(busy))
    return [each.key for each in returned if isinstance(each, Admit) and each.lease]


class TestKeepFirstLeases:
    def test_first_by_time(self) -> None:
        """Of several events of an entity, the one that happened first keeps its lease, wherever it is in the batch."""
        assert leased([admit(b"a", occurred_at=3), admit(b"b", occurred_at=1), admit(b"c", occurred_at=2)]) == [b"b"]

    def test_without_a_time(self) -> None:
        """An event without a time comes after events with one; of two without a time, the first in the batch wins."""
        assert leased([admit(b"a"), admit(b"b", occurred_at=9)]) == [b"b"]
        assert leased([admit(b"a"), admit(b"b")]) == [b"a"]

    def test_a_busy_entity(self) -> None:
        """No event of an entity keeps its lease while the store holds another event of the entity."""
        operations: list[Admit | Claim] = [admit(b"a"), admit(b"b", "call-2"), admit(b"c", namespace="m")]
        assert leased(operations, busy=[("n", "call-1")]) == [b"b", b"c"]

    def test_without_an_entity(self) -> None:
        """Events without an entity have no order: all keep their leases."""
        assert leased([admit(b"a", None), admit(b"b", None)], busy=[("n", None)]) == [b"a", b"b"]

    def test_a_first_event_without_a_lease(self) -> None:
        """If the first event of an entity requests no lease, a later event does not get one."""
        assert leased([replace(admit(b"a", occurred_at=1), lease=0), admit(b"b", occurred_at=2)]) == []

    def test_other_operations(self) -> None:
        """Claims are returned unchanged, in their place."""
        claim = Claim("n", b"k", b"o" * 16, b"h" * 16, LEASE, LEASE, EventSummary("plain", entity="call-1"))
        assert keep_first_leases([claim, admit(b"a"), claim], lambda _entities: ()) == [claim, admit(b"a"), claim]


def test_batch_positions() -> None:
    """An admission has the number of admissions of its entity before it; other operations have 0."""
    claim = Claim("n", b"k", b"o" * 16, b"h" * 16, LEASE, LEASE, EventSummary("plain", entity="call-1"))
    operations: list[Operation] = [
        admit(b"a"),
        claim,
        admit(b"b"),
        admit(b"c", "call-2"),
        admit(b"d", None),
        admit(b"e", None),
    ]
    assert batch_positions([*operations, admit(b"f"), admit(b"g", namespace="m")]) == [0, 0, 1, 0, 0, 0, 2, 0]


class TestStepAtPosition:
    def test_a_new_record(self) -> None:
        """A new record is first seen as many microseconds after now as its position; the answer has the same record."""
        for request, verdict in ((admit(b"a"), Granted), (replace(admit(b"a"), lease=0), Admitted)):
            record, answer = step_at_position(None, request, NOW, 3)
            assert isinstance(answer, verdict)
            assert record is not None
            assert record == answer.record
            assert record.first_seen == NOW + 3

    def test_position_0(self) -> None:
        """At position 0 the result is that of `step`."""
        assert step_at_position(None, admit(b"a"), NOW, 0) == step(None, admit(b"a"), NOW)

    def test_a_known_record(self) -> None:
        """A record that is there keeps its time, whatever the position of a copy."""
        before, _ = step(None, replace(admit(b"a"), lease=0), NOW)
        record, answer = step_at_position(before, replace(admit(b"b"), key=b"a", lease=0), NOW + 5, 3)
        assert record is before
        assert isinstance(answer, Duplicate)
