"""`oncegate doctor` with deployments in an emulator, with real stores, and with nothing."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncegate import open_store
from oncegate.cli import exit_codes
from oncegate.doctor.rules import RULES
from tests.cli.conftest import Run, on_terminal
from tests.doctor.commands import request
from tests.infra.conftest import Aws, Infra, zipped
from tests.stores.dynamo_server import REGION

ACCOUNT = f"{REGION}:000000000000"
PARTNER = "aws.partner/genesys.com/cloud/0e5c3f2a/sick"


def severities(out: str) -> dict[str, str]:
    """The severity of each finding, by its rule."""
    return {each["rule"]: each["severity"] for each in json.loads(out)["findings"]}


@pytest.fixture
def sick(aws: Aws) -> Iterator[None]:
    """A deployment with many common mistakes."""
    made = aws["sqs"].create_queue(QueueName="sick-events", Attributes={"VisibilityTimeout": "5"})
    aws["iam"].create_role(RoleName="sick", AssumeRolePolicyDocument="{}")
    aws["lambda"].create_function(
        FunctionName="sick-function",
        Runtime=f"python3.{sys.version_info.minor}",
        Role="arn:aws:iam::000000000000:role/sick",
        Handler="app.handler",
        Code={"ZipFile": zipped("def handler(event, context): ...")},
        Timeout=10,
        Environment={"Variables": {"ONCEGATE_STORE": "sqlite:////tmp/oncegate.db"}},
    )
    mapping = aws["lambda"].create_event_source_mapping(
        EventSourceArn=f"arn:aws:sqs:{ACCOUNT}:sick-events", FunctionName="sick-function", Enabled=False
    )
    aws["events"].create_event_bus(Name=PARTNER)
    aws["events"].put_rule(Name="sick", EventBusName=PARTNER, EventPattern='{"source": ["genesys"]}', State="DISABLED")
    retry = {"MaximumRetryAttempts": 0}
    targets = [
        {
            "Id": "1",
            "Arn": f"arn:aws:sqs:{ACCOUNT}:sick-events",
            "SqsParameters": {"MessageGroupId": "calls"},
            "InputPath": "$.detail",
            "RetryPolicy": retry,
        },
        {"Id": "2", "Arn": f"arn:aws:lambda:{ACCOUNT}:function:sick-function"},
        {"Id": "3", "Arn": f"arn:aws:sqs:{ACCOUNT}:sick-gone"},
    ]
    aws["events"].put_targets(Rule="sick", EventBusName=PARTNER, Targets=targets)
    aws["dynamodb"].create_table(
        TableName="sick-claims",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        ProvisionedThroughput={"ReadCapacityUnits": 5, "WriteCapacityUnits": 5},
    )
    yield
    aws["lambda"].delete_event_source_mapping(UUID=mapping["UUID"])
    aws["lambda"].delete_function(FunctionName="sick-function")
    for policy in aws["iam"].list_role_policies(RoleName="sick")["PolicyNames"]:
        aws["iam"].delete_role_policy(RoleName="sick", PolicyName=policy)
    aws["iam"].delete_role(RoleName="sick")
    aws["sqs"].delete_queue(QueueUrl=made["QueueUrl"])
    aws["dynamodb"].delete_table(TableName="sick-claims")


class TestDeployments:
    def test_a_sick_one_and_its_cure(self, infra: Infra, aws: Aws, sick: None) -> None:
        """All problems are found; after the offered AWS commands none of them is left, and the rest is unchanged."""
        asked = ("doctor", "--function", "sick-function", "--table", "sick-claims", "--output", "json")
        code, out, err = infra(*asked)
        assert (code, err) == (exit_codes.ERRORS_FOUND, "")
        assert severities(out) == {
            "function.enabled": "error",
            "function.failures": "error",
            "function.permission": "error",
            "function.reports": "error",
            "function.store": "error",
            "queue.dead_letters": "error",
            "queue.policy": "error",
            "queue.visibility": "error",
            "rule.dead_letters": "warning",
            "rule.doubled": "warning",
            "rule.enabled": "error",
            "rule.envelope": "warning",
            "rule.pattern": "error",
            "rule.retries": "warning",
            "rule.target": "error",
            "table.capacity": "warning",
            "table.shape": "error",
            "table.sweep": "warning",
        }
        assert json.loads(out)["identity"] == "arn:aws:iam::000000000000:root"
        assert json.loads(out)["region"] == REGION
        for _ in range(3):  # some of it shows only when the rest is mended
            for finding in json.loads(out)["findings"]:
                if finding["mend"].startswith("aws "):
                    carried_out(aws, finding["mend"])
            code, out, _ = infra(*asked)
        assert (code, severities(out)) == (exit_codes.ERRORS_FOUND, {"function.store": "error", "table.shape": "error"})
        (target, *_) = aws["events"].list_targets_by_rule(Rule="sick", EventBusName=PARTNER)["Targets"]
        assert target["SqsParameters"] == {"MessageGroupId": "calls"}

    def test_the_cure_of_one_on_two_buses(self, infra: Infra, aws: Aws) -> None:
        """With two rules of one name, findings name the bus, fixes do not undo each other, and the rule on the bus with
        events remains and gets a target."""
        source = "aws.partner/genesys.com/cloud/0e5c3f2a/moved"
        infra("infra", "up", "--name", "moved", "--partner-source", source)
        infra("infra", "up", "--name", "moved")
        for queue in ("moved-events", "moved-dead"):
            url = aws["sqs"].get_queue_url(QueueName=queue)["QueueUrl"]
            aws["sqs"].set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
        out = infra("doctor", "--name", "moved")[1]
        assert f"rule moved-events on the bus default, rule moved-events on the bus {source}" in out
        findings = cured(infra, aws, "moved")
        assert [rule for rule, _ in findings[:3]] == ["queue.policy"] * 2 + ["rule.bus"]
        assert [rule for rule, _ in findings[3:]] == ["rule.dead_policy"] * 2 + ["rule.doubled"]
        aws["events"].remove_targets(Rule="moved-events", EventBusName=source, Ids=["moved"])
        infra("infra", "up", "--name", "moved")
        findings = cured(infra, aws, "moved")
        assert ("rule.target", f"moved-events on the bus {source}") in findings
        (target,) = aws["events"].list_targets_by_rule(Rule="moved-events", EventBusName=source)["Targets"]
        assert target["Arn"] == f"arn:aws:sqs:{ACCOUNT}:moved-events"
        assert aws["events"].list_rules(NamePrefix="moved", EventBusName="default")["Rules"] == []

    def test_a_sound_one(self, infra: Infra, aws: Aws) -> None:
        """A deployment of `infra up` with a partner source has no findings; on the default bus it has an error. A queue
        can be named by URL."""
        source = "aws.partner/genesys.com/cloud/0e5c3f2a/sound"
        infra("infra", "up", "--name", "sound", "--partner-source", source)
        code, out, err = infra("doctor", "--name", "sound", "--output", "json")
        assert (code, err, severities(out)) == (exit_codes.OK, "", {})
        url = aws["sqs"].get_queue_url(QueueName="sound-events")["QueueUrl"]
        assert infra("doctor", "--queue", url, "--output", "json")[0] == exit_codes.OK
        code, out, _ = infra("doctor", "--queue", url, "--lease", "31s", "--output", "json")
        assert (code, severities(out)) == (exit_codes.ERRORS_FOUND, {"queue.lease": "error"})
        assert infra("doctor", "--queue", url, "--lease", "31s", "--visibility", "31s")[0] == exit_codes.OK
        infra("infra", "up", "--name", "plain")
        code, out, _ = infra("doctor", "--name", "plain", "--output", "json")
        assert (code, severities(out)) == (exit_codes.ERRORS_FOUND, {"rule.bus": "error"})

    def test_what_is_not_there(self, infra: Infra) -> None:
        """A named part that does not exist is a finding; the rest is still checked."""
        for option in ("--queue", "--function", "--table", "--rule", "--name"):
            code, out, err = infra("doctor", option, "none", "--retention", "40s", "--output", "json")
            assert (code, err) == (exit_codes.ERRORS_FOUND, "")
            assert severities(out) == {"aws.readable": "error", "settings.attempts": "warning"}

    def test_an_archive(self, infra: Infra, aws: Aws) -> None:
        """An archive that keeps events for longer than the retention is found."""
        aws["events"].create_event_bus(Name="archived")
        bus = f"arn:aws:events:{ACCOUNT}:event-bus/archived"
        aws["events"].create_archive(ArchiveName="calls", EventSourceArn=bus, RetentionDays=30)
        infra("infra", "up", "--name", "old", "--bus", "archived", "--pattern", '{"source": ["com.example.crm"]}')
        code, out, _ = infra("doctor", "--name", "old", "--output", "json")
        assert (code, severities(out)) == (exit_codes.WARNINGS_FOUND, {"settings.replays": "warning"})


def cured(infra: Infra, aws: Aws, name: str) -> list[tuple[str, str]]:
    """The first findings, after all fixes were applied until no finding is left."""
    first: list[tuple[str, str]] = []
    for _ in range(3):
        code, out, _ = infra("doctor", "--name", name, "--output", "json")
        findings = json.loads(out)["findings"]
        first = first or [(each["rule"], each["what"]) for each in findings]
        for finding in findings:
            if finding["severity"] != "note":
                carried_out(aws, finding["mend"])
    code, out, _ = infra("doctor", "--name", name, "--output", "json")
    assert (code, severities(out)) == (exit_codes.OK, {})
    return first


def carried_out(aws: Aws, line: str) -> None:
    """Run an AWS CLI command line with botocore, because the emulator has no AWS CLI."""
    for command in line.split(" && "):
        service, action, parameters = request(shlex.split(command))
        getattr(aws[service], action)(**parameters)


class TestStores:
    def test_nothing_at_all(self, oncegate: Run) -> None:
        """Without AWS, settings and a store there is one note."""
        code, out, err = oncegate("doctor")
        assert (code, err) == (exit_codes.OK, "")
        assert "note  store.present  sqlite:///oncegate.db" in out
        assert "\n1 note. " in out
        assert out.endswith(" no EventBridge rule (9).\n")

    def test_routes_that_are_not_signed(self, oncegate: Run, tmp_path: Path) -> None:
        """Each route whose key uses unsigned parts is reported; routes with a signed body are not."""
        routes = {"open": "none", "bus": "api-key", "crm": "cxone", "billing": "standard-webhooks"}
        tables = [f'[route.{name}]\nsignature = "{signature}"\n' for name, signature in routes.items()]
        (tmp_path / "oncegate.toml").write_text("".join(tables))
        open_store(f"sqlite:///{tmp_path}/oncegate.db").close()
        code, out, _ = oncegate("doctor", "--output", "json")
        found = [(each["rule"], each["severity"], each["what"]) for each in json.loads(out)["findings"]]
        assert found == [
            ("settings.signed", "warning", "/events/open"),
            ("settings.signed", "note", "/events/bus"),
        ]
        assert code == exit_codes.WARNINGS_FOUND

    def test_a_sound_store(self, oncegate: Run, tmp_path: Path) -> None:
        """An SQLite file on a local disk has no findings."""
        open_store(f"sqlite:///{tmp_path}/oncegate.db").close()
        code, out, _ = oncegate("doctor")
        assert code == exit_codes.OK
        assert f"\nNo problem found: 10 of {len(RULES)} rules were checked. 29 rules could not be checked: no" in out
        code, out, _ = oncegate("doctor", "--output", "json")
        assert json.loads(out)["unasked"]["queue.lease"] == "queue"

    def test_a_table_of_the_store(self, infra: Infra, oncegate: Run, aws: Aws) -> None:
        """The URL of a DynamoDB store is enough to find its table and the clock of AWS."""
        infra("infra", "up", "--name", "stored", "--no-queue", "--no-rule")
        url = f"dynamodb://stored-claims?region={REGION}&endpoint={aws.endpoint}"
        assert oncegate("doctor", "--store", url)[0] == exit_codes.OK
        off = {"Enabled": False, "AttributeName": "expiresAt"}
        aws["dynamodb"].update_time_to_live(TableName="stored-claims", TimeToLiveSpecification=off)
        code, out, _ = oncegate("doctor", "--store", url, "--output", "json")
        assert (code, severities(out)) == (exit_codes.WARNINGS_FOUND, {"table.sweep": "warning"})

    def test_no_way_to_aws(self, oncegate: Run, aws: Aws) -> None:
        """An unreachable AWS is a finding; the settings are still checked."""
        asked = ("--region", REGION, "--endpoint", "http://127.0.0.1:9")
        code, out, err = oncegate("doctor", "--queue", "crm", "--retention", "1m", "--output", "json", *asked)
        assert (code, err) == (exit_codes.ERRORS_FOUND, "")
        assert severities(out) == {"aws.readable": "error", "settings.attempts": "warning"}

    def test_no_region(self, oncegate: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """If the region is missing, the finding says how to set it."""
        for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        code, out, _ = oncegate("doctor", "--queue", "crm")
        assert code == exit_codes.ERRORS_FOUND
        assert "decide  Choose the region of the deployment: use --region, or set AWS_REGION.\n" in out

    def test_on_a_terminal(self, tmp_path: Path) -> None:
        """There is a table in colour, then each finding in full."""
        shown = on_terminal(["doctor", "--store", "memory://"], tmp_path)
        assert re.search(r"warning +store\.memory +memory://", shown)
        assert "\x1b[33mwarning\x1b[0m  store.memory  memory://" in shown
        assert "export ONCEGATE_STORE=sqlite:///oncegate.db" in shown
        assert 'write store = "sqlite:///oncegate.db" above the first table in oncegate.toml' in " ".join(shown.split())
        assert "\x1b[33m" not in on_terminal(["doctor", "--store", "memory://"], tmp_path, NO_COLOR="1")
