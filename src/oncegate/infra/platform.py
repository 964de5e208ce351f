"""Plan the steps that make the parts of a platform match their wanted state, and execute these steps.

The platform is AWS or Genesys Cloud. The wanted state of a part is data, which is compared with the state that the
platform reports. This module imports no client, so that each platform needs only its own extra.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from msgspec import Struct

from oncegate.errors import OncegateError

Client = TypeVar("Client")

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
    """The state of a part on its platform. A part that belongs to another resource has the tags of that resource."""

    arn: str
    tags: Mapping[str, str]
    properties: Mapping[str, Any]
    url: str = ""
    note: str = ""

    def made_for(self, deployment: str) -> bool:
        """Return whether Oncegate created the part for this deployment."""
        return self.tags.get(MADE_BY) == "oncegate" and self.tags.get(NAME_TAG) == deployment


class PartKind(Struct, Generic[Client], frozen=True):
    """The operations on one kind of part.

    `fixed` lists the properties that cannot be changed after the part was created. `open` lists the properties that may
    contain more than the wanted values. `shared` is true if a resource that Oncegate did not create may be used as the
    part. If `delete` is None, the platform deletes the part together with the resource that the part belongs to.
    `awaited` is true if another system creates the part: `create` then waits for it. `check` raises an error if an
    existing part cannot be used at all."""

    resource: str
    read: Callable[[Client, Part], FoundPart | None]
    create: Callable[[Client, Part], None]
    change: Callable[[Client, Part, FoundPart], None]
    delete: Callable[[Client, Part, FoundPart], None] | None = None
    fixed: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    shared: bool = False
    awaited: bool = False
    check: Callable[[Part, FoundPart], None] | None = None


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────

Action: TypeAlias = Literal["create", "wait", "change", "keep", "delete", "leave"]


class Step(Struct, frozen=True):
    """An action on a part, and the reason."""

    action: Action
    part: Part
    found: FoundPart | None = None
    why: str = ""


class Platform(Struct, Generic[Client], frozen=True):
    """A client, the kinds of parts that it can create, and the error for a part that must not be changed. `command` is
    the command that creates the parts."""

    client: Client
    kinds: Mapping[str, PartKind[Client]]
    error: type[OncegateError]
    command: str

    def plan(self, parts: Iterable[Part]) -> list[Step]:
        """Return the steps that create or change the parts.

        Raises the error of the platform if a resource with the name of a part exists and Oncegate did not create it."""
        return [self._step(part, self.kinds[part.kind].read(self.client, part)) for part in parts]

    def _step(self, part: Part, found: FoundPart | None) -> Step:
        kind = self.kinds[part.kind]
        if found is None:
            return Step("wait" if kind.awaited else "create", part)
        if not found.made_for(part.deployment):
            if kind.shared:
                return Step("keep", part, found, "not created by Oncegate, only used")
            raise self.error(
                f"the {part.kind} {part.about or part.name} exists, but was not made by {self.command} for"
                f" {part.deployment}; choose another --name, or delete it first"
            )
        if kind.check is not None:
            kind.check(part, found)
        changes = [
            name
            for name in part.properties
            if name not in kind.fixed and not _is_as_wanted(name, part, found, kind.open)
        ]
        return Step("change", part, found, ", ".join(changes)) if changes else Step("keep", part, found)

    def carry_out(self, step: Step) -> None:
        kind = self.kinds[step.part.kind]
        if step.action in ("create", "wait"):
            kind.create(self.client, step.part)
        elif step.action == "change" and step.found is not None:
            kind.change(self.client, step.part, step.found)
        elif step.action == "delete" and step.found is not None and kind.delete is not None:
            kind.delete(self.client, step.part, step.found)

    def existing_parts(self, parts: Iterable[Part]) -> Iterator[tuple[Part, FoundPart]]:
        """Yield the parts that exist, each with its state. Parts that Oncegate did not create are included, except for
        those that a deployment may share, such as a bus."""
        for part in parts:
            kind = self.kinds[part.kind]
            found = kind.read(self.client, part)
            if found is not None and (found.made_for(part.deployment) or not kind.shared):
                yield part, found

    def plan_removal(self, existing: Iterable[tuple[Part, FoundPart]]) -> list[Step]:
        """Return the steps that delete the parts in reverse order. A part that Oncegate did not create gets a step that
        leaves the part.

        If the platform deletes a part together with another part, the part has no step."""
        deletable = [(part, found) for part, found in existing if self.kinds[part.kind].delete is not None]
        return [
            Step("delete", part, found, found.note)
            if found.made_for(part.deployment)
            else Step("leave", part, found, f"not made by {self.command} for {part.deployment}")
            for part, found in reversed(deletable)
        ]


def _is_as_wanted(name: str, part: Part, found: FoundPart, open_: tuple[str, ...]) -> bool:
    current, wanted = found.properties.get(name), part.properties[name]
    return _contains(current, wanted) if name in open_ else bool(current == wanted)


def _contains(found: Any, wanted: Any) -> bool:
    """Return whether `found` contains all wanted values. `found` may contain further values."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_contains(found.get(name), value) for name, value in wanted.items())
    return bool(found == wanted)
