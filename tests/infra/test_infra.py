"""`oncegate infra` with an emulator of AWS: its parts work, and resources of others stay."""

import json
import pty
import re
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from oncegate import open_store
from oncegate.cli import exit_codes
from oncegate.infra.rights import document, sid
from tests.cli.conftest import Run, on_terminal
from tests.infra.conftest import PARTNER, PATTERN, Aws, Infra, as_function, attributes, zipped
from tests.stores.dynamo_server import CREDENTIALS, REGION
from tests.stores.servers import until


def actions(out: str) -> Counter[str]:
    """How many parts the JSON of a plan creates, changes and keeps."""
    return Counter(part["action"] for part in json.loads(out)["parts"])


def changes(out: str) -> dict[str, str]:
    """The changed properties of each kind of part."""
    return {part["part"]: part["why"] for part in json.loads(out)["parts"] if part["action"] == "change"}


def put(aws: Aws, number: int, bus: str = "default") -> None:
    detail = {
        "topicName": f"v2.detail.events.conversation.{number}.customer.end",
        "eventBody": {"eventTime": 1770091506123, "conversationId": f"conversation-{number}"},
    }
    entry = {
        "Source": "com.example.crm",
        "DetailType": "v2.detail.events.conversation.{id}.customer.end",
        "Detail": json.dumps(detail),
        "EventBusName": bus,
    }
    assert aws["events"].put_events(Entries=[entry])["FailedEntryCount"] == 0


def received(aws: Aws, queue: str) -> dict[str, Any]:
    """The only event that arrives in a queue."""
    url, _ = attributes(aws, queue)
    messages = aws["sqs"].receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert len(messages) == 1
    body: dict[str, Any] = json.loads(messages[0]["Body"])
    return body


