"""The loop of a worker: acknowledge what may be acknowledged, and leave the rest for redelivery."""

from collections.abc import Iterable

from oncegate import Event, Gate

gate = Gate("memory://", namespace="crm", max_attempts=3)


def update_crm(event: Event) -> None:
    """Send the key as an idempotency key if the other side supports it: a retry after a crash has the same key."""
    print(f"PUT /calls/{event.id}  Idempotency-Key: {event.key}")
    if event.body.get("state") == "unknown":
        raise ValueError("the CRM has no such state")


def work(messages: Iterable[tuple[str, str]]) -> list[str]:
    """Process (message id, body) pairs. Returns the ids of the messages to redeliver."""
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
