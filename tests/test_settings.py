"""Settings: three sources in order, and every mistake is reported with its place."""

import ast
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import oncegate
from oncegate import Event, Gate
from oncegate.errors import SettingError
from oncegate.gate.options import DEFAULTS, OPTIONS, GateOptions
from oncegate.ingress.sqs import client
from oncegate.settings import Settings, examine, load
from oncegate.settings.parsing import as_text, parsed, shown
from oncegate.settings.schema import SETTINGS, TABLES
from oncegate.sinks import aws as aws_sinks
from oncegate.stores.dynamodb import settings as dynamodb_urls
from oncegate.stores.postgres import settings as postgres_urls
from oncegate.stores.redis import settings as redis_urls
from oncegate.text import KNOWN, masked


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(toml: str = "", environ: dict[str, str] | None = None, flags: dict[str, Any] | None = None) -> list[str]:
    """The problems of settings from these sources."""
    Path("oncegate.toml").write_text(toml)
    return examine(environ=environ or {}, flags=flags or {})[1]


@pytest.mark.usefixtures("folder")
class TestPlaces:
    def test_defaults(self) -> None:
        """Without any source, the settings are the defaults of a gate."""
        settings = load(environ={})
        assert {name: settings[name] for name in DEFAULTS} == DEFAULTS
        assert (settings["store"], settings["key"], settings["log"]) == ("sqlite:///oncegate.db", "auto", "off")
        assert (settings["serve.host"], settings["serve.port"], settings["serve.handler"]) == ("127.0.0.1", 8080, None)
        assert set(settings.origins.values()) == {"default"}

    def test_the_later_wins(self, folder: Path) -> None:
        """Variables override the file, flags override variables, and each value has its origin."""
        (folder / "oncegate.toml").write_text('namespace = "file"\nretention = "1d"\nlease = "1s"\n[serve]\nport = 1')
        environ = {"ONCEGATE_RETENTION": "2d", "ONCEGATE_LEASE": "2s", "ONCEGATE_SERVE_HOST": "::1", "HOME": "/"}
        settings = load(environ=environ, flags={"lease": "3s", "serve.port": "3", "max_hold": None})
        found = {path: (settings[path], origin) for path, origin in settings.origins.items() if origin != "default"}
        assert found == {
            "namespace": ("file", "oncegate.toml"),
            "retention": ("2d", "ONCEGATE_RETENTION"),
            "lease": ("3s", "--lease"),
            "serve.host": ("::1", "ONCEGATE_SERVE_HOST"),
            "serve.port": (3, "--port"),
        }

    def test_every_setting_can_be_set_anywhere(self) -> None:
        """Every setting can be set to its default in the file, in the environment and by a flag."""
        written = {
            path: "off" if setting.default is None else setting.default
            for path, setting in SETTINGS.items()
            if setting.default != ()  # an empty variable would count as unset
        }
        texts = {path: as_text(shown(SETTINGS[path], value)) for path, value in written.items()}
        environ = {SETTINGS[path].variable: text for path, text in texts.items()}
        for settings in (load(environ=environ), load(environ={}, flags=texts), load(environ={}, flags=written)):
            assert settings.values == load(environ={}).values
            assert {path for path, origin in settings.origins.items() if origin != "default"} == set(written)

    def test_kinds_of_values(self, folder: Path) -> None:
        """Lists, numbers, booleans and `off` mean the same in the file and in a variable."""
        (folder / "oncegate.toml").write_text(
            'unguarded_types = ["a", "b"]\non_store_error = "unguarded"\n'
            'max_attempts = "off"\nsliding = true\nthreads = 4'
        )
        environ = {
            "ONCEGATE_UNGUARDED_TYPES": " a, b,",
            "ONCEGATE_ON_STORE_ERROR": "unguarded",
            "ONCEGATE_MAX_ATTEMPTS": "off",
            "ONCEGATE_SLIDING": "True",
            "ONCEGATE_THREADS": "4",
        }
        from_file = load(environ={})
        (folder / "oncegate.toml").unlink()
        assert from_file.values == load(environ=environ).values
        assert (from_file["unguarded_types"], from_file["max_attempts"]) == (("a", "b"), None)

    def test_empty_variables_are_unset(self) -> None:
        """An empty variable is ignored, whatever its name."""
        environ = {"ONCEGATE_LEASE": "", "ONCEGATE_CONFIG": " ", "ONCEGATE_NONSENSE": ""}
        assert set(load(environ=environ).origins.values()) == {"default"}

    def test_which_file(self, folder: Path) -> None:
        """A path overrides the flag, the flag overrides the variable, and the variable overrides the file in the
        folder."""
        for name in ("oncegate", "variable", "flag", "path"):
            (folder / f"{name}.toml").write_text(f'namespace = "{name}"')
        environ, flags = {"ONCEGATE_CONFIG": "variable.toml"}, {"config": "flag.toml"}
        assert load("path.toml", environ, flags)["namespace"] == "path"
        assert load(None, environ, flags)["namespace"] == "flag"
        assert load(None, environ)["namespace"] == "variable"
        assert load(None, {})["namespace"] == "oncegate"
        assert load(None, environ).origins["namespace"] == "variable.toml"

    def test_a_byte_order_mark(self, folder: Path) -> None:
        """A file with a byte order mark is read like any other."""
        (folder / "oncegate.toml").write_bytes(b'\xef\xbb\xbflease = "1s"\r\n')
        assert load(environ={})["lease"] == "1s"


