"""Define parts: the wanted state, the state in AWS, and the operations of each kind of part."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from oncegate.aws.cloud import Cloud

MADE_BY: Final = "made-by"
NAME_TAG: Final = "oncegate-name"


class Part(Struct, frozen=True):
    """The wanted state of a part. The properties have their CloudFormation names.

    If the part is not a resource itself, `about` is the name of the resource that the part belongs to. `code` is the
    package of a function."""

    kind: str
    name: str
    arn: str
    properties: Mapping[str, Any]
    deployment: str
    about: str = ""
    code: bytes = b""

    @property
    def tags(self) -> dict[str, str]:
        return {MADE_BY: "oncegate", NAME_TAG: self.deployment}


class FoundPart(Struct, frozen=True):
    """The state of a part in AWS. A part that belongs to another resource has the tags of that resource."""

    arn: str
    tags: Mapping[str, str]
    properties: Mapping[str, Any]
    url: str = ""
    note: str = ""

    def made_for(self, deployment: str) -> bool:
        """Return whether Oncegate created the part for this deployment."""
        return self.tags.get(MADE_BY) == "oncegate" and self.tags.get(NAME_TAG) == deployment


class PartKind(Struct, frozen=True):
    """The operations on one kind of part.

    `fixed` lists the properties that cannot be changed after the part was created. `open` lists the properties that may
    contain more than the wanted values. `shared` is true if a resource that Oncegate did not create may be used as the
    part. If `delete` is None, AWS deletes the part together with the resource that the part belongs to."""

    resource: str
    read: Callable[[Cloud, Part], FoundPart | None]
    create: Callable[[Cloud, Part], None]
    change: Callable[[Cloud, Part, FoundPart], None]
    delete: Callable[[Cloud, Part, FoundPart], None] | None = None
    fixed: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    shared: bool = False


def as_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as a list of keys and values, the format of most AWS services."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def as_mapping(tags: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}
