"""The commands `oncegate genesys topics`, `check` and `listen`, and their settings."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncegate.cli import exit_codes
from tests.cli.conftest import Run
from tests.genesys import server
from tests.genesys.conftest import Genesys, settings_of
from tests.genesys.listening import PRESENCE, USER, presence
from tests.genesys.server import CLIENT_ID, SECRET, FakeGenesys
from tests.stores.servers import until

HANDLER = """
import pathlib, time

def on_event(event):
    with open("handled", "a") as file:
        file.write(event.body["presenceDefinition"]["id"] + "\\n")
"""


class TestTopics:
    def test_what_is_known_of_each_topic(self, genesys: Genesys) -> None:
        """Each topic has the members that Oncegate uses: the event time, the id and what its key is made from."""
        code, out, _ = genesys("topics", "--output", "json")
        topics = {topic["name"]: topic for topic in json.loads(out)["topics"]}
        assert (code, list(topics)) == (exit_codes.OK, sorted(topics))
        found = {name: (topic["time"], topic["id"], topic["key"]) for name, topic in topics.items()}
        assert found == {
            "v2.audits.entitytype.{id}.entityid.{id}": ("eventTime", "id", "id"),
            "v2.detail.events.conversation.{id}.customer.end": ("eventTime", None, "topic + content"),
            "v2.quality.evaluations": ("eventTime", "id + version", "id + version"),
            "v2.routing.queues.{id}.users": (None, None, "topic + content + send time"),
            "v2.users.{id}.presence": ("modifiedDate", None, "topic + content"),
        }

    def test_a_filter(self, genesys: Genesys) -> None:
        """Only topics with the text are listed; preview topics only if they are asked for."""
        assert "v2.users.{id}.presence" in genesys("topics", "--filter", "PRESENCE")[1]
        assert "v2.audits" not in genesys("topics", "--filter", "presence")[1]
        assert genesys("topics", "--filter", "nothing")[1] == "No topic contains 'nothing'.\n"
        assert "v2.preview.things.{id} (preview)" in genesys("topics", "--preview")[1]


class TestCheck:
    def test_all_is_granted(self, genesys: Genesys) -> None:
        """With all permissions, the exit code is 0. Names that the SDK does not have are named as such."""
        code, out, _ = genesys("check", "--topics", PRESENCE)
        assert code == exit_codes.OK
        assert "presence:user:view" in out
        assert "genesyscloud.eventstreams.read" in out.partition("Tutorials also name")[2]

    def test_a_missing_permission(self, genesys: Genesys, fake: FakeGenesys) -> None:
        """A permission that no role has is missing, and the exit code says so."""
        fake.permissions.discard("integrations:integration:edit")
        code, out, _ = genesys("check", "--for", "eventbridge", "--output", "json")
        states = {row["permission"]: row["granted"] for row in json.loads(out)["permissions"]}
        assert (code, states.pop("integrations:integration:edit")) == (exit_codes.ERRORS_FOUND, "no")
        assert set(states.values()) == {"yes"}
        assert json.loads(out)["scopes_of_user_tokens"] == {"eventbridge": "integrations"}

    def test_a_role_with_a_wildcard(self, genesys: Genesys, fake: FakeGenesys) -> None:
        """A role may allow all actions on an entity."""
        fake.permissions = {"integrations:integration:*", "authorization:grant:view"}
        assert genesys("check", "--for", "eventbridge")[0] == exit_codes.OK

    def test_roles_that_cannot_be_read(self, genesys: Genesys, fake: FakeGenesys) -> None:
        """Without the permission to read its roles, the client tries what it can read; the rest is unknown."""
        fake.permissions -= {"authorization:grant:view", "messaging:integration:view"}
        code, out, _ = genesys("check", "--output", "json")
        states = {row["permission"]: row["granted"] for row in json.loads(out)["permissions"]}
        assert code == exit_codes.ERRORS_FOUND
        assert (states["integrations:integration:view"], states["messaging:integration:view"]) == ("yes", "no")
        assert states["integrations:integration:add"] == "unknown"
        assert genesys("check", "--for", "eventbridge")[0] == exit_codes.WARNINGS_FOUND

    def test_topics_need_permissions_only_to_listen(self, genesys: Genesys, fake: FakeGenesys) -> None:
        """A topic that is sent to EventBridge needs no permission; a subscription to it does."""
        fake.permissions.discard("presence:user:view")
        assert genesys("check", "--topics", PRESENCE)[0] == exit_codes.ERRORS_FOUND
        code, out, _ = genesys("check", "--for", "eventbridge", "--topics", PRESENCE)
        assert (code, "presence:user:view" in out) == (exit_codes.OK, False)

    @pytest.mark.parametrize(
        ("flags", "is_granted"),
        [
            ({}, False),
            ({"requiresAnyValidator": True}, True),
            ({"requiresCurrentUserOrPermission": True}, False),
            ({"requiresCurrentUser": True, "requiresAnyValidator": True}, True),
        ],
    )
    def test_the_conditions_of_a_topic(
        self,
        genesys: Genesys,
        fake: FakeGenesys,
        monkeypatch: pytest.MonkeyPatch,
        flags: dict[str, bool],
        is_granted: bool,
    ) -> None:
        """All permissions of a topic are needed, or one of them if Genesys says so. A client has no user, so it needs
        the permissions that a user does not need for its own topic."""
        needed = ["presence:user:view", "presence:user:list"]
        monkeypatch.setattr(server, "TOPICS", [{**server.TOPICS[1], "requiresPermissions": needed, **flags}])
        fake.permissions.discard("presence:user:list")
        code, out, _ = genesys("check", "--for", "listen", "--topics", PRESENCE)
        assert code == (exit_codes.OK if is_granted else exit_codes.ERRORS_FOUND)
        assert ("presence:user:view or presence:user:list" in out) is is_granted

    def test_a_topic_for_its_own_user(
        self, genesys: Genesys, fake: FakeGenesys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A client without a user cannot subscribe to a topic that only its user can receive."""
        monkeypatch.setattr(server, "TOPICS", [{**server.TOPICS[1], "requiresCurrentUser": True}])
        assert "only the user of the topic" in genesys("topics")[1]
        code, _, err = genesys("check", "--topics", PRESENCE)
        assert (code, "Client Credentials has no user" in " ".join(err.split())) == (exit_codes.USAGE, True)
        assert genesys("check", "--for", "eventbridge", "--topics", PRESENCE)[0] == exit_codes.OK

    def test_a_topic_that_is_not_offered(self, genesys: Genesys) -> None:
        """A topic that Genesys does not list is refused."""
        code, _, err = genesys("check", "--topics", "v2.no.such.topic")
        assert (code, "does not offer the topic v2.no.such.topic" in err) == (exit_codes.USAGE, True)


