"""The wheel and the sdist are complete, and the wheel runs in an empty environment. No test needs the network."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

from oncegate import __version__
from tests.stores.servers import until

ROOT = Path(__file__).parent.parent
NOT_SHIPPED = {".ci/run", ".gitignore"}
EVENT = {"id": "evt-1", "type": "call.ended"}


class Built(NamedTuple):
    """The files that `make build` makes."""

    wheel: Path
    sdist: Path

    def metadata(self) -> Metadata:
        with zipfile.ZipFile(self.wheel) as archive:
            content = archive.read(f"oncegate-{__version__}.dist-info/METADATA")
        return Metadata.from_email(content, validate=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the sdist, and the wheel from the sdist, with the build backend that is installed here."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(folder / f"oncegate-{__version__}-py3-none-any.whl", folder / f"oncegate-{__version__}.tar.gz")


class Installed:
    """An environment that has only the wheel, with extras, and the packages that its metadata names. The packages are
    copied from the environment of this process. pip then checks without an index that no package is missing."""

    def __init__(self, folder: Path, built: Built, *extras: str) -> None:
        self.folder = folder / "elsewhere"
        self.folder.mkdir()
        venv.create(folder / "env", symlinks=True)
        self.bin = folder / "env" / "bin"
        (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
        for name in needed(built.metadata().requires_dist or [], {"", *extras}):
            copy(name, packages)
        wheel = f"{built.wheel}[{','.join(extras)}]" if extras else str(built.wheel)
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python")]
        pip += ["install", "--no-index", "--no-compile"]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        self.env = {**env, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = subprocess.run([*pip, wheel], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.bin / program), *arguments]
        return subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=60)

    def done(self, program: str, *arguments: str) -> str:
        """Run a command that must succeed. Returns its output."""
        ran = self.run(program, *arguments)
        assert ran.returncode == 0, ran
        return ran.stdout


def needed(requirements: list[Requirement], extras: set[str]) -> set[str]:
    """The names of all packages that these requirements need, directly or through other packages."""
    found: set[str] = set()
    waiting = [(requirements, extras)]
    while waiting:
        of, chosen = waiting.pop()
        for each in of:
            if each.marker is not None and not any(each.marker.evaluate({"extra": extra}) for extra in chosen):
                continue
            if each.name == "oncegate":
                waiting.append((requirements, each.extras))
            elif each.name not in found:
                found.add(each.name)
                inner = [Requirement(line) for line in distribution(each.name).requires or []]
                waiting.append((inner, {"", *each.extras}))
    return found


def copy(name: str, packages: Path) -> None:
    for file in distribution(name).files or []:
        if ".." not in file.parts and file.suffix != ".pyc":  # commands of the package are outside of its folder
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file.locate(), target)
            bytecode = Path(cache_from_source(str(file.locate()))) if file.suffix == ".py" else None
            if bytecode is not None and bytecode.exists():  # to compile the packages again takes seconds
                (target.parent / "__pycache__").mkdir(exist_ok=True)
                shutil.copy2(bytecode, target.parent / "__pycache__")


@pytest.fixture(scope="module")
def served(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("serve"), built, "serve")


# ── the files ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_wheel_has_the_package_only(built: Built) -> None:
    """The wheel has each file of the package (also SQL, Lua, styles and py.typed), the licence, and nothing else."""
    package = ROOT / "src" / "oncegate"
    files = {f"oncegate/{path.relative_to(package)}" for path in package.rglob("*") if path.is_file()}
    with zipfile.ZipFile(built.wheel) as archive:
        shipped = set(archive.namelist())
    expected = {name for name in files if not name.endswith(".pyc")}
    assert {Path(name).suffix for name in expected} == {".py", ".sql", ".lua", ".typed", ".css", ".js", ".svg"}
    about = {name for name in shipped if name.startswith(f"oncegate-{__version__}.dist-info/")}
    assert shipped - about == expected
    assert f"oncegate-{__version__}.dist-info/licenses/LICENSE" in about


def test_the_sdist_has_the_repository(built: Built) -> None:
    """The sdist has every file of the repository except NOT_SHIPPED, so that it can be built and tested. It has no file
    that git ignores."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a clone")
    tracked, new = listed_by_git("--cached"), listed_by_git("--others", "--exclude-standard")
    with tarfile.open(built.sdist) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()} - {"PKG-INFO"}
    assert tracked - NOT_SHIPPED - shipped == set()
    assert shipped - tracked - new == set()


