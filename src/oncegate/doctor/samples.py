"""Make sample events to test the pattern of a rule."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from oncegate.doctor.rules.rule import PARTNER, is_of_genesys

_SOURCE: Final = "aws.partner/genesys.com/cloud/5f1c1c0e-6a5d-4f0e-9f5b-1d2f3a4b5c6d/sample"
_TOPICS: Final = (
    "v2.detail.events.conversation.{id}.customer.end",
    "v2.users.{id}.presence",
    "v2.users.{id}.conversations",
    "v2.routing.queues.{id}.conversations",
    "v2.quality.evaluations",
    "v2.audits.entitytype.{id}.entityid.{id}",
)


def samples(pattern: Mapping[str, Any] | None, bus: str, account: str, region: str) -> Iterator[dict[str, Any]]:
    """Yield Genesys events as they arrive on the bus. Yields nothing if the pattern is for other events, or if the
    conditions of the pattern are too complex for a sample."""
    if not pattern or not is_of_genesys(bus, pattern) or not envelope_of(pattern):
        return
    types, sources = _texts_of(pattern, "detail-type"), _texts_of(pattern, "source")
    if types is None or sources is None:
        return
    source = bus if bus.startswith(PARTNER) else next((name for name in sources if name.startswith(PARTNER)), _SOURCE)
    for topic in [*_TOPICS, *(type_ for type_ in types if type_.startswith("v2."))]:
        yield {
            "version": "0",
            "id": "58fb5dac-f077-4eec-a25f-c638dbdd4368",
            "detail-type": topic,
            "source": source,
            "account": account,
            "time": "2026-02-03T04:05:06Z",
            "region": region,
            "resources": [],
            "detail": {"topicName": topic, "version": "2", "eventBody": {}, "metadata": {}},
        }


def envelope_of(pattern: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the conditions of a pattern on the envelope, without the conditions on `detail`."""
    return {name: value for name, value in (pattern or {}).items() if name != "detail"}


def _texts_of(pattern: Mapping[str, Any], member: str) -> list[str] | None:
    """Return the values and prefixes that the pattern accepts for a member. Returns None if the pattern has other kinds
    of conditions on the member."""
    found = []
    for wanted in pattern.get(member, []):
        text = wanted.get("prefix") if isinstance(wanted, Mapping) else wanted
        if not isinstance(text, str):
            return None
        found.append(text)
    return found