class TestUp:
    def test_an_event_arrives_in_the_queue(self, infra: Infra, aws: Aws) -> None:
        """An event on the bus arrives in the queue unchanged, and the store accepts the table."""
        code, out, err = infra("infra", "up", "--name", "arrive", "--pattern", PATTERN)
        assert (code, err) == (exit_codes.OK, "")
        assert out.count("created  ") == 6
        put(aws, 1)
        assert received(aws, "arrive-events")["detail"]["eventBody"]["conversationId"] == "conversation-1"
        url = f"dynamodb://arrive-claims?region={REGION}&endpoint={aws.endpoint}"
        assert f"store         {url}" in out
        open_store(url, create=False).close()
        sweep = aws["dynamodb"].describe_time_to_live(TableName="arrive-claims")["TimeToLiveDescription"]
        assert (sweep["AttributeName"], sweep["TimeToLiveStatus"]) == ("expiresAt", "ENABLED")

    def test_only_its_rule_may_send(self, infra: Infra, aws: Aws) -> None:
        """The policies of both queues allow only the rule, the queue redrives to the dead-letter queue, and the rule's
        target has the maximum of retries and a dead-letter queue."""
        infra("infra", "up", "--name", "send", "--max-receives", "7")
        for queue in ("send-events", "send-dead"):
            _, found = attributes(aws, queue)
            (statement,) = json.loads(found["Policy"])["Statement"]
            assert statement["Resource"] == f"arn:aws:sqs:{REGION}:000000000000:{queue}"
            rule = f"arn:aws:events:{REGION}:000000000000:rule/send-events"
            assert statement["Condition"] == {"ArnEquals": {"aws:SourceArn": rule}}
        dead = f"arn:aws:sqs:{REGION}:000000000000:send-dead"
        redrive = json.loads(attributes(aws, "send-events")[1]["RedrivePolicy"])
        assert redrive == {"deadLetterTargetArn": dead, "maxReceiveCount": 7}
        (target,) = aws["events"].list_targets_by_rule(Rule="send-events")["Targets"]
        assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": 86_400, "MaximumRetryAttempts": 185}
        assert target["DeadLetterConfig"] == {"Arn": dead}

    def test_twice_changes_nothing(self, infra: Infra) -> None:
        """The second run keeps every part and says so."""
        first = infra("infra", "up", "--name", "twice", "--output", "json")
        second = infra("infra", "up", "--name", "twice", "--output", "json")
        assert (actions(first[1]), actions(second[1])) == ({"create": 6}, {"keep": 6})
        assert "Nothing was changed: all is as wanted." in infra("infra", "up", "--name", "twice")[1]

    def test_a_dry_run_changes_nothing(self, infra: Infra) -> None:
        """A dry run shows what would be created, and creates nothing."""
        assert actions(infra("infra", "up", "--name", "dry", "--dry-run", "--output", "json")[1]) == {"create": 6}
        assert infra("infra", "show", "--name", "dry")[1].startswith("There is nothing of dry in account 000000000000")

    def test_drift_is_reverted(self, infra: Infra, aws: Aws) -> None:
        """Changes that somebody made to a queue, a policy, a table and a rule are listed by part and reverted; a policy
        statement of somebody else stays."""
        infra("infra", "up", "--name", "drift")
        url, found = attributes(aws, "drift-events")
        other = json.loads(found["Policy"])["Statement"][0] | {"Sid": "Theirs"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [other]})
        aws["sqs"].set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "5", "Policy": policy})
        for enabled, attribute in ((False, "expiresAt"), (True, "leaseUntil")):
            sweep = {"Enabled": enabled, "AttributeName": attribute}
            aws["dynamodb"].update_time_to_live(TableName="drift-claims", TimeToLiveSpecification=sweep)
        units = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5}
        index = {"Update": {"IndexName": "unfinished", "ProvisionedThroughput": units}}
        aws["dynamodb"].update_table(
            TableName="drift-claims",
            BillingMode="PROVISIONED",
            ProvisionedThroughput=units,
            GlobalSecondaryIndexUpdates=[index],
        )
        pattern = json.dumps({"source": [{"prefix": "aws.partner/genesys.com"}], "detail-type": ["v2.audits"]})
        aws["events"].put_rule(Name="drift-events", EventPattern=pattern, State="DISABLED")
        (target,) = aws["events"].list_targets_by_rule(Rule="drift-events")["Targets"]
        aws["events"].put_targets(Rule="drift-events", Targets=[target | {"InputPath": "$.detail"}])
        _, out, _ = infra("infra", "up", "--name", "drift", "--dry-run", "--output", "json")
        assert {(part["part"], part["name"]): part["why"] for part in json.loads(out)["parts"] if part["why"]} == {
            ("queue", "drift-events"): "VisibilityTimeout",
            ("table", "drift-claims"): "BillingMode, TimeToLiveSpecification",
            ("rule", "drift-events"): "State, EventPattern, Targets",
        }
        assert actions(out) == {"create": 1, "change": 3, "keep": 2}
        infra("infra", "up", "--name", "drift")
        assert actions(infra("infra", "up", "--name", "drift", "--dry-run", "--output", "json")[1]) == {"keep": 6}
        policy = attributes(aws, "drift-events")[1]["Policy"]
        assert [statement["Sid"] for statement in json.loads(policy)["Statement"]] == [
            "Theirs",
            sid(":rule/drift-events"),
        ]

    @pytest.mark.parametrize(
        ("options", "silent"),
        [
            ((), True),
            (("--pattern", '{"source": [{"prefix": "aws.partner/genesys.com"}], "detail-type": ["v2.audits"]}'), True),
            (("--bus", "silent"), False),
            (("--partner-source", f"{PARTNER}-silent"), False),
            (("--pattern", PATTERN), False),
            (("--no-rule",), False),
        ],
    )
    def test_a_rule_that_no_event_reaches(self, infra: Infra, options: tuple[str, ...], silent: bool) -> None:
        """A rule for Genesys on the default bus is created, with a warning that no event arrives there."""
        code, out, err = infra("infra", "up", "--name", "silent", "--dry-run", "--output", "json", *options)
        assert (code, bool(json.loads(out))) == (exit_codes.OK, True)
        assert err.count("\n") == silent
        told = (
            "Warning: the rule is on the default bus, where no event of Genesys Cloud arrives. Name the partner event"
        )
        assert err.startswith(told) == silent

    def test_a_partners_bus(self, infra: Infra, aws: Aws) -> None:
        """A bus with the name of a pending source is created, the rule is on that bus, and events arrive."""
        code, _, err = infra("infra", "up", "--name", "partner", "--partner-source", PARTNER, "--pattern", PATTERN)
        assert (code, err) == (exit_codes.OK, "")
        put(aws, 2, bus=PARTNER)
        assert received(aws, "partner-events")["detail"]["eventBody"]["conversationId"] == "conversation-2"
        shown = json.loads(infra("infra", "show", "--name", "partner", "--output", "json")[1])
        arns = {part["part"]: part["arn"] for part in shown["parts"]}
        assert arns["rule"] == f"arn:aws:events:{REGION}:000000000000:rule/{PARTNER}/partner-events"
        _, out, _ = infra("infra", "down", "--name", "partner", "--yes")
        assert out.index("deleted  rule") < out.index("deleted  bus")

    def test_shown_on_a_narrow_terminal(self, infra: Infra, aws: Aws, tmp_path: Path) -> None:
        """On a narrow terminal no column is missing and no ARN is truncated."""
        source = f"{PARTNER}-with-a-name-that-is-long-for-a-line"
        infra("infra", "up", "--name", "narrow", "--partner-source", source)
        asked = ["infra", "show", "--name", "narrow", "--region", REGION, "--endpoint", aws.endpoint]
        shown = on_terminal(asked, tmp_path, **CREDENTIALS)
        assert re.search(r"^part +ours +holds +address", shown)
        assert re.search(rf"rule +yes +arn:aws:events:{REGION}:000000000000:rule/{source}/narrow-events\b", shown)

    def test_a_bus_of_somebody_elses(self, infra: Infra, aws: Aws) -> None:
        """An existing bus is used, and stays when the other parts are deleted."""
        aws["events"].create_event_bus(Name="theirs")
        _, out, _ = infra("infra", "up", "--name", "guest", "--bus", "theirs")
        assert "kept     bus         theirs  (not created by Oncegate, only used)" in out
        code, out, _ = infra("infra", "down", "--name", "guest", "--yes")
        assert (code, "deleted  rule        guest-events" in out, "bus" in out) == (exit_codes.OK, True, False)
        assert aws["events"].describe_event_bus(Name="theirs")["Name"] == "theirs"


