"""The command of a finding fixes the finding, or the finding says what a person must decide."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oncegate.doctor.rules import check
from oncegate.infra.rights import sid
from tests.cli.conftest import Run
from tests.doctor.cases import BROKEN
from tests.doctor.test_doctor import ACCOUNT, carried_out
from tests.infra.conftest import Aws, Infra
from tests.stores.redis_server import RedisServer

# Rules whose command is run by a test, with the name of the test.
MENDED = {
    **dict.fromkeys(
        (
            *("function.enabled", "function.failures", "function.permission", "function.reports"),
            *("queue.dead_letters", "queue.policy", "queue.visibility", "rule.dead_letters", "rule.doubled"),
            *("rule.enabled", "rule.envelope", "rule.pattern", "rule.retries", "rule.target", "table.capacity"),
        ),
        "test_doctor.test_a_sick_one_and_its_cure",
    ),
    "rule.dead_policy": "test_doctor.test_the_cure_of_one_on_two_buses",
    "store.private": "test_store_facts.test_a_file_that_others_may_read",
    "table.sweep": "test_a_table",
    "queue.receives": "test_a_queue",
    "queue.dead_retention": "test_a_queue",
    "function.retries": "test_a_function",
    "store.eviction": "test_redis",
    "store.persistence": "test_redis",
    "store.present": "test_a_new_store",
    "store.memory": "test_settings",
    "settings.retention": "test_the_retention_of_a_queue",
    "settings.attempts": "test_settings",
    "queue.lease": "test_the_lease_of_a_worker",
    "store.clock": "the command changes the clock of the machine, so it is not run here",
}


def test_a_command_or_a_decision() -> None:
    """Every finding has a decision for a person, or its command is run by a test."""
    for rule, cases in BROKEN.items():
        for _, facts in cases:
            (finding,) = [finding for name, finding in check(facts) if name == rule]
            assert finding.decision is not None or rule in MENDED, rule


def findings(run: Run, *arguments: str) -> list[dict[str, Any]]:
    _, out, err = run("doctor", *arguments, "--output", "json")
    assert err == ""
    found: list[dict[str, Any]] = json.loads(out)["findings"]
    return found


def rules_of(found: list[dict[str, Any]]) -> list[str]:
    return [each["rule"] for each in found]


def mend_of(found: list[dict[str, Any]], rule: str) -> str:
    """The command of the only finding of a rule. The finding must not be a decision."""
    (finding,) = [each for each in found if each["rule"] == rule]
    assert finding["decision"] is None
    return str(finding["mend"])


def export(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an export command."""
    command, *variables = shlex.split(line)
    assert command == "export"
    for variable in variables:
        monkeypatch.setenv(*variable.split("=", 1))


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ('retention = "299s"', "settings.attempts"),
        ('retention = "7d"\nlease = "2d"\nmax_hold = "3d"', "settings.attempts"),
        ('store = "memory://"', "store.memory"),
    ],
)
def test_settings(settings: str, rule: str, oncegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that a finding suggests takes precedence over the settings file."""
    (tmp_path / "oncegate.toml").write_text(settings)
    export(mend_of(findings(oncegate), rule), monkeypatch)
    assert rules_of(findings(oncegate)) == ["store.present"]


def test_the_retention_of_a_queue(infra: Infra, aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suggested retention is longer than that of the queue and long enough for the lease."""
    deploy(infra, "kept", "--message-retention", "14d")
    for name, value in {"RETENTION": "2h", "LEASE": "1h", "MAX_HOLD": "2h", "WORK_VISIBILITY": "1h"}.items():
        monkeypatch.setenv(f"ONCEGATE_{name}", value)
    both = {"settings.retention", "settings.attempts"}
    found = findings(infra, "--name", "kept")
    assert both <= set(rules_of(found))
    for rule in ("settings.retention", "settings.attempts"):
        export(mend_of(found, rule), monkeypatch)
    assert not both & set(rules_of(findings(infra, "--name", "kept")))


@pytest.mark.parametrize("lease", ["45s", "13h"])
def test_the_lease_of_a_worker(lease: str, infra: Infra, aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suggested visibility timeout is as long as the lease; a lease that is too long for SQS is shortened."""
    deploy(infra, "leased")
    monkeypatch.setenv("ONCEGATE_LEASE", lease)
    monkeypatch.setenv("ONCEGATE_MAX_HOLD", "2d")
    export(mend_of(findings(infra, "--name", "leased"), "queue.lease"), monkeypatch)
    assert findings(infra, "--name", "leased") == []


# ── AWS ───────────────────────────────────────────────────────────────────────────────────────────────────


def deploy(infra: Infra, name: str, *options: str) -> None:
    source = f"aws.partner/genesys.com/cloud/0e5c3f2a/{name}"
    code, _, err = infra("infra", "up", "--name", name, "--partner-source", source, *options)
    assert code == 0, err


def test_a_queue(infra: Infra, aws: Aws) -> None:
    """The limit of receives and the retention of the dead letters are corrected; a retention that no queue can exceed
    is a decision."""
    deploy(infra, "tuned")
    sqs = aws["sqs"]
    queue, dead = (sqs.get_queue_url(QueueName=f"tuned-{each}")["QueueUrl"] for each in ("events", "dead"))
    redrive = {"deadLetterTargetArn": f"arn:aws:sqs:{ACCOUNT}:tuned-dead", "maxReceiveCount": "2"}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": json.dumps(redrive)})
    sqs.set_queue_attributes(QueueUrl=dead, Attributes={"MessageRetentionPeriod": "86400"})
    found = findings(infra, "--name", "tuned")
    assert sorted(rules_of(found)) == ["queue.dead_retention", "queue.receives"]
    for rule in rules_of(found):
        carried_out(aws, mend_of(found, rule))
    assert findings(infra, "--name", "tuned") == []
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"MessageRetentionPeriod": "1209600"})
    (finding,) = [each for each in findings(infra, "--name", "tuned") if each["rule"] == "queue.dead_retention"]
    assert finding["decision"].startswith("No queue keeps messages for longer than 14 d.")


def test_a_function(infra: Infra, aws: Aws, package: str) -> None:
    """Retries, the failure destination and the permission are corrected. The success destination remains, and a
    statement with the same id is replaced."""
    deploy(infra, "called", "--lambda-zip", package)
    client, function = aws["lambda"], {"FunctionName": "called-function"}
    success = {"OnSuccess": {"Destination": f"arn:aws:sqs:{ACCOUNT}:called-done"}}
    client.put_function_event_invoke_config(**function, MaximumRetryAttempts=0, DestinationConfig=success)
    (statement,) = json.loads(client.get_policy(**function)["Policy"])["Statement"]
    rule = next(iter(statement["Condition"].values()))["AWS:SourceArn"]
    client.remove_permission(**function, StatementId=statement["Sid"])
    other = {"Action": "lambda:InvokeFunction", "Principal": "events.amazonaws.com", "SourceArn": f"{rule}-other"}
    client.add_permission(**function, StatementId=sid(rule), **other)
    wrong = ["function.failures", "function.permission", "function.retries"]
    assert sorted(rules_of(findings(infra, "--name", "called"))) == wrong
    found = findings(infra, "--name", "called")
    for wanted in wrong:
        carried_out(aws, mend_of(found, wanted))
    assert findings(infra, "--name", "called") == []
    config = client.get_function_event_invoke_config(**function)["DestinationConfig"]
    assert config["OnSuccess"] == success["OnSuccess"]
    assert [each["Sid"] for each in json.loads(client.get_policy(**function)["Policy"])["Statement"]] == [sid(rule)]


def test_a_table(infra: Infra, aws: Aws) -> None:
    """DynamoDB turns time to live off before it accepts another attribute, so two commands follow each other."""
    assert infra("infra", "up", "--name", "swept", "--no-queue", "--no-rule")[0] == 0
    change = aws["dynamodb"].update_time_to_live
    change(TableName="swept-claims", TimeToLiveSpecification={"Enabled": False, "AttributeName": "expiresAt"})
    change(TableName="swept-claims", TimeToLiveSpecification={"Enabled": True, "AttributeName": "leaseUntil"})
    for severity in ("error", "warning"):
        (finding,) = findings(infra, "--table", "swept-claims")
        assert (finding["rule"], finding["severity"]) == ("table.sweep", severity)
        carried_out(aws, mend_of([finding], "table.sweep"))
    assert findings(infra, "--table", "swept-claims") == []


# ── stores ────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[RedisServer]:
    server = RedisServer(folder, *options)
    try:
        yield server
    finally:
        server.kill()  # to stop in order, it would first finish its new append-only file


def test_redis(oncegate: Run, tmp_path: Path) -> None:
    """Redis stops evicting, and writes an append-only file. The command has the options to log in."""
    forgetful = ("--appendonly", "no", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with redis_server(tmp_path / "redis", *forgetful) as server:
        found = findings(oncegate, "--store", server.url)
        for rule in ("store.eviction", "store.persistence"):
            words = shlex.split(mend_of(found, rule))
            assert words[:5] == ["redis-cli", "-h", "127.0.0.1", "-p", str(server.port)]
            assert server.client.execute_command(*words[5:])
        assert rules_of(findings(oncegate, "--store", server.url)) == ["store.present"]
    with redis_server(tmp_path / "secret", "--requirepass", "hunter2", "--appendonly", "no") as server:
        found = findings(oncegate, "--store", server.url.replace("redis://", "redis://default:hunter2@"))
        words = shlex.split(mend_of(found, "store.persistence"))
        assert words[5:] == ["--user", "default", "--askpass", "CONFIG", "SET", "appendonly", "yes"]


def test_a_new_store(oncegate: Run, tmp_path: Path) -> None:
    """The service creates the store that does not exist yet."""
    words = shlex.split(mend_of(findings(oncegate), "store.present"))
    command = [sys.executable, "-m", "oncegate", *words[1:], "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as service:
        assert service.stderr is not None
        assert b"listens on" in service.stderr.readline()
        service.terminate()
    assert findings(oncegate) == []
