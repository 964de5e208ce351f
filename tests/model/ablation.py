"""An ablation: the protocol with one rule taken out, and what must find that out.

A rule of the transition function is taken out of the text of the shipped module, so that what is checked is what
is shipped, but for one expression. A rule of the worker is one switch of `Rules`.
"""

from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from oncegate import claims as shipped
from tests.model.explore import Report, explore
from tests.model.parts import Rules, Setting

_LIMIT: Final = 300_000


class Ablation(NamedTuple):
    """`instead` says what is done in place of the rule; `invariant` is the one that must catch it."""

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
    """The shipped module with one piece of its text replaced."""
    assert shipped.__file__ is not None
    source = Path(shipped.__file__).read_text()
    if source.count(old) != 1:
        raise ValueError(f"{old!r} stands {source.count(old)} times in claims.py; an ablation must mean one place")
    module = ModuleType("ablated")
    exec(compile(source.replace(old, new), "claims.py", "exec"), module.__dict__)  # noqa: S102  # it is our own text
    return module
