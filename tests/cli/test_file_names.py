"""Names of files that cannot be read or written: every option that takes a file gives one sentence and an exit code."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click
import pytest

from oncegate import Gate
from oncegate.cli import exit_codes
from oncegate.cli.commands import CONFIG, FileName
from tests.cli.conftest import RecordedGate, Run
from tests.cli.test_commands import COMMANDS

# With this host the service ends instead of listening, if a file is accepted by mistake.
SERVE = "serve --host nosuch.invalid --signature none --handler log"
FORWARD = "serve --host nosuch.invalid --signature none --forward https://crm.example.com/events"
READ = [
    "read {}",
    "analyze {}",
    "explain --file {}",
    "verify --truth {} --effects effects.jsonl",
    "verify --truth truth.jsonl --effects {}",
    "simulate --to - --replay {}",
    "seed {}",
    "seed events.jsonl --sample {}",
    "infra template --name crm --lambda-zip {}",
    "infra up --name crm --lambda-zip {}",
    "infra template --name crm --pattern {}",
    "genesys setup eventbridge --name crm --topics v2.x --lambda-zip {}",
    "genesys setup open-messaging --name crm --url https://events.example.com/events/x --secret-file {}",
    "genesys topics --genesys-region mypurecloud.de --genesys-client-id x --genesys-secret-file {}",
    "serve --host nosuch.invalid --signature standard-webhooks --handler log --secret-file {}",
    f"{SERVE} --tls-cert {{}} --tls-key {{}}",
    f"{SERVE} --metrics-token-file {{}}",
    "console --port 0 --token-file {}",
    "console --port 0 --store sqlite:///{}",
    f"{FORWARD} --forward-headers {{}}",
    f"{FORWARD} --forward-ca {{}}",
    f"{FORWARD} --forward-certificate {{}}",
    f"{FORWARD} --forward-certificate effects.jsonl --forward-certificate-key {{}}",
    "dlq redrive --all --handler {}:function",
    "work inbox --handler {}:function",
    "serve --handler {}:function",
    "serve --handler log --key {}:function",
    "dlq list --store sqlite:///{}",
    "dlq redrive --all --store sqlite:///{}",
    "explain x --store sqlite:///{}",
    "forget --entity x --yes --store sqlite:///{}",
    f"keys show {'0' * 32} --store sqlite:///{{}}",
    "events list --journal sqlite:///{}",
    "events list --store sqlite:///{}",
]
WRITE = [
    f"{SERVE} --store sqlite:///{{}}",
    "work inbox --handler log --store sqlite:///{}",
    "simulate --to - --events 1 --truth {}",
    "simulate --events 1 --to file://{}",
    "events export {}",
    "analyze events.jsonl --html {}",
    "analyze events.jsonl --export {}.csv",
]
CONFIGURED = [
    "console",
    "dlq list",
    "explain x",
    "serve",
    "work inbox",
    "config check",
    "config show",
    "doctor",
    "read x.jsonl",
]
NAMES = {
    "a folder": "folder",
    "a long name": "x" * 300,
    "a long path": "/".join(["y" * 200] * 30),
    "NUL": "a\0b",
    "undecodable": "\udcff.jsonl",
    "nothing": "absent",
    "a broken symlink": "broken",
    "a loop of symlinks": "loop",
    "a socket": "socket",
    "below a file": "effects.jsonl/x",
    "a device without an end": "/dev/zero",
}
TO_WRITE = ["a folder", "a long name", "a long path", "NUL", "a loop of symlinks", "a socket", "below a file"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store with one event."""
    path = tmp_path_factory.mktemp("store") / "oncegate.db"
    with closing(Gate(f"sqlite:///{path}")) as gate:
        gate.run({"id": "evt-1"}, lambda _event: None)
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with things that cannot be read as files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)  # to load all authorities takes longer than most commands
    shutil.copy(store, "oncegate.db")
    Path("folder").mkdir()
    Path("broken").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    Path("effects.jsonl").write_text('{"key": "00"}\n')
    Path("truth.jsonl").write_text('{"line":"plan","version":1,"plan":{}}\n')
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        yield


