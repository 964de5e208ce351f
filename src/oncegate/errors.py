"""Every error Oncegate raises, as one tree.

    OncegateError
    ├── SettingError          a setting, duration or URL that cannot be meant
    ├── MissingExtra          an optional dependency is not installed; the text has the pip line
    ├── SeveralEvents         `run` was given a payload that holds more or fewer events than one
    ├── TooManyEvents         `read` was given a payload that holds more events than it was told to expect
    ├── MissingKey            an event lacks what its key is made of
    ├── Unreadable            `seen` or `once` was given what is no event, or has no key
    ├── CallError             `once` has no result to give; its `outcome` says why
    │   ├── InFlight          another is at it, and was for all the time that was waited
    │   ├── Conflict          its key is known with other arguments
    │   ├── Buried            it failed too often, and is a dead letter
    │   ├── NoResult          it was done before, but the result could not be kept or is not there yet
    │   └── Unconfirmed       it ran, but whether that is recorded is not known
    ├── RetryLater            raised by a handler: this attempt has failed, and the next shall not come before
    ├── Bury                  raised by a handler: no attempt can ever work
    ├── HandlerTimeout        a handler did not return within `handler_timeout`; it fails the event, and is not raised
    ├── NotTaken              a Lambda invocation that has to be delivered again; its `outcomes` say why
    ├── UnknownSource         a Lambda function was invoked by an AWS source that is not read
    ├── TargetError           what simulated traffic is sent to cannot be used
    ├── AwsError              a request to AWS was refused, or there was no answer
    ├── QueueError            a queue that cannot be worked on: its name, region, credentials, permissions
    │   └── QueueUnavailable  may pass by itself: the network, a limit
    └── StoreError
        ├── StoreUnavailable  may pass by itself: a full disk, a lock held too long
        │   └── StoreReadOnly it can be read, and takes no writes now: it is full, or has become a replica
        └── StoreRefused      needs a person: a corrupt, read-only, foreign or newer file
            ├── NoStore       nobody has made one there yet, and it was not to be made now
            └── Unkeepable    one record is more than the store can keep; all others are none the worse

What an event can come to (a duplicate, a failure of the handler, a conflict) is an `Outcome`, not an error; only
`once` and a Lambda function, which have no other way to answer, raise.
"""

from collections.abc import Sequence
from typing import Any, Final

_LONGEST_WAIT: Final = 7 * 86_400


class OncegateError(Exception):
    """The root: catch this to catch everything Oncegate raises on purpose.

    Exceptions come out of other processes pickled, and Python would make them anew by calling their class with their
    text, which is not what all of these are made of."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(kind: type[OncegateError], said: tuple[Any, ...], about: dict[str, Any]) -> OncegateError:
    error = kind.__new__(kind)
    super(OncegateError, error).__init__(*said)  # what is built in; the kind's own has done its work
    error.__dict__.update(about)
    return error


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


class TooManyEvents(OncegateError):
    """A payload holds more events than may be; how many, nobody has counted."""


class MissingKey(OncegateError, LookupError):
    """An event lacks a part of its key, so it cannot be told from another."""

    def __init__(self, strategy: str, tried: tuple[str, ...]) -> None:
        self.strategy = strategy
        self.tried = tried
        places = ", ".join(tried) or "nothing"
        super().__init__(f"the {strategy} key needs {places}, which the event does not have")


class Unreadable(OncegateError, ValueError):
    """`seen` can only answer yes or no, and `once` only with a result, so what they cannot identify is an error."""


class CallError(OncegateError):
    """A guarded call that has no result to give. `outcome` is what became of it."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        super().__init__(outcome.reason)


class InFlight(CallError):
    """Another is at it."""


class Conflict(CallError):
    """Its key is known with other arguments."""


class Buried(CallError):
    """It failed too often and is a dead letter; once that is dropped, the next call runs."""


class NoResult(CallError):
    """It was done before, but what it returned is not there."""


class Unconfirmed(CallError):
    """It ran, but the store did not confirm that it is recorded as done."""


class RetryLater(OncegateError):
    """For handlers to raise: it has failed, and may work later, though not before `after` seconds from now if that is
    known. In the inbox it uses up no attempt for as long as `retry_for`; elsewhere the attempt counts, and the last one
    buries all the same. A `public` reason has nothing of the payload in it, and may stand in logs."""

    def __init__(self, reason: str, after: float | None = None, *, public: bool = False) -> None:
        if after is not None and not (isinstance(after, int | float) and 0 <= after <= _LONGEST_WAIT):
            raise ValueError(f"after={after!r} must be a number of seconds, from 0 to {_LONGEST_WAIT}")
        self.after = after
        self.public = public
        super().__init__(reason)


class Bury(OncegateError):
    """For handlers to raise: it can never work, so it becomes a dead letter at once, whatever attempts are left. A
    `public` reason may stand in logs."""

    def __init__(self, reason: str, *, public: bool = False) -> None:
        self.public = public
        super().__init__(reason)


class UnknownSource(OncegateError):
    """A Lambda function was invoked by an AWS source whose payload no carrier reads; nothing was acknowledged."""

    def __init__(self, source: str) -> None:
        self.source = source
        super().__init__(
            f"this function was invoked by {source!r}, which lambda_handler does not read; nothing was run. Remove "
            "that trigger, or handle it before Oncegate; allow_unknown_sources=True runs the payload as one plain event"
        )


class HandlerTimeout(OncegateError):
    """A handler has run for longer than `handler_timeout`: what its event fails with."""


class NotTaken(OncegateError):
    """A Lambda invocation that is failed on purpose, so that it is delivered again. `outcomes` are those that must not
    be acknowledged; the text says nothing that an exception said, since Lambda logs it."""

    def __init__(self, outcomes: Sequence[Any], why: str) -> None:
        self.outcomes = tuple(outcomes)
        super().__init__(why)


class TargetError(OncegateError):
    """A file, queue, bus or address that simulated traffic is sent to cannot be used."""


class AwsError(OncegateError):
    """A request to AWS that came to nothing; the text says which, and what to do."""


class QueueError(OncegateError):
    """The queue could not do what it was asked; a person has to look."""


class QueueUnavailable(QueueError):
    """The queue cannot answer now; the same request may work later."""


class StoreError(OncegateError):
    """The store could not do what it was asked. If only its answer was lost, it may have been done; asking again does
    no harm. `brief` says it to those who are not to know where the store is."""

    brief = "it failed"


class StoreUnavailable(StoreError):
    """The store cannot answer now; the same call may work later."""

    brief = "it does not answer"


class StoreReadOnly(StoreUnavailable):
    """The store can be read and takes no writes now; nothing was written."""

    brief = "it takes no writes"


class StoreRefused(StoreError):
    """The store cannot be used as it is; a person has to look."""

    brief = "it is not set up as it must be"


class NoStore(StoreRefused):
    """There is no store there yet, or another one was meant."""


class Unkeepable(StoreRefused):
    """A record that this store cannot keep, whenever it is asked: nothing is wrong with the store, and no other record
    is the worse for it."""
