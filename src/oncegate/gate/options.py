"""This module declares the options of a gate, each once in OPTIONS, and validates them. The result is a `GateConfig`
with times in microseconds."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args

from msgspec import Struct
from msgspec.structs import replace

from oncegate.backoff import pause_after
from oncegate.durations import Duration, microseconds
from oncegate.errors import SettingError
from oncegate.events import Event
from oncegate.text import masked, not_a_choice, unknown

Mode: TypeAlias = Literal["lease", "mark_first"]
OnMissingKey: TypeAlias = Literal["refuse", "unguarded"]
OnStoreError: TypeAlias = Literal["refuse", "unguarded"]
OnConflict: TypeAlias = Literal["bury", "run", "duplicate"]
OnReplay: TypeAlias = Literal["duplicate", "run"]
OnTooOld: TypeAlias = Literal["run", "bury"]
OnStale: TypeAlias = Literal["pass", "skip"]
OptionKind: TypeAlias = Literal["text", "choice", "duration", "count", "truth", "names", "place"]

_LONGEST_NAMESPACE: Final = 128
_LONGEST_REMEMBER: Final = 60_000_000
_SHORTEST_LEASE: Final = 10_000
_SECOND: Final = 1_000_000
_SHORTEST_ALONE_BOUND: Final = 30_000_000
_ALONE_WITHIN: Final = 5_000_000
LISTS: Final = (list, tuple, set, frozenset)
MARKED_AND_PUBLISHED: Final = (
    "mode='mark_first' completes an event before it is published, so the receiver would take it for a duplicate;"
    " publish with mode='lease', the default"
)


class Option(Struct, frozen=True):
    """One option: its kind, its default and a short description. `optional` means that None is allowed (in settings:
    `off`). `least` is the smallest value of a count."""

    kind: OptionKind
    default: Any
    doc: str
    optional: bool = False
    choices: tuple[str, ...] = ()
    least: int = 1


# The only declaration of each option. The settings file, the flags and docs/settings.md are derived from OPTIONS.
# `GateOptions` and `GateConfig` repeat the names for type checkers; a test compares the names.
OPTIONS: Final[dict[str, Option]] = {
    "namespace": Option(
        "text",
        "default",
        "Separates these events from other events in the same store.",
    ),
    "mode": Option(
        "choice",
        "lease",
        "`lease` completes an event after its handler has returned. `mark_first` completes it in the write"
        " that claims it: at most once.",
        choices=get_args(Mode),
    ),
    "retention": Option(
        "duration",
        "7d",
        "How long a processed event is remembered.",
    ),
    "lease": Option(
        "duration",
        "30s",
        "How long a claim lasts without renewal; it is renewed while the handler runs.",
    ),
    "max_hold": Option(
        "duration",
        "15m",
        "The longest time for which a claim is renewed. A claim lasts for `lease` at least, even if `max_hold` is"
        " shorter.",
    ),
    "handler_timeout": Option(
        "duration",
        None,
        "A handler that runs longer than this fails its event. A synchronous handler keeps running in its"
        " thread, and another thread replaces that thread.",
        optional=True,
    ),
    "dead_letter_retention": Option(
        "duration",
        "30d",
        "How long a dead letter is stored.",
    ),
    "backoff": Option(
        "duration",
        "1s",
        "How long the inbox waits before it retries a failed event; the pause doubles with each failure.",
    ),
    "backoff_limit": Option(
        "duration",
        "5m",
        "The longest pause before the inbox retries a failed event.",
    ),
    "retry_for": Option(
        "duration",
        "1h",
        "How long an event of the inbox or of a message bus is retried, without using up attempts, while a service that"
        " the handler calls is unavailable.",
        optional=True,
    ),
    "sliding": Option(
        "truth",
        False,
        "Whether each duplicate restarts the retention; otherwise it counts from the completion.",
    ),
    "sliding_limit": Option(
        "duration",
        "90d",
        "With `sliding`, the longest time for which an event is remembered.",
    ),
    "remember": Option(
        "duration",
        "10s",
        "How long a process answers duplicates of completed events from its own memory, without a call to the"
        " store; at most 60s.",
        optional=True,
    ),
    "breaker": Option(
        "duration",
        "50ms",
        "Circuit breaker for stores over a network. It opens after five failures in a row, or five calls in a"
        " row that take longer than this and longer than ten times the median of the last"
        " answers.",
        optional=True,
    ),
    "max_attempts": Option(
        "count",
        5,
        "A failure at this attempt makes the event a dead letter; `off` leaves the limit to the platform.",
        optional=True,
    ),
    "max_result": Option(
        "count",
        256 * 1024,
        "The largest handler result, in bytes, that is stored for duplicates.",
        least=0,
    ),
    "max_in_hand": Option(
        "count",
        1_000,
        "The in-flight limit: how many events are processed at a time (`Gate.arun`).",
    ),
    "threads": Option(
        "count",
        32,
        "How many synchronous handlers run at a time (`Gate.arun`).",
    ),
    "max_age": Option(
        "duration",
        None,
        "Events that happened longer ago than this are counted as too old.",
        optional=True,
    ),
    "on_too_old": Option(
        "choice",
        "run",
        "What to do with events older than `max_age`.",
        choices=get_args(OnTooOld),
    ),
    "on_missing_key": Option(
        "choice",
        "refuse",
        "What to do with events that lack a part of their key.",
        choices=get_args(OnMissingKey),
    ),
    "on_store_error": Option(
        "choice",
        "refuse",
        "What to do with events when the store is unavailable. `unguarded` needs `unguarded_types`. With"
        " `unguarded`, the process also starts if a store over a network is unavailable.",
        choices=get_args(OnStoreError),
    ),
    "unguarded_types": Option(
        "names",
        (),
        "The event types that run without a claim, and so may run twice, while the store is unavailable.",
    ),
    "on_conflict": Option(
        "choice",
        "bury",
        "What to do with an event whose key is known with different content.",
        choices=get_args(OnConflict),
    ),
    "on_replay": Option(
        "choice",
        "duplicate",
        "Whether a replayed event is a duplicate or runs once for each replay.",
        choices=get_args(OnReplay),
    ),
    "on_stale": Option(
        "choice",
        "pass",
        "What to do with a state change when a newer state of its entity is known: `pass` runs it, `skip` does not.",
        choices=get_args(OnStale),
    ),
    "previous": Option(
        "place",
        None,
        "The table or Redis keys in which earlier code has marked processed events. An event that is marked there is a"
        " duplicate.",
        optional=True,
        choices=("dynamodb", "redis", "rediss", "redis+cluster", "rediss+cluster", "postgresql", "postgres", "sqlite"),
    ),
}

DEFAULTS: Final[Mapping[str, Any]] = {name: option.default for name, option in OPTIONS.items()}


class GateOptions(TypedDict, total=False):
    """The options of a gate, in the form in which users write them. The docstring of `Gate` explains each option."""

    namespace: str
    mode: Mode
    retention: Duration
    lease: Duration
    max_hold: Duration
    handler_timeout: Duration | None
    dead_letter_retention: Duration
    backoff: Duration
    backoff_limit: Duration
    retry_for: Duration | None
    sliding: bool
    sliding_limit: Duration
    remember: Duration | None
    breaker: Duration | None
    max_attempts: int | None
    max_result: int
    max_in_hand: int
    threads: int
    max_age: Duration | None
    on_too_old: OnTooOld
    on_missing_key: OnMissingKey
    on_store_error: OnStoreError
    unguarded_types: Sequence[str]
    on_conflict: OnConflict
    on_replay: OnReplay
    on_stale: OnStale
    previous: str | None


class GateConfig(Struct, frozen=True, kw_only=True):
    """The validated options. `owns_retries` is not an option: a worker sets it if its bus delivers a failed event again
    without an end, so that only the gate counts the attempts."""

    namespace: str
    mode: Mode
    retention: int
    lease: int
    max_hold: int
    handler_timeout: int | None
    dead_letter_retention: int
    backoff: int
    backoff_limit: int
    retry_for: int | None
    sliding: bool
    sliding_limit: int
    remember: int | None
    breaker: int | None
    max_attempts: int | None
    max_result: int
    max_in_hand: int
    threads: int
    max_age: int | None
    on_too_old: OnTooOld
    on_missing_key: OnMissingKey
    on_store_error: OnStoreError
    unguarded_types: frozenset[str]
    on_conflict: OnConflict
    on_replay: OnReplay
    on_stale: OnStale
    previous: str | None
    owns_retries: bool = False

    def __repr__(self) -> str:
        """The usual text of a Struct, without the password in the URL of `previous`."""
        shown = self if self.previous is None else replace(self, previous=masked(self.previous))
        return Struct.__repr__(shown)

    @property
    def marks_first(self) -> bool:
        return self.mode == "mark_first"

    @property
    def alone_within(self) -> float:
        """The longest time, in seconds, for which an event that must run alone waits for the running handlers to end.
        No other handler starts during this time."""
        return min(_ALONE_WITHIN, self.max_hold) / 1e6

    @property
    def alone_bound(self) -> float:
        """The longest time, in seconds, for which no other handler starts while an event runs alone."""
        return min(max(self.lease, _SHORTEST_ALONE_BOUND), self.max_hold) / 1e6

    @property
    def attempts_last(self) -> tuple[int, int]:
        """The shortest and the longest time, in microseconds, from the first attempt to the last attempt of an event
        that the store holds and that always fails. The time that the handlers take is not included."""
        pauses = sum(self.pause_after(attempt) for attempt in range(1, self.max_attempts or 1))
        return pauses // 2, pauses

    def pause_after(self, attempt: int) -> int:
        """Returns the longest pause, in microseconds, before the next attempt of an event that the store holds."""
        return pause_after(attempt, self.backoff, self.backoff_limit)

    def unguarded(self, event: Event) -> bool:
        """Whether this event runs without a claim when the store does not answer."""
        return self.on_store_error == "unguarded" and event.type in self.unguarded_types


def outlasts_lease(visibility: int, lease: int) -> bool:
    """Whether the visibility timeout of a queue is at least as long as the lease. Both are in microseconds. SQS counts
    whole seconds, and the worker rounds up.

    This rule must hold for every queue. When a worker dies, its claim must have ended before the message is delivered
    again. Otherwise the receiver finds the event in flight, and this receive still counts towards the dead-letter
    queue."""
    return -(-visibility // _SECOND) * _SECOND >= lease


def validate(options: Mapping[str, Any]) -> GateConfig:
    """Returns the configuration for these options. Raises SettingError if an option is invalid."""
    for name in options:
        if name not in OPTIONS:
            raise SettingError(unknown(name, OPTIONS, "setting"))
    given = {**DEFAULTS, **options}
    config = GateConfig(**{name: _checked(name, option, given[name]) for name, option in OPTIONS.items()})
    _check_times(config, given)
    _check_types(config)
    _check_previous(config)
    return config


def _checked(name: str, option: Option, value: Any) -> Any:
    if value is None and option.optional:
        return None
    if option.kind == "duration":
        return microseconds(value, name)
    if option.kind == "choice" and value not in option.choices:
        raise SettingError(not_a_choice(name, value, option.choices), settings=[name])
    if option.kind == "count" and (isinstance(value, bool) or not isinstance(value, int) or value < option.least):
        text = f"{name}={value!r} must be a whole number, {option.least} or more"
        or_none = "to leave it to the platform" if option.optional else None
        raise SettingError(text, settings=[name], or_none=or_none)
    if option.kind == "truth" and not isinstance(value, bool):
        raise SettingError(f"{name}={value!r} must be True or False", settings=[name])
    if option.kind == "names":
        return _names(name, value)
    if option.kind == "place":
        return _place(name, value, option.choices)
    return _text(name, value) if option.kind == "text" else value


def _names(name: str, value: Any) -> frozenset[str]:
    if not isinstance(value, LISTS) or not all(isinstance(each, str) and each for each in value):
        raise SettingError(f"{name}={value!r} must be a list of event types", settings=[name])
    return frozenset(value)


def _place(name: str, value: Any, schemes: Sequence[str]) -> str:
    """Check the scheme of a URL. The code that opens the URL checks its other parts. The message does not show the
    value, because it may contain a password."""
    if not isinstance(value, str) or "://" not in value or value.partition("://")[0] not in schemes:
        raise SettingError(f"{name} must be a URL that starts with {', '.join(schemes)}://", settings=[name])
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _LONGEST_NAMESPACE:
        text = f"{name}={value!r} must be printable text of 1 to {_LONGEST_NAMESPACE} characters"
        raise SettingError(text, settings=[name])
    return value


def _check_times(config: GateConfig, given: Mapping[str, Any]) -> None:
    if config.lease < _SHORTEST_LEASE:
        raise SettingError(f"lease={given['lease']!r} is too short; the minimum is 10ms", settings=["lease"])
    if config.retention < config.lease and not config.marks_first:
        raise SettingError(
            f"retention={given['retention']!r} is shorter than lease={given['lease']!r}:"
            " a key would expire while its claim is held",
            settings=["retention", "lease"],
        )
    if config.sliding and config.sliding_limit < config.retention:
        raise SettingError(
            f"sliding_limit={given['sliding_limit']!r} is shorter than retention={given['retention']!r}:"
            " the retention could not slide",
            settings=["sliding_limit", "retention"],
        )
    if config.on_too_old == "bury" and config.max_age is None:
        text = "on_too_old='bury' needs max_age=…, the age from which an event is too old"
        raise SettingError(text, settings=["on_too_old", "max_age"])
    if config.remember is not None and config.remember > _LONGEST_REMEMBER:
        text = f"remember={given['remember']!r} is too long; the maximum is 60s"
        raise SettingError(text, settings=["remember"])


def _check_types(config: GateConfig) -> None:
    """Raise SettingError if `on_store_error` and `unguarded_types` do not fit together. Events run without a claim only
    if the user has listed their types."""
    if config.on_store_error == "unguarded" and not config.unguarded_types:
        text = "on_store_error='unguarded' needs unguarded_types=[…]: the event types that may run twice"
        raise SettingError(text, settings=["on_store_error", "unguarded_types"])
    if config.on_store_error == "refuse" and config.unguarded_types:
        text = "unguarded_types=[…] needs on_store_error='unguarded'"
        raise SettingError(text, settings=["unguarded_types", "on_store_error"])


def _check_previous(config: GateConfig) -> None:
    """Raise SettingError if events could run unguarded beside `previous`. An event that runs unguarded is not looked up
    if the store is unavailable or the event has no key, so it could run although earlier code has processed it."""
    for name in ("on_store_error", "on_missing_key"):
        if config.previous is not None and getattr(config, name) == "unguarded":
            text = f"{name}='unguarded' cannot be combined with previous=…: an event that earlier code has processed"
            raise SettingError(f"{text} would run again; use {name}='refuse'", settings=[name, "previous"])


def check_inbox(what: str, *, has_inbox: bool, marks_first: bool) -> None:
    """Raise SettingError if the store has no inbox, or if the mode completes events before they run. `what` is the
    feature that needs the inbox."""
    if not has_inbox:
        raise SettingError(f"{what} needs a store with an inbox: sqlite:///oncegate.db or postgresql://…")
    if marks_first:
        raise SettingError(f"{what} stores events until they are run; mode='mark_first' would complete them before")
