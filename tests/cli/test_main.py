"""Errors of the command line: one sentence and an exit code."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncegate import Event, Gate
from oncegate.cli import dlq, exit_codes
from tests.cli.conftest import Run


def fail(event: Event) -> None:
    raise ValueError(f"no case \x1b[31m{event.id}")


class TestErrors:
    def test_one_delivery(self, oncegate: Run) -> None:
        """The summary of one delivery uses the singular."""
        none = [word for name in ("reemit", "rewrap", "replay") for word in (f"--{name}", "0")]
        _, out, _ = oncegate("simulate", "--to", "file://t.jsonl", "--events", "1", "--copies", "1", *none)
        assert "Sent 1 delivery of 1 event in" in out

    def test_a_full_stdout(self, tmp_path: Path) -> None:
        """A failed write to stdout is reported as such, also for simulated events."""
        command = f"{sys.executable} -m oncegate simulate --to - --events 200 --rate 100000 >/dev/full"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path)  # noqa: S607
        assert done.stderr.splitlines()[-1] == "Error: cannot write to stdout: No space left on device"

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (("keys", "show", "xyz"), exit_codes.USAGE, "'xyz' is not a key; a key has 32 hexadecimal digits"),
            (("keys", "show", "0" * 32), exit_codes.STORE, "there is no store at oncegate.db"),
            (
                ("dlq", "list", "--store", "mysql://x"),
                exit_codes.USAGE,
                "use one of: memory, sqlite",
            ),
            (("dlq", "list", "--store", "memory://"), exit_codes.USAGE, "memory:// lives within one process"),
            (("serv",), exit_codes.USAGE, "No such command 'serv'"),
            (("serve", "--host", "0.0.0.0"), exit_codes.USAGE, "no signature is checked"),  # noqa: S104  # refused
            (("serve", "--lease", "30"), exit_codes.USAGE, "lease='30' is not a duration"),
            (("serve", "--handler", "nowhere"), exit_codes.USAGE, "must be written module:function"),
            (("serve", "--handler", "no_such_module:f"), exit_codes.USAGE, "importing no_such_module failed"),
            (("serve", "--handler", "json:nothing"), exit_codes.USAGE, "there is no nothing in json"),
            (("serve", "--handler", "json:__name__"), exit_codes.USAGE, "is not callable"),
            (("dlq", "redrive", "--all", "--handler", "asyncio:sleep"), exit_codes.USAGE, "sleep is async"),
            (("serve", "--retention", "9" * 350 + "d"), exit_codes.USAGE, "is not a duration"),
            (
                ("serve", "--host", "nosuch.invalid", "--signature", "none"),
                exit_codes.FAILED,
                "choose another with --host",
            ),
            (
                ("serve", "--host", "192.0.2.1"),
                exit_codes.USAGE,
                "(--signature SCHEME), or allow this with",
            ),
            (("work",), exit_codes.USAGE, "no source; write it after `oncegate work`, or set work.source"),
            (("work", "kafka://h/t"), exit_codes.USAGE, "SOURCE: the URL has no name of a Kafka consumer group"),
            (
                ("work", "foo"),
                exit_codes.USAGE,
                "SOURCE: work.source='foo' is not a source; use inbox, or the URL",
            ),
            (("serve", "--host", "192.0.2.1", "--signature", "none"), exit_codes.FAILED, "choose another with --host"),
            (("serve", "--host", "a..b", "--signature", "none"), exit_codes.FAILED, "choose another with --host"),
            (
                ("simulate", "--to", "-", "--truth", "-"),
                exit_codes.USAGE,
                "--truth - is not possible; name a file",
            ),
            (("work", "foo"), exit_codes.USAGE, "'foo'"),
            (("simulate", "--to", "foo://x"), exit_codes.USAGE, "file://PATH or - (stdout)"),
            (
                ("dlq", "list", "--store", "dynamodb://x?region=y"),
                exit_codes.USAGE,
                "invalid table name 'x'; use 3 to 255",
            ),
            (
                ("explain", ""),
                exit_codes.USAGE,
                "name one ID (an event id, a key, a conversation, a delivery id or a file)",
            ),
            (
                ("work", "inbox", "--handler", "json:dumps", "--store", "memory://"),
                exit_codes.USAGE,
                "--store: memory:// is not shared with the service; use the store of the service",
            ),
            (
                ("work", "nats://h/s?consumer=c", "--handler", "json:dumps", "--store", "memory://"),
                exit_codes.USAGE,
                "--store: memory:// loses the events that it holds when this command ends; use a store that keeps them",
            ),
            (("serve", "--threads", "9" * 18), exit_codes.USAGE, "the maximum is 1000000000000"),
            (("serve", "--threads", "9" * 40), exit_codes.USAGE, "must be a whole number"),
            (("serve", "--store", "sqlite:///a%00b.db"), exit_codes.USAGE, "no file can have a NUL (%00) in its name"),
            (("dlq", "list", "--limit", "9" * 23), exit_codes.USAGE, "is not in the range 1<=x<=1000000"),
            (("explain", "x", "--scan", "9" * 20), exit_codes.USAGE, "is not in the range 1<=x<=1000000000"),
            (("read", "x", "--limit", "9" * 20), exit_codes.USAGE, "is not in the range 1<=x<=1000000000"),
            (("verify", "--limit", "9" * 20), exit_codes.USAGE, "is not in the range 0<=x<=1000000000"),
            (("simulate", "--events", "9" * 20), exit_codes.USAGE, "is not in the range 1<=x<=1000000000"),
            (("simulate", "--seed", "9" * 20), exit_codes.USAGE, "is not in the range 0<=x<="),
            (("simulate", "--rate", "nan"), exit_codes.USAGE, "nan is not in the range 0.001<=x<=1000000"),
            (("simulate", "--rate", "inf"), exit_codes.USAGE, "inf is not in the range"),
            (("simulate", "--rate", "1e-300"), exit_codes.USAGE, "is not in the range"),
            (("simulate", "--reemit", "nan"), exit_codes.USAGE, "nan is not in the range 0<=x<=1"),
            (("simulate", "--invalid", "-inf"), exit_codes.USAGE, "is not in the range 0<=x<=1"),
        ],
    )
    def test_one_sentence_and_a_code(self, oncegate: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
        """An error is one sentence with an exit code, without a traceback."""
        actual, _, err = oncegate(*arguments)
        assert actual == code
        assert said in err
        assert "Traceback" not in err

    @pytest.mark.parametrize(
        "command", ["dlq list", "dlq drop --all --yes", f"keys show {'0' * 32}", "explain x", "doctor"]
    )
    def test_an_empty_file(self, oncegate: Run, tmp_path: Path, command: str) -> None:
        """For reading commands an empty file is not a store, and it is not changed."""
        (tmp_path / "oncegate.db").touch()
        code, out, err = oncegate(*command.split())
        said, expected = (out, exit_codes.OK) if command == "doctor" else (err, exit_codes.STORE)
        assert ("store.present" in said or "there is no store at" in said, code) == (True, expected)
        assert (tmp_path / "oncegate.db").stat().st_size == 0

    def test_a_file_that_is_no_store(self, oncegate: Run, tmp_path: Path) -> None:
        """An unusable store is reported with the remedy."""
        (tmp_path / "oncegate.db").write_text("not a database " * 100)
        code, _, err = oncegate("dlq", "list")
        assert code == exit_codes.STORE
        assert "is not an SQLite file" in err

    def test_an_error_of_the_system(self, oncegate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """An error of the operating system that no command explains is one sentence, too."""

        def fail(settings: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "x.db\x1b")

        monkeypatch.setattr(dlq, "read_only_store", fail)
        assert oncegate("dlq", "list") == (exit_codes.FAILED, "", "Error: cannot use x.db\\x1b: Too many open files\n")

    def test_without_the_extra(self, tmp_path: Path) -> None:
        """Without the libraries of the command line, the error has the pip command."""
        code = "import sys; sys.modules['click'] = None; from oncegate.__main__ import main; main()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.endswith("pip install 'oncegate[cli]'\n")

    def test_a_reader_that_has_gone(self, gate: Gate, tmp_path: Path) -> None:
        """A pipe that is closed early, as by `head`, gives no error."""
        gate.run_batch([{"id": number} for number in range(300)], fail)
        command = f"{sys.executable} -m oncegate dlq list --limit 300 --output json | head -n 1"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path)  # noqa: S607
        assert (done.stdout, done.stderr) == ("[\n", "")
