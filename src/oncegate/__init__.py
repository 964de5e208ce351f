"""Make every contact-centre event take effect once, however often it is delivered."""

from importlib import import_module

TYPE_CHECKING = False  # type checkers know the name; an import of typing would double the time of `import oncegate`
if TYPE_CHECKING:
    from oncegate import keys
    from oncegate.errors import OncegateError
    from oncegate.events import Event
    from oncegate.gate import Gate, Outcome
    from oncegate.sources import read
    from oncegate.stores import open_store

__all__ = ["Event", "Gate", "OncegateError", "Outcome", "keys", "open_store", "read"]

__version__ = "0.1.0"

_MODULES = {
    "Event": "oncegate.events",
    "Gate": "oncegate.gate",
    "OncegateError": "oncegate.errors",
    "Outcome": "oncegate.gate",
    "open_store": "oncegate.stores",
    "read": "oncegate.sources",
}

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept names that do not exist

    def __getattr__(name: str) -> object:
        """Import a public name at its first use. The command line imports this package before it can catch Ctrl-C, so
        the import must be short."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(_MODULES.get(name, f"oncegate.{name}"))
        value = getattr(module, name) if name in _MODULES else module
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """The names of this module and the public names that are not imported yet, for completion in a shell."""
        return sorted({*globals(), *__all__})