@pytest.mark.usefixtures("folder")
class TestMistakes:
    @pytest.mark.parametrize(
        ("toml", "message"),
        [
            ("max_atempts = 5", "oncegate.toml: there is no setting max_atempts; did you mean max_attempts?"),
            ("[sevre]\nport = 1", "oncegate.toml: there is no setting sevre; did you mean serve?"),
            ("[serve]\nprot = 1", "oncegate.toml: there is no setting serve.prot; did you mean serve.port?"),
            (
                '[serve]\nlease = "1s"',
                "oncegate.toml: there is no setting serve.lease; write lease above the first table",
            ),
            ("serve = 8080", "oncegate.toml: serve=8080 must be a table: write [serve]"),
            ("lease = 30", "oncegate.toml: lease=30 is not a duration; write it like"),
            ("lease = {s = 1}", "oncegate.toml: lease={'s': 1} is not a duration"),
            (
                'max_age = "x"',
                "oncegate.toml: max_age='x' is not a duration; write it like 500ms, 30s, 5m, 24h or 7d, or",
            ),
            ('max_attempts = "5"', "max_attempts='5' must be a whole number, 1 or more, or off to leave it"),
            ("threads = 0", "oncegate.toml: threads=0 must be a whole number, 1 or more"),
            ("threads = true", "oncegate.toml: threads=True must be a whole number"),
            ('mode = "lesae"', "mode='lesae' is not a choice; it is one of lease, mark_first"),
            ("mode = []", "mode=[] is not a choice"),
            ('log = "yes"', "log='yes' is not a choice; it is one of off, json"),
            ('sliding = "true"', "sliding='true' must be true or false"),
            ("unguarded_types = [1]", "unguarded_types=[1] must be a list of names"),
            ("nothing_like_it = 1", ": see oncegate config show"),
            ('namespace = "a\\u001bb"', "namespace='a\\x1bb' must be printable text"),
            ("store = 5", "store=5 is not a URL; write one such as sqlite:///oncegate.db or memory://"),
            ('store = "u:hunter2@host"', "store='***@host' is not a URL"),
            ("key = 5", "key=5 must be text, such as auto"),
            ('[serve]\nhost = ""', "serve.host='' must be text"),
            ("[serve]\nport = 70000", "serve.port=70000 must be a whole number from 0 to 65535"),
            (
                '[serve]\nhandler = "app"',
                "serve.handler='app' must be written module:function, such as app:on_event, or",
            ),
            ("lease =\n", "oncegate.toml is not TOML: Invalid value (at line 1, column 8)"),
            ('retention = "1s"', "oncegate.toml: retention='1s' is shorter than lease='30s'"),
            ('remember = "2m"', "oncegate.toml: remember='2m' is too long"),
            ('on_store_error = "unguarded"', "oncegate.toml: on_store_error='unguarded' needs unguarded_types"),
        ],
    )
    def test_in_the_file(self, toml: str, message: str) -> None:
        """Each mistake in the file is one sentence with the file, the setting and what to write."""
        (problem,) = problems(toml)
        assert message in problem

    @pytest.mark.parametrize(
        ("variable", "value", "message"),
        [
            ("ONCEGATE_RETNTION", "7d", "ONCEGATE_RETNTION: there is no setting RETNTION; did you mean RETENTION?"),
            ("ONCEGATE_SERV_PORT", "1", "did you mean SERVE_PORT?"),
            ("ONCEGATE_CONFIGS", "1", "did you mean CONFIG?"),
            ("ONCEGATE_SERVE_PORT", "http", "ONCEGATE_SERVE_PORT: serve.port='http' must be a whole number"),
            ("ONCEGATE_THREADS", "9" * 5_000, "must be a whole number"),
            ("ONCEGATE_SLIDING", "1", "ONCEGATE_SLIDING: sliding='1' must be true or false"),
            ("ONCEGATE_CONFIG", "no.toml", "ONCEGATE_CONFIG: there is no settings file no.toml"),
            ("ONCEGATE_CONFIG", ".", "ONCEGATE_CONFIG: cannot read the settings file .: Is a directory"),
        ],
    )
    def test_in_the_environment(self, variable: str, value: str, message: str) -> None:
        """Each mistake in the environment is one sentence with the variable."""
        (problem,) = problems(environ={variable: value})
        assert message in problem

    def test_in_flags(self) -> None:
        """A mistake in a flag names the flag, and an unknown setting names the most similar one."""
        assert problems(flags={"max_attempts": "0"})[0].startswith("--max-attempts: max_attempts=0 must be a whole")
        assert problems(flags={"config": "no.toml"}) == ["--config: there is no settings file no.toml"]
        assert problems(flags={"serve.prot": 1}) == ["there is no setting serve.prot; did you mean serve.port?"]

    def test_all_at_once(self) -> None:
        """Every mistake in every source is reported, and `load` raises with one line for each."""
        environ, flags = {"ONCEGATE_MODE": "x", "ONCEGATE_X": "x"}, {"max_hold": "1"}
        found = problems('lease = "1"\nmax_age = "1"\n', environ, flags)
        assert [problem.split(":")[0] for problem in found] == [
            "oncegate.toml",
            "oncegate.toml",
            "ONCEGATE_MODE",
            "ONCEGATE_X",
            "--max-hold",
        ]
        with pytest.raises(SettingError) as raised:
            load(None, environ, flags)
        assert str(raised.value).splitlines() == found

    def test_contradicting_settings(self) -> None:
        """Two settings that contradict each other are reported with the places of both."""
        (problem,) = problems('lease = "10m"', {"ONCEGATE_RETENTION": "1m"})
        assert problem.startswith("ONCEGATE_RETENTION, oncegate.toml: retention='1m' is shorter than lease='10m'")

    @pytest.mark.parametrize("content", [b"\xff\xfe", b"a = " + b"[" * 100_000])
    def test_a_file_that_is_not_text(self, folder: Path, content: bytes) -> None:
        """A file that is not text, or that breaks the parser, is reported like invalid TOML."""
        (folder / "oncegate.toml").write_bytes(content)
        (problem,) = examine(environ={})[1]
        assert problem.startswith("oncegate.toml is not TOML: ")

    def test_a_broken_link(self, folder: Path) -> None:
        """A settings file that is a broken link is reported as missing."""
        (folder / "oncegate.toml").symlink_to("gone.toml")
        assert examine(environ={})[1] == ["there is no settings file oncegate.toml"]


