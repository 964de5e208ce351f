"""Write the facts about the API of Genesys Cloud that the tests check against: `python -m tests.genesys.facts WHEEL`.

WHEEL is the official SDK, from `pip download --no-deps PureCloudPlatformClientV2`. The script reads the source text of
the operations in OPERATIONS and of the models that they use; nothing of the SDK is imported or copied. The result is a
subset of OpenAPI in facts.json: paths, parameters, fields, types, enumerations, what is required, and the regions. The
SDK does not say which fields of a model are required, only which parameters are.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

FACTS = Path(__file__).with_name("facts.json")
PACKAGE = "PureCloudPlatformClientV2"
OPEN = "conversations_messaging_integrations_open"
OPERATIONS = {
    "authorization_api": ("get_authorization_subject", "get_authorization_subjects_me"),
    "conversations_api": (
        *(f"get_{OPEN}", f"post_{OPEN}", f"get_{OPEN}_integration_id"),
        *(f"patch_{OPEN}_integration_id", f"delete_{OPEN}_integration_id"),
    ),
    "integrations_api": (
        *("get_integrations", "post_integrations", "get_integration", "patch_integration", "delete_integration"),
        *("get_integration_config_current", "put_integration_config_current"),
    ),
    "notifications_api": (
        *("get_notifications_availabletopics", "get_notifications_channels", "post_notifications_channels"),
        *("get_notifications_channel_subscriptions", "post_notifications_channel_subscriptions"),
        *("put_notifications_channel_subscriptions", "delete_notifications_channel_subscriptions"),
    ),
    "tokens_api": ("get_tokens_me",),
}
PLAIN = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "datetime": {"type": "string", "format": "date-time"},
    "date": {"type": "string", "format": "date"},
    "object": {},
}
PARAMETER = re.compile(r":param (?P<type>\S.*?) (?P<name>\w+): (?P<text>.*)")


class Sdk:
    """The source files of the SDK in its wheel."""

    def __init__(self, wheel: ZipFile) -> None:
        self._wheel = wheel
        (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        version = re.search(r"^Version: (\S+)", wheel.read(metadata).decode(), re.MULTILINE)
        self.version = version[1] if version else "unknown"
        self._files = {
            name.lower().replace("_", ""): name for name in wheel.namelist() if name.startswith(f"{PACKAGE}/models/")
        }

    def tree(self, name: str) -> ast.Module:
        return ast.parse(self._wheel.read(f"{PACKAGE}/{name}"))

    def model(self, name: str) -> ast.ClassDef:
        path = self._files[f"{PACKAGE}/models/{name}.py".lower().replace("_", "")]
        (found,) = (node for node in ast.walk(ast.parse(self._wheel.read(path))) if isinstance(node, ast.ClassDef))
        return found


def facts(sdk: Sdk) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    wanted: list[str] = ["ErrorBody"]
    for module, names in OPERATIONS.items():
        functions = {
            node.name: node for node in ast.walk(sdk.tree(f"apis/{module}.py")) if isinstance(node, ast.FunctionDef)
        }
        for name in names:
            method, path, operation = operation_of(functions[name])
            paths.setdefault(path, {})[method] = operation
            wanted += references(operation)
    schemas: dict[str, Any] = {}
    while wanted:
        if (name := wanted.pop()) not in schemas:
            schemas[name] = schema_of(sdk.model(name))
            wanted += references(schemas[name])
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Facts from {PACKAGE}", "version": sdk.version},
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": dict(sorted(schemas.items()))},
        "x-regions": regions_of(sdk.tree("purecloud_region_hosts.py")),
    }


def operation_of(function: ast.FunctionDef) -> tuple[str, str, dict[str, Any]]:
    """The method, the path, and the parameters, body and answer of an operation."""
    (call,) = (node for node in ast.walk(function) if isinstance(node, ast.Call) and calls(node, "call_api"))
    documented = {found["name"]: found for found in PARAMETER.finditer(ast.get_docstring(function) or "")}
    operation: dict[str, Any] = {"operationId": function.name, "parameters": []}
    for place in ("path", "query"):
        for argument, name in assigned(function, f"{place}_params"):
            found = documented[argument]
            is_required = place == "path" or "(required)" in found["text"]
            parameter = {"name": name, "in": place, "required": is_required, "schema": type_of(found["type"])}
            operation["parameters"].append(parameter)
    if "body" in documented:
        body = documented["body"]
        content = {"application/json": {"schema": type_of(body["type"])}}
        operation["requestBody"] = {"required": "(required)" in body["text"], "content": content}
    (answer,) = (keyword.value for keyword in call.keywords if keyword.arg == "response_type")
    kind = ast.literal_eval(answer)
    operation["responses"] = {
        "2XX": {"content": {"application/json": {"schema": type_of(kind)}}} if kind else {},
        "default": {"content": {"application/json": {"schema": type_of("ErrorBody")}}},
    }
    (path,) = (
        text(node.value.func.value)  # type: ignore[attr-defined]
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "resource_path"
    )
    return text(call.args[1]).lower(), path, operation


def assigned(function: ast.AST, mapping: str) -> Iterator[tuple[str, str]]:
    """The arguments that a function puts into a mapping, each with its name there."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target, value = node.targets[0], node.value
            if getattr(target.value, "id", "") == mapping and isinstance(value, ast.Subscript):
                yield text(value.slice), text(target.slice)


def calls(node: ast.Call, name: str) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == name


def text(node: ast.AST) -> str:
    assert isinstance(node, ast.Constant), ast.dump(node)
    return str(node.value)


def schema_of(model: ast.ClassDef) -> dict[str, Any]:
    """The fields of a model with their types and enumerations. Other fields are not allowed."""
    types, names, enums = {}, {}, {}
    for node in ast.walk(model):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            if node.targets[0].attr == "swagger_types":
                types = ast.literal_eval(node.value)
            elif node.targets[0].attr == "attribute_map":
                names = ast.literal_eval(node.value)
    for method in (node for node in model.body if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(method):
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "allowed_values":
                enums[method.name] = ast.literal_eval(node.value)
    fields = {names[name]: type_of(kind) for name, kind in types.items()}
    for name, values in enums.items():
        # A reader must accept values of later versions. The fake sends and accepts only these.
        target = fields[names[name]]
        (target["items"] if target.get("type") == "array" else target)["enum"] = values
    return {"type": "object", "properties": fields, "additionalProperties": False}


def type_of(written: str) -> dict[str, Any]:
    if written in PLAIN:
        return dict(PLAIN[written])
    if written.startswith("list["):
        return {"type": "array", "items": type_of(written[5:-1])}
    if written.startswith("dict("):
        return {"type": "object", "additionalProperties": type_of(written[5:-1].partition(",")[2].strip())}
    return {"$ref": f"#/components/schemas/{written}"}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def regions_of(tree: ast.Module) -> dict[str, str]:
    """The address of the API in each AWS region."""
    (hosts,) = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {
        getattr(node.targets[0], "id", "").replace("_", "-"): text(node.value)
        for node in hosts.body
        if isinstance(node, ast.Assign)
    }


def main(wheel: str) -> None:
    with ZipFile(wheel) as opened:
        found = facts(Sdk(opened))
    FACTS.write_text(json.dumps(found, indent=1, sort_keys=False) + "\n")
    sys.stdout.write(f"{FACTS}: {len(found['paths'])} paths, {len(found['components']['schemas'])} models\n")


if __name__ == "__main__":
    main(sys.argv[1])
