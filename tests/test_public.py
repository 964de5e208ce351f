"""The public names and the error tree."""

import subprocess
import sys

import oncegate
from oncegate import errors


def test_public_names() -> None:
    """These names are the public interface; a change must be deliberate."""
    methods = sorted(name for name in vars(oncegate.Gate) if not name.startswith("_"))
    assert methods == [
        "aadmit",
        "admit",
        "arun",
        "close",
        "counts",
        "drain",
        "hung",
        "inbox",
        "keep",
        "lambda_handler",
        "once",
        "run",
        "run_batch",
        "run_waiting",
        "seen",
        "threads_left",
        "transaction",
        "worker",
    ]
    assert sorted(oncegate.__all__) == ["Event", "Gate", "OncegateError", "Outcome", "keys", "open_store", "read"]
    assert all(hasattr(oncegate, name) for name in oncegate.__all__)


def test_public_names_are_listed() -> None:
    """`dir(oncegate)` lists the public names, and imports none of them."""
    code = "import sys, oncegate; names = dir(oncegate); print(*names); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*oncegate.__all__, "__version__"} <= set(done.stdout.split())
    assert not {"oncegate.gate", "oncegate.stores", "msgspec"} & set(done.stderr.split())


def test_one_error_tree() -> None:
    """Every error of `errors` is an OncegateError and is in the drawing of the tree."""
    drawn = errors.__doc__ or ""
    for name, thing in vars(errors).items():
        if isinstance(thing, type) and issubclass(thing, Exception):
            assert issubclass(thing, errors.OncegateError)
            assert name in drawn


def test_a_missing_extra_says_what_to_install() -> None:
    """The error for a missing optional dependency contains the `pip install` command."""
    assert str(errors.MissingExtra("oncegate serve", "serve")).endswith("pip install 'oncegate[serve]'")
