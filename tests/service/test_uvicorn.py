"""The undocumented names of uvicorn that the service depends on, and the versions of uvicorn that have them.

uvicorn documents `uvicorn.Config` and `uvicorn.Server(config).run()`. The service also subclasses its HTTP protocol and
its server. A release of uvicorn may change those classes without notice, so each name in use is listed here.
"""

import ast
import asyncio
import inspect
import re
import textwrap
from pathlib import Path

import httptools
import pytest
import uvicorn
from uvicorn import server
from uvicorn.lifespan.on import LifespanOn
from uvicorn.protocols.http import flow_control, httptools_impl

from oncegate.service import protocol
from oncegate.service import server as our_server

ROOT = Path(__file__).parents[2]
SOURCES = [Path(str(module.__file__)) for module in (protocol, our_server)]

# What the service uses of each class. Methods of asyncio.Protocol that uvicorn only implements are not listed.
NAMES: dict[type, set[str]] = {
    httptools_impl.HttpToolsProtocol: {
        "_start_asgi_task",
        "_unset_keepalive_if_required",
        "app",
        "config",
        "connections",
        "cycle",
        "flow",
        "headers",
        "loop",
        "on_body",
        "on_header",
        "on_headers_complete",
        "on_message_begin",
        "on_message_complete",
        "on_response_complete",
        "parser",
        "pipeline",
        "send_400_response",
        "server_state",
        "tasks",
        "transport",
        "url",
    },
    httptools_impl.RequestResponseCycle: {
        "body",
        "disconnected",
        "keep_alive",
        "message_event",
        "more_body",
        "on_response",
        "response_complete",
        "response_started",
        "scope",
    },
    flow_control.FlowControl: {"drain", "resume_reading", "write_paused"},
    server.Server: {"config", "handle_exit", "lifespan", "server_state", "servers", "startup"},
    server.ServerState: {"connections", "default_headers", "tasks"},
    LifespanOn: {"state"},
}
MODULE_NAMES = {"HttpToolsProtocol", "RequestResponseCycle", "STATUS_LINE"}
# Documented names, and names that the sources use on other objects, such as `shutdown` of a socket.
NOT_UVICORN = {"__init__", "run", "shutdown"}


def attributes_of(cls: type) -> set[str]:
    """The names that a class defines: methods, class attributes and assignments to self."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    assigned = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return assigned | set(vars(cls))


def names_used(source: str) -> set[str]:
    """Every attribute that a source accesses, and every method that it defines, on whatever object."""
    nodes = list(ast.walk(ast.parse(source)))
    accessed = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return accessed | {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def unlisted(source: str) -> set[str]:
    """The names of uvicorn's classes that a source uses and that are not in NAMES."""
    of_uvicorn = set().union(*map(attributes_of, NAMES)) - set(dir(asyncio.Protocol)) - NOT_UVICORN
    return (names_used(source) & of_uvicorn) - set().union(*NAMES.values())


@pytest.mark.parametrize("cls", NAMES, ids=lambda cls: cls.__name__)
def test_uvicorn_has_each_name(cls: type) -> None:
    """The installed uvicorn still has every name that the service depends on."""
    missing = sorted(NAMES[cls] - attributes_of(cls))
    assert not missing, (
        f"uvicorn {uvicorn.__version__}: {cls.__module__}.{cls.__name__} no longer has {', '.join(missing)}, which"
        " service/protocol.py or service/server.py uses; adapt them, or lower the bound of uvicorn in pyproject.toml"
    )


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_each_name_in_use_is_listed(source: Path) -> None:
    """No source uses an undocumented name of uvicorn that is not in NAMES."""
    found = sorted(unlisted(source.read_text()))
    assert not found, f"{source.name} uses {', '.join(found)} of uvicorn; add them to NAMES in {__file__}"


def test_each_listed_name_is_in_use() -> None:
    """NAMES has no name that the sources no longer use."""
    used = set().union(*(names_used(source.read_text()) for source in SOURCES))
    assert set().union(*NAMES.values()) - used == set()


def test_imports() -> None:
    """The sources import nothing else from uvicorn's modules than MODULE_NAMES."""
    imported = {
        alias.name
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("uvicorn")
        for alias in node.names
    }
    assert imported == MODULE_NAMES
    assert set(dir(httptools_impl)) >= MODULE_NAMES


def test_the_check_finds_an_unlisted_name() -> None:
    """The check sees a private name, whether it is called, read or overridden."""
    assert unlisted("def f(self):\n    self._get_upgrade()") == {"_get_upgrade"}
    assert unlisted("x = protocol.timeout_keep_alive_task") == {"timeout_keep_alive_task"}
    assert unlisted("class A:\n    def _should_upgrade(self): ...") == {"_should_upgrade"}
    assert unlisted("self.cycle.body") == set()


@pytest.mark.parametrize(("name", "version"), [("uvicorn", uvicorn.__version__), ("httptools", httptools.__version__)])
def test_version_bounds(name: str, version: str) -> None:
    """pyproject.toml allows no newer minor version than the one in requirements.lock, with which the tests run."""
    bounds = re.search(rf'"{name}>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert bounds, f"{name} needs a lower and an upper bound in pyproject.toml: the service uses its internals"
    pinned = re.search(rf"^{name}==([\d.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert pinned
    assert pinned[1] == version
    lowest, above, tested = (tuple(map(int, text.split("."))) for text in (bounds[1], bounds[2], version))
    assert lowest <= tested < above
    assert above == (tested[0], tested[1] + 1)
