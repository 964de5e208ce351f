"""What an OAuth client needs to use the API of Genesys Cloud: permissions and scopes, and names in tutorials.

Permissions are granted by the roles of the OAuth client. Scopes limit tokens of users. A token of the grant type client
credentials has the permissions of its roles, and Genesys Cloud checks no scope of it.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from oncegate.errors import GenesysError
from oncegate.genesys.client import GenesysClient, GenesysDenied, GenesysUnavailable
from oncegate.text import any_of

Use: TypeAlias = Literal["eventbridge", "open-messaging", "listen"]
Granted: TypeAlias = Literal["yes", "no", "unknown"]


class Requirement(Struct, frozen=True):
    """A permission and what needs it. `probe` is a path that can be read only with the permission. Each of
    `alternatives` is a permission that is enough, too."""

    permission: str
    use: Use
    needed_to: str
    probe: str | None = None
    alternatives: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return any_of((self.permission, *self.alternatives))


# Genesys documents these permissions and scopes with each operation of its API. The official SDK does not contain them,
# so no test compares them with it.
REQUIREMENTS: Final = (
    Requirement("integrations:integration:view", "eventbridge", "find the integration", "/api/v2/integrations"),
    Requirement("integrations:integration:add", "eventbridge", "create the integration"),
    Requirement("integrations:integration:edit", "eventbridge", "configure and enable it"),
    Requirement("integrations:integration:delete", "eventbridge", "delete it (`genesys down`)"),
    Requirement(
        "messaging:integration:view",
        "open-messaging",
        "find the integration",
        "/api/v2/conversations/messaging/integrations/open",
    ),
    Requirement("messaging:integration:add", "open-messaging", "create the integration"),
    Requirement("messaging:integration:edit", "open-messaging", "change it"),
    Requirement("messaging:integration:delete", "open-messaging", "delete it (`genesys down`)"),
)
# Scopes that a token of a user needs. `check` shows them for people who use such a token elsewhere.
SCOPES: Final[Mapping[Use, str]] = {
    "eventbridge": "integrations",
    "open-messaging": "conversations",
    "listen": "notifications",
}
# Names in tutorials that the official SDK does not have. Nothing else is known about them.
NOT_IN_SDK: Final = (
    "genesyscloud.eventstreams.read",
    "analytics:events:read",
    "eventstreampermission:read",
)
UNKNOWN: Final = (
    "Some permissions could not be checked, because the OAuth client may not read its own roles. Grant"
    " authorization:grant:view to it, or look at its roles in Genesys Cloud."
)


class Check(Struct, frozen=True):
    """Whether a requirement is met. `why` says how this is known."""

    requirement: Requirement
    granted: Granted
    why: str


def check_permissions(client: GenesysClient, uses: Iterable[Use], topics: Iterable[Requirement] = ()) -> list[Check]:
    """Compare the requirements of these uses with the roles of the OAuth client. `topics` are further requirements. If
    the client may not read its roles, only the permissions to read something can be checked, by reading it."""
    client.check_login()  # a refused login is not a missing permission
    chosen = [each for each in (*REQUIREMENTS, *topics) if each.use in set(uses)]
    granted = granted_permissions(client)
    if granted is None:
        return [_probed(client, each) for each in chosen]
    return [Check(each, "yes" if _is_met(each, granted) else "no", "its roles were read") for each in chosen]


def _is_met(requirement: Requirement, granted: Collection[tuple[str, str, str]]) -> bool:
    return any(is_granted(each, granted) for each in (requirement.permission, *requirement.alternatives))


def granted_permissions(client: GenesysClient) -> set[tuple[str, str, str]] | None:
    """The permissions of the roles of the OAuth client: domain, entity and action. None if they cannot be read: the
    client needs the permission authorization:grant:view to read its own roles."""
    for subject in ("me", client.credentials.client_id):
        try:
            found = client.call("GET", f"/api/v2/authorization/subjects/{subject}", query={"includeFullRoles": True})
        except GenesysUnavailable:
            raise
        except GenesysError:  # without the permission; and `me` is refused for a token without a user
            continue
        if found and found.get("grants") is not None:
            return {permission for grant in found["grants"] for permission in _permissions_of(grant)}
    return None


def _permissions_of(grant: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    for policy in (grant.get("role") or {}).get("policies") or []:
        for action in policy.get("actions") or []:
            yield str(policy.get("domain")), str(policy.get("entityName")), str(action)


def is_granted(permission: str, granted: Iterable[tuple[str, str, str]]) -> bool:
    """Whether a permission is among those of the roles. A role may have `*` in place of a part."""
    wanted = tuple(permission.split(":"))
    return any(all(has in ("*", part) for part, has in zip(wanted, each, strict=False)) for each in granted)


def _probed(client: GenesysClient, requirement: Requirement) -> Check:
    if requirement.probe is None:
        return Check(requirement, "unknown", "its roles could not be read")
    try:
        client.call("GET", requirement.probe, query={"pageSize": 1, "pageNumber": 1})
    except GenesysDenied:
        return Check(requirement, "no", "a request that needs it was refused")
    return Check(requirement, "yes", "a request that needs it was answered")
