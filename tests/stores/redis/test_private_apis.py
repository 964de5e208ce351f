"""The parts of redis-py and hiredis that are private or undocumented, and that the store depends on.

redis-py may change these in any release. The version cap in pyproject.toml excludes the next major version; these tests
find a change within the current one.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from redis import exceptions as redis_errors

import oncegate.stores.redis
from tests.stores.redis_server import RedisServer

ROOT = Path(__file__).parent.parent.parent.parent
SOURCES = sorted(Path(oncegate.stores.redis.__file__).parent.glob("*.py"))

# Attributes that begin with an underscore, and the classes of redis-py that must have them.
PRIVATE = {"_get_socket": ("redis.connection.Connection", "redis.connection.SSLConnection")}
# Names without an underscore that the documentation of redis-py and hiredis does not list.
UNDOCUMENTED = {"redis.connection.DefaultParser", "redis.connection.DefaultParser.parse_error", "hiredis.pack_command"}
# Names that the documentation of redis-py or hiredis lists.
DOCUMENTED = {
    "hiredis.Reader",
    "redis.backoff.NoBackoff",
    "redis.connection.Connection",
    "redis.connection.SSLConnection",
    "redis.exceptions",
    "redis.exceptions.NoScriptError",
    "redis.retry.Retry",
}


NEEDED = [f"{owner}.{name}" for name, owners in PRIVATE.items() for owner in owners]


@pytest.mark.parametrize("name", [*NEEDED, *sorted(UNDOCUMENTED | DOCUMENTED)])
def test_the_names_exist(name: str) -> None:
    """redis-py and hiredis still have each name that the store uses."""
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        package = name.partition(".")[0]
        pytest.fail(
            f"{package} {version(package)} has no {name}, which stores/redis/connection.py needs: "
            "use another API there, or lower the version cap in pyproject.toml"
        )


def test_the_socket(server: RedisServer) -> None:
    """_get_socket takes no arguments, and returns the socket of the connection."""
    connection: Any = resolve_name("redis.connection.Connection")(port=server.port)
    connection.connect()
    assert connection._get_socket().getpeername() == ("127.0.0.1", server.port)
    connection.disconnect()


def test_the_error_parser() -> None:
    """parse_error can be called on the class, and returns the class of redis.exceptions for an error code."""
    parse_error: Any = resolve_name("redis.connection.DefaultParser.parse_error")
    for text, kind in {
        "NOSCRIPT No matching script": redis_errors.NoScriptError,
        "MOVED 7 127.0.0.1:1": redis_errors.MovedError,
        "READONLY You can't write": redis_errors.ReadOnlyError,
        "NOPERM no": redis_errors.NoPermissionError,
        "ERR other": redis_errors.ResponseError,
    }.items():
        assert type(parse_error(text)) is kind


def test_the_packer() -> None:
    """pack_command encodes a command of several strings and bytes as RESP."""
    pack_command: Any = resolve_name("hiredis.pack_command")
    assert pack_command(("GET", b"\0k")) == b"*2\r\n$3\r\nGET\r\n$2\r\n\0k\r\n"


def test_no_other_private_attributes() -> None:
    """The sources use no private attribute of another object, except those listed here."""
    found = {name for path in SOURCES for name in foreign_private_attributes(ast.parse(path.read_text()))}
    assert found <= set(PRIVATE), f"add to PRIVATE, or replace by public API: {sorted(found - set(PRIVATE))}"
    assert set(PRIVATE) <= found, f"no longer used, remove from PRIVATE: {sorted(set(PRIVATE) - found)}"


def test_no_other_imports() -> None:
    """The sources import only names of redis-py and hiredis that are listed here."""
    found = {name for path in SOURCES for name in client_imports(ast.parse(path.read_text()))}
    listed = DOCUMENTED | UNDOCUMENTED
    assert found <= listed, f"add to DOCUMENTED or UNDOCUMENTED: {sorted(found - listed)}"
    assert found >= DOCUMENTED, f"no longer imported, remove from DOCUMENTED: {sorted(DOCUMENTED - found)}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("connection._sock", {"_sock"}),
        ("self._connection._parser", {"_parser"}),
        ("redis.Redis()._hidden()", {"_hidden"}),
        ("getattr(connection, '_sock')", {"_sock"}),
        ("self._idle; cls._x; x.__dict__; module.public", set()),
    ],
)
def test_the_scan(source: str, expected: set[str]) -> None:
    """The scan finds private attributes of other objects, also by getattr, and skips those of self."""
    assert set(foreign_private_attributes(ast.parse(source))) == expected


def test_the_version_is_capped() -> None:
    """pyproject.toml excludes the next major versions, and allows the installed and the locked ones."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    locked = (ROOT / "requirements.lock").read_text()
    for package, requirement in zip(("redis", "hiredis"), extras["redis"], strict=True):
        bounds = re.fullmatch(rf"{package}(?:\[hiredis\])?>=(\d+)(?:\.\d+)?,<(\d+)", requirement)
        assert bounds is not None, requirement
        (pinned,) = re.findall(rf"^{package}==(\d+)\.", locked, re.MULTILINE)
        for major in (int(pinned), int(version(package).partition(".")[0])):
            assert int(bounds[1]) <= major < int(bounds[2]) == major + 1, requirement


def foreign_private_attributes(tree: ast.AST) -> Iterator[str]:
    """Attributes that begin with one underscore, of any object but self and cls."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case (
                ast.Attribute(attr=name)
                | ast.Call(func=ast.Name(id="getattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_])
            ):
                if name.startswith("_") and not name.startswith("__"):
                    yield name


def client_imports(tree: ast.AST) -> Iterator[str]:
    """The names that are imported from redis-py and hiredis; a bare `import redis` only checks that it is installed."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] in ("redis", "hiredis"):
                yield from (f"{module}.{name.name}" for name in names)
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name.startswith(("redis.", "hiredis.")))
