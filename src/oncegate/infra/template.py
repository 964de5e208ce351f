"""Write the parts of a deployment as a CloudFormation template."""

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
    "CodeKey": {"Type": "String", "Description": "The key of the package, a zip file, in the bucket."},
}


def template(wanted: Wanted) -> dict[str, Any]:
    """Return a template that creates the same parts as `infra up`. The template takes the code of the function from an
    S3 bucket."""
    parts = Design(wanted, ANYWHERE).parts()
    ids = {part.arn: _id(part) for part in parts if KINDS[part.kind].delete is not None and part.kind != "mapping"}
    resources = {_id(part): _resource(part, ids) for part in parts}
    if "Bus" in resources:  # with a plain name, CloudFormation would not create the bus before the rule
        resources["Rule"]["Properties"]["EventBusName"] = {"Ref": "Bus"}
    body: dict[str, Any] = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Events processed once by Oncegate: {wanted.name}",
        "Resources": resources,
    }
    if wanted.function is not None:
        body["Parameters"] = _CODE
    return body


def _id(part: Part) -> str:
    """Return the logical id of a part. It is unique in the template and has only letters and digits."""
    last = part.name.removeprefix(f"{part.deployment}-") if part.kind in ("queue", "policy") else ""
    return f"{last.capitalize()}{part.kind.capitalize()}"


def _resource(part: Part, ids: Mapping[str, str]) -> dict[str, Any]:
    properties = {name: _with_references(value, ids) for name, value in part.properties.items()}
    if part.kind == "policy":
        properties["Queues"] = [{"Ref": ids[arn]} for arn in part.properties["Queues"]]
    if "FunctionName" in properties and part.kind != "function":
        properties["FunctionName"] = {"Ref": ids[part.arn]}
    if "Code" in properties:
        properties["Code"] = {"S3Bucket": {"Ref": "CodeBucket"}, "S3Key": {"Ref": "CodeKey"}}
    if part.kind in _TAGGED:
        properties["Tags"] = as_list(part.tags)
    resource = {"Type": KINDS[part.kind].resource, "Properties": properties}
    # Claims and dead letters must not be lost if somebody deletes the stack by mistake.
    retain = part.kind in ("table", "queue")
    return resource | ({"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"} if retain else {})


def _with_references(value: Any, ids: Mapping[str, str]) -> Any:
    """Return the value with references in place of the ARNs of other parts. References make CloudFormation create the
    parts in the right order."""
    if isinstance(value, Mapping):
        return {name: _with_references(member, ids) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_with_references(item, ids) for item in value]
    if isinstance(value, str) and value in ids:
        return {"Fn::GetAtt": [ids[value], "Arn"]}
    if isinstance(value, str) and "${AWS::" in value:
        return {"Fn::Sub": value}
    return value
