"""Conversations of a contact centre, as event documents.

A conversation is a list of documents, each with its time in milliseconds. Two documents with the same state of an
entity are further apart than `LONGEST_WINDOW`, so that only a generated echo is a logical duplicate.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, TypeAlias

from oncegate.simulate.random_source import RandomSource

Document: TypeAlias = dict[str, Any]
TimedDocument: TypeAlias = tuple[int, Document]

LONGEST_WINDOW: Final = 5_000_000  # in microseconds

_MAX_GAP: Final = 4_000  # the longest time between the starts of two conversations, in milliseconds
_SENT_AFTER: Final = 260  # milliseconds between an event and its publication
_TOPIC: Final = "v2.detail.events.conversation"
_DIVISION: Final = "4b9c2a7e-51d3-4f08-9e6a-7c1d0b3f5a92"
_QUEUE: Final = "c8f1d6b4-2e7a-4935-8b0d-3a9e5c7f1d26"
_FLOW: Final = {
    "flowType": "INBOUNDCALL",
    "flowId": "e27b9f40-6c1d-4a85-b3f7-0d8a5e2c9b14",
    "divisionId": _DIVISION,
    "flowVersion": "7.0",
}
_ENVELOPE: Final = {
    "source": "aws.partner/genesys.com/cloud/1f6e3d2c-9b8a-4756-a4c3-d2e1f0b9a8c7/simulated",
    "account": "123456789012",
    "region": "eu-central-1",
}
_BRAND: Final = {"id": 4711, "tenantId": "6d0c4f9e-8a27-4b31-95e8-f2b7a1d3c650", "businessUnitId": 4500077}
_CHANNEL: Final = "9a3e7c51-0f4b-4d82-a6c9-5b1e8d2f7034"


def conversations(seed: int, start: int, untimed: float = 0.0) -> Iterator[TimedDocument]:
    """Generate the documents of overlapping conversations in the order of time. The first conversation begins at
    `start`. Beside a share of `untimed` of them, a user joins a queue, leaves it and joins it again: these events have
    no event time, and two of them have the same body. The generator never ends."""
    random, members = RandomSource(seed, "world"), RandomSource(seed, "members")
    pending: list[tuple[int, int, Document]] = []
    numbers = count()
    begins = start
    while True:
        for at, document in random.choose(_CONVERSATIONS)(random, begins):
            heappush(pending, (at, next(numbers), document))
        if members.decide(untimed):
            for at, document in _membership(members, begins):
                heappush(pending, (at, next(numbers), document))
        begins += random.integer(0, _MAX_GAP)
        while pending and pending[0][0] < begins:
            at, _, document = heappop(pending)
            yield at, document


def iso_time(at: int) -> str:
    """A time in milliseconds as ISO 8601 text."""
    return datetime.fromtimestamp(at / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ── Genesys Cloud, through EventBridge ────────────────────────────────────────────────────────────────────────


def envelope(random: RandomSource, kind: str, at: int, detail: Document) -> Document:
    """The EventBridge envelope of a detail that is published at this time."""
    return {
        "version": "0",
        "id": random.uuid(),
        "detail-type": kind,
        **_ENVELOPE,
        "time": f"{iso_time(at)[:19]}Z",
        "resources": [],
        "detail": detail,
    }


def republished(random: RandomSource, document: Document, after: int) -> Document:
    """The event as its sender publishes it again, `after` milliseconds after the first publication."""
    detail = document["detail"]
    if not has_event_time(document):  # only the envelope is new: otherwise this would be another event
        return {**document, "id": random.uuid()}
    at = detail["eventBody"]["eventTime"] + _SENT_AFTER + after
    detail = {**detail, "metadata": {"CorrelationId": random.uuid()}, "timestamp": iso_time(at)}
    return envelope(random, document["detail-type"], at, detail)


def has_event_time(document: Document) -> bool:
    """Whether the body of an event in an envelope contains the time of the event."""
    return "eventTime" in document["detail"]["eventBody"]


def _membership(random: RandomSource, start: int) -> list[TimedDocument]:
    """A user joins a queue, leaves it, and joins it again. The body has no time, so the first and the last event have
    the same body."""
    user, moments, at = random.uuid(), [], start
    kind = "v2.routing.queues.{id}.users"
    for joined in (True, False, True):
        detail = {
            "topicName": kind.replace("{id}", _QUEUE),
            "version": "2",
            "eventBody": {"id": user, "queueId": _QUEUE, "joined": joined, "ringNumber": 1},
            "metadata": {"CorrelationId": random.uuid()},
            "timestamp": iso_time(at + _SENT_AFTER),
        }
        moments.append((at, envelope(random, kind, at + _SENT_AFTER, detail)))
        at += random.integer(6_000, 60_000)
    return moments


def _call(random: RandomSource, start: int) -> list[TimedDocument]:
    """An inbound call: through a flow into a queue, until the caller hangs up or an agent answers."""
    conversation = random.uuid()
    caller = {"ani": f"tel:+1555{random.digits(7)}", "dnis": "tel:+15555550199"}
    media = {"mediaType": "VOICE", "provider": "Edge", "direction": "INBOUND", **caller}
    customer, flow = _leg(random, media), _leg(random, media) | _FLOW
    queued = start + random.integer(8_000, 30_000)
    steps = [
        (start, "customer.start", customer | {"conversationExternalContactIds": []}),
        (start + 41, "flow.start", flow),
    ]
    steps += _attributes(random, start + random.integer(2_000, 6_000), customer)
    outcome = {"flowOutcomeId": random.uuid(), "flowOutcomeValue": random.choose(("SUCCESS", "FAILURE"))}
    steps.append((queued - 11, "flow.outcome", flow | outcome))
    ended = {"disconnectType": "TRANSFER", "connectedDurationMs": queued - start, "exitReason": "TRANSFER"}
    steps.append((queued, "flow.end", flow | ended))
    steps += _queued(random, queued, customer, _leg(random, media) | {"queueId": _QUEUE, "divisionId": _DIVISION})
    return [(at, _detail_event(random, conversation, topic, at, body)) for at, topic, body in steps]


def _leg(random: RandomSource, media: Document) -> Document:
    return {"participantId": random.uuid(), "sessionId": random.uuid(), **media}


def _attributes(random: RandomSource, at: int, customer: Document) -> list[tuple[int, str, Document]]:
    """One update of attributes, or two updates in the same millisecond."""
    updates = [{"intent": random.choose(("billing", "delivery", "returns"))}, {"language": random.choose(("en", "de"))}]
    participant = {"participantId": customer["participantId"]}
    return [(at, "attributes", participant | {"attributes": each}) for each in updates[: random.integer(1, 2)]]


def _queued(random: RandomSource, at: int, customer: Document, queue: Document) -> list[tuple[int, str, Document]]:
    left = at + random.integer(3_000, 60_000)
    steps = [(at, "acd.start", queue | {"routingPriority": 0})]
    waited = {"disconnectType": "TRANSFER", "acdOutcome": "ANSWERED", "connectedDurationMs": left - at}
    if random.decide(0.1):
        steps.append((left, "acd.end", queue | waited | {"disconnectType": "PEER", "acdOutcome": "ABANDON"}))
        return [*steps, (left, "customer.end", customer | {"disconnectType": "CLIENT", "interactingDurationMs": 0})]
    agent = queue | {"participantId": random.uuid(), "sessionId": random.uuid(), "userId": random.uuid()}
    hung_up = left + random.integer(20_000, 240_000)
    wrapped = hung_up + random.integer(3_000, 60_000)
    spoken = {"interactingDurationMs": hung_up - left}
    wrapup = {"wrapupCode": random.uuid(), "wrapupNotes": "", "wrapupDurationMs": wrapped - hung_up}
    return [
        *steps,
        (left, "acd.end", queue | waited | {"answeredUserId": agent["userId"]}),
        (left, "user.start", agent),
        (hung_up, "customer.end", customer | {"disconnectType": "PEER"} | spoken),
        (hung_up + 34, "user.end", agent | {"disconnectType": "CLIENT", "heldDurationMs": 0} | spoken),
        (wrapped, "acw", agent | wrapup),
        (wrapped, "wrapup", agent | wrapup),
    ]


def _detail_event(random: RandomSource, conversation: str, topic: str, at: int, body: Document) -> Document:
    detail = {
        "topicName": f"{_TOPIC}.{conversation}.{topic}",
        "version": "2",
        "eventBody": {"eventTime": at, "conversationId": conversation, **body},
        "metadata": {"CorrelationId": random.uuid()},
        "timestamp": iso_time(at + _SENT_AFTER),
    }
    return envelope(random, f"{_TOPIC}.{{id}}.{topic}", at + _SENT_AFTER, detail)


# ── Genesys Open Messaging, through webhooks ──────────────────────────────────────────────────────────────────


def _chat(random: RandomSource, start: int) -> list[TimedDocument]:
    """The messages of an agent to a customer, each with receipts. A receipt has the id of its message."""
    conversation, customer = random.uuid(), f"customer-{random.digits(6)}"
    moments, at = [], start
    for _ in range(random.integer(1, 4)):
        message = random.uuid().replace("-", "")
        content = {
            "type": "Text",
            "text": random.choose(_SENTENCES),
            "direction": "Outbound",
            "originatingEntity": "Human",
        }
        moments.append((at, _webhook(message, conversation, customer, at, content)))
        for after, status in ((random.integer(1_000, 3_000), "Delivered"), (random.integer(5_000, 9_000), "Read")):
            receipt = {"type": "Receipt", "status": status, "isFinalReceipt": status == "Read", "direction": "Outbound"}
            moments.append((at + after, _webhook(message, conversation, customer, at + after, receipt)))
        at += random.integer(15_000, 60_000)
    return moments


_SENTENCES: Final = ("How can I help?", "One moment, please.", "I have sent it again.", "Is there anything else?")


def _webhook(message: str, conversation: str, customer: str, at: int, content: Document) -> Document:
    channel = {
        "id": _CHANNEL,
        "messageId": message,
        "platform": "Open",
        "type": "Private",
        "to": {"id": customer, "idType": "Opaque"},
        "from": {"nickname": "Support", "id": _CHANNEL, "idType": "Opaque"},
        "time": iso_time(at),
    }
    return {"id": message, "channel": channel, "conversationId": conversation, **content}


# ── NICE CXone ────────────────────────────────────────────────────────────────────────────────────────────────


def _case(random: RandomSource, start: int) -> list[TimedDocument]:
    """A digital case, from its first message to its closing."""
    case = {"id": random.digits(16), "interactionId": random.uuid(), "threadId": random.uuid(), "direction": "inbound"}
    steps, at, since = [(start, "Case", "CaseCreated", "new", start)], start, start
    for _ in range(random.integer(1, 3)):
        at += random.integer(15_000, 60_000)
        steps.append((at, "Message", "MessageCreated", "new", since))
    for status in ("open", "pending", "resolved", "closed"):
        at = since = at + random.integer(20_000, 120_000)
        steps.append((at, "Case", "CaseStatusChanged", status, since))
    return [(step[0], _digital(random, case, *step)) for step in steps]


def _digital(random: RandomSource, case: Document, at: int, what: str, kind: str, status: str, since: int) -> Document:
    changed = {"status": status, "statusUpdatedAtWithMilliseconds": iso_time(since)}
    data: Document = {"brand": _BRAND, "case": case | changed}
    if what == "Message":
        data["message"] = {"id": random.uuid(), "direction": "inbound", "createdAtWithMilliseconds": iso_time(at)}
    return {
        "eventId": random.uuid(),
        "eventObject": what,
        "eventType": kind,
        "createdAt": f"{iso_time(at)[:19]}+00:00",
        "createdAtWithMilliseconds": iso_time(at),
        "traceId": random.uuid(),
        "data": data,
    }


def _contact(random: RandomSource, start: int) -> list[TimedDocument]:
    """An ACD contact as a poll returns it: without an id, and with two Disconnected states, of which the second is
    final."""
    number, moments, at = random.digits(9), [], start
    for status, final in (
        ("InQueue", "False"),
        ("Active", "False"),
        ("Disconnected", "False"),
        ("Disconnected", "True"),
    ):
        state = {"Status": status, "FinalState": final, "LastStateChangeTimeUTC": iso_time(at)}
        moments.append((at, {"Type": "CallContactEvent", "ContactID": number, "MasterID": number, **state}))
        at += random.integer(8_000, 90_000)
    return moments


# _call is listed twice: calls are twice as frequent as each other kind.
_CONVERSATIONS: Final[tuple[Callable[[RandomSource, int], list[TimedDocument]], ...]] = (
    _call,
    _call,
    _chat,
    _case,
    _contact,
)