class TestKnown:
    def test_derived_from_the_gate(self) -> None:
        """Each setting of the gate has a kind that fits its type, and a meaning."""
        kinds = {setting.name: setting.kind for setting in TABLES[""]}
        assert set(get_type_hints(GateOptions)) == set(DEFAULTS) <= set(kinds)
        assert kinds.items() >= {name: option.kind for name, option in OPTIONS.items()}.items()
        assert {name for name, kind in kinds.items() if kind == "text"} == {"namespace"}
        assert (kinds["sliding"], kinds["unguarded_types"], kinds["on_replay"]) == ("truth", "names", "choice")
        assert all(setting.meaning.endswith(".") for setting in SETTINGS.values())

    def test_no_two_share_a_name(self) -> None:
        """No two settings have the same variable, and none has that of the settings file."""
        variables = [setting.variable for setting in SETTINGS.values()]
        assert len({*variables, "ONCEGATE_CONFIG"}) == len(variables) + 1


EVENT = Event(
    source="plain",
    id="evt-1",
    entity="call-1",
    state="Answered",
    occurred_at=datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC),
    body={"id": "evt-1", "a": {"b": 1}, "time": 5, "at": "2026-02-03T04:05:06Z"},
)


class TestStrategies:
    @pytest.mark.parametrize(
        ("written", "strategy"),
        [
            ("auto", oncegate.keys.auto),
            (" event_id ", oncegate.keys.event_id),
            ("keys.content", oncegate.keys.content),
            ('fields("a.b")', oncegate.keys.fields("a.b")),
            ("keys.fields('a.b', 'time')", oncegate.keys.fields("a.b", "time")),
            ("fields('a.b', 'at', round='1m')", oncegate.keys.fields("a.b", "at", round="1m")),
            ("content(exclude=['a.b', 'at'])", oncegate.keys.content(exclude=["a.b", "at"])),
            ("once_per('survey', 'a.b')", oncegate.keys.once_per("survey", "a.b")),
            ("first(fields('no'), content)", oncegate.keys.first(oncegate.keys.fields("no"), oncegate.keys.content)),
            ("state_change()", oncegate.keys.state_change()),
            (
                "keys.state_change(window='2s', aliases={'answered': 'connected'}, rank=['on', 'connected'])",
                oncegate.keys.state_change(window="2s", aliases={"answered": "connected"}, rank=["on", "connected"]),
            ),
            (
                "state_change('1s', entity='a.b', state='id')",
                oncegate.keys.state_change("1s", entity="a.b", state="id"),
            ),
        ],
    )
    def test_written_as_in_python(self, written: str, strategy: Any) -> None:
        """A strategy in a setting gives the same key as the same text in Python."""
        assert parsed(written)(EVENT) == strategy(EVENT)

    @pytest.mark.parametrize(
        ("written", "message"),
        [
            ("feilds('a')", "there is no key strategy feilds; did you mean fields?"),
            ("event_ids", "there is no key strategy event_ids; did you mean event_id?"),
            ("make", "there is no key strategy make"),
            ("fields", "key=fields needs its arguments: fields(…)"),
            ("fields()", "key=fields(): fields() takes at least one path"),
            ("fields(5)", "key=fields(5): fields() takes at least one path"),
            ("fields('a', wrong=1)", "got an unexpected keyword argument 'wrong'"),
            ("fields(a)", "there is no key strategy a; there are"),
            ("fields('a' + 'b')", "key: 'a' + 'b' is neither a strategy nor a literal value"),
            ("fields(*['a'])", "is neither a strategy nor a literal value"),
            ("fields(**{'a': 1})", "** is not allowed; write each argument by its name"),
            ("auto()", "auto takes no arguments; write key=auto"),
            ("event_id('a')", "event_id takes no arguments"),
            ("content(exclude=5)", 'key=content(exclude=5): exclude=5 must be a path such as "meta.sentAt"'),
            ("state_change", "key=state_change needs its arguments: state_change(…)"),
            ("state_change(5)", "window=5 is not a duration"),
            ("content('a')", "content takes keyword arguments only, such as content(exclude=[…])"),
            ("", "key='' cannot be parsed; write it like auto or fields("),
            ("auto; auto", "cannot be parsed"),
            ("fields('a'", "cannot be parsed"),
            ("a\0b", "cannot be parsed"),
            ("-" * 200_000 + "1", "cannot be parsed"),
            ("-" * 900 + "1", "cannot be parsed"),
            ("fields(event_id)", "key=fields(event_id): fields() takes at least one path"),
            ("5", "key=5 is not a strategy"),
            ("lambda event: 1", "is not a strategy"),
            ("os.environ", "key=os.environ is not a strategy"),
            ("auto.__globals__", "is not a strategy"),
            ("fields('a').__globals__", "is not a strategy"),
            ("keys.fields.__globals__", "is not a strategy"),
            ("__import__('os')", "there is no key strategy __import__"),
            ("keys.SettingError('x')", "there is no key strategy SettingError"),
        ],
    )
    def test_refused(self, written: str, message: str) -> None:
        """Everything except a built-in strategy with literal arguments is rejected with a message, and never
        evaluated."""
        with pytest.raises(SettingError) as raised:
            parsed(written)
        assert message in str(raised.value)

    def test_a_function_of_the_user(self, folder: Path) -> None:
        """`module:function` is imported from the current folder when the gate is made, and not before."""
        (folder / "own_key.py").write_text("def parts(event):\n    return [event.body['call']]\n")
        settings = load(environ={"ONCEGATE_KEY": "own_key:parts", "ONCEGATE_STORE": "memory://"})
        assert "own_key" not in sys.modules
        gate = settings.gate()
        assert [gate.run({"id": i, "call": 7}, lambda event: None).status for i in (1, 2)] == ["processed", "conflict"]

    @pytest.mark.parametrize(
        ("written", "message"),
        [
            ("no_such_module:f", "importing no_such_module failed with ModuleNotFoundError"),
            ("json:nothing", "ONCEGATE_KEY json:nothing: there is no nothing in json"),
            ("json:__name__", "ONCEGATE_KEY json:__name__: __name__ is not callable"),
        ],
    )
    def test_a_missing_function(self, folder: Path, written: str, message: str) -> None:
        """A function that cannot be imported is reported with its place, before a store is opened."""
        settings = load(environ={"ONCEGATE_KEY": written})
        with pytest.raises(SettingError, match=message):
            settings.gate()
        assert list(folder.iterdir()) == []


