"""Which program runs waiting events: no page promises a run that nobody performs."""

from pathlib import Path

import pytest

from oncegate.inspection.runners import has_runner, who_runs
from oncegate.settings import Settings, examine


def settings(tmp_path: Path, toml: str, **flags: str) -> Settings:
    file = tmp_path / "oncegate.toml"
    file.write_text(toml)
    found, problems = examine(file, flags=flags, environ={})
    assert problems == []
    return found


ROUTES = (
    '[serve]\nhandler = "log"\n[route.crm]\nsignature = "none"\n[route.idle]\nsignature = "none"\nhandler = "off"\n'
)


def test_namespaces(tmp_path: Path) -> None:
    """A namespace is run if a route that is served has it, with a handler."""
    found = settings(tmp_path, ROUTES)
    assert [has_runner(found, each) for each in ("crm", "idle", "default", "other")] == [True, False, False, False]
    assert has_runner(settings(tmp_path, '[serve]\nhandler = "log"\n'), "default")
    assert not has_runner(settings(tmp_path, ""), "default")


def test_in_a_service(tmp_path: Path) -> None:
    """The console of a service names the service, and each namespace that it does not run."""
    found = settings(tmp_path, ROUTES)
    assert who_runs(found, {"crm"}, is_service=True) == ["This service runs waiting events within a second."]
    sentences = who_runs(found, {"crm", "idle", "other"}, is_service=True)
    assert "no handler for the namespace idle" in sentences[1]
    assert "no route for the namespace other" in sentences[2]


@pytest.mark.parametrize(
    ("store", "worker"), [("sqlite:///x.db", True), ("redis://localhost", False), ("dynamodb://table", False)]
)
def test_a_console_alone(tmp_path: Path, store: str, worker: bool) -> None:
    """A console that runs alone promises nothing. An inbox worker is named only for stores that can have one."""
    found = settings(tmp_path, '[serve]\nhandler = "log"\nmode = "inline"\n', store=store)
    first, _ = who_runs(found, {"default"}, is_service=False)
    assert first.startswith("The console runs no events.")
    assert ("work inbox" in first) is worker
