"""All exceptions that Oncegate raises, in one tree.

    OncegateError
    ├── SettingError          a setting, duration or URL is invalid
    ├── MissingExtra          an optional dependency is not installed
    ├── SeveralEvents         a call that takes one event got a payload with none or several
    ├── TooManyEvents         a payload holds more events than `read` was allowed to return
    ├── MissingKey            an event lacks a part of its key
    ├── Unreadable            `seen` or `once` got a payload that is not an event or has no key
    ├── CallError             a function guarded by `once` has no result to return
    │   ├── InFlight          another worker runs the same call
    │   ├── Conflict          the key was used before with other arguments
    │   ├── Buried            the call is a dead letter
    │   ├── NoResult          the call completed before, but its result is not stored
    │   └── Unconfirmed       the call ran, but the store did not confirm the completion
    ├── RetryLater            a handler raises it: this attempt failed, retry later
    ├── Bury                  a handler raises it: do not retry, make a dead letter
    ├── HandlerTimeout        a handler ran longer than `handler_timeout` (stored with the outcome, never raised)
    ├── NotTaken              a Lambda invocation fails on purpose, so that AWS delivers it again
    ├── UnknownSource         an AWS service that Oncegate cannot read invoked the Lambda function
    ├── TargetError           the target of simulated traffic cannot be used
    ├── AwsError              AWS rejected a request or did not answer
    ├── GenesysError          Genesys Cloud rejected a request or did not answer
    ├── QueueError            the queue cannot be used: wrong name, region, credentials or permissions
    │   └── QueueUnavailable  the queue does not answer now; a retry may work
    └── StoreError            a store operation failed
        ├── StoreUnavailable  the store does not answer now; a retry may work
        │   ├── StoreReadOnly the store can be read but accepts no writes now
        │   └── PreviousUnavailable  the old place of the option `previous` does not answer
        └── StoreRefused      the store cannot be used until a person changes something
            ├── NoStore       there is no store at this address
            └── Unkeepable    the store cannot hold this one record; other records are not affected

The normal results of an event (duplicate, failure of the handler, conflict) are values: see `Outcome`. Only `once` and
Lambda handlers raise an exception for such a result, because they have no other way to report it.
"""

from collections.abc import Sequence
from typing import Any, Final

_MAX_RETRY_AFTER: Final = 7 * 86_400  # seconds


class OncegateError(Exception):
    """The root of the tree: catch it to catch every error that Oncegate raises on purpose.

    Errors can be pickled, for example by a process pool. Python's default unpickling calls the class with the text of
    the error. This would fail for several of these classes, because they take other arguments than a text."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (type(self), self.args, self.__dict__)


def _unpickle(kind: type[OncegateError], args: tuple[Any, ...], attributes: dict[str, Any]) -> OncegateError:
    error = kind.__new__(kind)
    super(OncegateError, error).__init__(*args)  # the built-in __init__ only; `attributes` holds what ours has set
    error.__dict__.update(attributes)
    return error


class SettingError(OncegateError, ValueError):
    """A setting is invalid. The text names the setting and its value and says what is allowed.

    `settings` are the names of the invalid settings, if they are known. If None is allowed too, `or_none` says what
    None does, such as "to leave it to the platform". The text then ends with "or None" (in a settings file: "or off")
    and `or_none`."""

    def __init__(self, text: str, *, settings: Sequence[str] = (), or_none: str | None = None) -> None:
        self.text = text
        self.settings = tuple(settings)
        self.or_none = or_none
        super().__init__(text if or_none is None else f"{text}, or None {or_none}")


class MissingExtra(OncegateError, ImportError):
    """An optional dependency is not installed. The text holds the `pip install` command."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'oncegate[{extra}]'")


class SeveralEvents(OncegateError, ValueError):
    """A call that takes exactly one event, such as `run`, got a payload with no event or with several events. Use
    `run_batch`."""

    def __init__(self, count: int) -> None:
        advice = "use run_batch([payload], handler)" if count else "pass an event, or skip the call"
        super().__init__(f"this call takes one event, but the payload holds {count or 'none'}; {advice}")


class TooManyEvents(OncegateError):
    """A payload holds more events than the caller allows. Reading stops at the limit, so the total is not known."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the payload holds more events than the limit of {most}; send fewer events in one payload")


class MissingKey(OncegateError, LookupError):
    """An event lacks a part of its key. `tried` lists the paths that were looked up. Choose a strategy whose parts
    every event has, or set `on_missing_key`."""

    def __init__(self, strategy: str, tried: tuple[str, ...]) -> None:
        self.strategy = strategy
        self.tried = tried
        places = ", ".join(tried) or "nothing"
        super().__init__(f"the {strategy} key needs {places}, which the event does not have")


class Unreadable(OncegateError, ValueError):
    """`seen` or `once` got a payload that is not an event or has no key. `seen` returns only a boolean and `once` only
    a result, so both report the problem with this exception. The text says what is wrong with the payload."""


class CallError(OncegateError):
    """A function guarded by `once` has no result to return. `outcome` says why."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        super().__init__(outcome.reason)