class TestGate:
    def settings(self, **environ: str) -> Settings:
        return load(environ={"ONCEGATE_STORE": "memory://"} | {f"ONCEGATE_{k.upper()}": v for k, v in environ.items()})

    def test_the_same_configuration(self) -> None:
        """A gate made from settings has the same configuration as a gate with the same options in Python."""
        made = self.settings(namespace="crm", retention="1d", max_attempts="off", remember="off", key='fields("a")')
        expected = Gate("memory://", namespace="crm", retention="1d", max_attempts=None, remember=None)
        gate = made.gate()
        assert gate._config == expected._config
        assert [gate.run({"id": i, "a": 1}, lambda event: None).status for i in (1, 2)] == ["processed", "conflict"]
        assert made.gate(namespace="other")._config.namespace == "other"

    def test_log(self, capfd: pytest.CaptureFixture[str]) -> None:
        """With log="json" the gate writes a line for each outcome. Given observers replace the log."""
        for settings, observers in ((self.settings(), None), (self.settings(log="json"), ())):
            gate = settings.gate(observers=observers)
            gate.run({"id": 1}, lambda event: None)
            gate.close()
            assert capfd.readouterr().out == ""
        gate = self.settings(log="json").gate()
        gate.run({"id": 1}, lambda event: None)
        gate.close()
        assert capfd.readouterr().out.count('"status":"processed"') == 1

    def test_invalid_options(self, folder: Path) -> None:
        """Invalid options are rejected before the store is opened."""
        with pytest.raises(SettingError, match="lease"):
            self.settings(store=f"sqlite:///{folder}/a.db").gate(lease="soon")
        assert list(folder.iterdir()) == []

    def test_a_store_that_cannot_be_opened(self) -> None:
        """A store that cannot be opened is reported with the place of its URL."""
        with pytest.raises(SettingError, match="ONCEGATE_STORE: unknown store scheme 'mysql'"):
            self.settings(store="mysql://x").gate()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a@b.db?synchronous=full", "sqlite:///a@b.db?synchronous=full"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:hunter2@host:6379/0", "redis://:***@host:6379/0"),
        ("redis://user@host", "redis://user@host"),
        ("postgresql://u:hunter2@h/db?sslmode=require", "postgresql://u:***@h/db?sslmode=require"),
        ("postgresql://u:hun/@:ter2@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:hunter2?#@h/db", "postgresql://u:***@h/db"),
        ("postgresql://h/db?user=a&password=hunter2&x=1", "postgresql://h/db?user=a&password=***&x=***"),
        ("redis://h?auth=hunter2&timeout=1s&hunter2#hunter2", "redis://h?auth=***&timeout=1s&***#***"),
        ("sqlite:///a.db?region=r&%72egion=hunter2", "sqlite:///a.db?region=r&%72egion=***"),
        (
            "redis://h?API_KEY=hunter2;authToken=hunter2&client-secret=hunter2",
            "redis://h?API_KEY=***;authToken=***&client-secret=***",
        ),
        ("dynamodb://T?region=r&endpoint=http://u:hunter2@h", "dynamodb://T?region=r&endpoint=http:***@h"),
    ],
)
def test_masking(url: str, shown: str) -> None:
    """A URL is shown with its password and every unknown parameter masked."""
    assert masked(url) == shown
    assert "hunter2" not in str(load(environ={"ONCEGATE_STORE": url}).shown())


