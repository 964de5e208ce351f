"""A worker's loop: acknowledge exactly what may be acknowledged, leave the rest to be delivered again."""

from collections.abc import Iterable

from oncegate import Event, Gate

gate = Gate("memory://", namespace="crm", max_attempts=3)


def update_crm(event: Event) -> None:
    """Pass the key on where the other side can use it: a redo after a crash has the same one."""
    print(f"PUT /calls/{event.id}  Idempotency-Key: {event.key}")
    if event.body.get("state") == "unknown":
        raise ValueError("the CRM has no such state")


def work(messages: Iterable[tuple[str, str]]) -> list[str]:
    """Take (message id, body) pairs through the gate; answer the ids of those to deliver again."""
    ids, bodies = zip(*messages, strict=True)
    outcomes = gate.run_batch(bodies, update_crm)
    return [id_ for id_, outcome in zip(ids, outcomes, strict=True) if not outcome.acked]


QUEUE = [
    ("m-1", '{"id": "call-1", "state": "connected"}'),
    ("m-2", '{"id": "call-2", "state": "unknown"}'),
    ("m-3", '{"id": "call-1", "state": "connected"}'),
]
print("deliver again:", work(QUEUE))
print("deliver again:", work(QUEUE))
print("deliver again:", work(QUEUE))
print("dead letters:", [entry.record.error for entry in gate.store.dead_letters()])
