"""A damaged SQLite file gives one sentence that says what to do, whichever command opens it."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import Gate
from oncegate.cli import exit_codes
from tests.cli.conftest import Run

KEY = "00" * 16
COMMANDS = [
    ("keys", "show", KEY),
    ("keys", "reset", KEY, "--yes"),
    ("dlq", "list"),
    ("dlq", "show", KEY),
    ("dlq", "redrive", KEY),
    ("dlq", "drop", KEY, "--yes"),
    ("explain", KEY),
    ("explain", "evt-1"),
]


def _write(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def broken_schema(path: Path) -> None:
    _write(path, b"CREATE TABLE claims", b"CREATE TABLF claims")


def text_in_schema(path: Path) -> None:
    """What SQLite then says of it is no UTF-8 either."""
    _write(path, b"CREATE TABLE claims", b"CREATE \xff\xfeBLE claims")


def text_in_record(path: Path) -> None:
    _write(path, b"secret-type", b"secret-\xff\xfe\xffe")


def no_clock(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DELETE FROM clock")


def lost_pages(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(len(content) - 4096))


DAMAGE = [broken_schema, text_in_schema, text_in_record, no_clock, lost_pages]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db", max_attempts=1)) as gate:
        gate.run({"id": "evt-1", "type": "secret-type"}, lambda event: 1 / 0)
    return tmp_path / "oncegate.db"


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands(oncegate: Run, path: Path, command: tuple[str, ...], damage: Callable[[Path], None]) -> None:
    """Each command that needs the store, and meets the damage, says so; nothing that is stored is shown."""
    if damage is text_in_record:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("UPDATE claims SET key = ?", (bytes(16),))
    damage(path)
    code, _, err = oncegate(*command)
    assert code == exit_codes.STORE
    assert err.startswith("Error: oncegate.db is damaged (")
    assert err.endswith("); restore it from a backup, or move it away to start with an empty store\n")
    assert err.count("\n") == 1
    assert "secret-type" not in err


@pytest.mark.parametrize("damage", [broken_schema, text_in_schema])
def test_serve(oncegate: Run, path: Path, damage: Callable[[Path], None]) -> None:
    """The service does not start on a file that it cannot open."""
    (path.parent / "damaged_app.py").write_text("def handle(event): pass\n")
    damage(path)
    code, _, err = oncegate("serve", "--port", "0", "--handler", "damaged_app:handle")
    assert (code, err.count("\n")) == (exit_codes.STORE, 1)
    assert "oncegate.db is damaged (" in err


@pytest.mark.parametrize("damage", [each for each in DAMAGE if each is not text_in_record])
def test_doctor(oncegate: Run, path: Path, damage: Callable[[Path], None]) -> None:
    """The doctor reports it as an error; a changed value in a sound page is nothing that SQLite could find."""
    damage(path)
    code, out, err = oncegate("doctor")
    assert (code, err) == (exit_codes.ERRORS_FOUND, "")
    assert "damaged" in out
