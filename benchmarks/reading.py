"""Compare reading an event and making its default key with parsing its JSON and hashing its bytes once."""

import hashlib
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.measure import Sizes, by_turns, median, timed
from benchmarks.progress import Progress
from benchmarks.report import Aim, Row
from oncegate import keys, read

_IDS = (
    *("participantId", "sessionId", "userId", "queueId", "divisionId", "flowId", "routingRequestId", "edgeId"),
    *("externalContactId", "externalOrganizationId", "peerId"),
)


def rows(sizes: Sizes, _folder: Path, progress: Progress) -> list[Row]:
    progress.stage("reading")
    payloads = deliveries(sizes.read_events)
    turns = {name: partial(_turn, reader, payloads) for name, reader in (("ours", _ours), ("raw", decoded))}
    rounds = by_turns(turns, sizes.rounds, sizes.warm_ups, progress)
    events = sizes.read_events
    return [
        Row(
            f"read and key of a Genesys event of {len(payloads[0])} bytes",
            "events/s",
            median(rounds, lambda took: events / took["ours"]),
            median(rounds, lambda took: events / took["raw"]),
            "msgspec + SHA-256",
            median(rounds, lambda took: took["raw"] / took["ours"]),
            Aim("at least", 0.4),
        )
    ]


def _turn(reader: Callable[[bytes], object], payloads: list[bytes]) -> float:
    def work() -> None:
        for payload in payloads:
            reader(payload)

    return timed(work)


def _ours(payload: bytes) -> object:
    (event,) = read(payload)
    return keys.auto(event)


def decoded(payload: bytes) -> object:
    """The minimum work to identify events by their content."""
    return msgspec.json.decode(payload), hashlib.sha256(payload).digest()


def deliveries(count: int) -> list[bytes]:
    return [_event() for _ in range(count)]


def _event() -> bytes:
    """The end of a call as EventBridge delivers it. Every id is new."""
    conversation = str(uuid.uuid4())
    body = {
        "eventTime": 1_780_000_000_123,
        "conversationId": conversation,
        "disconnectType": "PEER",
        "mediaType": "VOICE",
        "provider": "Edge",
        "direction": "INBOUND",
        "ani": "tel:+15555550100",
        "dnis": "tel:+15555550199",
        "interactingDurationMs": 121_810,
        "heldDurationMs": 0,
        "alertingDurationMs": 3_100,
        "conversationExternalContactIds": [str(uuid.uuid4())],
        **{name: str(uuid.uuid4()) for name in _IDS},
    }
    detail = {
        "topicName": f"v2.detail.events.conversation.{conversation}.user.end",
        "version": "2",
        "eventBody": body,
        "metadata": {"CorrelationId": str(uuid.uuid4())},
        "timestamp": "2026-05-28T20:26:40.456Z",
    }
    envelope = {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": "v2.detail.events.conversation.{id}.user.end",
        "source": f"aws.partner/genesys.com/cloud/{uuid.uuid4()}/contact-centre",
        "account": "123456789012",
        "time": "2026-05-28T20:26:40Z",
        "region": "eu-central-1",
        "resources": [],
        "detail": detail,
    }
    return msgspec.json.encode(envelope)