def test_options_that_are_shown() -> None:
    """All options of stores, queues and buses are shown, except the file of a key, whose name looks like a secret."""
    ours = [*redis_urls._COMMON, *redis_urls._CLUSTERED, *redis_urls._ENCRYPTED, *postgres_urls.OPTIONS]
    ours += [*dynamodb_urls.OPTIONS, *aws_sinks._COMMON, *client.OPTIONS, "account", "source"]
    ours += ["synchronous", "busy_timeout"]
    assert set(ours) - KNOWN == {"key_file"}


def test_one_name_is_a_list_of_one(tmp_path: Path) -> None:
    """A setting for a list of names accepts a single name without brackets."""
    path = tmp_path / "oncegate.toml"
    path.write_text('on_store_error = "unguarded"\nunguarded_types = "a"\n[forward]\nhosts = "b.example"\n')
    found = load(path, environ={})
    assert (found["unguarded_types"], found["forward.hosts"]) == (("a",), ("b.example",))


def test_nothing_else_reads_the_environment() -> None:
    """Only the settings read the environment."""
    root = Path(oncegate.__file__).parent
    readers = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = {getattr(node, "attr", None), getattr(node, "id", None), getattr(node, "name", None)}
            if names & {"environ", "environb", "getenv", "getenvb"}:
                readers.add(path.relative_to(root))
    assert readers == {Path("settings/load.py")}


