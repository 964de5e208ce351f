"""The two integrations of Genesys Cloud that send events to Oncegate: Amazon EventBridge, and Open Messaging.

They are parts, like the parts of a deployment in AWS: see `infra/platform.py`. Genesys Cloud has no tags. The
EventBridge integration is marked by its notes, and the Open Messaging integration by a header that it sends.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from oncegate.backoff import wait_until
from oncegate.errors import GenesysError
from oncegate.genesys.client import GenesysClient
from oncegate.infra.platform import MADE_BY, NAME_TAG, FoundPart, Part, PartKind, Platform

EVENTBRIDGE: Final = "integration"
OPEN_MESSAGING: Final = "messaging"
COMMAND: Final = "oncegate genesys"
_TYPE: Final = "amazon-eventbridge-source"
_INTEGRATIONS: Final = "/api/v2/integrations"
_OPEN: Final = "/api/v2/conversations/messaging/integrations/open"
_CONFIGURED: Final = ("awsAccountId", "awsAccountRegion", "eventSourceSuffix", "eventFilter")
_ACTIVE, _ERROR = "ACTIVE", "ERROR"
_STALE_LIMIT: Final = 30.0  # seconds
_NAME_HEADER: Final = "X-Oncegate-Name"
# Returns the secret; None if it is created by an earlier step of the plan.
Secret: TypeAlias = Callable[[], str | None]
_SECRET: Final = "outboundNotificationWebhookSignatureSecretToken"  # noqa: S105  # the name of a field


def genesys_platform(
    client: GenesysClient, *, secret: Secret = lambda: None, replace_secret: bool = False
) -> Platform[GenesysClient]:
    """The kinds of integrations. `secret` returns what signs the messages of an Open Messaging integration. It is not a
    property of the part, because plans show properties. If `replace_secret` is true, an existing integration gets the
    secret."""
    kinds = {EVENTBRIDGE: _EVENTBRIDGE_KIND, OPEN_MESSAGING: _open_messaging_kind(secret, replace_secret)}
    return Platform(client, kinds, GenesysError, COMMAND)


def organisation_of(client: GenesysClient) -> str:
    """The id of the organisation of the OAuth client. It is part of the name of the partner event source."""
    found = (client.call("GET", "/api/v2/tokens/me") or {}).get("organization") or {}
    if not found.get("id"):
        raise GenesysError("Genesys Cloud did not name the organisation of the OAuth client; try again later")
    return str(found["id"])


# ── Amazon EventBridge ────────────────────────────────────────────────────────────────────────────────────


def eventbridge_part(name: str, account: str, region: str, suffix: str, topics: Sequence[str]) -> Part:
    """The wanted integration. Genesys Cloud creates a partner event source in this AWS account and region."""
    properties = {
        "awsAccountId": account,
        "awsAccountRegion": region,
        "eventSourceSuffix": suffix,
        "eventFilter": sorted(topics),
        "intendedState": "ENABLED",
        "reportedState": _ACTIVE,
    }
    return Part(EVENTBRIDGE, f"oncegate-{name}", "", properties, name)


def source_name(organisation: str, suffix: str) -> str:
    """The name that AWS shows for the partner event source, and that its bus gets."""
    return f"aws.partner/genesys.com/cloud/{organisation}/{suffix}"


def _read_eventbridge(client: GenesysClient, part: Part) -> FoundPart | None:
    for found in client.pages(_INTEGRATIONS, integrationType=_TYPE):
        if found.get("name") == part.name and (found.get("integrationType") or {}).get("id") == _TYPE:
            config = client.call("GET", f"{_INTEGRATIONS}/{found['id']}/config/current") or {}
            return _found_eventbridge(part, found, config)
    return None


def _found_eventbridge(part: Part, found: Mapping[str, Any], config: Mapping[str, Any]) -> FoundPart:
    current: Mapping[str, Any] = config.get("properties") or {}
    # An earlier run may have created the integration and then failed. Such an integration has no configuration yet.
    is_ours = config.get("notes") == _notes(part) or not any(current.get(name) for name in _CONFIGURED)
    properties = {
        **{name: current.get(name) for name in _CONFIGURED},
        "eventFilter": sorted(current.get("eventFilter") or []),
        "intendedState": found.get("intendedState"),
        "reportedState": (found.get("reportedState") or {}).get("code"),
    }
    return FoundPart(found["id"], part.tags if is_ours else {}, properties)


def _create_eventbridge(client: GenesysClient, part: Part) -> None:
    body = {"name": part.name, "integrationType": {"id": _TYPE}}
    created = client.call("POST", _INTEGRATIONS, body=body)
    _configure(client, part, str(created["id"]))


def _configure(client: GenesysClient, part: Part, id_: str, state: str | None = None) -> None:
    """Write the configuration, enable the integration, and wait until it is active. The configuration has a version,
    so that two people do not overwrite each other's changes. `state` is the reported state before the change."""
    config = client.call("GET", f"{_INTEGRATIONS}/{id_}/config/current") or {}
    body = {
        "name": part.name,
        "version": config.get("version", 1),
        "properties": {name: part.properties[name] for name in _CONFIGURED},
        "advanced": config.get("advanced") or {},
        "notes": _notes(part),
        "credentials": config.get("credentials") or {},
    }
    client.call("PUT", f"{_INTEGRATIONS}/{id_}/config/current", body=body)
    client.call("PATCH", f"{_INTEGRATIONS}/{id_}", body={"intendedState": part.properties["intendedState"]})
    _wait_until_active(client, part, id_, state)