class TestSettings:
    @pytest.mark.parametrize(
        ("missing", "problem"),
        [
            ("ONCEGATE_GENESYS_ENDPOINT", "the region of Genesys Cloud is missing; set genesys.region"),
            ("ONCEGATE_GENESYS_CLIENT_ID", "the OAuth client is missing; set genesys.client_id"),
            ("ONCEGATE_GENESYS_CLIENT_SECRET", "the secret of the OAuth client is missing; put it into the variable"),
        ],
    )
    def test_what_is_missing(
        self, genesys: Genesys, monkeypatch: pytest.MonkeyPatch, missing: str, problem: str
    ) -> None:
        """The error names the setting that is missing."""
        monkeypatch.delenv(missing)
        code, _, err = genesys("topics")
        assert (code, problem in err) == (exit_codes.USAGE, True)

    def test_a_secret_in_a_file(self, genesys: Genesys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The secret may be in a file that the settings name. Two secrets are refused."""
        (tmp_path / "client.secret").write_text(f"{SECRET}\n")
        (tmp_path / "oncegate.toml").write_text('[genesys]\nsecret_file = "client.secret"\n')
        code, _, err = genesys("topics")
        assert (code, "more than one secret" in err) == (exit_codes.USAGE, True)
        monkeypatch.delenv("ONCEGATE_GENESYS_CLIENT_SECRET")
        assert genesys("topics")[0] == exit_codes.OK

    def test_an_unknown_region(self, genesys: Genesys, monkeypatch: pytest.MonkeyPatch) -> None:
        """A host that is not a region is refused, with the place of the setting."""
        monkeypatch.delenv("ONCEGATE_GENESYS_ENDPOINT")
        code, _, err = genesys("topics", "--genesys-region", "example.com")
        assert (code, "--genesys-region: 'example.com' is not a region" in err) == (exit_codes.USAGE, True)

    def test_config_check(self, oncegate: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """`oncegate config check` finds a wrong region and a secret that cannot be read."""
        (tmp_path / "oncegate.toml").write_text('[genesys]\nregion = "example.com"\nsecret_file = "absent"\n')
        code, _, err = oncegate("config", "check")
        assert code == exit_codes.USAGE
        assert "oncegate.toml, genesys.region: 'example.com' is not a region" in err
        assert "there is no file absent" in err

    @pytest.mark.parametrize("command", ["topics", "check"])
    def test_wrong_credentials(self, genesys: Genesys, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
        """A refused login is one line without the secret, and not a missing permission."""
        monkeypatch.setenv("ONCEGATE_GENESYS_CLIENT_SECRET", "wrong-secret-hunter3")
        code, out, err = genesys(command)
        assert (code, CLIENT_ID in err, "hunter3" in err) == (exit_codes.FAILED, True, False)
        assert (out, "refused the login" in err) == ("", True)


class Process:
    """`oncegate genesys listen` in a process of its own."""

    def __init__(self, fake: FakeGenesys, folder: Path, *arguments: str, without: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._fake = fake
        (folder / "app.py").write_text(HANDLER)
        environment = {**os.environ, **settings_of(fake), "PYTHONPATH": str(folder)}
        environment |= dict.fromkeys(without, "")
        command = [str(Path(sys.executable).parent / "oncegate"), "genesys", "listen", *arguments]
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def listens(self) -> "Process":
        until(lambda: bool(self._fake.connected) or self.process.poll() is not None, "the listener to start")
        return self

    def handled(self) -> list[str]:
        path = self._folder / "handled"
        return path.read_text().split() if path.exists() else []

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@pytest.fixture
def listen(fake: FakeGenesys, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(*arguments: str, without: tuple[str, ...] = ()) -> Process:
        started.append(Process(fake, tmp_path, *arguments, without=without))
        return started[-1]

    yield start
    for process in started:
        if process.process.poll() is None:
            process.process.kill()
            process.process.communicate(timeout=10)


class TestListen:
    def test_the_whole_way(self, fake: FakeGenesys, listen: Callable[..., Process], oncegate: Run) -> None:
        """Events run once, SIGTERM stops the listener with exit code 0, and the journal and the log have each event. A
        killed listener leaves a gap, which the next run records; `oncegate events list` shows it."""
        options = ("--topics", PRESENCE, "--handler", "app:on_event")
        first = listen(*options).listens()
        for number in (1, 1, 2):
            fake.publish(PRESENCE, presence(number))
        until(lambda: len(first.handled()) == 2, "two events")
        code, out, err = first.end()
        assert (code, first.handled()) == (0, ["p1", "p2"])
        statuses = [json.loads(line)["status"] for line in out.splitlines()]
        assert (statuses.count("processed"), statuses.count("duplicate")) == (2, 1)
        assert "starts a worker of 1 topic of Genesys Cloud" in err
        assert not any(each in out + err for each in (SECRET, "streaming-5-", *fake.tokens))

        second = listen(*options).listens()
        fake.publish(PRESENCE, presence(3))
        until(lambda: len(second.handled()) == 3, "the third event")
        second.end(signal.SIGKILL)
        until(lambda: not fake.connected, "the connection of the killed listener to end")
        third = listen(*options).listens()
        until(lambda: _gaps(oncegate) == 2, "the gaps of two restarts")
        assert third.end()[0] == 0
        _, out, _ = oncegate("events", "list", "--status", "gap")
        assert "the listener of these topics did not run" in out
        assert USER not in out

    def test_a_topic_that_is_rejected(self, fake: FakeGenesys, listen: Callable[..., Process]) -> None:
        """A rejected topic is an error with the permission that is missing."""
        fake.rejected[PRESENCE] = "presence:user:view"
        listening = listen("--topics", PRESENCE, "--handler", "log")
        _, err = listening.process.communicate(timeout=30)
        code = listening.process.returncode
        assert (code, "the permission presence:user:view is missing" in err) == (exit_codes.QUEUE, True)

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            ((), "no topic is named"),
            (("--topics", "v2.users.{id}.presence"), "is a template; write the id of a user"),
            (("--topics", "presence"), "'presence' is not a topic"),
            (("--topics", PRESENCE), "no handler; use --handler"),
            (("--topics", PRESENCE, "--handler", "log", "--store", "nosuch://x"), "unknown store scheme"),
            (("--topics", PRESENCE, "--handler", "log", "--store", "memory://"), "memory:// loses the events"),
        ],
    )
    def test_invalid_options(self, genesys: Genesys, arguments: tuple[str, ...], problem: str) -> None:
        """Invalid options are refused before a channel is created."""
        code, _, err = genesys("listen", *arguments)
        assert (code, problem in err.replace("\n", " ")) == (exit_codes.USAGE, True)


def _gaps(oncegate: Run) -> int:
    code, out, _ = oncegate("events", "list", "--status", "gap", "--output", "json")
    return len(json.loads(out)["rows"]) if code == exit_codes.OK else 0
