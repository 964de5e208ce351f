"""List the kinds of parts by name."""

from collections.abc import Mapping
from typing import Final

from oncegate.aws.cloud import Cloud
from oncegate.infra.parts.events import BUS, RULE, SOURCE
from oncegate.infra.parts.functions import FUNCTION, MAPPING, PERMISSION, RETRIES
from oncegate.infra.parts.queues import POLICY, QUEUE
from oncegate.infra.parts.roles import ROLE
from oncegate.infra.parts.tables import TABLE
from oncegate.infra.platform import FoundPart, Part, PartKind

__all__ = ["KINDS", "FoundPart", "Part", "PartKind"]

KINDS: Final[Mapping[str, PartKind[Cloud]]] = {
    "source": SOURCE,
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
