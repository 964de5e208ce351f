"""An ablation: the protocol without one of its rules, and the invariant that must then break.

A rule of the transition function is replaced in the source of `oncegate.claims`, so that the check runs the shipped
code except for one expression. A rule of the worker is one switch of `Rules`.
"""

from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from oncegate import claims as shipped
from tests.model.explore import Report, explore
from tests.model.parts import Rules, Setting

_LIMIT: Final = 300_000


class Ablation(NamedTuple):
    """`instead` describes the broken behaviour. `invariant` is the number of the invariant that must catch it."""

    name: str
    instead: str
    invariant: int
    setting: Setting
    patch: tuple[str, str] | None = None
    rules: Rules = Rules()

    @property
    def where(self) -> str:
        return "worker" if self.patch is None else "function"


def attempt(ablation: Ablation) -> Report:
    """Explore the ablated protocol until an invariant breaks."""
    claims = shipped if ablation.patch is None else patched(*ablation.patch)
    return explore(ablation.setting, _LIMIT, rules=ablation.rules, claims=claims)


def patched(old: str, new: str) -> ModuleType:
    """The shipped module with one piece of its source replaced."""
    assert shipped.__file__ is not None
    source = Path(shipped.__file__).read_text()
    if source.count(old) != 1:
        raise ValueError(f"{old!r} occurs {source.count(old)} times in claims.py; an ablation must replace one place")
    module = ModuleType("ablated")
    exec(compile(source.replace(old, new), "claims.py", "exec"), module.__dict__)  # noqa: S102  # our own source
    return module
