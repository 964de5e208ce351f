"""What a part is: how it should be, how it was found, and the four requests that every kind of part has."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from oncegate.aws.cloud import Cloud

MADE_BY: Final = "made-by"
NAME_TAG: Final = "oncegate-name"


class Part(Struct, frozen=True):
    """A part as it should be. Its properties have the names that CloudFormation has for them; `about` names what it
    belongs to where it is not a thing of its own, and `code` is the package of a function."""

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
    """A part as it is. Where a part belongs to another its tags are that one's."""

    arn: str
    tags: Mapping[str, str]
    properties: Mapping[str, Any]
    url: str = ""
    note: str = ""

    def made_for(self, deployment: str) -> bool:
        """Whether Oncegate made it, for this deployment."""
        return self.tags.get(MADE_BY) == "oncegate" and self.tags.get(NAME_TAG) == deployment


class PartKind(Struct, frozen=True):
    """A kind of part. `fixed` are properties that cannot be changed once it is made, `open` those in which others may
    have more than we want; a `shared` one may be somebody else's; one without `delete` goes with what it belongs to."""

    resource: str
    read: Callable[[Cloud, Part], FoundPart | None]
    create: Callable[[Cloud, Part], None]
    change: Callable[[Cloud, Part, FoundPart], None]
    delete: Callable[[Cloud, Part, FoundPart], None] | None = None
    fixed: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    shared: bool = False


def as_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as most services take them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def as_mapping(tags: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}
