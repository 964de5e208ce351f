"""Read and write the Lambda function, its invoke permission, its retry configuration, and its event source mapping."""

import base64
import hashlib
import json
import time
from typing import Any, Final

from oncegate.aws.cloud import Cloud, Missing
from oncegate.errors import AwsError
from oncegate.infra.platform import FoundPart, Part, PartKind

_CONFIGURATION: Final = ("Runtime", "Handler", "Timeout", "MemorySize", "Role")
_ROLE_DELAY: Final = 30.0  # seconds; Lambda can use a new role after this time at the latest


def digest(code: bytes) -> str:
    """Return the value that Lambda reports as CodeSha256 for a package."""
    return base64.b64encode(hashlib.sha256(code).digest()).decode()


def read_function(cloud: Cloud, part: Part) -> FoundPart | None:
    answer = cloud.find("lambda", "get_function", FunctionName=part.name)
    if answer is None:
        return None
    found = answer["Configuration"]
    properties = {
        **{name: found.get(name) for name in _CONFIGURATION},
        "Environment": {"Variables": found.get("Environment", {}).get("Variables", {})},
        "Code": {"Sha256": found.get("CodeSha256")},
    }
    return FoundPart(found["FunctionArn"], answer.get("Tags", {}), properties)


def _create_function(cloud: Cloud, part: Part) -> None:
    wanted = {name: value for name, value in part.properties.items() if name != "Code"}
    code = {"ZipFile": part.code}
    _call_when_role_is_known(cloud, "cannot be assumed", "create_function", **wanted, Code=code, Tags=part.tags)
    _wait_until_updated(cloud, part)


def _change_function(cloud: Cloud, part: Part, found: FoundPart) -> None:
    """Update the code, wait, then update the configuration: Lambda refuses an update while another update runs."""
    wanted, current = part.properties, found.properties
    if current["Code"] != wanted["Code"]:
        cloud.call("lambda", "update_function_code", FunctionName=part.name, ZipFile=part.code)
        _wait_until_updated(cloud, part)
    variables = {**current["Environment"]["Variables"], **wanted["Environment"]["Variables"]}
    configured = {name: wanted[name] for name in _CONFIGURATION}
    environment = {"Variables": variables}
    cloud.call("lambda", "update_function_configuration", FunctionName=part.name, Environment=environment, **configured)
    _wait_until_updated(cloud, part)


def _call_when_role_is_known(cloud: Cloud, error_part: str, action: str, **parameters: Any) -> None:
    """Send a request, and retry it until Lambda can use the new role and its permissions. Until Lambda can use the
    role, the error message contains `error_part`."""
    deadline = time.monotonic() + _ROLE_DELAY
    while True:
        try:
            cloud.call("lambda", action, **parameters)
        except AwsError as error:
            if error_part not in str(error) or time.monotonic() > deadline:
                raise
            cloud.on_wait("Lambda to know the new role")
            time.sleep(1)
        else:
            return


def _wait_until_updated(cloud: Cloud, part: Part) -> None:
    def ready() -> bool:
        found: dict[str, str] = cloud.call("lambda", "get_function_configuration", FunctionName=part.name)
        return found.get("State", "Active") != "Pending" and found.get("LastUpdateStatus", "") != "InProgress"

    cloud.wait_until(ready, f"the function {part.name}")


def _delete_function(cloud: Cloud, part: Part, _found: FoundPart) -> None:
    cloud.call("lambda", "delete_function", FunctionName=part.name)


FUNCTION: Final = PartKind[Cloud](
    "AWS::Lambda::Function",
    read_function,
    _create_function,
    _change_function,
    _delete_function,
    fixed=("FunctionName",),
    open=("Environment",),
)

# ── parts of the function ─────────────────────────────────────────────────────────────────────────────────


def tags_of(cloud: Cloud, name: str) -> dict[str, str]:
    answer = cloud.find("lambda", "get_function", FunctionName=name)
    return {} if answer is None else dict(answer.get("Tags", {}))