class TestFunctions:
    def test_behind_the_rule(self, infra: Infra, aws: Aws, package: str) -> None:
        """The function completes an event from the bus. Only the rule may invoke it, its failures go to the dead-letter
        queue, and its role has no wildcard permissions."""
        made = ("infra", "up", "--name", "direct", "--pattern", PATTERN, *as_function(package))
        code, out, err = infra(*made, "--output", "json")
        assert (code, err, actions(out)) == (exit_codes.OK, "", {"create": 8})
        put(aws, 3)
        url = json.loads(out)["store"]
        store = open_store(url, create=False)
        until(lambda: [entry.record.state for entry in store.browse()] == ["C"], "the event to be completed", 30)
        assert store.browse()[0].record.about.entity == "conversation-3"
        store.close()
        (statement,) = json.loads(aws["lambda"].get_policy(FunctionName="direct-function")["Policy"])["Statement"]
        assert "rule/direct-events" in json.dumps(statement["Condition"])
        config = aws["lambda"].get_function_event_invoke_config(FunctionName="direct-function")
        assert config["DestinationConfig"]["OnFailure"]["Destination"].endswith(":direct-dead")
        rights = aws["iam"].get_role_policy(RoleName=f"direct-function-{REGION}", PolicyName="oncegate")
        assert "*" not in {item for one in rights["PolicyDocument"]["Statement"] for item in one["Action"]}
        assert actions(infra(*made, "--dry-run", "--output", "json")[1]) == {"keep": 8}

    def test_drift_is_reverted(self, infra: Infra, aws: Aws, package: str) -> None:
        """Changes to the parts of a function are reverted; variables and policies that others added stay."""
        direct = ("infra", "up", "--name", "bent", *as_function(package))
        queued = ("infra", "up", "--name", "bent", "--queue", *as_function(package))
        infra(*direct)
        infra(*queued)
        function, role = "bent-function", f"bent-function-{REGION}"
        found = aws["lambda"].get_function_configuration(FunctionName=function)["Environment"]["Variables"]
        variables = {**found, "ONCEGATE_STORE": "memory://", "THEIRS": "1"}
        aws["lambda"].update_function_configuration(
            FunctionName=function, Timeout=3, Environment={"Variables": variables}
        )
        (mapping,) = aws["lambda"].list_event_source_mappings(FunctionName=function)["EventSourceMappings"]
        aws["lambda"].update_event_source_mapping(UUID=mapping["UUID"], BatchSize=1, Enabled=False)
        aws["lambda"].put_function_event_invoke_config(FunctionName=function, MaximumRetryAttempts=0)
        statement = sid(":rule/bent-events")
        aws["lambda"].remove_permission(FunctionName=function, StatementId=statement)
        aws["lambda"].add_permission(
            FunctionName=function,
            StatementId=statement,
            Action="lambda:InvokeFunction",
            Principal="events.amazonaws.com",
        )
        nothing = json.dumps(document({"Effect": "Deny", "Action": "*", "Resource": "*"}))
        for policy in ("oncegate", "theirs"):
            aws["iam"].put_role_policy(RoleName=role, PolicyName=policy, PolicyDocument=nothing)
        assert changes(infra(*queued, "--output", "json")[1]) == {
            "role": "Policies",
            "function": "Timeout, Environment",
            "mapping": "BatchSize, Enabled",
        }
        assert changes(infra(*direct, "--output", "json")[1]) == {
            "role": "Policies",
            "permission": "SourceArn",
            "retries": "DestinationConfig, MaximumRetryAttempts",
            "rule": "Targets",
        }
        assert changes(infra(*direct, "--output", "json")[1]) == {}
        found = aws["lambda"].get_function_configuration(FunctionName=function)["Environment"]["Variables"]
        assert (found["THEIRS"], found["ONCEGATE_STORE"][:11]) == ("1", "dynamodb://")
        assert sorted(aws["iam"].list_role_policies(RoleName=role)["PolicyNames"]) == ["oncegate", "theirs"]
        _, out, _ = infra("infra", "down", "--name", "bent", "--yes")
        assert out.count("deleted  ") == 7

    def test_behind_the_queue(self, infra: Infra, aws: Aws, package: str) -> None:
        """With a queue, the mapping reports failures by message; new code is a change, and all parts are deleted."""
        made = ("infra", "up", "--name", "queued", "--queue", "--pattern", PATTERN, *as_function(package))
        code, out, err = infra(*made, "--output", "json")
        assert (code, err, actions(out)) == (exit_codes.OK, "", {"create": 9})
        put(aws, 4)
        store = open_store(json.loads(out)["store"], create=False)
        until(lambda: [entry.record.state for entry in store.browse()] == ["C"], "the event to be completed", 30)
        store.close()
        (mapping,) = aws["lambda"].list_event_source_mappings(FunctionName="queued-function")["EventSourceMappings"]
        assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
        assert attributes(aws, "queued-events")[1]["VisibilityTimeout"] == "180"
        with zipfile.ZipFile(package, "a") as file:
            file.writestr("more.py", "")
        _, out, _ = infra(*made, "--output", "json")
        assert [part["why"] for part in json.loads(out)["parts"] if part["action"] == "change"] == ["Code"]
        code, out, _ = infra("infra", "down", "--name", "queued", "--yes")
        assert (code, out.count("deleted  ")) == (exit_codes.OK, 7)
        assert "nothing of queued" in infra("infra", "show", "--name", "queued")[1]