class InFlight(CallError):
    """Another worker still runs the same call after `wait` has passed. Call again later."""


class Conflict(CallError):
    """The key was used before with other arguments. Use a key that is different for the two calls."""


class Buried(CallError):
    """The call failed too often and is a dead letter. Drop the dead letter to let the next call run."""


class NoResult(CallError):
    """The call completed before, but its result is not stored: the result was too large or could not be encoded. Or the
    call is a redriven dead letter that has not run yet."""


class Unconfirmed(CallError):
    """The call ran, but the store did not confirm the completion. The next call may run it again."""


class RetryLater(OncegateError):
    """A handler raises it when an attempt failed but a later attempt may succeed. If `after` is given, the next attempt
    does not start before `after` seconds have passed.

    For events of the inbox or of a message bus, such attempts do not count for the duration `retry_for`. Elsewhere the
    attempt counts, and a failure at the last attempt makes a dead letter. Set `public` if the reason contains nothing
    from the payload. The reason may then be logged. If only a part of the reason may be logged, `public` is that part.
    """

    def __init__(self, reason: str, after: float | None = None, *, public: bool | str = False) -> None:
        if after is not None and not (isinstance(after, int | float) and 0 <= after <= _MAX_RETRY_AFTER):
            raise ValueError(f"after={after!r} must be a number of seconds, from 0 to {_MAX_RETRY_AFTER}")
        self.after = after
        self.public = public
        super().__init__(reason)


class Bury(OncegateError):
    """A handler raises it when no retry can work. The event becomes a dead letter at once, even if attempts are left.
    `public` has the same meaning as in `RetryLater`."""

    def __init__(self, reason: str, *, public: bool | str = False) -> None:
        self.public = public
        super().__init__(reason)


class UnknownSource(OncegateError):
    """The Lambda function was invoked by an AWS service whose payload Oncegate cannot read. No event was run or
    acknowledged."""

    def __init__(self, source: str) -> None:
        self.source = source
        super().__init__(
            f"this function was invoked by {source!r}, which lambda_handler does not read; nothing was run. Remove "
            "that trigger, or handle it before Oncegate; allow_unknown_sources=True runs the payload as one plain event"
        )


class HandlerTimeout(OncegateError):
    """A handler ran longer than `handler_timeout`. The failed outcome holds this error; it is never raised, so callers
    do not have to catch it."""


class NotTaken(OncegateError):
    """A Lambda invocation fails on purpose, so that AWS delivers its events again. `outcomes` are the outcomes that
    must not be acknowledged. Lambda logs the text, so the text holds nothing that came from a handler's exception."""

    def __init__(self, outcomes: Sequence[Any], why: str) -> None:
        self.outcomes = tuple(outcomes)
        super().__init__(why)


class TargetError(OncegateError):
    """The file, queue, event bus or URL that simulated traffic goes to cannot be used."""


class AwsError(OncegateError):
    """AWS rejected a request or did not answer. The text names the request and says what to do."""


class GenesysError(OncegateError):
    """Genesys Cloud rejected a request or did not answer. The text names the request and says what to do."""


class QueueError(OncegateError):
    """The queue cannot be used, and a retry does not help: correct its name, region, credentials or permissions."""


class QueueUnavailable(QueueError):
    """The queue does not answer now (network, rate limit). Retry later."""


class StoreError(OncegateError):
    """A store operation failed. If only the reply was lost, the store may have carried out the operation. A retry of
    the same request is safe. `brief` describes the failure without the address of the store."""

    brief = "it failed"


class StoreUnavailable(StoreError):
    """The store does not answer now (full disk, lock, network). Retry later."""

    brief = "it does not answer"


class StoreReadOnly(StoreUnavailable):
    """The store can be read but accepts no writes now: its disk is full, or it became a replica. Nothing was
    written."""

    brief = "it takes no writes"


class PreviousUnavailable(StoreUnavailable):
    """An event could not be looked up in the old place of the option `previous`, or its mark could not be recorded. The
    event may have been processed by earlier code, so it never runs unguarded."""


class StoreRefused(StoreError):
    """The store cannot be used as it is, and a retry does not help: it is corrupt, read-only, not a store of Oncegate,
    made by a newer version, or set up wrongly."""

    brief = "it is not set up correctly"


class NoStore(StoreRefused):
    """There is no store at this address, and the call must not create one. Check the address."""


class Unkeepable(StoreRefused):
    """The store cannot hold this one record, for example because the record is too large. The store is healthy and
    other records are not affected."""
