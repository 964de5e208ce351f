"""Oncegate makes every contact-centre event take effect once, however often it is delivered."""

from importlib import import_module

TYPE_CHECKING = False  # that of typing would take as long as all else here
if TYPE_CHECKING:
    from oncegate import keys
    from oncegate.errors import OncegateError
    from oncegate.events import Event
    from oncegate.gate import Gate, Outcome
    from oncegate.sources import read
    from oncegate.stores import open_store

__all__ = ["Event", "Gate", "OncegateError", "Outcome", "keys", "open_store", "read"]

__version__ = "0.1.0"

_PLACES = {
    "Event": "oncegate.events",
    "Gate": "oncegate.gate",
    "OncegateError": "oncegate.errors",
    "Outcome": "oncegate.gate",
    "open_store": "oncegate.stores",
    "read": "oncegate.sources",
}

if not TYPE_CHECKING:  # a name that there is not is to be found by whoever checks types

    def __getattr__(name: str) -> object:
        """A public name is loaded when it is first asked for: a command comes by here before it can catch Ctrl-C."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_PLACES[name]), name) if name in _PLACES else import_module(f"oncegate.{name}")
        globals()[name] = found
        return found
