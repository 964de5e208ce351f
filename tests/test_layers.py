"""Imports point one way along the path of an event, and the core imports little."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import oncegate

ROOT = Path(oncegate.__file__).parent

# From the first step of an event to the last. A module may import from its own layer and from those before it.
LAYERS = [
    ["errors", "text", "backoff", "background", "durations", "clocks", "canonical", "forks", "instances", "times"],
    ["signatures"],
    ["events", "handler_threads"],
    ["carriers"],
    ["sources"],
    ["lifecycles"],
    ["keys"],
    ["timelines"],
    ["claims"],
    ["aws"],
    ["stores"],
    ["gate", "ingress"],
    ["__init__"],
    ["settings"],
    ["infra", "sinks", "otel"],
    ["doctor"],
    ["testing", "simulate", "service"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def layer_of(dotted: str) -> str:
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports_of(path: Path) -> list[str]:
    """The oncegate modules that a file imports, wherever in it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += names if node.module == "oncegate" else [node.module or ""]
    return [name for name in found if name.split(".")[0] == "oncegate" and name != "oncegate.__version__"]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down_the_line(path: Path) -> None:
    """A module knows nothing of what comes after it."""
    here = RANK[path.relative_to(ROOT).parts[0].removesuffix(".py")]
    for name in imports_of(path):
        layer = layer_of(name) if layer_of(name) in RANK else "__init__"
        assert RANK[layer] <= here, f"{path.name} imports {name}, which comes after it"


def test_stores_know_nothing_of_events() -> None:
    """A store has records and documents; events, keys and JSON stay outside of it."""
    forbidden = {"events", "carriers", "sources", "keys", "canonical"}
    for path in (ROOT / "stores").rglob("*.py"):
        assert not forbidden & {layer_of(name) for name in imports_of(path)}, path


def test_the_check_finds_a_wrong_import(tmp_path: Path) -> None:
    """The check itself sees imports in every form, also within functions."""
    path = tmp_path / "module.py"
    path.write_text(
        "import oncegate.gate\ndef f():\n    from oncegate import keys\n    from oncegate.cli.main import run"
    )
    assert sorted(imports_of(path)) == ["oncegate.cli.main", "oncegate.gate", "oncegate.keys"]


def test_the_core_imports_nothing_else() -> None:
    """`import oncegate` brings in the standard library and msgspec, and of the former nothing slow."""
    code = "import sys; before = set(sys.modules); from oncegate import *; print(*(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=_paths(), check=True)
    top = {name.split(".")[0] for name in run.stdout.split()}
    # msgspec itself looks for typing_extensions, and uses it where it is installed.
    assert {name for name in top if name not in sys.stdlib_module_names} <= {"oncegate", "msgspec", "typing_extensions"}
    assert not top & {"asyncio", "logging", "sqlite3", "socket", "ssl", "email", "unittest"}


def _paths() -> dict[str, str]:
    import msgspec  # only to find where it is

    return {"PYTHONPATH": f"{ROOT.parent}:{Path(msgspec.__file__).parent.parent}"}
