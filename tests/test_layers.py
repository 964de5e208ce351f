"""The structure of the package: import direction, lazy imports, names, sizes, and a test file for each module."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import oncegate

ROOT = Path(oncegate.__file__).parent
TESTS = Path(__file__).parent

# In the order of an event. A module may import from its own layer and from the layers before it. The longest name that
# fits a module counts. `gate.gate` is the public API above the ingress: `Gate` offers lambda_handler, worker and inbox.
LAYERS = [
    [
        *("errors", "text", "backoff", "background", "durations", "clocks", "canonical", "files", "forks", "instances"),
        "times",
    ],
    ["signatures"],
    ["events", "handler_threads"],
    ["carriers"],
    ["sources"],
    ["lifecycles"],
    ["keys"],
    ["timelines"],
    ["claims"],
    ["aws", "buses"],
    ["stores"],
    ["previous"],
    ["gate"],
    ["journal"],
    ["ingress"],
    ["gate.gate", "gate.__init__"],
    ["__init__"],
    ["sinks"],
    ["settings"],
    ["inspection"],
    ["analysis"],
    ["infra", "otel"],
    ["genesys"],
    ["doctor"],
    ["console"],
    ["testing", "simulate", "service"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

# Every import inside a function, with the reason why it is not at the top of the module.
LAZY = {
    ("__main__.py", "oncegate.cli.streams"): "cold start: the first lines of the process handle Ctrl-C",
    ("__main__.py", "oncegate.cli.main"): "cold start: the first lines of the process handle Ctrl-C",
    ("__main__.py", "oncegate.errors"): "cold start: only when an extra is missing",
    ("analysis/database.py", "duckdb"): "optional dependency: the extra `analyze`",
    ("analysis/recording.py", "concurrent.futures"): "cold start: only for large recordings",
    ("analysis/recording.py", "multiprocessing"): "cold start: only for large recordings",
    ("cli/event_files.py", "backports"): "optional dependency: the extra `analyze`",
    ("cli/event_files.py", "compression"): "optional dependency: zstd is in the standard library since Python 3.14",
    ("cli/recordings.py", "oncegate.aws.objects"): "optional dependency: the extra `aws`",
    ("cli/console.py", "oncegate.service.console_service"): "optional dependency: the extra `serve`",
    ("cli/console.py", "oncegate.service.server"): "optional dependency: the extra `serve`",
    ("cli/dlq.py", "oncegate.ingress.handler_wrappers"): "cold start: asyncio, only for a handler of `dlq redrive`",
    ("cli/doctor.py", "oncegate.doctor.reading"): "optional dependency: the extra `aws`",
    ("cli/genesys.py", "oncegate.cli.genesys_actions"): "optional dependency: the extra `genesys`",
    ("cli/genesys.py", "oncegate.cli.genesys_aws_actions"): "optional dependency: the extras `genesys` and `aws`",
    ("cli/infra.py", "oncegate.cli.infra_actions"): "optional dependency: the extra `aws`",
    ("cli/serve.py", "oncegate.otel"): "optional dependency: the extra `otel`",
    ("cli/serve.py", "oncegate.service.server"): "optional dependency: the extra `serve`",
    ("cli/serve.py", "oncegate.service.service"): "optional dependency: the extra `serve`",
    ("cli/work.py", "oncegate.ingress.inbox"): "cold start: asyncio, only for `oncegate work inbox`",
    ("console/tokens.py", "oncegate.stores.sqlite.settings"): "cold start: only with a store in a file",
    ("doctor/store_facts.py", "oncegate.stores.dynamodb.settings"): "optional dependency: the extra `dynamodb`",
    ("doctor/store_facts.py", "oncegate.stores.postgres.connections"): "optional dependency: the extra `postgres`",
    ("doctor/store_facts.py", "oncegate.stores.postgres.settings"): "optional dependency: the extra `postgres`",
    ("doctor/store_facts.py", "oncegate.stores.redis.checks"): "optional dependency: the extra `redis`",
    ("doctor/store_facts.py", "oncegate.stores.redis.connection"): "optional dependency: the extra `redis`",
    ("doctor/store_facts.py", "oncegate.stores.redis.errors"): "optional dependency: the extra `redis`",
    ("doctor/store_facts.py", "oncegate.stores.redis.settings"): "optional dependency: the extra `redis`",
    ("doctor/store_facts.py", "oncegate.stores.sqlite"): "cold start: only the store that is used",
    ("doctor/store_facts.py", "oncegate.stores.sqlite.connection"): "cold start: only the store that is used",
    ("doctor/store_facts.py", "oncegate.stores.sqlite.read_only"): "cold start: only the store that is used",
    ("doctor/store_facts.py", "oncegate.stores.sqlite.settings"): "cold start: only the store that is used",
    ("gate/engine.py", "oncegate.gate.async_runner"): "cold start: asyncio, only for `arun`",
    ("gate/engine.py", "oncegate.previous.lookup"): "cold start: only with the option `previous`",
    ("gate/gate.py", "oncegate.gate.once"): "cold start: inspect, only for `once`",
    ("gate/gate.py", "oncegate.ingress.inbox"): "cold start: asyncio, only for `inbox`",
    ("gate/gate.py", "oncegate.ingress.lambda_handler"): "cold start: only for `lambda_handler`",
    ("gate/gate.py", "oncegate.ingress"): "cold start: only for `worker`",
    ("gate/gate.py", "oncegate.ingress.worker"): "cold start: only for `worker`",
    ("gate/limiter.py", "asyncio"): "cold start: only for coroutines",
    ("gate/once.py", "asyncio"): "cold start: only for coroutines",
    ("journal/__init__.py", "oncegate.journal.sqlite"): "cold start: only the journal that is used",
    ("journal/__init__.py", "oncegate.stores.sqlite.settings"): "cold start: only the journal that is used",
    ("journal/__init__.py", "oncegate.journal.postgres"): "optional dependency: the extra `postgres`",
    ("journal/__init__.py", "oncegate.stores.postgres"): "optional dependency: the extra `postgres`",
    ("journal/__init__.py", "oncegate.journal.redis"): "optional dependency: the extra `redis`",
    ("journal/__init__.py", "oncegate.stores.redis"): "optional dependency: the extra `redis`",
    ("ingress/__init__.py", "oncegate.ingress.kafka"): "optional dependency: the extra `kafka`",
    ("ingress/__init__.py", "oncegate.ingress.nats"): "optional dependency: the extra `nats`",
    ("ingress/__init__.py", "oncegate.ingress.rabbitmq"): "optional dependency: the extra `rabbitmq`",
    ("ingress/__init__.py", "oncegate.ingress.sqs"): "optional dependency: the extra `aws`",
    ("ingress/lambda_handler.py", "asyncio"): "cold start: only for async handlers",
    ("previous/__init__.py", "oncegate.previous.dynamodb"): "optional dependency: the extra `dynamodb`",
    ("previous/__init__.py", "oncegate.previous.postgres"): "optional dependency: the extra `postgres`",
    ("previous/__init__.py", "oncegate.previous.redis"): "optional dependency: the extra `redis`",
    ("previous/__init__.py", "oncegate.previous.sqlite"): "cold start: only the place that is used",
    ("service/log.py", "asyncio"): "cold start: only in the event loop",
    ("settings/settings.py", "oncegate.previous.lookup"): "cold start: only with the setting `previous`",
    ("simulate/targets.py", "httpx2"): "optional dependency: the extra `serve`",
    ("simulate/targets.py", "oncegate.simulate.aws"): "optional dependency: the extra `aws`",
    ("sinks/__init__.py", "oncegate.sinks.forwarding"): "optional dependency: the extra `serve`",
    ("sinks/__init__.py", "oncegate.sinks.aws"): "optional dependency: the extra `aws`",
    ("sinks/__init__.py", "oncegate.sinks.kafka"): "optional dependency: the extra `kafka`",
    ("sinks/__init__.py", "oncegate.sinks.nats"): "optional dependency: the extra `nats`",
    ("sinks/__init__.py", "oncegate.sinks.rabbitmq"): "optional dependency: the extra `rabbitmq`",
    ("stores/__init__.py", "oncegate.stores.dynamodb"): "optional dependency: the extra `dynamodb`",
    ("stores/__init__.py", "oncegate.stores.memory"): "cold start: only the store that is used",
    ("stores/__init__.py", "oncegate.stores.postgres"): "optional dependency: the extra `postgres`",
    ("stores/__init__.py", "oncegate.stores.redis"): "optional dependency: the extra `redis`",
    ("stores/__init__.py", "oncegate.stores.sqlite"): "cold start: only the store that is used",
}
# Public classes that share a name, with the reason.
SAME_NAME = {
    "Buried": "errors.Buried is the public exception for the verdict claims.Buried",
    "Bury": "errors.Bury is the public exception that requests the settlement claims.Bury",
    "Conflict": "errors.Conflict is the public exception for the verdict claims.Conflict",
    "InFlight": "errors.InFlight is the public exception for the verdict claims.InFlight",
}

MOST_GATE_MODULES = 18
MOST_LINES = 60  # of a function

MIRRORED = (
    *("analysis", "console", "gate", "genesys", "ingress", "inspection", "journal", "previous", "stores"),
    "service",
)
# Modules with functions that need no test file of their own, with the reason.
WITHOUT_TESTS = {
    "analysis/examples.py": "tests/cli/test_analyze.py and tests/aws/test_objects.py test it",
    "analysis/report.py": "tests/cli/test_analyze.py tests it, and tests/analysis/test_report_page.py in a browser",
    "console/event_filter.py": "tests/console/pages/test_events.py and test_tail.py test it",
    "console/event_rows.py": "tests/console/pages/test_events.py and test_tail.py test it",
    "genesys/notifications.py": "tests/genesys/test_listener.py tests it",
    "genesys/permissions.py": "tests/genesys/test_commands.py tests it",
    "ingress/__init__.py": "tests/ingress/test_open_worker.py tests it",
    "inspection/journal_recording.py": "tests/cli/test_events.py and tests/console/pages/test_rule.py test it",
    "inspection/records.py": "tests/cli/test_explain.py and tests/cli/test_keys.py test it",
    "stores/dynamodb/__init__.py": "opens the store; every test of the store uses it",
    "stores/postgres/__init__.py": "opens the store; every test of the store uses it",
    "stores/redis/__init__.py": "opens the store; every test of the store uses it",
    "stores/sqlite/__init__.py": "opens the store; every test of the store uses it",
}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    """The dotted name of a module; a package is named by its folder."""
    parts = ["oncegate", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in modules()}


def layer_of(dotted: str) -> str:
    """The layer of a module, by the longest name in LAYERS that fits; `from oncegate import Gate` is of `__init__`."""
    inner = dotted.partition(".")[2] or "__init__"
    if f"{inner}.__init__" in RANK:
        return f"{inner}.__init__"
    while inner not in RANK:
        inner = inner.rpartition(".")[0] or "__init__"
    return inner


def imported(node: ast.AST, path: Path) -> list[str]:
    """The modules that one statement imports; none if it is no import."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}: imports must be absolute"
        dotted = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name if name in MODULES else node.module or "" for name in dotted]
    return []


