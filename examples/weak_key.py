"""A key that is too weak causes a conflict: the second event becomes a dead letter and is not lost as a duplicate."""

from oncegate import Event, Gate, keys


def note(event: Event) -> None:
    print(f"  {event.body['state']}")


EVENTS = [
    {"conversationId": "c-1", "timestamp": 1765551752433, "state": "ringing"},
    {"conversationId": "c-1", "timestamp": 1765551752433, "state": "connected"},
]

for name, key in {
    "conversationId + timestamp": keys.fields("conversationId", "timestamp"),
    "conversationId + timestamp + state": keys.fields("conversationId", "timestamp", "state"),
}.items():
    print(name)
    gate = Gate("memory://", key=key)
    for outcome in gate.run_batch(EVENTS, note):
        print(f"  {outcome.status}: {outcome.reason}")
