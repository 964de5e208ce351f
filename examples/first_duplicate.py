"""The smallest program: two deliveries of one event, one effect."""

from oncegate import Event, Gate


def open_case(event: Event) -> dict[str, str]:
    print(f"opening a case for {event.id}")
    return {"case": "4711"}


gate = Gate("memory://")
for delivery in (b'{"id": "evt-1", "type": "call.ended"}', b'{"type": "call.ended", "id": "evt-1"}'):
    outcome = gate.run(delivery, open_case)
    print(outcome.status, outcome.result, outcome.reason)
