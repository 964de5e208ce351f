"""Terms: how a gate was told to behave, checked and in microseconds."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args

from msgspec import Struct

from oncegate.durations import Duration, microseconds
from oncegate.errors import SettingError
from oncegate.events import Event
from oncegate.text import not_a_choice, unknown

Mode: TypeAlias = Literal["lease", "mark_first"]
OnMissingKey: TypeAlias = Literal["refuse", "unguarded"]
OnStoreError: TypeAlias = Literal["refuse", "unguarded"]
OnConflict: TypeAlias = Literal["bury", "run", "duplicate"]
OnReplay: TypeAlias = Literal["duplicate", "run"]
OnTooOld: TypeAlias = Literal["run", "bury"]
OnStale: TypeAlias = Literal["pass", "skip"]

_LONGEST_NAMESPACE: Final = 128
_LONGEST_MEMORY: Final = 60_000_000
_SHORTEST_LEASE: Final = 10_000
_SECOND: Final = 1_000_000
_MOST_DOUBLINGS: Final = 40
_LEAST_ALONE: Final = 30_000_000
_ALONE_WITHIN: Final = 5_000_000
MARKED_AND_PUBLISHED: Final = (
    "mode='mark_first' completes an event before it is published, so that whatever receives it there would take it for"
    " done; publish with mode='lease', the default"
)


class GateOptions(TypedDict, total=False):
    """What a gate can be told, as people write it. `Gate` says what each context."""

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


DEFAULTS: Final[GateOptions] = {
    "namespace": "default",
    "mode": "lease",
    "retention": "7d",
    "lease": "30s",
    "max_hold": "15m",
    "handler_timeout": None,
    "dead_letter_retention": "30d",
    "backoff": "1s",
    "backoff_limit": "5m",
    "retry_for": "1h",
    "sliding": False,
    "sliding_limit": "90d",
    "remember": "10s",
    "breaker": "50ms",
    "max_attempts": 5,
    "max_result": 256 * 1024,
    "max_in_hand": 1_000,
    "threads": 32,
    "max_age": None,
    "on_too_old": "run",
    "on_missing_key": "refuse",
    "on_store_error": "refuse",
    "unguarded_types": (),
    "on_conflict": "bury",
    "on_replay": "duplicate",
    "on_stale": "pass",
}

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "mode": get_args(Mode),
    "on_too_old": get_args(OnTooOld),
    "on_missing_key": get_args(OnMissingKey),
    "on_store_error": get_args(OnStoreError),
    "on_conflict": get_args(OnConflict),
    "on_replay": get_args(OnReplay),
    "on_stale": get_args(OnStale),
}
DURATIONS: Final = (
    "retention",
    "lease",
    "max_hold",
    "handler_timeout",
    "dead_letter_retention",
    "backoff",
    "backoff_limit",
    "retry_for",
    "sliding_limit",
    "remember",
    "breaker",
    "max_age",
)
COUNTS: Final = ("max_attempts", "max_result", "max_in_hand", "threads")
LISTS: Final = (list, tuple, set, frozenset)
OPTIONAL: Final = frozenset({"handler_timeout", "retry_for", "remember", "breaker", "max_age", "max_attempts"})


class GateConfig(Struct, frozen=True, kw_only=True):
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

    @property
    def marks_first(self) -> bool:
        return self.mode == "mark_first"

    @property
    def alone_within(self) -> float:
        """For how many seconds no other handler starts while an event that must run alone waits for those that run."""
        return min(_ALONE_WITHIN, self.max_hold) / 1e6

    @property
    def alone_bound(self) -> float:
        """For how many seconds no other handler starts while an event that must run alone runs."""
        return min(max(self.lease, _LEAST_ALONE), self.max_hold) / 1e6

    @property
    def attempts_last(self) -> tuple[int, int]:
        """For how long an event that the store holds and that always fails is tried, from the first attempt to the
        last: at least and at most. Handlers that take long add to it."""
        pauses = sum(self.pause_after(attempt) for attempt in range(1, self.max_attempts or 1))
        return pauses // 2, pauses

    def pause_after(self, attempt: int) -> int:
        """For how long an event that the store holds is left alone at most after this attempt has failed: twice as long
        after each."""
        return min(self.backoff << min(attempt - 1, _MOST_DOUBLINGS), self.backoff_limit)

    def unguarded(self, event: Event) -> bool:
        """Whether this event runs without a claim when the store cannot be asked for one."""
        return self.on_store_error == "unguarded" and event.type in self.unguarded_types


def outlasts_lease(visibility: int, lease: int) -> bool:
    """The one rule for a queue: a message stays hidden for at least as long as the lease of its event lasts, so that
    the claim of a worker that died is over when the message comes again. A receive that finds it held counts towards
    the dead-letter queue. Both are in microseconds; SQS counts whole seconds, and the worker rounds up."""
    return -(-visibility // _SECOND) * _SECOND >= lease


def validate(wishes: Mapping[str, Any]) -> GateConfig:
    """Terms that can be kept, or SettingError."""
    for name in wishes:
        if name not in DEFAULTS:
            raise SettingError(unknown(name, DEFAULTS, "setting"))
    asked = {**DEFAULTS, **wishes}
    for name, choices in CHOICES.items():
        if asked[name] not in choices:
            raise SettingError(not_a_choice(name, asked[name], choices), settings=[name])
    for name in COUNTS:
        _check_count(name, asked[name])
    if not isinstance(asked["sliding"], bool):
        raise SettingError(f"sliding={asked['sliding']!r} must be True or False", settings=["sliding"])
    read = {name: _duration(name, asked[name]) for name in DURATIONS}
    types = _types(asked["unguarded_types"])
    config = GateConfig(**{**asked, **read, "namespace": _named(asked["namespace"]), "unguarded_types": types})
    _check_times(config, asked)
    _check_types(config)
    return config


def _duration(name: str, value: Duration | None) -> int | None:
    return None if value is None and name in OPTIONAL else microseconds(value, name)  # type: ignore[arg-type]


def _check_count(name: str, value: Any) -> None:
    if value is None and name in OPTIONAL:
        return
    least = 0 if name == "max_result" else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        or_none = "to leave it to the platform" if name in OPTIONAL else None
        text = f"{name}={value!r} must be a whole number, {least} or more"
        raise SettingError(text, settings=[name], or_none=or_none)


def _check_times(config: GateConfig, asked: Mapping[str, Any]) -> None:
    if config.lease < _SHORTEST_LEASE:
        text = f"lease={asked['lease']!r} is too short to do anything in; 10ms is the least"
        raise SettingError(text, settings=["lease"])
    if config.retention < config.lease and not config.marks_first:
        raise SettingError(
            f"retention={asked['retention']!r} is shorter than lease={asked['lease']!r}:"
            " a key would be forgotten while it is held",
            settings=["retention", "lease"],
        )
    if config.sliding and config.sliding_limit < config.retention:
        raise SettingError(
            f"sliding_limit={asked['sliding_limit']!r} is shorter than retention={asked['retention']!r}:"
            " there would be nothing to slide",
            settings=["sliding_limit", "retention"],
        )
    if config.on_too_old == "bury" and config.max_age is None:
        text = "on_too_old='bury' means nothing without max_age=…: how old is too old"
        raise SettingError(text, settings=["on_too_old", "max_age"])
    if config.remember is not None and config.remember > _LONGEST_MEMORY:
        text = f"remember={asked['remember']!r} is too long: what others did meanwhile counts after 60s"
        raise SettingError(text, settings=["remember"])


def _check_types(config: GateConfig) -> None:
    """Running without a claim is for types that were thought about one by one."""
    if config.on_store_error == "unguarded" and not config.unguarded_types:
        text = "on_store_error='unguarded' needs unguarded_types=[…]: the event types that may run twice"
        raise SettingError(text, settings=["on_store_error", "unguarded_types"])
    if config.on_store_error == "refuse" and config.unguarded_types:
        text = "unguarded_types=[…] means nothing without on_store_error='unguarded'"
        raise SettingError(text, settings=["unguarded_types", "on_store_error"])


def _types(types: Sequence[str]) -> frozenset[str]:
    if not isinstance(types, LISTS) or not all(isinstance(name, str) and name for name in types):
        raise SettingError(f"unguarded_types={types!r} must be a list of event types", settings=["unguarded_types"])
    return frozenset(types)


def _named(namespace: str) -> str:
    if not isinstance(namespace, str) or not namespace.isprintable() or not 0 < len(namespace) <= _LONGEST_NAMESPACE:
        text = f"namespace={namespace!r} must be printable text of 1 to {_LONGEST_NAMESPACE} characters"
        raise SettingError(text, settings=["namespace"])
    return namespace


def check_inbox(what: str, *, keeps: bool, marks_first: bool) -> None:
    """Refuse what has a store keep events, where it cannot or they would not wait."""
    if not keeps:
        raise SettingError(f"{what} needs a store that keeps events: sqlite:///oncegate.db or postgresql://…")
    if marks_first:
        raise SettingError(f"{what} keeps events until they are run; mode='mark_first' would mark them before")