def imports_of(path: Path) -> list[str]:
    """The oncegate modules that a file imports, also inside functions."""
    found = [name for node in ast.walk(ast.parse(path.read_text())) for name in imported(node, path)]
    return [name for name in dict.fromkeys(found) if name.split(".")[0] == "oncegate"]


def lazy_imports() -> Iterator[tuple[str, str]]:
    """The file and the imported module, for each import inside a function."""
    for path in modules():
        for function in functions(path):
            for node in ast.walk(function):
                yield from ((str(path.relative_to(ROOT)), name) for name in imported(node, path))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


# ── imports ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down_the_line(path: Path) -> None:
    """A module imports nothing from a later layer."""
    here = RANK[layer_of(name_of(path))]
    for name in imports_of(path):
        assert RANK[layer_of(name)] <= here, f"{path.name} imports {name}, which is in a later layer"


def test_stores_import_nothing_about_events() -> None:
    """A store handles records and documents; it imports nothing about events, keys or JSON."""
    forbidden = {"events", "carriers", "sources", "keys", "canonical"}
    for path in (ROOT / "stores").rglob("*.py"):
        assert not forbidden & {layer_of(name) for name in imports_of(path)}, path


def test_the_check_finds_a_wrong_import(tmp_path: Path) -> None:
    """The check itself finds imports in every form, also inside functions."""
    path = tmp_path / "module.py"
    path.write_text(
        "import oncegate.gate\ndef f():\n    from oncegate import keys\n    from oncegate.cli.main import run"
    )
    assert sorted(imports_of(path)) == ["oncegate.cli.main", "oncegate.gate", "oncegate.keys"]


