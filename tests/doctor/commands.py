"""Check the command lines of findings against the real commands."""

import json
import shlex
from typing import Any

import botocore.session
import click
from botocore import xform_name

from oncegate.cli.main import cli
from oncegate.settings.parsing import checked, from_text
from oncegate.settings.schema import SETTINGS

_GLOBAL = ("region", "endpoint-url")
_OF_OTHERS = ("redis-cli", "timedatectl", "sqlite3", "chmod")
_models: dict[str, Any] = {}


def check(line: str) -> None:
    """Check that a command line is valid."""
    for command in line.split(" && "):
        words = shlex.split(command)
        if words[0] == "aws":
            request(words)
        elif words[0] == "oncegate":
            _check_oncegate(words[1:])
        elif words[0] == "export":
            for written in words[1:]:
                _check_variable(written)
        else:
            assert words[0] in _OF_OTHERS, line


def request(words: list[str]) -> tuple[str, str, dict[str, Any]]:
    """The service, method and parameters of an AWS CLI command line, by the botocore model."""
    service, action, *rest = words[1:]
    model = _model(service)
    (operation,) = [name for name in model.operation_names if xform_name(name, "-") == action]
    members = model.operation_model(operation).input_shape.members if rest else {}
    known = {xform_name(name, "-"): (name, shape) for name, shape in members.items()}
    parameters = {}
    for flag, value in _options(rest):
        if flag not in _GLOBAL:
            name, shape = known[flag]
            parameters[name] = _value(shape.type_name, value)
    required = model.operation_model(operation).input_shape.required_members if parameters else []
    assert set(required) <= set(parameters), words
    return service, xform_name(operation), parameters


def _model(service: str) -> Any:
    if service not in _models:
        _models[service] = botocore.session.get_session().get_service_model(service)
    return _models[service]


def _options(words: list[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for word in words:
        if word.startswith("--"):
            found.append((word[2:], ""))
        else:
            found[-1] = (found[-1][0], word)
    return found


def _value(kind: str, text: str) -> Any:
    if kind == "boolean":
        assert text == ""
        return True
    if kind == "integer":
        return int(text)
    if kind == "string":
        return text
    if text.startswith(("{", "[")):
        return json.loads(text)
    return [text] if kind == "list" else _shorthand(text)


def _shorthand(text: str) -> dict[str, Any]:
    """`Enabled=true,AttributeName=expiresAt`, and one level of `Variables={…}`."""
    if text.endswith("}"):
        name, _, inner = text[:-1].partition("={")
        return {name: _shorthand(inner)}
    pairs = dict(pair.split("=", 1) for pair in text.split(","))
    return {name: value == "true" if value in ("true", "false") else value for name, value in pairs.items()}


def _check_oncegate(words: list[str]) -> None:
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known, words


def _check_variable(written: str) -> None:
    variable, _, value = written.partition("=")
    (setting,) = [setting for setting in SETTINGS.values() if setting.variable == variable]
    checked(setting, from_text(setting, value))
