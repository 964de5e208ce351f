"""`oncegate dlq redrive --handler`: what runs, how often, and the output."""

from pathlib import Path

import pytest

from oncegate import Event, Gate
from oncegate.cli import exit_codes
from tests.cli.conftest import Run

HANDLERS = """
import signal, sys

def exits(event):
    sys.exit(3)

def interrupts(event):
    raise KeyboardInterrupt

def closes(event):
    raise GeneratorExit

def is_interrupted(event):
    signal.raise_signal(signal.SIGINT)

def works(event):
    pass
"""


@pytest.fixture(autouse=True)
def handlers(tmp_path: Path, gate: Gate) -> None:
    (tmp_path / "ends.py").write_text(HANDLERS)
    gate.run_batch([{"id": 1}, {"id": 2}], fail)


def fail(event: Event) -> None:
    raise ValueError(event.id)


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ("exits", "the handler called sys.exit(3)"),
        ("interrupts", "the handler raised KeyboardInterrupt"),
        ("closes", "the handler raised GeneratorExit"),
    ],
)
def test_a_handler_that_ends_the_process(oncegate: Run, gate: Gate, handler: str, said: str) -> None:
    """sys.exit in a handler is a failed attempt: every event is tried to its last attempt."""
    code, out, err = oncegate("dlq", "redrive", "--all", "--handler", f"ends:{handler}")
    assert (code, err) == (exit_codes.FAILED, "Error: 2 events could not be processed\n")
    assert out.startswith("2 dead letters match.\n2 redriven.\n")
    assert out.count(f"Failed at attempt 1: RuntimeError: {said}; the event is stored and will be retried.") == 2
    assert out.endswith("\n2 run.\n")
    assert len(gate.store.dead_letters()) == 2


def test_what_cannot_be_read(oncegate: Run, gate: Gate) -> None:
    """An event that the handler does not get does not count as run."""
    oncegate("dlq", "drop", "--all", "--yes")
    for raw in (b"{1", b"{2"):
        gate.lambda_handler(fail)(raw.decode(), None)
    code, out, _ = oncegate("dlq", "redrive", "--all", "--handler", "ends:works")
    assert (code, out.count("Not run, and buried as dead letter")) == (exit_codes.FAILED, 2)
    assert out.endswith("\n0 run.\n")


@pytest.mark.parametrize("namespace", ["default", "crm"])
def test_what_waits_already(oncegate: Run, gate: Gate, tmp_path: Path, namespace: str) -> None:
    """With --all, waiting events run in every namespace that the settings name, even if nothing is redriven."""
    (tmp_path / "oncegate.toml").write_text('[route.crm]\nnamespace = "crm"\nsignature = "unsigned"\n')
    Gate(gate.store, namespace=namespace, max_attempts=1).run({"id": 3}, fail)
    oncegate("dlq", "redrive", "--all")
    code, out, _ = oncegate("dlq", "redrive", "--all", "--handler", "ends:works")
    assert code == exit_codes.OK
    assert out.startswith("0 dead letters match.\n0 redriven.\n")
    assert out.endswith("\n3 run.\n")
    again = oncegate("dlq", "redrive", "--all", "--handler", "ends:works")[1]
    assert again == "0 dead letters match.\n0 redriven.\n0 run.\n"


def test_a_person_who_interrupts(oncegate: Run, gate: Gate) -> None:
    """Ctrl-C ends the command at once; the next command runs the waiting events."""
    assert oncegate("dlq", "redrive", "--all", "--handler", "ends:is_interrupted")[0] == exit_codes.INTERRUPTED
    code, out, _ = oncegate("dlq", "redrive", "--all", "--handler", "ends:works")
    assert (code, out.splitlines()[-1]) == (exit_codes.OK, "2 run.")
