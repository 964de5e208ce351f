"""Every error Oncegate raises, as one tree.

    OncegateError
    ├── SettingError          a setting, duration or URL that cannot be meant
    ├── MissingExtra          an optional dependency is not installed; the text has the pip line
    ├── SeveralEvents         `run` was given a payload that holds more or fewer events than one
    ├── MissingKey            an event lacks what its key is made of
    ├── Unreadable            `seen` was given what is no event, or has no key
    └── StoreError
        ├── StoreUnavailable  may pass by itself: a full disk, a lock held too long
        └── StoreRefused      needs a person: a corrupt, read-only, foreign or newer file

What an event can come to (a duplicate, a failure of the handler, a conflict) is an `Outcome`, not an error.
"""


class OncegateError(Exception):
    """The root: catch this to catch everything Oncegate raises on purpose."""


class SettingError(OncegateError, ValueError):
    """A setting that cannot be meant; the text says which, and what would do."""


class MissingExtra(OncegateError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'oncegate[{extra}]'")


class SeveralEvents(OncegateError, ValueError):
    """`run` takes exactly one event; `run_batch` takes any number."""

    def __init__(self, count: int) -> None:
        super().__init__(f"one event is taken here but the payload holds {count}; use run_batch([payload], handler)")


class MissingKey(OncegateError, LookupError):
    """An event lacks a part of its key, so it cannot be told from another."""

    def __init__(self, strategy: str, tried: tuple[str, ...]) -> None:
        self.strategy = strategy
        self.tried = tried
        places = ", ".join(tried) or "nothing"
        super().__init__(f"the {strategy} key needs {places}, which the event does not have")


class Unreadable(OncegateError, ValueError):
    """`seen` can only answer yes or no, so what it cannot identify is an error."""


class StoreError(OncegateError):
    """The store could not do what it was asked; nothing of the batch was written."""


class StoreUnavailable(StoreError):
    """The store cannot answer now; the same call may work later."""


class StoreRefused(StoreError):
    """The store cannot be used as it is; a person has to look."""
