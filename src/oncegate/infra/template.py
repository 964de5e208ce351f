"""The same parts as a CloudFormation template."""

from collections.abc import Mapping
from typing import Any, Final

from oncegate.infra.design import Design, Placement
from oncegate.infra.parts import KINDS, Part
from oncegate.infra.parts.base import as_list
from oncegate.infra.wanted import Wanted

ANYWHERE: Final = Placement("${AWS::Partition}", "${AWS::Region}", "${AWS::AccountId}")
_TAGGED: Final = ("table", "queue", "role", "function", "bus", "rule")
_CODE: Final = {
    "CodeBucket": {"Type": "String", "Description": "The S3 bucket that holds the function's package."},
    "CodeKey": {"Type": "String", "Description": "The key of the package in it: a zip file."},
}


def template(wanted: Wanted) -> dict[str, Any]:
    """A template that makes the same as `infra up`; the function's code is in a bucket of yours."""
    parts = Design(wanted, ANYWHERE).parts()
    ids = {part.arn: _id(part) for part in parts if KINDS[part.kind].delete is not None and part.kind != "mapping"}
    resources = {_id(part): _resource(part, ids) for part in parts}
    if "Bus" in resources:  # a rule names its bus, which does not tell CloudFormation to make it first
        resources["Rule"]["Properties"]["EventBusName"] = {"Ref": "Bus"}
    body: dict[str, Any] = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Events taken once by Oncegate: {wanted.name}",
        "Resources": resources,
    }
    if wanted.function is not None:
        body["Parameters"] = _CODE
    return body


def _id(part: Part) -> str:
    """A name within the template: unique, letters and digits only."""
    last = part.name.removeprefix(f"{part.deployment}-") if part.kind in ("queue", "policy") else ""
    return f"{last.capitalize()}{part.kind.capitalize()}"


def _resource(part: Part, ids: Mapping[str, str]) -> dict[str, Any]:
    properties = {name: _referring(value, ids) for name, value in part.properties.items()}
    if part.kind == "policy":
        properties["Queues"] = [{"Ref": ids[arn]} for arn in part.properties["Queues"]]
    if "FunctionName" in properties and part.kind != "function":
        properties["FunctionName"] = {"Ref": ids[part.arn]}
    if "Code" in properties:
        properties["Code"] = {"S3Bucket": {"Ref": "CodeBucket"}, "S3Key": {"Ref": "CodeKey"}}
    if part.kind in _TAGGED:
        properties["Tags"] = as_list(part.tags)
    resource = {"Type": KINDS[part.kind].resource, "Properties": properties}
    # What is remembered, and what waits for a person, outlives a template that is deleted by mistake.
    kept = part.kind in ("table", "queue")
    return resource | ({"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"} if kept else {})


def _referring(value: Any, ids: Mapping[str, str]) -> Any:
    """Addresses of other parts as references to them, so that they are made in order."""
    if isinstance(value, Mapping):
        return {name: _referring(each, ids) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_referring(each, ids) for each in value]
    if isinstance(value, str) and value in ids:
        return {"Fn::GetAtt": [ids[value], "Arn"]}
    if isinstance(value, str) and "${AWS::" in value:
        return {"Fn::Sub": value}
    return value
