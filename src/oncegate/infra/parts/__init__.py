"""List the kinds of parts by name."""

from collections.abc import Mapping
from typing import Final

from oncegate.infra.parts.base import FoundPart, Part, PartKind
from oncegate.infra.parts.events import BUS, RULE
from oncegate.infra.parts.functions import FUNCTION, MAPPING, PERMISSION, RETRIES
from oncegate.infra.parts.queues import POLICY, QUEUE
from oncegate.infra.parts.roles import ROLE
from oncegate.infra.parts.tables import TABLE

__all__ = ["KINDS", "FoundPart", "Part", "PartKind"]

KINDS: Final[Mapping[str, PartKind]] = {
    "bus": BUS,
    "table": TABLE,
    "queue": QUEUE,
    "policy": POLICY,
    "role": ROLE,
    "function": FUNCTION,
    "permission": PERMISSION,
    "retries": RETRIES,
    "mapping": MAPPING,
    "rule": RULE,
}