def _wait_until_active(client: GenesysClient, part: Part, id_: str, state: str | None) -> None:
    """Genesys Cloud changes the reported state some time after its answer. So an ERROR from before the change is an
    error only after another state was reported, or after half a minute."""
    final_at = time.monotonic() + (_STALE_LIMIT if state == _ERROR else 0)

    def is_active() -> bool:
        nonlocal final_at
        reported = (client.call("GET", f"{_INTEGRATIONS}/{id_}") or {}).get("reportedState") or {}
        if reported.get("code") != _ERROR:
            final_at = 0.0
        elif time.monotonic() >= final_at:
            why = (reported.get("detail") or {}).get("message") or "no reason is given"
            raise GenesysError(
                f"Genesys Cloud could not enable the integration {part.name} ({why}); correct it and retry"
            )
        return bool(reported.get("code") == _ACTIVE)

    _wait_until(client, part, is_active)


def _delete_eventbridge(client: GenesysClient, _part: Part, found: FoundPart) -> None:
    client.call("DELETE", f"{_INTEGRATIONS}/{found.arn}")


def _notes(part: Part) -> str:
    return f"Made by oncegate genesys for {part.deployment}."


_EVENTBRIDGE_KIND: Final = PartKind[GenesysClient](
    _TYPE,
    _read_eventbridge,
    _create_eventbridge,
    lambda client, part, found: _configure(client, part, found.arn, found.properties["reportedState"]),
    _delete_eventbridge,
)

# ── Open Messaging ────────────────────────────────────────────────────────────────────────────────────────


def open_messaging_part(name: str, url: str) -> Part:
    """The wanted integration, which posts its messages to `url`."""
    properties = {
        "outboundNotificationWebhookUrl": url,
        "webhookHeaders": {_NAME_HEADER: name},
        "secret": "as wanted",
    }
    return Part(OPEN_MESSAGING, f"oncegate-{name}", "", properties, name)


def _open_messaging_kind(secret: Secret, replace_secret: bool) -> PartKind[GenesysClient]:
    def read(client: GenesysClient, part: Part) -> FoundPart | None:
        for found in client.pages(_OPEN):
            if found.get("name") == part.name:
                return _found_open(found)
        return None

    def create(client: GenesysClient, part: Part) -> None:
        created = client.call("POST", _OPEN, body={"name": part.name, **_body(part)})
        id_ = str(created["id"])
        _wait_until(client, part, lambda: _is_created(client, part, id_))

    def change(client: GenesysClient, part: Part, found: FoundPart) -> None:
        # A PATCH replaces all headers. A person may have added some, such as the key of a gateway.
        headers = {**found.properties["webhookHeaders"], **part.properties["webhookHeaders"]}
        client.call("PATCH", f"{_OPEN}/{found.arn}", body={**_body(part), "webhookHeaders": headers})

    def _body(part: Part) -> dict[str, Any]:
        return {**{name: value for name, value in part.properties.items() if name != "secret"}, _SECRET: secret()}

    def _found_open(found: Mapping[str, Any]) -> FoundPart:
        # The name of a header has no case, so our header gets our way to write it, however Genesys Cloud writes it.
        headers = {
            _NAME_HEADER if name.lower() == _NAME_HEADER.lower() else name: value
            for name, value in (found.get("webhookHeaders") or {}).items()
        }
        owner = headers.get(_NAME_HEADER)
        tags = {} if owner is None else {MADE_BY: "oncegate", NAME_TAG: owner}
        url = found.get("outboundNotificationWebhookUrl")
        properties = {"outboundNotificationWebhookUrl": url, "webhookHeaders": headers}
        # Genesys Cloud may not show the secret. A secret that it shows is compared.
        wanted = secret()
        is_same = wanted is not None and not replace_secret and found.get(_SECRET) in (None, "", wanted)
        return FoundPart(found["id"], tags, {**properties, "secret": "as wanted" if is_same else "another"})

    def delete(client: GenesysClient, _part: Part, found: FoundPart) -> None:
        client.call("DELETE", f"{_OPEN}/{found.arn}")

    return PartKind[GenesysClient]("Open Messaging integration", read, create, change, delete, open=("webhookHeaders",))


def _is_created(client: GenesysClient, part: Part, id_: str) -> bool:
    found = client.call("GET", f"{_OPEN}/{id_}") or {}
    if found.get("createStatus") == "Error":
        why = (found.get("createError") or {}).get("message") or "no reason is given"
        raise GenesysError(f"Genesys Cloud could not create the integration {part.name} ({why}); correct it and retry")
    return found.get("createStatus") in (None, "Completed")


def _wait_until(client: GenesysClient, part: Part, ready: Callable[[], bool]) -> None:
    wait_until(ready, f"the integration {part.name}", client.on_wait, GenesysError)