class TestDown:
    def test_leaves_what_it_did_not_make(self, infra: Infra, aws: Aws) -> None:
        """A queue without the tag, or with that of another deployment, is listed and left; the table can be kept."""
        infra("infra", "up", "--name", "leave")
        url, _ = attributes(aws, "leave-events")
        aws["sqs"].untag_queue(QueueUrl=url, TagKeys=["made-by"])
        dead, _ = attributes(aws, "leave-dead")
        aws["sqs"].tag_queue(QueueUrl=dead, Tags={"oncegate-name": "another"})
        code, out, _ = infra("infra", "down", "--name", "leave", "--yes", "--keep-table")
        assert code == exit_codes.OK
        assert [line.split()[1:3] for line in out.splitlines() if line.startswith("leave")] == [
            ["queue", "leave-events"],
            ["queue", "leave-dead"],
        ]
        assert [line.split()[1:3] for line in out.splitlines() if line.startswith("deleted")] == [
            ["rule", "leave-events"]
        ]
        assert attributes(aws, "leave-events")
        assert attributes(aws, "leave-dead")
        assert aws["dynamodb"].describe_table(TableName="leave-claims")

    def test_asks_first(self, infra: Infra, aws: Aws) -> None:
        """Without a terminal for the confirmation nothing is deleted; the list shows what the parts contain."""
        infra("infra", "up", "--name", "ask", "--no-table", "--no-rule")
        url, _ = attributes(aws, "ask-events")
        aws["sqs"].send_message(QueueUrl=url, MessageBody="{}")
        code, out, err = infra("infra", "down", "--name", "ask")
        assert (code, "there is no terminal to ask on" in err) == (exit_codes.USAGE, True)
        assert "delete  queue  ask-events  1 messages" in out
        assert infra("infra", "down", "--name", "ask", "--dry-run")[0] == exit_codes.OK
        assert attributes(aws, "ask-events")

    def test_an_answer(self, infra: Infra, aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a terminal the answer no changes nothing, and the answer yes deletes."""
        infra("infra", "up", "--name", "answer", "--no-table", "--no-rule")
        answers = {
            "n\n": (exit_codes.FAILED, "Nothing was changed."),
            "y\n": (exit_codes.OK, "deleted  queue       answer-dead"),
        }
        for answer, (code, said) in answers.items():
            main, worker = pty.openpty()
            with open(worker) as terminal, open(main, "w") as person:
                monkeypatch.setattr(sys, "stdin", terminal)
                person.write(answer)
                person.flush()
                found = infra("infra", "down", "--name", "answer")
            assert (found[0], said in found[1]) == (code, True)
            assert f"Delete 2 parts in account 000000000000, {REGION}? What they hold is lost." in found[2]

    def test_when_there_is_nothing(self, infra: Infra) -> None:
        """Deleting a deployment that does not exist says so and succeeds."""
        code, out, _ = infra("infra", "down", "--name", "nobody", "--yes")
        assert (code, out) == (
            exit_codes.OK,
            f"There is nothing to delete that oncegate infra has made as nobody in {REGION}.\n",
        )


class TestErrors:
    def test_a_name_that_is_taken(self, infra: Infra, aws: Aws) -> None:
        """A resource of the same name without the tag is not changed, and nothing is created."""
        aws["sqs"].create_queue(QueueName="taken-events")
        code, _, err = infra("infra", "up", "--name", "taken")
        assert (code, err.count("\n")) == (exit_codes.FAILED, 1)
        assert err.startswith("Error: the queue taken-events exists, but was not made by oncegate infra for taken")
        assert infra("infra", "show", "--name", "taken")[1].count("taken-") == 1

    def test_a_table_of_another_shape(self, infra: Infra, aws: Aws) -> None:
        """A table with the tags of Oncegate and another key is refused with the message of the store."""
        aws["dynamodb"].create_table(
            TableName="shape-claims",
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "eventId", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "eventId", "KeyType": "HASH"}],
            Tags=[{"Key": "made-by", "Value": "oncegate"}, {"Key": "oncegate-name", "Value": "shape"}],
        )
        code, _, err = infra("infra", "up", "--name", "shape")
        assert (code, "is not an Oncegate table: its key is eventId" in err) == (exit_codes.STORE, True)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--name", "a_b"), "--name 'a_b' is not a valid name"),
            (("--name", "x", "--pattern", "[1]"), "--pattern [1] cannot be read: No such file or directory"),
            (("--name", "x", "--pattern", "{]"), "--pattern is not valid JSON"),
            (("--name", "x", "--pattern", "{}"), "--pattern is not an event pattern"),
            (("--name", "x", "--lambda-zip", "no.zip"), "--lambda-zip no.zip cannot be read"),
            (("--name", "x", "--lambda-zip", "text.zip"), "--lambda-zip is not a zip file"),
            (("--name", "x", "--lambda-zip", "app.zip", "--lambda-handler", "a.b.c"), "--lambda-zip has no a/b.py"),
            (
                ("--name", "x", "--lambda-zip", "app.zip", "--lambda-timeout", "1h"),
                "--lambda-timeout of 3600 s",
            ),
            (
                ("--name", "x", "--lambda-zip", "app.zip", "--lambda-runtime", "go"),
                "--lambda-runtime 'go' is not a Python",
            ),
            (("--name", "x", "--lambda-zip", "app.zip", "--env", "A"), "--env 'A' is no variable"),
            (("--name", "x", "--endpoint", "nowhere", "--region", REGION), "endpoint='nowhere' is not a valid URL"),
            (("--name", "x", "--lambda-handler", "app.handler"), "--lambda-handler is that of a package"),
            (("--name", "x", "--no-queue"), "the rule has no target; add --queue"),
            (("--name", "x", "--partner-source", "genesys"), "--partner-source 'genesys' is not a"),
            (("--name", "x", "--partner-source", PARTNER, "--bus", "b"), "--bus and --partner-source name two buses"),
            (("--name", "x", "--message-retention", "4"), "--message-retention='4' is not a duration"),
            (
                ("--name", "x", "--message-retention", "30d"),
                "--message-retention of 2592000 s is out of range; SQS",
            ),
            (("--name", "x", "--message-retention", "1s"), "--message-retention of 1 s is out of range"),
            (("--name", "x", "--env", "foo"), "--env is about a function, and there is none"),
            (("--name", "x", "--lambda-timeout", "0s"), "--lambda-timeout is about a function, and there is none"),
            (("--name", "x", "--no-rule", "--bus", "calls"), "--bus is about a rule, and there is none"),
            (("--name", "x", "--lambda-zip", "app.zip", "--max-receives", "3"), "--max-receives is about a queue"),
            (("--name", "x", "--no-table", "--no-queue", "--no-rule"), "no part is selected"),
            (("--name", "x", "--yes"), "--yes answers what only --prune asks"),
        ],
    )
    def test_invalid_options(self, oncegate: Run, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
        """Each invalid option is refused with one sentence, before any request to AWS."""
        (tmp_path / "text.zip").write_text("no zip file")
        (tmp_path / "app.zip").write_bytes(zipped(""))
        code, _, err = oncegate("infra", "up", *arguments)
        assert (code, said in err) == (exit_codes.USAGE, True), err

    @pytest.mark.parametrize(
        ("environment", "said"),
        [
            ({}, "no AWS credentials were found for AWS in eu-central-1"),
            ({"AWS_PROFILE": "nobody"}, "no AWS credentials were found"),
            (
                {**CREDENTIALS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
                "AWS in eu-central-1 cannot be reached",
            ),
        ],
    )
    def test_without_access_to_aws(
        self, oncegate: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: dict[str, str], said: str
    ) -> None:
        """Missing credentials, an unknown profile and an unreachable endpoint are one sentence each."""
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        outside = {
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path),
            "AWS_CONFIG_FILE": "",
        }
        for name, value in (outside | environment).items():
            monkeypatch.setenv(name, value)
        code, out, err = oncegate("infra", "show", "--name", "crm", "--region", REGION)
        assert (code, out, err.count("\n")) == (exit_codes.FAILED, "", 1)
        assert said in err
