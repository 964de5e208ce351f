"""`oncegate genesys setup` and `down`: plan, apply, repeat, fail in the middle, and delete only what was made."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncegate.cli import exit_codes
from oncegate.genesys import integrations
from oncegate.settings import load
from tests.cli.conftest import Run
from tests.genesys.aws import with_sources
from tests.genesys.conftest import Genesys
from tests.genesys.server import OPEN, ORGANISATION, SECRET, FakeGenesys, problem
from tests.infra.conftest import Aws, as_function, aws, package
from tests.stores.dynamo_server import CREDENTIALS, REGION, DynamoServer

__all__ = ["aws", "package"]

TOPICS = ("--topics", "v2.users.{id}.presence,v2.quality.evaluations")
URL = "https://events.example.com/events/messages"
INTEGRATION = "/api/v2/integrations/{integrationId}"


def actions(out: str) -> dict[str, str]:
    """What was done to each part, by its kind; of several parts of a kind, the last one."""
    return {part["part"]: part["action"] for part in json.loads(out)["parts"]}


class TestEventBridge:
    @pytest.fixture
    def place(
        self, fake: FakeGenesys, dynamo_server: DynamoServer, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[tuple[str, ...]]:
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        with with_sources(fake, dynamo_server.port) as endpoint:
            yield ("--region", REGION, "--endpoint", endpoint)

    def test_the_whole_way(self, genesys: Genesys, fake: FakeGenesys, aws: Aws, place: tuple[str, ...]) -> None:
        """A dry run changes nothing. Then the integration is created and enabled, its source is awaited and associated,
        a rule sends to a queue, and the doctor finds nothing. A second run changes nothing. `down` deletes it all."""
        command = ("setup", "eventbridge", "--name", "whole", *TOPICS, *place, "--output", "json")
        code, out, _ = genesys(*command, "--dry-run")
        assert (code, actions(out)["integration"], actions(out)["source"]) == (exit_codes.OK, "create", "wait")
        assert (fake.integrations, fake.sources) == ({}, {})

        fake.source_after = 2
        code, out, err = genesys(*command)
        assert (code, err) == (exit_codes.OK, "")
        source = f"aws.partner/genesys.com/cloud/{ORGANISATION}/whole"
        assert (json.loads(out)["source"], json.loads(out)["doctor"]["findings"]) == (source, [])
        assert fake.sources == {source: "ACTIVE"}
        ((id_, made),) = fake.integrations.items()
        assert (made["intendedState"], made["reportedState"]) == ("ENABLED", {"code": "ACTIVE"})
        assert fake.configs[id_]["properties"] == {
            "awsAccountId": "000000000000",
            "awsAccountRegion": REGION,
            "eventSourceSuffix": "whole",
            "eventFilter": ["v2.quality.evaluations", "v2.users.{id}.presence"],
        }
        (target,) = aws["events"].list_targets_by_rule(Rule="whole-events", EventBusName=source)["Targets"]
        assert target["Arn"].endswith(":whole-events")

        before = len(fake.requests)
        code, out, _ = genesys(*command)
        assert (code, set(actions(out).values())) == (exit_codes.OK, {"keep"})
        assert all(request.startswith("GET") for request in fake.requests[before:])

        code, out, _ = genesys("down", "eventbridge", "--name", "whole", *place, "--yes")
        assert (code, fake.integrations, fake.sources) == (exit_codes.OK, {}, {})
        assert "deleted  integration  oncegate-whole" in out
        code, out, _ = genesys("down", "eventbridge", "--name", "whole", *place, "--yes")
        assert (code, out.startswith("Nothing to delete")) == (exit_codes.OK, True)

    def test_a_change_of_topics(self, genesys: Genesys, fake: FakeGenesys, place: tuple[str, ...]) -> None:
        """Other topics change the configuration of the same integration."""
        command = ("setup", "eventbridge", "--name", "topical", "--output", "json", *place)
        assert genesys(*command, *TOPICS)[0] == exit_codes.OK
        code, out, _ = genesys(*command, "--topics", "v2.quality.evaluations")
        assert (code, actions(out)["integration"]) == (exit_codes.OK, "change")
        (part,) = (part for part in json.loads(out)["parts"] if part["part"] == "integration")
        assert part["why"] == "eventFilter"
        ((id_, _),) = fake.integrations.items()
        assert fake.configs[id_]["properties"]["eventFilter"] == ["v2.quality.evaluations"]

    def test_a_function_and_leftovers(
        self, genesys: Genesys, oncegate: Run, fake: FakeGenesys, aws: Aws, package: str, place: tuple[str, ...]
    ) -> None:
        """With --lambda-zip the rule sends to a function. Parts of an earlier run with other options are reported, and
        the command that is named deletes them."""
        command = ("setup", "eventbridge", "--name", "moved", *TOPICS, *place)
        assert genesys(*command)[0] == exit_codes.OK
        other = (*command, "--suffix", "other", *as_function(package))
        code, out, _ = genesys(*other, "--dry-run")
        assert (code, "An earlier run created" in out) == (exit_codes.OK, True)

        code, out, err = genesys(*other)
        text = " ".join(out.split())
        source = f"aws.partner/genesys.com/cloud/{ORGANISATION}/other"
        assert (code, err) == (exit_codes.OK, "")
        assert f"left rule moved-events (on the bus {source.replace('other', 'moved')}, it sends to" in text
        assert "left queue moved-events" in text
        hint = f"use `oncegate infra up` with --partner-source {source}, the same options and --prune to delete them"
        assert hint in text
        (target,) = aws["events"].list_targets_by_rule(Rule="moved-events", EventBusName=source)["Targets"]
        assert target["Arn"].endswith(":function:moved-function")

        prune = ("up", "--name", "moved", "--partner-source", source, *as_function(package), "--prune", "--yes")
        assert oncegate("infra", *prune, *place)[0] == exit_codes.OK
        code, out, _ = genesys(*other, "--output", "json")
        assert (code, {part["action"] for part in json.loads(out)["parts"]}) == (exit_codes.OK, {"keep"})

    def test_all_parts_of_a_deployment_are_shown_and_deleted(
        self, genesys: Genesys, oncegate: Run, fake: FakeGenesys, place: tuple[str, ...]
    ) -> None:
        """`down` also deletes parts with this name that `oncegate infra up` made, and its plan lists each of them."""
        assert oncegate("infra", "up", "--name", "shared", "--no-rule", "--no-queue", *place)[0] == exit_codes.OK
        assert genesys("setup", "eventbridge", "--name", "shared", *TOPICS, *place, "--no-table")[0] == exit_codes.OK
        _, out, _ = genesys("down", "eventbridge", "--name", "shared", *place, "--dry-run")
        planned = re.findall(r"^delete +(\w+) +(\S+)", out, re.MULTILINE)
        assert {("integration", "oncegate-shared"), ("table", "shared-claims")} < set(planned)
        _, out, _ = genesys("down", "eventbridge", "--name", "shared", *place, "--yes")
        assert re.findall(r"^deleted +(\w+) +(\S+)", out, re.MULTILINE) == planned
        assert "No parts" in oncegate("infra", "show", "--name", "shared", *place)[1]

    @pytest.mark.parametrize(
        "failing", [f"PUT {INTEGRATION}/config/current", f"PATCH {INTEGRATION}", f"GET {INTEGRATION}"]
    )
    def test_a_failure_in_the_middle(
        self, genesys: Genesys, fake: FakeGenesys, place: tuple[str, ...], failing: str
    ) -> None:
        """If a step fails after the integration was created, the next run continues with the same integration."""
        command = ("setup", "eventbridge", "--name", "broken", *TOPICS, *place, "--output", "json")
        fake.fail(failing, problem(409, "general.conflict", "Try again"))
        code, _, err = genesys(*command)
        assert (code, "(409: Try again)" in err, len(fake.integrations)) == (exit_codes.FAILED, True, 1)
        assert genesys(*command)[0] == exit_codes.OK
        ((_, made),) = fake.integrations.items()
        assert made["reportedState"] == {"code": "ACTIVE"}

    def test_a_creation_without_an_answer(self, genesys: Genesys, fake: FakeGenesys, place: tuple[str, ...]) -> None:
        """If the answer to the creation is lost, the next run finds the integration and does not create another."""
        fake.unanswered.append("POST /api/v2/integrations")
        command = ("setup", "eventbridge", "--name", "lost", *TOPICS, *place)
        code, _, err = genesys(*command)
        assert (code, "It may have been carried out" in err) == (exit_codes.FAILED, True)
        assert genesys(*command)[0] == exit_codes.OK
        assert len(fake.integrations) == 1

    def test_an_integration_of_somebody_else(self, genesys: Genesys, fake: FakeGenesys, place: tuple[str, ...]) -> None:
        """An integration of the same name that Oncegate did not make is neither changed nor deleted."""
        kind = {"id": "amazon-eventbridge-source"}
        made = {"id": "i", "name": "oncegate-theirs", "integrationType": kind, "intendedState": "ENABLED"}
        fake.integrations["i"] = {**made, "reportedState": {"code": "ACTIVE"}}
        fake.configs["i"] = {"id": "i", "version": 3, "properties": {"awsAccountId": "1"}, "notes": "by hand"}
        code, _, err = genesys("setup", "eventbridge", "--name", "theirs", *TOPICS, *place)
        assert code == exit_codes.FAILED
        assert "was not made by oncegate genesys for theirs; choose another --name" in err.replace("\n", " ")
        code, out, _ = genesys("down", "eventbridge", "--name", "theirs", *place, "--yes")
        assert (code, "leave  integration" in out, list(fake.integrations)) == (exit_codes.OK, True, ["i"])

    def test_an_integration_that_cannot_be_enabled(
        self, genesys: Genesys, fake: FakeGenesys, place: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The reason that Genesys reports is the error of the command."""

        def broken(_id: str, found: dict[str, object]) -> None:
            found["reportedState"] = {"code": "ERROR", "detail": {"message": "The account is not known to AWS"}}

        monkeypatch.setattr(fake, "_activate", broken)
        code, _, err = genesys("setup", "eventbridge", "--name", "refused", *TOPICS, *place)
        assert (code, "(The account is not known to AWS)" in err) == (exit_codes.FAILED, True)

    def test_an_error_from_before_the_change(
        self, genesys: Genesys, fake: FakeGenesys, place: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Genesys may report the old error for a while after the change. It is an error again only after another state
        was reported, or after a limit."""
        command = ("setup", "eventbridge", "--name", "stale", *TOPICS, *place)
        assert genesys(*command)[0] == exit_codes.OK
        ((_, made),) = fake.integrations.items()
        error = {"code": "ERROR", "detail": {"message": "The account is not known to AWS"}}

        made["reportedState"], fake.stale_states = error, [error, error]
        code, _, err = genesys(*command)
        assert (code, err, made["reportedState"]) == (exit_codes.OK, "", {"code": "ACTIVE"})

        made["reportedState"], fake.stale_states = error, [error, {"code": "ACTIVATING"}, error]
        code, _, err = genesys(*command)
        assert (code, "(The account is not known to AWS)" in err) == (exit_codes.FAILED, True)

        monkeypatch.setattr(integrations, "_STALE_LIMIT", 0.1)
        made["reportedState"], fake.stale_states = error, [error] * 9
        code, _, err = genesys(*command)
        assert (code, "(The account is not known to AWS)" in err) == (exit_codes.FAILED, True)

    def test_a_missing_permission(self, genesys: Genesys, fake: FakeGenesys, place: tuple[str, ...]) -> None:
        """The error names the permission."""
        fake.permissions.discard("integrations:integration:add")
        code, _, err = genesys("setup", "eventbridge", "--name", "denied", *TOPICS, *place)
        assert (code, "integrations:integration:add" in err) == (exit_codes.FAILED, True)

    def test_topics_are_needed(self, genesys: Genesys, place: tuple[str, ...]) -> None:
        """Without topics, or with a name that is no topic, nothing is done."""
        code, _, err = genesys("setup", "eventbridge", "--name", "none", *place)
        assert (code, "no topic is named" in err) == (exit_codes.USAGE, True)
        code, _, err = genesys("setup", "eventbridge", "--name", "none", "--topics", "presence", *place)
        assert (code, "'presence' is not a topic" in err) == (exit_codes.USAGE, True)


class TestOpenMessaging:
    def setup(self, genesys: Genesys, *arguments: str) -> tuple[int, str, str]:
        return genesys("setup", "open-messaging", "--name", "crm", "--url", URL, *arguments)

    def test_the_whole_way(self, genesys: Genesys, fake: FakeGenesys, tmp_path: Path) -> None:
        """A dry run changes nothing. Then a secret, a route and an integration are made that fit each other. A second
        run changes nothing. `down` deletes the integration."""
        file = ("--secret-file", "messages.secret", "--output", "json")
        code, out, _ = self.setup(genesys, *file, "--dry-run")
        assert (code, actions(out)) == (exit_codes.OK, dict.fromkeys(("secret", "route", "messaging"), "create"))
        assert (list(tmp_path.iterdir()), fake.open) == ([], {})

        assert self.setup(genesys, *file)[0] == exit_codes.OK
        ((_, made),) = fake.open.items()
        secret = (tmp_path / "messages.secret").read_text().strip()
        assert made["outboundNotificationWebhookSignatureSecretToken"] == secret
        assert (len(secret) > 40, (tmp_path / "messages.secret").stat().st_mode & 0o777) == (True, 0o600)
        assert (made["outboundNotificationWebhookUrl"], made["createStatus"]) == (URL, "Completed")
        route = load(tmp_path / "oncegate.toml", environ={}).routes["messages"]
        assert route["serve.signature"] == "genesys-open-messaging"
        assert tuple(route["serve.secret_file"]) == ("messages.secret",)

        code, out, _ = self.setup(genesys, *file)
        assert (code, set(actions(out).values())) == (exit_codes.OK, {"keep"})
        code, out, _ = genesys("down", "open-messaging", "--name", "crm", "--yes")
        assert (code, fake.open, "The route in the settings file was not changed" in out) == (exit_codes.OK, {}, True)
        assert (tmp_path / "oncegate.toml").exists()

    @pytest.mark.parametrize("shows_secret", [True, False])
    def test_another_secret(
        self, genesys: Genesys, fake: FakeGenesys, monkeypatch: pytest.MonkeyPatch, shows_secret: bool
    ) -> None:
        """Another secret is sent if Genesys shows the current one, or with --replace-secret."""
        fake.shows_secret = shows_secret
        monkeypatch.setenv("MESSAGES_SECRET", "first-secret")
        assert self.setup(genesys, "--secret-env", "MESSAGES_SECRET")[0] == exit_codes.OK
        monkeypatch.setenv("MESSAGES_SECRET", "second-secret")
        more = () if shows_secret else ("--replace-secret",)
        code, out, err = self.setup(genesys, "--secret-env", "MESSAGES_SECRET", "--output", "json", *more)
        assert (code, actions(out)["messaging"]) == (exit_codes.OK, "change")
        ((_, made),) = fake.open.items()
        assert made["outboundNotificationWebhookSignatureSecretToken"] == "second-secret"
        assert "secret" not in (out + err).replace("messages_secret", "").replace('"why": "secret"', "")

    def test_headers_of_a_person_stay(self, genesys: Genesys, fake: FakeGenesys) -> None:
        """A header that a person has added is not a difference, and a change keeps it. Genesys may write the names of
        headers in small letters."""
        assert self.setup(genesys, "--secret-file", "s")[0] == exit_codes.OK
        ((_, made),) = fake.open.items()
        made["webhookHeaders"] = {"x-oncegate-name": "crm", "X-Gateway-Key": "k"}
        code, out, _ = self.setup(genesys, "--secret-file", "s", "--output", "json")
        assert (code, set(actions(out).values())) == (exit_codes.OK, {"keep"})
        assert self.setup(genesys, "--secret-file", "s", "--replace-secret")[0] == exit_codes.OK
        assert made["webhookHeaders"] == {"X-Oncegate-Name": "crm", "X-Gateway-Key": "k"}

    def test_the_rest_of_the_file_stays(self, genesys: Genesys, tmp_path: Path) -> None:
        """Comments, order and spaces of the settings file are not changed; the route is added at its end."""
        before = '# mine\nretention   = "7d" # a week\r\n\n[serve] # here\nport=1\n[route.other]\nsignature = "none"'
        (tmp_path / "oncegate.toml").write_text(before)
        (tmp_path / "oncegate.toml").chmod(0o640)
        assert self.setup(genesys, "--secret-file", "s")[0] == exit_codes.OK
        after = (tmp_path / "oncegate.toml").read_bytes().decode()
        assert after.startswith(before)
        assert set(load(tmp_path / "oncegate.toml", environ={}).routes) == {"other", "messages"}
        assert (tmp_path / "oncegate.toml").stat().st_mode & 0o777 == 0o640
        assert sorted(path.name for path in tmp_path.iterdir()) == ["oncegate.toml", "s"]

    def test_a_route_of_another_sender(self, genesys: Genesys, fake: FakeGenesys, tmp_path: Path) -> None:
        """A route of this name with another signature is refused before anything is made."""
        text = '[route.messages]\nsignature = "cxone"\nsecret_env = "CXONE"\n'
        (tmp_path / "oncegate.toml").write_text(text)
        code, _, err = self.setup(genesys, "--secret-file", "s")
        assert (code, "[route.messages] has signature='cxone'" in err) == (exit_codes.USAGE, True)
        assert ((tmp_path / "oncegate.toml").read_text(), fake.open, (tmp_path / "s").exists()) == (text, {}, False)

    def test_a_file_that_cannot_take_a_route(self, genesys: Genesys, tmp_path: Path) -> None:
        """If the file has its routes in another form, it is not changed."""
        text = 'route = {other = {signature = "none"}}\n'
        (tmp_path / "oncegate.toml").write_text(text)
        code, _, err = self.setup(genesys, "--secret-file", "s")
        assert (code, "oncegate.toml" in err, (tmp_path / "oncegate.toml").read_text()) == (
            exit_codes.USAGE,
            True,
            text,
        )

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            (("--url", "http://events.example.com/events/x", "--secret-file", "s"), "is not a public https URL"),
            (("--url", "https://u:p@example.com/events/x", "--secret-file", "s"), "is not a public https URL"),
            (("--url", "https://:p@example.com/events/x", "--secret-file", "s"), "is not a public https URL"),
            (("--url", "https://[x", "--secret-file", "s"), "is not a public https URL"),
            (("--url", "https://x:port/events/x", "--secret-file", "s"), "is not a public https URL"),
            (("--url", "https://events.example.com", "--secret-file", "s"), "does not end with /events/ROUTE"),
            (("--url", "https://events.example.com/events", "--secret-file", "s"), "does not end with /events/ROUTE"),
            (("--url", "https://events.example.com/messages", "--secret-file", "s"), "does not end with /events/ROUTE"),
            (("--url", URL), "with --secret-env or --secret-file, one of the two"),
            (("--url", URL, "--secret-env", "A", "--secret-file", "s"), "one of the two"),
            (("--url", URL, "--secret-env", "NOT_SET"), "the variable NOT_SET is not set"),
        ],
    )
    def test_invalid_options(
        self, genesys: Genesys, fake: FakeGenesys, arguments: tuple[str, ...], problem: str
    ) -> None:
        """An invalid URL or secret is refused, and nothing is made."""
        code, _, err = genesys("setup", "open-messaging", "--name", "crm", *arguments)
        assert (code, problem in err.replace("\n", " "), fake.open) == (exit_codes.USAGE, True, {})

    @pytest.mark.parametrize("name", ["Messages", "_x", "x" * 70, "a b", "%C3%A9", "a.b"])
    @pytest.mark.parametrize("option", ["--url", "--route"])
    def test_a_name_that_no_route_can_have(
        self, genesys: Genesys, fake: FakeGenesys, tmp_path: Path, name: str, option: str
    ) -> None:
        """A name that the settings file would refuse is refused before anything is planned, and the error says where it
        is and what to do."""
        given = ("--url", f"https://x/events/{name}") if option == "--url" else ("--url", URL, "--route", name)
        code, _, err = genesys("setup", "open-messaging", "--name", "crm", *given, "--secret-file", "s", "--dry-run")
        assert (code, fake.requests, list(tmp_path.iterdir())) == (exit_codes.USAGE, [], [])
        text = " ".join(err.split())
        assert option in text
        assert f"{name!r} is an invalid name of a route; it is part of the URL, so use" in text
        assert "name the route with --route" in text

    def test_an_integration_of_somebody_else(self, genesys: Genesys, fake: FakeGenesys) -> None:
        """An integration of the same name without our header is neither changed nor deleted."""
        fake.open["i"] = {"id": "i", "name": "oncegate-crm", "outboundNotificationWebhookUrl": URL}
        code, _, err = self.setup(genesys, "--secret-file", "s")
        assert (code, "was not made by oncegate genesys" in err) == (exit_codes.FAILED, True)
        code, _, _ = genesys("down", "open-messaging", "--name", "crm", "--yes")
        assert (code, list(fake.open)) == (exit_codes.OK, ["i"])

    def test_a_failed_creation(self, genesys: Genesys, fake: FakeGenesys) -> None:
        """If Genesys refuses the integration, the next run continues with the same secret and route."""
        fake.fail(f"POST {OPEN}", problem(400, "bad.request", "The URL is not reachable"))
        code, _, err = self.setup(genesys, "--secret-file", "s")
        assert (code, "(400: The URL is not reachable)" in err) == (exit_codes.FAILED, True)
        code, out, _ = self.setup(genesys, "--secret-file", "s", "--output", "json")
        assert actions(out) == {"secret": "keep", "route": "keep", "messaging": "create"}


def test_deletion_asks_first(genesys: Genesys, fake: FakeGenesys) -> None:
    """Without a terminal, --yes is needed."""
    genesys("setup", "open-messaging", "--name", "crm", "--url", URL, "--secret-file", "s")
    code, _, err = genesys("down", "open-messaging", "--name", "crm")
    assert (code, "add --yes to delete" in err, len(fake.open)) == (exit_codes.USAGE, True, 1)


def test_no_secret_in_any_output(genesys: Genesys, fake: FakeGenesys, tmp_path: Path) -> None:
    """Neither the secret of the client nor that of the messages is printed or written to the settings file."""
    outputs = "".join(
        out + err
        for arguments in (("--dry-run",), (), ("--output", "json"))
        for _, out, err in (
            genesys("setup", "open-messaging", "--name", "n", "--url", URL, "--secret-file", "s", *arguments),
        )
    )
    secret = (tmp_path / "s").read_text().strip()
    assert secret not in outputs + (tmp_path / "oncegate.toml").read_text()
    assert SECRET not in outputs
