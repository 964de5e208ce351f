"""What `oncegate doctor` reads about a store: on real files, servers and databases."""

import json
import shlex
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import open_store
from oncegate.cli import exit_codes
from oncegate.doctor import store_facts
from oncegate.doctor.store_facts import file_system
from oncegate.testing.requests import claim_of
from tests.cli.conftest import Run
from tests.doctor.test_doctor import severities
from tests.infra.conftest import Aws
from tests.stores.dynamo_server import REGION
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisServer


def test_a_damaged_store(oncegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage that opening the file does not reveal is found, within the time limit of the check."""
    path = tmp_path / "oncegate.db"
    with closing(open_store(f"sqlite:///{path}")) as store:
        store.claim([claim_of(key=number.to_bytes(16)) for number in range(500)])
    assert oncegate("doctor")[0] == exit_codes.OK
    monkeypatch.setattr(store_facts, "_CHECK_LIMIT", 0)
    assert severities(oncegate("doctor", "--output", "json")[1]) == {"store.integrity": "note"}
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    content = bytearray(path.read_bytes())
    content[-4096:] = bytes(4096)
    path.write_bytes(content)
    code, out, err = oncegate("doctor", "--output", "json")
    assert (code, err, severities(out)) == (exit_codes.ERRORS_FOUND, "", {"store.integrity": "error"})
    assert json.loads(out)["findings"][0]["found"].startswith("the file is damaged: ")


def test_a_file_that_others_may_read(oncegate: Run, tmp_path: Path) -> None:
    """Files that other users can read are named, and the fix removes that permission."""
    path = tmp_path / "oncegate.db"
    path.touch(0o644)
    with closing(open_store(f"sqlite:///{path}")):
        code, out, _ = oncegate("doctor", "--output", "json")
        assert (code, severities(out)) == (exit_codes.WARNINGS_FOUND, {"store.private": "warning"})
        subprocess.run(shlex.split(json.loads(out)["findings"][0]["mend"]), cwd=tmp_path, check=True)
        assert oncegate("doctor")[0] == exit_codes.OK


def test_a_store_that_cannot_be_used(oncegate: Run, tmp_path: Path) -> None:
    """A foreign file, a missing folder and an unreachable server are findings."""
    (tmp_path / "other.db").write_bytes(b"x" * 4096)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        for url in (
            "sqlite:///other.db",
            "sqlite:///none/oncegate.db",
            f"redis://127.0.0.1:{port}",
            f"postgresql://nobody@127.0.0.1:{port}/none",
        ):
            code, out, err = oncegate("doctor", "--store", url, "--output", "json")
            assert (code, err, severities(out)) == (exit_codes.ERRORS_FOUND, "", {"store.reachable": "error"})
            missing = "the folder none for the store none/oncegate.db does not exist; create it first"
            assert (missing in out) == ("none/oncegate" in url)


def test_redis(oncegate: Run, tmp_path: Path) -> None:
    """A real server that evicts and has no append-only file is reported; its clock agrees."""
    forgetful = ("--appendonly", "no", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    server = RedisServer(tmp_path / "redis", *forgetful)
    try:
        code, out, err = oncegate("doctor", "--store", server.url, "--output", "json")
    finally:
        server.stop()
    assert (code, err) == (exit_codes.ERRORS_FOUND, "")
    assert severities(out) == {"store.eviction": "error", "store.persistence": "warning", "store.present": "note"}


def test_postgres(oncegate: Run, postgres: PostgresServer) -> None:
    """A real database is read, and its clock agrees."""
    open_store(postgres.url()).close()
    code, out, err = oncegate("doctor", "--store", postgres.url(), "--output", "json")
    assert (code, err, severities(out)) == (exit_codes.OK, "", {})


def test_a_store_that_is_not_made_yet(oncegate: Run, postgres: PostgresServer, aws: Aws, tmp_path: Path) -> None:
    """A store that does not exist yet is a note for every kind of store."""
    (tmp_path / "empty.db").touch()
    server = RedisServer(tmp_path / "redis")
    schema = "&".join([*filter(None, [postgres.url().partition("?")[2]]), "oncegate_schema=unmade"])
    dynamo = f"dynamodb://Unmade?region={REGION}&endpoint={aws.endpoint}"
    urls = {
        "sqlite:///none.db": "the file does not exist yet",
        "sqlite:///empty.db": "the file is empty",
        f"{postgres.url().partition('?')[0]}?{schema}": "the database has no schema unmade yet",
        server.url: "the server has no store with the prefix oncegate yet",
        dynamo: "the table does not exist yet",
    }
    try:
        found = {url: oncegate("doctor", "--store", url, "--output", "json") for url in urls}
        assert oncegate("doctor", "--store", dynamo, "--table", "Unmade")[0] == exit_codes.ERRORS_FOUND
    finally:
        server.stop()
    for url, (code, out, err) in found.items():
        assert (code, err, severities(out)) == (exit_codes.OK, "", {"store.present": "note"})
        assert json.loads(out)["findings"][0]["found"] == urls[url]
    assert (tmp_path / "empty.db").read_bytes() == b""


def test_file_systems(tmp_path: Path) -> None:
    """The innermost mount of a file counts; a mount with a similar name does not."""
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/a / ext4 rw 0 0\nhost:/x /srv/share nfs4 rw 0 0\ntmpfs /srv/share/a\\040b tmpfs rw 0 0\n")
    paths = ("/srv/share/x.db", "/srv/shared.db", "/srv/share/a b/x.db")
    assert [file_system(path, str(mounts)) for path in paths] == ["nfs4", "ext4", "tmpfs"]
    assert file_system("x.db", str(tmp_path / "none")) is None


def test_no_store_needs_the_driver_of_another() -> None:
    """Reading facts about one store imports no driver of another store."""
    code = (
        "import sys; from oncegate.doctor.store_facts import read_store;"
        "read_store('sqlite:///none.db', 'sqlite:///none.db'); read_store('memory://', 'memory://');"
        "print(*{'psycopg', 'botocore', 'oncegate.stores.redis'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "\n"
