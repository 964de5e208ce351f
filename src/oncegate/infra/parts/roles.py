"""Read and write the IAM role of the function, with its trust policy and its permissions."""

import json
from typing import Any, Final

from oncegate.aws.cloud import Cloud
from oncegate.infra.parts.base import as_list, as_mapping
from oncegate.infra.platform import FoundPart, Part, PartKind


def read(cloud: Cloud, part: Part) -> FoundPart | None:
    answer = cloud.find("iam", "get_role", RoleName=part.name)
    if answer is None:
        return None
    role = answer["Role"]
    wanted = {policy["PolicyName"] for policy in part.properties["Policies"]}
    policies = [_policy(cloud, part, name) for name in _policy_names(cloud, part) if name in wanted]
    properties = {"AssumeRolePolicyDocument": role["AssumeRolePolicyDocument"], "Policies": policies}
    return FoundPart(role["Arn"], as_mapping(role.get("Tags", [])), properties)


def _policy_names(cloud: Cloud, part: Part) -> list[str]:
    return list(cloud.call("iam", "list_role_policies", RoleName=part.name)["PolicyNames"])


def _policy(cloud: Cloud, part: Part, name: str) -> dict[str, Any]:
    answer = cloud.call("iam", "get_role_policy", RoleName=part.name, PolicyName=name)
    return {"PolicyName": name, "PolicyDocument": answer["PolicyDocument"]}


def _create(cloud: Cloud, part: Part) -> None:
    trust = json.dumps(part.properties["AssumeRolePolicyDocument"])
    cloud.call("iam", "create_role", RoleName=part.name, AssumeRolePolicyDocument=trust, Tags=as_list(part.tags))
    _put_policies(cloud, part)


def _change(cloud: Cloud, part: Part, _found: FoundPart) -> None:
    trust = json.dumps(part.properties["AssumeRolePolicyDocument"])
    cloud.call("iam", "update_assume_role_policy", RoleName=part.name, PolicyDocument=trust)
    _put_policies(cloud, part)


def _put_policies(cloud: Cloud, part: Part) -> None:
    for policy in part.properties["Policies"]:
        document = json.dumps(policy["PolicyDocument"])
        name = policy["PolicyName"]
        cloud.call("iam", "put_role_policy", RoleName=part.name, PolicyName=name, PolicyDocument=document)


def _delete(cloud: Cloud, part: Part, _found: FoundPart) -> None:
    """Delete all inline policies of the role, then the role: IAM refuses to delete a role that has inline policies."""
    for name in _policy_names(cloud, part):
        cloud.call("iam", "delete_role_policy", RoleName=part.name, PolicyName=name)
    cloud.call("iam", "delete_role", RoleName=part.name)


ROLE: Final = PartKind[Cloud]("AWS::IAM::Role", read, _create, _change, _delete, fixed=("RoleName",))