def statements_of(cloud: Cloud, function: str) -> list[dict[str, Any]]:
    """Return the statements of the function's policy. They allow other services to invoke the function."""
    answer = cloud.find("lambda", "get_policy", FunctionName=function)
    return [] if answer is None else list(json.loads(answer["Policy"])["Statement"])


def _read_permission(cloud: Cloud, part: Part) -> FoundPart | None:
    for statement in statements_of(cloud, part.about):
        if statement.get("Sid") == part.name:
            properties = {
                "FunctionName": part.about,
                "Action": statement["Action"],
                "Principal": statement["Principal"].get("Service"),
                "SourceArn": statement.get("Condition", {}).get("ArnLike", {}).get("AWS:SourceArn"),
            }
            return FoundPart(part.arn, tags_of(cloud, part.about), properties)
    return None


def _create_permission(cloud: Cloud, part: Part) -> None:
    cloud.call("lambda", "add_permission", StatementId=part.name, **part.properties)


def _change_permission(cloud: Cloud, part: Part, _found: FoundPart) -> None:
    cloud.call("lambda", "remove_permission", FunctionName=part.about, StatementId=part.name)
    _create_permission(cloud, part)


PERMISSION: Final = PartKind[Cloud]("AWS::Lambda::Permission", _read_permission, _create_permission, _change_permission)


def read_retries(cloud: Cloud, part: Part) -> FoundPart | None:
    answer = cloud.find("lambda", "get_function_event_invoke_config", FunctionName=part.about)
    if answer is None:
        return None
    return FoundPart(
        part.arn, tags_of(cloud, part.about), {**answer, "FunctionName": part.about, "Qualifier": "$LATEST"}
    )


def _put_retries(cloud: Cloud, part: Part) -> None:
    wanted = {name: value for name, value in part.properties.items() if name != "Qualifier"}
    _call_when_role_is_known(cloud, "execution role", "put_function_event_invoke_config", **wanted)


RETRIES: Final = PartKind[Cloud](
    "AWS::Lambda::EventInvokeConfig",
    read_retries,
    _put_retries,
    lambda cloud, part, _found: _put_retries(cloud, part),
    open=("DestinationConfig",),
)


def mappings_of(cloud: Cloud, function: str) -> list[dict[str, Any]]:
    """Return the event source mappings of the function; an empty list if the function does not exist."""
    try:
        return list(
            cloud.list_all("lambda", "list_event_source_mappings", "EventSourceMappings", FunctionName=function)
        )
    except Missing:
        return []


def _read_mapping(cloud: Cloud, part: Part) -> FoundPart | None:
    for mapping in mappings_of(cloud, part.about):
        if mapping.get("EventSourceArn") == part.properties["EventSourceArn"]:
            state = mapping.get("State", "Enabled")
            properties = {
                **mapping,
                "FunctionName": part.about,
                "Enabled": state in ("Enabled", "Enabling", "Creating"),
            }
            return FoundPart(part.arn, tags_of(cloud, part.about), properties)
    return None


def _create_mapping(cloud: Cloud, part: Part) -> None:
    _call_when_role_is_known(cloud, "execution role", "create_event_source_mapping", **part.properties)


def _change_mapping(cloud: Cloud, part: Part, found: FoundPart) -> None:
    wanted = {name: value for name, value in part.properties.items() if name != "EventSourceArn"}
    cloud.call("lambda", "update_event_source_mapping", UUID=found.properties["UUID"], **wanted)


def _delete_mapping(cloud: Cloud, _part: Part, found: FoundPart) -> None:
    cloud.call("lambda", "delete_event_source_mapping", UUID=found.properties["UUID"])


MAPPING: Final = PartKind[Cloud](
    "AWS::Lambda::EventSourceMapping", _read_mapping, _create_mapping, _change_mapping, _delete_mapping
)
