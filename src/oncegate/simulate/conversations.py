"""Conversations: what happens in a contact centre, as the documents that tell of it.

A conversation is a list of moments: a time in milliseconds and the document of its event. Moments in which an entity
comes into the same state are further apart than `LONGEST_WINDOW`, so that only an echo is one.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, TypeAlias

from oncegate.simulate.randomness import Chance

Document: TypeAlias = dict[str, Any]
Moment: TypeAlias = tuple[int, Document]

LONGEST_WINDOW: Final = 5_000_000  # in microseconds

_APART: Final = 4_000  # how long after one another conversations begin, at most
_SENT_AFTER: Final = 260
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


def world(seed: int, start: int) -> Iterator[Moment]:
    """All that happens from a time on, in the order of time; it does not end."""
    chance = Chance(seed, "world")
    ahead: list[tuple[int, int, Document]] = []
    numbers = count()
    begins = start
    while True:
        for at, document in chance.one_of(_CONVERSATIONS)(chance, begins):
            heappush(ahead, (at, next(numbers), document))
        begins += chance.between(0, _APART)
        while ahead and ahead[0][0] < begins:
            at, _, document = heappop(ahead)
            yield at, document


def written(at: int) -> str:
    """A time in milliseconds as senders write it."""
    return datetime.fromtimestamp(at / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ── Genesys Cloud, by EventBridge ─────────────────────────────────────────────────────────────────────────────


def envelope(chance: Chance, kind: str, at: int, detail: Document) -> Document:
    """What EventBridge puts around a detail that comes in at this time."""
    return {
        "version": "0",
        "id": chance.uuid(),
        "detail-type": kind,
        **_ENVELOPE,
        "time": f"{written(at)[:19]}Z",
        "resources": [],
        "detail": detail,
    }


def sent_anew(chance: Chance, document: Document, after: int) -> Document:
    """The same detail body as its sender emits it once more, so many milliseconds after the first time."""
    detail = document["detail"]
    at = detail["eventBody"]["eventTime"] + _SENT_AFTER + after
    detail = {**detail, "metadata": {"CorrelationId": chance.uuid()}, "timestamp": written(at)}
    return envelope(chance, document["detail-type"], at, detail)


def _call(chance: Chance, start: int) -> list[Moment]:
    """An inbound call: through a flow into a queue, where its caller hangs up or an agent answers."""
    conversation = chance.uuid()
    caller = {"ani": f"tel:+1555{chance.digits(7)}", "dnis": "tel:+15555550199"}
    media = {"mediaType": "VOICE", "provider": "Edge", "direction": "INBOUND", **caller}
    customer, flow = _leg(chance, media), _leg(chance, media) | _FLOW
    queued = start + chance.between(8_000, 30_000)
    steps = [
        (start, "customer.start", customer | {"conversationExternalContactIds": []}),
        (start + 41, "flow.start", flow),
    ]
    steps += _attributes(chance, start + chance.between(2_000, 6_000), customer)
    outcome = {"flowOutcomeId": chance.uuid(), "flowOutcomeValue": chance.one_of(("SUCCESS", "FAILURE"))}
    steps.append((queued - 11, "flow.outcome", flow | outcome))
    ended = {"disconnectType": "TRANSFER", "connectedDurationMs": queued - start, "exitReason": "TRANSFER"}
    steps.append((queued, "flow.end", flow | ended))
    steps += _queued(chance, queued, customer, _leg(chance, media) | {"queueId": _QUEUE, "divisionId": _DIVISION})
    return [(at, _detail_event(chance, conversation, topic, at, body)) for at, topic, body in steps]


def _leg(chance: Chance, media: Document) -> Document:
    return {"participantId": chance.uuid(), "sessionId": chance.uuid(), **media}


def _attributes(chance: Chance, at: int, customer: Document) -> list[tuple[int, str, Document]]:
    """One update or two, which are then in the same millisecond."""
    said = [{"intent": chance.one_of(("billing", "delivery", "returns"))}, {"language": chance.one_of(("en", "de"))}]
    who = {"participantId": customer["participantId"]}
    return [(at, "attributes", who | {"attributes": each}) for each in said[: chance.between(1, 2)]]


def _queued(chance: Chance, at: int, customer: Document, queue: Document) -> list[tuple[int, str, Document]]:
    left = at + chance.between(3_000, 60_000)
    steps = [(at, "acd.start", queue | {"routingPriority": 0})]
    waited = {"disconnectType": "TRANSFER", "acdOutcome": "ANSWERED", "connectedDurationMs": left - at}
    if chance.comes_true(0.1):
        steps.append((left, "acd.end", queue | waited | {"disconnectType": "PEER", "acdOutcome": "ABANDON"}))
        return [*steps, (left, "customer.end", customer | {"disconnectType": "CLIENT", "interactingDurationMs": 0})]
    agent = queue | {"participantId": chance.uuid(), "sessionId": chance.uuid(), "userId": chance.uuid()}
    hung_up = left + chance.between(20_000, 240_000)
    wrapped = hung_up + chance.between(3_000, 60_000)
    spoken = {"interactingDurationMs": hung_up - left}
    wrapup = {"wrapupCode": chance.uuid(), "wrapupNotes": "", "wrapupDurationMs": wrapped - hung_up}
    return [
        *steps,
        (left, "acd.end", queue | waited | {"answeredUserId": agent["userId"]}),
        (left, "user.start", agent),
        (hung_up, "customer.end", customer | {"disconnectType": "PEER"} | spoken),
        (hung_up + 34, "user.end", agent | {"disconnectType": "CLIENT", "heldDurationMs": 0} | spoken),
        (wrapped, "acw", agent | wrapup),
        (wrapped, "wrapup", agent | wrapup),
    ]


def _detail_event(chance: Chance, conversation: str, topic: str, at: int, body: Document) -> Document:
    detail = {
        "topicName": f"{_TOPIC}.{conversation}.{topic}",
        "version": "2",
        "eventBody": {"eventTime": at, "conversationId": conversation, **body},
        "metadata": {"CorrelationId": chance.uuid()},
        "timestamp": written(at + _SENT_AFTER),
    }
    return envelope(chance, f"{_TOPIC}.{{id}}.{topic}", at + _SENT_AFTER, detail)


# ── Genesys Open Messaging, by webhook ────────────────────────────────────────────────────────────────────────


def _chat(chance: Chance, start: int) -> list[Moment]:
    """An agent's messages to a customer, each with its receipts, which have the message's id."""
    conversation, customer = chance.uuid(), f"customer-{chance.digits(6)}"
    moments, at = [], start
    for _ in range(chance.between(1, 4)):
        message = chance.uuid().replace("-", "")
        says = {
            "type": "Text",
            "text": chance.one_of(_SENTENCES),
            "direction": "Outbound",
            "originatingEntity": "Human",
        }
        moments.append((at, _webhook(message, conversation, customer, at, says)))
        for after, status in ((chance.between(1_000, 3_000), "Delivered"), (chance.between(5_000, 9_000), "Read")):
            receipt = {"type": "Receipt", "status": status, "isFinalReceipt": status == "Read", "direction": "Outbound"}
            moments.append((at + after, _webhook(message, conversation, customer, at + after, receipt)))
        at += chance.between(15_000, 60_000)
    return moments


_SENTENCES: Final = ("How can I help?", "One moment, please.", "I have sent it again.", "Is there anything else?")


def _webhook(message: str, conversation: str, customer: str, at: int, says: Document) -> Document:
    channel = {
        "id": _CHANNEL,
        "messageId": message,
        "platform": "Open",
        "type": "Private",
        "to": {"id": customer, "idType": "Opaque"},
        "from": {"nickname": "Support", "id": _CHANNEL, "idType": "Opaque"},
        "time": written(at),
    }
    return {"id": message, "channel": channel, "conversationId": conversation, **says}


# ── NICE CXone ────────────────────────────────────────────────────────────────────────────────────────────────


def _case(chance: Chance, start: int) -> list[Moment]:
    """A digital case, from its first message to its closing."""
    case = {"id": chance.digits(16), "interactionId": chance.uuid(), "threadId": chance.uuid(), "direction": "inbound"}
    steps, at, since = [(start, "Case", "CaseCreated", "new", start)], start, start
    for _ in range(chance.between(1, 3)):
        at += chance.between(15_000, 60_000)
        steps.append((at, "Message", "MessageCreated", "new", since))
    for status in ("open", "pending", "resolved", "closed"):
        at = since = at + chance.between(20_000, 120_000)
        steps.append((at, "Case", "CaseStatusChanged", status, since))
    return [(step[0], _digital(chance, case, *step)) for step in steps]


def _digital(chance: Chance, case: Document, at: int, what: str, kind: str, status: str, since: int) -> Document:
    changed = {"status": status, "statusUpdatedAtWithMilliseconds": written(since)}
    data: Document = {"brand": _BRAND, "case": case | changed}
    if what == "Message":
        data["message"] = {"id": chance.uuid(), "direction": "inbound", "createdAtWithMilliseconds": written(at)}
    return {
        "eventId": chance.uuid(),
        "eventObject": what,
        "eventType": kind,
        "createdAt": f"{written(at)[:19]}+00:00",
        "createdAtWithMilliseconds": written(at),
        "traceId": chance.uuid(),
        "data": data,
    }


def _contact(chance: Chance, start: int) -> list[Moment]:
    """A contact of the ACD as it is polled: no id, and disconnected twice, the second time for good."""
    number, moments, at = chance.digits(9), [], start
    for status, final in (
        ("InQueue", "False"),
        ("Active", "False"),
        ("Disconnected", "False"),
        ("Disconnected", "True"),
    ):
        told = {"Status": status, "FinalState": final, "LastStateChangeTimeUTC": written(at)}
        moments.append((at, {"Type": "CallContactEvent", "ContactID": number, "MasterID": number, **told}))
        at += chance.between(8_000, 90_000)
    return moments


# Calls come twice as often as all others: a call has most of the events there are.
_CONVERSATIONS: Final[tuple[Callable[[Chance, int], list[Moment]], ...]] = (_call, _call, _chat, _case, _contact)