def listed_by_git(*options: str) -> set[str]:
    done = subprocess.run(["git", "ls-files", *options], cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S607
    return {name for name in done.stdout.splitlines() if (ROOT / name).exists()}


def test_the_sdist_runs_its_tests(built: Built, tmp_path: Path) -> None:
    """Tests that run in the sdist test the code of the sdist."""
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / f"oncegate-{__version__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["tests/test_claims.py"]
    env = {**os.environ, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout


def test_the_metadata(built: Built) -> None:
    """The metadata is valid, and states the version, the licence, the page and the versions of Python."""
    metadata = built.metadata()
    assert (metadata.name, str(metadata.version)) == ("oncegate", __version__)
    assert (metadata.license_expression, metadata.license_files) == ("Apache-2.0", ["LICENSE"])
    assert metadata.description_content_type == "text/markdown"
    assert (metadata.description or "").strip() == (ROOT / "README.md").read_text().strip()
    classifiers = metadata.classifiers or []
    lowest = re.search(r"(\d+\.\d+)$", str(metadata.requires_python))
    assert lowest
    assert f"Programming Language :: Python :: {lowest[1]}" in classifiers
    assert "Typing :: Typed" in classifiers
    assert not any(each.startswith("License ::") for each in classifiers)  # the SPDX expression replaces them


# ── the installed wheel ───────────────────────────────────────────────────────────────────────────────────


def test_the_library_alone(built: Built, tmp_path: Path) -> None:
    """Without extras, the library runs with SQLite, and the command names the extra that is missing."""
    installed = Installed(tmp_path, built)
    program = "import oncegate; gate = oncegate.Gate('sqlite:///x.db'); print(oncegate.__file__)\n"
    program += "print(*(gate.run({'id': 1}, lambda event: None).status for _ in range(2)))"
    path, statuses = installed.done("python", "-c", program).splitlines()
    assert (Path(path).is_relative_to(tmp_path), statuses) == (True, "processed duplicate")
    refused = installed.run("oncegate", "--help")
    assert (refused.returncode, "pip install" in refused.stderr, "Traceback" in refused.stderr) == (1, True, False)


def test_commands(served: Installed) -> None:
    """The commands of the `serve` extra run outside of the repository."""
    assert served.done("oncegate", "--version") == f"oncegate, version {__version__}\n"
    assert "Receive events over HTTP." in served.done("oncegate", "--help")
    (served.folder / "event.json").write_text(json.dumps(EVENT))
    assert json.loads(served.done("oncegate", "read", "event.json", "--output", "json"))
    served.done("oncegate", "simulate", "--to", f"file://{served.folder}/sent.jsonl", "--events", "5", "--seed", "1")
    assert len((served.folder / "sent.jsonl").read_text().splitlines()) >= 5


def test_serve(served: Installed) -> None:
    """The service starts, is ready, and answers the second of two equal requests as a duplicate."""
    with (served.folder / "errors").open("w") as errors:
        service = subprocess.Popen(
            [served.bin / "oncegate", "serve", "--port", "0", "--handler", "log"],
            cwd=served.folder,
            env=served.env,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        with client(served, service) as http:
            assert [http.get(path).status_code for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]
            statuses = [http.post("/events", json=EVENT).json()["status"] for _ in range(2)]
        assert statuses == ["accepted", "duplicate"]
    finally:
        service.send_signal(signal.SIGTERM)
        code = service.wait(30)
    assert code == 0


def client(served: Installed, service: subprocess.Popen[bytes]) -> httpx2.Client:
    def welcome() -> Iterator[str]:
        yield from re.findall(r"listens on (\S+) ", (served.folder / "errors").read_text())

    until(lambda: any(welcome()) or service.poll() is not None, "the service")
    return httpx2.Client(base_url=next(welcome()), trust_env=False, verify=False)