def check(result: tuple[int, str, str]) -> None:
    """The result is one of the documented errors: each line of the output is one error, and no line is a traceback."""
    code, _, err = result
    assert code in (exit_codes.FAILED, exit_codes.USAGE, exit_codes.STORE)
    assert "Traceback" not in err
    assert "nosuch.invalid" not in err, "the service accepted the file"
    lines = re.sub(r"^Usage: .*\nTry .*\n\n", "", err).splitlines()
    assert lines
    assert all(re.match(r"Error: .{10,}", line) for line in lines), err


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("line", READ)
def test_reading(line: str, name: str, oncegate: Run) -> None:
    """A file that cannot be read is one sentence and an exit code."""
    check(oncegate(*(word.replace("{}", NAMES[name]) for word in line.split())))


@pytest.mark.parametrize("name", TO_WRITE)
@pytest.mark.parametrize("line", WRITE)
def test_writing(line: str, name: str, oncegate: Run, tmp_path: Path) -> None:
    """A file that cannot be written is one sentence and an exit code."""
    if line.startswith("events"):
        Path("oncegate.toml").write_text('journal_payloads = "24h"\n')
        with closing(RecordedGate(tmp_path)) as recorded:
            recorded.run({"id": "evt-1"})
    check(oncegate(*(word.replace("{}", NAMES[name]) for word in line.split())))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("line", CONFIGURED)
def test_settings_files(line: str, name: str, oncegate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A settings file that cannot be read is one sentence and an exit code, also if a variable names the file."""
    check(oncegate(*line.split(), "--config", NAMES[name]))
    if name != "NUL":
        monkeypatch.setenv("ONCEGATE_CONFIG", NAMES[name])
        check(oncegate(*line.split()))


def test_names_in_the_settings_file(oncegate: Run) -> None:
    """A name in the settings file can contain NUL, unlike a name on the command line."""
    for setting in ("secret_file", "tls_cert", "metrics_token_file"):
        Path("oncegate.toml").write_text(f'[serve]\nsignature = "standard-webhooks"\n{setting} = "a\\u0000b"\n')
        check(oncegate("config", "check"))


def test_no_permission(oncegate: Run) -> None:
    """A file without read permission is one sentence and an exit code."""
    Path("secret").write_text("{}")
    Path("secret").chmod(0)
    Path().chmod(0o755)
    user = os.geteuid()
    try:
        if user == 0:  # root may read every file
            os.seteuid(65_534)
        for line in ("read {}", "verify --truth {} --effects x", "read x --config {}", f"{SERVE} --tls-cert {{}}"):
            check(oncegate(*(word.replace("{}", "secret") for word in line.split())))
    finally:
        os.seteuid(user)


def test_undecodable_bytes() -> None:
    """A name of bytes that are not UTF-8 is escaped in the message, also if it comes from a shell."""
    for line in (rb"read", rb"--config", rb"explain --file", rb"verify --effects effects.jsonl --truth"):
        words = [sys.executable.encode(), b"-m", b"oncegate", *line.split(), b"\xff.jsonl"]
        done = subprocess.run(words + [b"dlq", b"list"] * (line == b"--config"), capture_output=True)
        assert done.returncode in (exit_codes.FAILED, exit_codes.USAGE)
        assert re.fullmatch(rb"Error: [^\n]+\.jsonl[^\n]*\n", done.stderr)


@pytest.mark.parametrize("name", ["/dev/null", "pipe"])
def test_devices_and_pipes_with_an_end(name: str, oncegate: Run) -> None:
    """/dev/null is an empty file, and a pipe is read to its end."""
    if name == "pipe":
        os.mkfifo(name)
        writer = subprocess.Popen(["bash", "-c", "echo > pipe"])  # noqa: S607
    assert oncegate("dlq", "list", "--config", name)[0] == exit_codes.OK
    if name == "pipe":
        assert writer.wait() == 0


def test_every_option_is_here() -> None:
    """Every option of the type FileName is in a list of this module."""
    lines = [line.split() for line in (*READ, *WRITE)]
    for path, command in COMMANDS.items():
        for parameter in command.params:
            if isinstance(parameter.type, FileName) and parameter.name != CONFIG:
                named = [line for line in lines if tuple(line[: len(path)]) == path]
                options = {option for line in named for option in line if option.startswith("--")}
                found = isinstance(parameter, click.Argument) or options & set(parameter.opts)
                assert named, f"add {' '.join(path)} {parameter.opts} to READ or WRITE"
                assert found, f"add {' '.join(path)} {parameter.opts} to READ or WRITE"