@pytest.mark.parametrize(
    ("module", "layer"),
    [
        ("oncegate", "__init__"),
        ("oncegate.gate", "gate.__init__"),
        ("oncegate.gate.gate", "gate.gate"),
        ("oncegate.gate.engine", "gate"),
        ("oncegate.ingress.queue_worker", "ingress"),
    ],
)
def test_the_layer_of_a_module(module: str, layer: str) -> None:
    """`Gate` and its package are above the ingress, the rest of gate/ is below it."""
    assert layer_of(module) == layer
    assert RANK["gate"] < RANK["ingress"] < RANK["gate.gate"]


def test_no_cycles() -> None:
    """No module imports itself through others, also not inside functions."""
    graph = {name: {each for each in imports_of(path) if each != name} for name, path in MODULES.items()}
    assert cycle_in(graph) is None


def cycle_in(graph: dict[str, set[str]]) -> list[str] | None:
    """One cycle of the graph, each module followed by one that imports it."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return None


def test_the_check_finds_a_cycle() -> None:
    """The check itself finds a cycle."""
    assert set(cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}}) or []) == {"a", "b", "c"}
    assert cycle_in({"a": {"b"}, "b": {"c"}}) is None


def test_lazy_imports_have_a_reason() -> None:
    """Every import inside a function stands in LAZY with its reason, and LAZY has no others."""
    assert set(lazy_imports()) == LAZY.keys()
    assert all(reason.startswith(("cold start: ", "optional dependency: ")) for reason in LAZY.values())


def test_no_import_by_name() -> None:
    """Only two modules import others by a string: public names at their first use, and the commands by their names."""
    found = {str(path.relative_to(ROOT)) for path in modules() if imports_by_name(path)}
    assert found == {"__init__.py", "cli/lazy_commands.py"}


def imports_by_name(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            strings = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            if any(isinstance(text, str) and text.startswith("oncegate") for text in strings):
                return True
    return False


@pytest.mark.parametrize("call", ['import_module("oncegate.x")', 'importlib.import_module(f"oncegate.{name}")'])
def test_the_check_finds_an_import_by_name(tmp_path: Path, call: str) -> None:
    """The check itself finds the name of a module as a string and as an f-string."""
    path = tmp_path / "module.py"
    path.write_text(call)
    assert imports_by_name(path)
    path.write_text("import_module(name)")
    assert not imports_by_name(path)


def test_the_core_imports_nothing_else() -> None:
    """`import oncegate` imports the standard library and msgspec only, and nothing slow of the standard library."""
    code = "import sys; before = set(sys.modules); from oncegate import *; print(*(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=_paths(), check=True)
    top = {name.split(".")[0] for name in run.stdout.split()}
    # msgspec uses typing_extensions where it is installed.
    assert {name for name in top if name not in sys.stdlib_module_names} <= {"oncegate", "msgspec", "typing_extensions"}
    assert not top & {"asyncio", "logging", "sqlite3", "socket", "ssl", "email", "unittest"}


def _paths() -> dict[str, str]:
    import msgspec  # only for its path

    return {"PYTHONPATH": f"{ROOT.parent}:{Path(msgspec.__file__).parent.parent}"}


# ── names, sizes and tests ────────────────────────────────────────────────────────────────────────────────


def test_class_names_are_unique() -> None:
    """No two public classes have the same name, except those in SAME_NAME."""
    places: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not is_private(node.name) and not is_private(path.stem):
                places.setdefault(node.name, []).append(name)
    assert {name: where for name, where in places.items() if len(where) > 1}.keys() == SAME_NAME.keys()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_the_gate_stays_small() -> None:
    """The gate has at most MOST_GATE_MODULES modules: a reader must be able to find the one that matters."""
    assert len(list((ROOT / "gate").glob("[!_]*.py"))) <= MOST_GATE_MODULES


def test_functions_are_short() -> None:
    """No function is longer than MOST_LINES."""
    lengths = {
        f"{name}.{function.name}": (function.end_lineno or 0) - function.lineno + 1
        for name, path in MODULES.items()
        for function in functions(path)
    }
    assert [name for name, lines in lengths.items() if lines > MOST_LINES] == []


def test_every_module_has_a_test_file() -> None:
    """Each module with logic has a test file at the same place under tests/. That of a package is named for its
    folder."""
    untested = {
        str(path.relative_to(ROOT))
        for folder in MIRRORED
        for path in (ROOT / folder).rglob("*.py")
        if has_logic(path) and not mirror_of(path).exists()
    }
    assert untested == WITHOUT_TESTS.keys()


def has_logic(path: Path) -> bool:
    """Whether a module has a function that does something, unlike the methods of a Protocol."""
    return any(not isinstance(statement, ast.Expr) for function in functions(path) for statement in function.body)


def mirror_of(path: Path) -> Path:
    module = path.relative_to(ROOT)
    stem = path.parent.name if path.stem == "__init__" else path.stem
    return TESTS / module.parent / f"test_{stem}.py"