def test_the_library_does_not_import_settings() -> None:
    """`import oncegate` does not import the settings."""
    code = "import sys, oncegate; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert not {"oncegate.settings", "tomllib", "logging"} & set(done.stdout.split())


class TestHints:
    def test_paths_of_plain_events(self) -> None:
        """The gate reads plain events at the paths in the settings, and identifies them by the values there."""
        flags = {"store": "memory://", "read.id": "meta.id", "read.entity": "call.id", "read.source": "pbx"}
        gate = load(environ={}, flags=flags).gate()
        outcome = gate.run({"meta": {"id": "m-1"}, "call": {"id": "c-1"}}, lambda event: None)
        assert (outcome.event.source, outcome.event.id, outcome.event.entity) == ("pbx", "m-1", "c-1")

    def test_the_topic_of_bare_bodies(self) -> None:
        """A Genesys body without a topic gets the topic in the settings."""
        flags = {"store": "memory://", "read.topic": "v2.detail.events.conversation.{id}.acw"}
        body = {"conversationId": "c-1", "sessionId": "s-1", "eventTime": 1_765_551_752_433}
        outcome = load(environ={}, flags=flags).gate().run(body, lambda event: None)
        assert outcome.event.type == "v2.detail.events.conversation.{id}.acw"

    def test_an_invalid_path(self) -> None:
        """An invalid path is reported with its place."""
        with pytest.raises(SettingError, match=r"id='\.' is not a path"):
            load(environ={}, flags={"store": "memory://", "read.id": "."}).gate()
