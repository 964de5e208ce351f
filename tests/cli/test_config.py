"""Settings on the command line: their sources, and `oncegate config`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oncegate import Gate
from oncegate.cli import exit_codes
from oncegate.settings.schema import SETTINGS
from tests.cli.conftest import Run


def fail(event: object) -> None:
    raise ValueError("no")


class TestCommands:
    def test_the_store_of_the_file(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """Commands use the store of the settings; a flag overrides it."""
        gate.run({"id": "evt-1"}, fail)
        gate.close()
        (tmp_path / "oncegate.db").rename(tmp_path / "other.db")
        (tmp_path / "oncegate.toml").write_text('store = "sqlite:///other.db"')
        assert "evt-1" in oncegate("dlq", "list")[1]
        code, _, err = oncegate("dlq", "list", "--store", "sqlite:///oncegate.db")
        assert (code, "there is no store at oncegate.db" in err) == (exit_codes.STORE, True)

    def test_the_namespace_of_the_environment(self, oncegate: Run, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
        """Commands use the chosen namespace; without one, they use all namespaces."""
        gate.run({"id": "evt-1"}, fail)
        assert "evt-1" in oncegate("dlq", "list")[1]
        monkeypatch.setenv("ONCEGATE_NAMESPACE", "crm")
        assert oncegate("dlq", "list")[1].startswith("There are no dead letters in namespace crm. ")
        assert "evt-1" in oncegate("dlq", "list", "--namespace", "default")[1]

    def test_the_named_file(self, oncegate: Run, tmp_path: Path) -> None:
        """`--config` names another file for every command."""
        (tmp_path / "crm.toml").write_text('store = "memory://"')
        code, _, err = oncegate("--config", "crm.toml", "dlq", "list")
        assert (code, "crm.toml, store: memory:// lives within one process" in err) == (exit_codes.USAGE, True)

    def test_redriven_with_the_same_terms(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """Redriven events get the max_attempts of the settings; if that is off, they get the default."""
        (tmp_path / "broken.py").write_text("def handler(event):\n    assert False\n")
        for written, attempts in (("3", 3), ('"off"', 5)):
            gate.run({"id": written}, fail)
            (tmp_path / "oncegate.toml").write_text(f'max_attempts = {written}\nlog = "json"')
            code, out, _ = oncegate("dlq", "redrive", "--all", "--handler", "broken:handler")
            assert (code, f"after {attempts} attempts" in out, '"status"' in out) == (exit_codes.FAILED, True, False)

    @pytest.mark.parametrize(
        ("command", "tables"),
        [("serve", {"", "serve", "read", "forward"}), ("work", {"", "work", "read"}), ("console", {"console"})],
    )
    def test_every_setting_is_a_flag(self, oncegate: Run, command: str, tables: set[str]) -> None:
        """The help of `serve`, `work` and `console` lists each of their settings by its flag."""
        settings = [setting for setting in SETTINGS.values() if setting.table in tables and setting.name != "enabled"]
        settings += [SETTINGS["console.enabled"]] if command == "serve" else []
        _, out, _ = oncegate(command, "--help")
        assert [setting.flag for setting in settings if f"  {setting.flag} " not in out] == []

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("serve", "--lease", "30"), "--lease: lease='30' is not a duration"),
            (("serve", "--port", "x"), "--port: serve.port='x' must be a whole number from 0 to 65535"),
            (("serve", "--max-attempts", "0"), "--max-attempts: max_attempts=0 must be"),
            (("serve", "--retention", "1s"), "--retention: retention='1s' is shorter than lease='30s'"),
            (("serve", "--key", "feilds('a')"), "--key: there is no key strategy feilds; did you mean fields?"),
            (("serve", "--store", "mysql://x"), "--store: unknown store scheme 'mysql'"),
            (("serve", "--host", "::"), "--host ::: no signature is checked"),
            (("serve", "--handler", "json:nothing"), "--handler json:nothing: there is no nothing in json"),
            (("work", "sqs://q", "--handler", "json:nothing"), "--handler json:nothing: there is no nothing in json"),
            (("work", "sqs://q", "--in-hand", "0"), "--in-hand: work.in_hand=0 must be a whole number, 1 or more"),
            (("work", "sqs://q", "--handler", "json:dumps", "--batch", "11"), "--batch: batch=11 must be a whole"),
            (("dlq", "redrive", "--all", "--handler", "json:nothing"), "--handler json:nothing: there is no nothing"),
            (("dlq", "list", "--namespace", ""), "--namespace: namespace='' must be printable text"),
            (("--config", "no.toml", "keys", "show", "0" * 32), "--config: there is no settings file no.toml"),
        ],
    )
    def test_an_error_names_the_flag(self, oncegate: Run, arguments: tuple[str, ...], said: str) -> None:
        """An invalid flag is reported by its name, with exit code 2."""
        code, _, err = oncegate(*arguments)
        assert (code, err.startswith(f"Error: {said}")) == (exit_codes.USAGE, True), err


class TestCheck:
    def test_in_order(self, oncegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Valid settings give one sentence that names their sources; no store is opened or created."""
        assert oncegate("config", "check") == (0, "The settings are valid: all settings have their defaults.\n", "")
        (tmp_path / "oncegate.toml").write_text('lease = "1s"\nstore = "sqlite:///not/there.db"')
        monkeypatch.setenv("ONCEGATE_THREADS", "4")
        said = (
            "The settings are valid: values from oncegate.toml, ONCEGATE_THREADS; all other settings have their"
            " defaults.\n"
        )
        assert oncegate("config", "check") == (exit_codes.OK, said, "")
        assert [path.name for path in tmp_path.iterdir()] == ["oncegate.toml"]

    def test_every_problem(self, oncegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each problem is one line that begins with its place."""
        (tmp_path / "oncegate.toml").write_text('retentoin = "7d"\nthreads = 0\n')
        monkeypatch.setenv("ONCEGATE_SERVE_PROT", "1")
        code, out, err = oncegate("config", "check")
        assert (code, out) == (exit_codes.USAGE, "")
        assert err.splitlines() == [
            "Error: oncegate.toml: there is no setting retentoin; did you mean retention?",
            "Error: oncegate.toml: threads=0 must be a whole number, 1 or more",
            "Error: ONCEGATE_SERVE_PROT: there is no setting SERVE_PROT; did you mean SERVE_PORT?",
        ]

    def test_what_is_named_is_looked_for(self, oncegate: Run, tmp_path: Path) -> None:
        """Missing functions and a host that needs a signature are problems too."""
        (tmp_path / "oncegate.toml").write_text(
            'key = "json:nothing"\n[serve]\nhandler = "json:none"\nhost = "0.0.0.0"\n[work]\nhandler = "json:no"\n'
        )
        code, _, err = oncegate("config", "check")
        lines = err.splitlines()
        assert code == exit_codes.USAGE
        assert lines[0] == "Error: oncegate.toml, key json:nothing: there is no nothing in json"
        assert lines[1].startswith("Error: oncegate.toml, serve.handler json:none: there is no none")
        assert lines[2] == "Error: oncegate.toml, work.handler json:no: there is no no in json"
        assert lines[3].startswith("Error: oncegate.toml, serve.host 0.0.0.0: no signature is checked")

    def test_no_problem_hides_another(self, oncegate: Run, tmp_path: Path) -> None:
        """All problems are reported at once; nothing is reported about settings that depend on a refused one."""
        (tmp_path / "oncegate.toml").write_text(
            'key = "json:nothing"\nthreads = 0\nretention = "1s"\non_store_error = "unguarded"\nremember = "2m"\n'
            '[serve]\nhandler = "json:none"\nhost = "0.0.0.0"\nsignature = 5\ntls_cert = "none.pem"\n'
            '[route.crm]\nsignature = "cxone"\nsecret = "x"\nhandler = "json:neither"\n'
        )
        code, _, err = oncegate("config", "check")
        said = [line.removeprefix("Error: oncegate.toml").lstrip(",: ") for line in err.splitlines()]
        assert code == exit_codes.USAGE
        assert [line[:24] for line in said] == [
            "threads=0 must be a whol",
            "serve.signature=5 must b",
            "retention='1s' is shorte",
            "remember='2m' is too lon",
            "on_store_error='unguarde",
            "[route.crm]: a secret mu",
            "key json:nothing: there ",
            "serve.handler json:none:",
            "[route.crm], handler jso",
            "serve.tls_cert: TLS need",
        ]

    @pytest.mark.parametrize(
        ("toml", "said"),
        [
            ('[serve]\nproxies = ["foo"]', "oncegate.toml, serve.proxies: 'foo' does not appear to be"),
            (
                '[serve]\ntls_cert = "oncegate.toml"\ntls_key = "oncegate.toml"',
                "cannot use oncegate.toml and oncegate.toml: both must be PEM files: tls_cert the certificate",
            ),
            ('store = "sqlite:///x?bogus=1"', "oncegate.toml, store: the SQLite store has no option 'bogus'"),
            ('store = "sqlite:///a%00b.db"', "oncegate.toml, store: no file can have a NUL"),
            ('store = "dynamodb://k:s3cret@Table"', "oncegate.toml, store: 'dynamodb://***@Table' names no table"),
            ('store = "redis://h?x=1"', "oncegate.toml, store: the Redis store has no option 'x'"),
            ('store = "memory://x"', "oncegate.toml, store: the memory store takes no address or options"),
            ('[read]\nid = "a..b"', "oncegate.toml, read.id: id='a..b' is not a path"),
            (
                '[serve]\nsignature_options = ["header=x"]',
                "oncegate.toml, serve.signature_options: options are set, but no signature",
            ),
            ('[serve]\nsignature = "foo"', "oncegate.toml, serve.signature: there is no signature foo; there are"),
            (
                'store = "redis://h"\n[serve]\nhandler = "json:dumps"',
                "serve.mode=inbox: redis:// cannot store events until they are run; run a handler while the sender"
                ' waits (--serve-mode inline, or mode = "inline" in [serve]), or use SQLite',
            ),
            (
                'store = "dynamodb://Table"\n[serve]\nport = 1',
                "or use SQLite (sqlite:///oncegate.db) or Postgres (postgresql://…) for the inbox",
            ),
            ('store = "memory://"\n[serve]\nhandler = "log"', "serve.mode=inbox: memory:// cannot store events"),
            (
                '[serve]\nmode = "inline"',
                "oncegate.toml, serve.mode=inline: POST /events has no handler to run while the sender waits; name one",
            ),
            (
                '[serve]\nmode = "inline"\n[route.a]\nsignature = "none"\nhandler = "log"\n'
                '[route.b]\nsignature = "none"',
                "serve.mode=inline: POST /events/b has no handler",
            ),
            (
                'mode = "mark_first"\n[serve]\nport = 1',
                "mode='mark_first' would complete them before; or choose --serve-mode inline, or mode = ",
            ),
        ],
    )
    def test_what_serve_would_refuse(self, oncegate: Run, tmp_path: Path, toml: str, said: str) -> None:
        """`config check` reports everything that `serve` refuses, in the same words."""
        (tmp_path / "oncegate.toml").write_text(toml)
        code, _, checked = oncegate("config", "check")
        assert (code, said in checked, checked.count("Error: ")) == (exit_codes.USAGE, True, 1), checked
        assert oncegate("serve")[2] == checked

    @pytest.mark.parametrize(
        ("toml", "said"),
        [
            ('source = "kafka://h/t"', "oncegate.toml, work.source: the URL has no name of a Kafka consumer group"),
            (
                'source = "amqp://h/q"',
                "ONCEGATE_STORE: memory:// loses the events that it holds",
            ),
        ],
    )
    def test_a_source_that_work_would_refuse(
        self, oncegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: str, said: str
    ) -> None:
        """`config check` reports the source, in the words of `work`."""
        monkeypatch.setenv("ONCEGATE_STORE", "memory://")
        (tmp_path / "oncegate.toml").write_text(f'[serve]\nmode = "inline"\nhandler = "log"\n[work]\n{toml}\n')
        code, _, checked = oncegate("config", "check")
        assert (code, said in checked, checked.count("Error: ")) == (exit_codes.USAGE, True, 1), checked
        assert oncegate("work", "--handler", "log")[2] == checked

    def test_what_work_would_refuse(self, oncegate: Run, tmp_path: Path) -> None:
        """`config check` reports each value that no queue allows, and `work` each value that its own queue does not."""
        (tmp_path / "oncegate.toml").write_text('[work]\nbatch = 1001\nwait = "2h"\nvisibility = "13h"\n')
        code, _, err = oncegate("config", "check")
        assert (code, err.splitlines()) == (
            exit_codes.USAGE,
            [
                "Error: oncegate.toml, work.batch: batch=1001 must be a whole number from 1 to 1000",
                "Error: oncegate.toml, work.wait: wait='2h' is too long; the maximum of any queue is 1h",
                "Error: oncegate.toml, work.visibility: visibility='13h' is too long; the maximum of any queue is 12h",
            ],
        )
        (tmp_path / "oncegate.toml").write_text("[work]\nbatch = 11\n")
        assert oncegate("config", "check")[0] == exit_codes.OK
        assert oncegate("work", "sqs://q?region=x", "--handler", "json:dumps")[2] == (
            "Error: oncegate.toml, work.batch: batch=11 must be a whole number from 1 to 10\n"
        )

    def test_every_problem_of_forwarding(self, oncegate: Run, tmp_path: Path) -> None:
        """All problems of forwarding are reported at once, each with its own place."""
        (tmp_path / "oncegate.toml").write_text(
            '[serve]\nforward = "http://a.example"\n'
            '[forward]\nheaders = "/nope"\nca = "/nope"\ncertificate_key = "/nope"\npins = ["abc"]\n'
        )
        _, _, err = oncegate("config", "check")
        said = [line.removeprefix("Error: oncegate.toml, ") for line in err.splitlines()]
        assert [line.partition(":")[0] for line in said] == [
            "serve.forward",
            "forward.headers",
            "forward.pins",
            "forward.ca",
            "forward.certificate_key",
        ]
        assert said[0].endswith(" (see forward.allow_private)")
        assert oncegate("serve")[2] == err.splitlines(keepends=True)[0]

    def test_traces_that_go_nowhere(self, oncegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tracing is refused if no SDK is installed. Only the service can check the configuration of the SDK."""
        (tmp_path / "oncegate.toml").write_text("[serve]\ntrace = true\n")
        assert oncegate("config", "check")[0] == exit_codes.OK
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
        assert oncegate("config", "check")[2].startswith("Error: oncegate.toml, serve.trace: no OpenTelemetry SDK is")

    def test_a_default_is_named_by_its_setting(self, oncegate: Run, tmp_path: Path) -> None:
        """A problem with a default value is reported by the name of the setting."""
        (tmp_path / "oncegate.toml").write_text('mode = "mark_first"\n[serve]\nport = 1\n')
        assert oncegate("config", "check")[2].startswith("Error: serve.mode=inbox: inbox() stores events")

    def test_a_store_that_keeps_nothing(self, oncegate: Run, tmp_path: Path) -> None:
        """Without a service in the settings, the store need not have an inbox."""
        (tmp_path / "oncegate.toml").write_text('store = "redis://h"\n[work]\nhandler = "json:dumps"\n')
        assert oncegate("config", "check")[0] == exit_codes.OK

    def test_a_broken_file(self, tmp_path: Path) -> None:
        """A broken file gives one sentence with line and column."""
        (tmp_path / "oncegate.toml").write_text('lease = "1s"\nretention = 7d\n')
        command = [sys.executable, "-m", "oncegate", "config", "check"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (exit_codes.USAGE, "")
        assert done.stderr.startswith("Error: oncegate.toml is not TOML: ")
        assert "at line 2, column 14" in done.stderr
        assert done.stderr.count("\n") == 1


class TestShow:
    @pytest.mark.parametrize(
        ("chosen", "attempts", "unavailable"),
        [
            ("", "after 5 attempts, 7 s to 15 s after the first", "is retried for 1 h, and then becomes a dead letter"),
            ('max_attempts = 1\nretry_for = "2h"', "after 1 attempt, 0", "for 2 h"),
            ('max_attempts = 3\nbackoff = "1m"\nbackoff_limit = "90s"', "after 3 attempts, 1 m to 2 m", "for 1 h"),
            ('max_attempts = "off"\nretry_for = "off"', "retried forever", "counts as a failure"),
        ],
    )
    def test_how_long_events_are_tried(
        self, oncegate: Run, tmp_path: Path, chosen: str, attempts: str, unavailable: str
    ) -> None:
        """`config show` prints how long attempts last with their pauses, and how long unavailability is retried."""
        (tmp_path / "oncegate.toml").write_text(chosen)
        _, out, _ = oncegate("config", "show")
        assert re.search(r"^unguarded_types +none +default$", out, re.MULTILINE)
        told = dict(line.split(": ", 1) for line in out.splitlines()[-2:])
        assert attempts in told["max_attempts"]
        assert unavailable in told["retry_for"]
        _, out, _ = oncegate("config", "show", "--output", "json")
        assert {name: json.loads(out)[name]["lasts"] for name in told} == told

    def test_lines(self, oncegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """In a pipe, each setting is one line with its value and its origin."""
        (tmp_path / "oncegate.toml").write_text('max_attempts = "off"\nsliding = true\n')
        monkeypatch.setenv("ONCEGATE_SERVE_PORT", "9")
        code, out, _ = oncegate("config", "show")
        shown = [line.split() for line in out.splitlines()]
        assert (code, shown[0], len(shown)) == (exit_codes.OK, ["setting", "value", "from"], len(SETTINGS) + 3)
        assert ["max_attempts", "off", "oncegate.toml"] in shown
        assert ["sliding", "true", "oncegate.toml"] in shown
        assert ["serve.port", "9", "ONCEGATE_SERVE_PORT"] in shown
        assert ["lease", "30s", "default"] in shown

    def test_json(self, oncegate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """The JSON output has the value and the origin of each setting."""
        monkeypatch.setenv("ONCEGATE_UNGUARDED_TYPES", "a,b")
        monkeypatch.setenv("ONCEGATE_ON_STORE_ERROR", "unguarded")
        code, out, _ = oncegate("config", "show", "--output", "json")
        shown = json.loads(out)
        assert (code, set(shown)) == (exit_codes.OK, set(SETTINGS))
        assert shown["unguarded_types"] == {"value": ["a", "b"], "from": "ONCEGATE_UNGUARDED_TYPES"}
        assert shown["serve.port"] == {"value": 8080, "from": "default"}

    @pytest.mark.parametrize("output", ["text", "json"])
    def test_secrets(self, oncegate: Run, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
        """No secret of a store URL is shown."""
        monkeypatch.setenv("ONCEGATE_STORE", "redis://user:hunter2@host/0?token=hunter3")
        _, out, _ = oncegate("config", "show", "--output", output)
        assert "redis://user:***@host/0?token=***" in out
        assert "hunter" not in out

    def test_wrong_settings(self, oncegate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """Invalid settings are reported, not shown."""
        monkeypatch.setenv("ONCEGATE_LEASE", "x")
        code, out, err = oncegate("config", "show")
        assert (code, out, "ONCEGATE_LEASE: lease='x'" in err) == (exit_codes.USAGE, "", True)


def test_sinks(oncegate: Run, tmp_path: Path) -> None:
    """`config check` reports problems of a sink, and `config show` masks the secrets of its URL."""
    (tmp_path / "oncegate.toml").write_text('[serve]\nforward = "https://a.example/?token=s3cret"\npublish = "sqs://q"')
    code, _, err = oncegate("config", "check")
    assert code == exit_codes.USAGE
    assert "only one of these can be used" in err
    code, out, _ = oncegate("config", "show")
    assert "https://a.example/?token=***" in out
    assert "s3cret" not in out


@pytest.mark.parametrize("output", ["text", "json"])
def test_every_parameter_of_a_sink(oncegate: Run, tmp_path: Path, output: str) -> None:
    """A parameter of a sink URL may be a secret whatever its name, so `config show` masks all of them, in any table."""
    url = "https://a.example/in;v=s3cret?sig=s3cret&code=s3cret=&s3cret"
    tables = ("[serve]", "[work]", '[route.crm]\nsignature = "none"')
    (tmp_path / "oncegate.toml").write_text("".join(f'{table}\nforward = "{url}"\n' for table in tables))
    _, out, _ = oncegate("config", "show", "--output", output)
    assert out.count("https://a.example/in;v=***?sig=***&code=***&***") == len(tables)
    assert "s3cret" not in out


def test_an_invalid_sink(oncegate: Run, tmp_path: Path) -> None:
    """The error about an invalid sink URL contains no secret of the URL."""
    (tmp_path / "oncegate.toml").write_text('[serve]\nforward = "htps://a.example/?sig=s3cret"\n')
    code, _, err = oncegate("config", "check")
    assert (code, "serve.forward='htps://a.example/?sig=***' must be a URL" in err) == (exit_codes.USAGE, True)


def test_config_after_the_command(oncegate: Run, tmp_path: Path) -> None:
    """`--config` works before and after the command."""
    (tmp_path / "mine.toml").write_text('store = "redis://nobody.invalid"\nnamespac = "x"\n')
    for arguments in (["--config", "mine.toml", "dlq", "list"], ["dlq", "list", "--config", "mine.toml"]):
        code, _, err = oncegate(*arguments)
        assert code == exit_codes.USAGE
        assert "mine.toml" in err
