"""The settings there are: those of a gate, and a table for each command that has its own."""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from oncegate.gate.options import CHOICES, COUNTS, DEFAULTS, DURATIONS, OPTIONAL

Kind: TypeAlias = Literal[
    "text", "choice", "duration", "count", "truth", "names", "url", "place", "strategy", "function", "port"
]

PREFIX: Final = "ONCEGATE_"
CONFIG_VARIABLE: Final = "ONCEGATE_CONFIG"
CONFIG_FLAG: Final = "--config"


# The tables that are of no single command.
_SHARED: Final = ("read", "forward")


class Setting(Struct, frozen=True, kw_only=True):
    """One setting: what it is called in each place, what it may be, and what it means."""

    name: str
    kind: Kind
    default: Any
    meaning: str
    table: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False
    of_gate: bool = False

    @property
    def path(self) -> str:
        """Its name in the file, with that of its table."""
        return f"{self.table}.{self.name}" if self.table else self.name

    @property
    def parameter(self) -> str:
        """Its name as an argument of a function."""
        return self.path.replace(".", "_")

    @property
    def variable(self) -> str:
        return PREFIX + self.path.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """Its name on the command line, where the command tells whether its own table is meant."""
        path = self.path if self.table in _SHARED or (self.table and self.name in DEFAULTS) else self.name
        return f"--{path.replace('_', '-').replace('.', '-')}"


_MEANINGS: Final = {
    "namespace": "What keeps these events apart from others in the same store.",
    "mode": "`mark_first` marks an event as done in the one write that claims it: at most once.",
    "retention": "How long a processed event is remembered.",
    "lease": "How long a claim lasts if its worker dies; it is renewed while the handler runs.",
    "max_hold": "For how long a claim is renewed at most.",
    "handler_timeout": "A handler that runs for longer than this fails its event; a plain one runs on in its thread,"
    " and another thread takes its place.",
    "dead_letter_retention": "How long a dead letter is kept.",
    "backoff": "How long what the inbox holds is left alone after a failure; twice as long after each further one.",
    "backoff_limit": "How long it is left alone at most.",
    "retry_for": "For how long an event that the inbox holds is tried again while what its handler calls is"
    " unavailable, without using up attempts.",
    "sliding": "Whether retention counts from the latest copy on instead of from the completion.",
    "sliding_limit": "With `sliding`, how long an event is remembered at most.",
    "remember": "For how long a process answers copies of what it saw completed by itself; at most 60s.",
    "breaker": "A store over a network that fails five times in a row is left alone for a while; so is one that takes"
    " longer than this, and than ten times its median, five times in a row.",
    "max_attempts": "A failure at this attempt buries; `off` leaves the counting to the platform.",
    "max_result": "A handler's result of more bytes than this is not kept for the duplicates.",
    "max_in_hand": "How many events `arun` takes at a time.",
    "threads": "How many plain handlers `arun` runs at a time.",
    "max_age": "Events that happened longer ago than this are counted as too old.",
    "on_too_old": "What becomes of events older than `max_age`.",
    "on_missing_key": "What becomes of events that lack a part of their key.",
    "on_store_error": "What becomes of events when the store cannot be asked; `unguarded` needs `unguarded_types`, and"
    " starts without a store that is away.",
    "unguarded_types": "The event types that may run, and so run twice, while the store is away.",
    "on_conflict": "What becomes of other content under a known key.",
    "on_replay": "Whether a replayed event is a duplicate or runs once more for each replay.",
    "on_stale": "What becomes of a state change of whose entity a newer one is known; `skip` does not run it.",
}


def _kind(name: str, default: object) -> Kind:
    if name in CHOICES:
        return "choice"
    if name in DURATIONS:
        return "duration"
    if name in COUNTS:
        return "count"
    return "truth" if isinstance(default, bool) else "names" if isinstance(default, tuple) else "text"


def _of_gate(name: str, default: object) -> Setting:
    return Setting(
        name=name,
        kind=_kind(name, default),
        default=default,
        meaning=_MEANINGS.get(name, ""),
        choices=CHOICES.get(name, ()),
        optional=name in OPTIONAL,
        of_gate=True,
    )


STORE: Final = Setting(
    name="store", kind="url", default="sqlite:///oncegate.db", meaning="Where the claims are kept: the URL of a store."
)
KEY: Final = Setting(
    name="key",
    kind="strategy",
    default="auto",
    meaning="What makes two deliveries one event: a strategy as Python has it, or `module:function`.",
)
LOG: Final = Setting(
    name="log",
    kind="choice",
    default="off",
    choices=("off", "json"),
    meaning="`json`: a line of JSON on stdout for each event; `off`: none. If neither is chosen, `serve` and `work`"
    " log.",
)


def _of_table(
    table: str, name: str, kind: Kind, default: object, meaning: str, choices: tuple[str, ...] = ()
) -> Setting:
    """A setting of a command's own table; it can be off if it is so by default."""
    return Setting(
        table=table,
        name=name,
        kind=kind,
        default=default,
        meaning=meaning,
        choices=choices,
        optional=default is None,
    )


GATE: Final = tuple(_of_gate(name, default) for name, default in DEFAULTS.items())


def _handed_on(table: str) -> tuple[Setting, ...]:
    """What a command may do with an event in place of calling a handler."""
    return (
        _of_table(
            table,
            "forward",
            "place",
            None,
            "Each new event is posted to this URL, in place of a handler; `[forward]` says how.",
            ("https", "http"),
        ),
        _of_table(
            table,
            "publish",
            "place",
            None,
            "Each new event is sent to this queue or bus, in place of a handler.",
            ("sqs", "eventbridge"),
        ),
    )


SERVE: Final = (
    _of_table("serve", "host", "text", "127.0.0.1", "The address to listen on."),
    _of_table("serve", "port", "port", 8080, "The port to listen on; 0 for any free one."),
    _of_table(
        "serve",
        "handler",
        "function",
        None,
        "Called with each new event, `module:function`; `log` only logs it. Without one, events are stored for"
        " `oncegate work inbox`.",
    ),
    *_handed_on("serve"),
    _of_table(
        "serve",
        "trace",
        "truth",
        False,
        "Whether each event is a span of OpenTelemetry; start it with `opentelemetry-instrument`.",
    ),
    _of_table(
        "serve",
        "mode",
        "choice",
        "inbox",
        "`inbox` answers when an event is kept, and runs it then; `inline` runs it while the sender waits.",
        choices=("inbox", "inline"),
    ),
    _of_table(
        "serve",
        "signature",
        "text",
        None,
        "How `POST /events` is signed, or `none`; without it only this machine itself can send.",
    ),
    _of_table(
        "serve", "secret_env", "names", (), "The variables that hold its secret; several may be valid at a time."
    ),
    _of_table("serve", "secret_file", "names", (), "The same in files, one secret in each."),
    _of_table(
        "serve", "signature_options", "names", (), "How exactly it is signed, each written `header=x-signature`."
    ),
    _of_table("serve", "max_rate", "count", None, "How many events a second each route takes; more is 429."),
    _of_table(
        "serve",
        "max_live_keys",
        "count",
        None,
        "How many events each route may have remembered at a time; more is 429.",
    ),
    _of_table("serve", "max_body", "count", 1024 * 1024, "The largest body, in bytes."),
    _of_table("serve", "max_events", "count", 1_000, "How many events one request may hold; more is 413."),
    _of_table(
        "serve",
        "max_bytes_in_hand",
        "count",
        64 * 1024 * 1024,
        "How many bytes of bodies may be in hand at a time; more is 503.",
    ),
    _of_table(
        "serve",
        "max_bytes_arriving",
        "count",
        16 * 1024 * 1024,
        "How many bytes of unfinished requests are held at a time; for more, the oldest are refused with 408.",
    ),
    _of_table(
        "serve",
        "max_connections",
        "count",
        4_000,
        "How many connections may be open; for one more, that which has waited longest is closed.",
    ),
    _of_table(
        "serve", "request_within", "duration", "10s", "A request that has not arrived in full after this is closed."
    ),
    _of_table(
        "serve",
        "drain_within",
        "duration",
        "25s",
        "How long what is in hand may take when the service is told to stop.",
    ),
    _of_table(
        "serve",
        "proxies",
        "names",
        (),
        "The addresses or networks of proxies whose `X-Forwarded-For` headers are believed.",
    ),
    _of_table(
        "serve",
        "tls_cert",
        "text",
        None,
        "The file with the certificate chain; with it the service speaks TLS 1.2 or newer only.",
    ),
    _of_table("serve", "tls_key", "text", None, "The file with its private key."),
    _of_table(
        "serve",
        "metrics_host",
        "text",
        None,
        "The address where `/metrics` is served, and nowhere else; without it, where events are.",
    ),
    _of_table("serve", "metrics_port", "port", 9464, "The port of `serve.metrics_host`; 0 for any free one."),
    _of_table(
        "serve",
        "metrics_token_env",
        "names",
        (),
        "The variables that hold the token without which `/metrics` is 401; several may be valid at a time.",
    ),
    _of_table("serve", "metrics_token_file", "names", (), "The same in files, one token in each."),
)

# How events are handed on to a URL.
FORWARD: Final = (
    _of_table("forward", "timeout", "duration", "10s", "How long one request may take in all."),
    _of_table(
        "forward",
        "headers",
        "text",
        None,
        "A file of headers to send, such as `Authorization`, one on each line; read anew for each event.",
    ),
    _of_table(
        "forward",
        "hosts",
        "names",
        (),
        "The only hosts that may be forwarded to; `*.example.com` is any below it. Empty: any.",
    ),
    _of_table(
        "forward",
        "allow_private",
        "truth",
        False,
        "Whether the host may have a private or loopback address; only then may the URL be `http://`.",
    ),
    _of_table(
        "forward",
        "pins",
        "names",
        (),
        "SHA-256 hashes of public keys (SPKI), one of which its certificate must have: `sha256//BASE64`.",
    ),
    _of_table("forward", "ca", "text", None, "A file of authorities to trust in place of the system's."),
    _of_table(
        "forward", "certificate", "text", None, "The file of the client's own certificate, if the receiver wants one."
    ),
    _of_table("forward", "certificate_key", "text", None, "The file of its key, if that is another."),
)

WORK: Final = (
    _of_table(
        "work",
        "handler",
        "function",
        None,
        "Called with each new event, `module:function`; it may be async. `log` only logs it.",
    ),
    *_handed_on("work"),
    _of_table("work", "batch", "count", 10, "How many messages to ask for at a time, 1 to 10."),
    _of_table("work", "wait", "duration", "20s", "How long a poll waits for a message, while nothing is in hand."),
    _of_table(
        "work",
        "visibility",
        "duration",
        "30s",
        "For how long a message is kept from other workers; renewed while it is in hand.",
    ),
    _of_table("work", "in_hand", "count", 100, "How many events are in hand at a time."),
    _of_table("work", "receivers", "count", 4, "How many polls are open at most."),
    _of_table("work", "drain", "duration", "25s", "How long what runs may take to end when the worker is stopped."),
)
# What a table [route.NAME] can have of those of [serve], under the same names. The first are never inherited.
OF_SIGNATURE: Final = ("signature", "secret_env", "secret_file", "signature_options")
WAYS: Final = ("handler", "forward", "publish")
LOG_ONLY: Final = "log"  # the handler that does nothing, so that the log is all there is of an event
OF_ROUTE: Final = (*OF_SIGNATURE, *WAYS, "max_events", "max_rate", "max_live_keys")

# What payloads do not say themselves. Of several paths, with blanks between them, the first that leads there counts.
READ: Final = tuple(
    Setting(table="read", name=name, kind="text", default=None, optional=True, meaning=meaning)
    for name, meaning in (
        ("topic", "The topic of Genesys events that come as a bare `eventBody`."),
        ("source", "The name of the source of plain events, in place of `plain`."),
        ("id", "The paths to the id of a plain event."),
        ("type", "The paths to its type."),
        ("entity", "The paths to what it is about: a conversation, a case."),
        ("part", "The paths to the part of that: a session, a participant."),
        ("state", "The paths to its state."),
        ("time", "The paths to when it happened."),
    )
)

# The tables of the file; the first is what stands above them all.
TABLES: Final[Mapping[str, tuple[Setting, ...]]] = {
    "": (STORE, KEY, LOG, *GATE),
    "read": READ,
    "serve": SERVE,
    "forward": FORWARD,
    "work": WORK,
}
SETTINGS: Final[Mapping[str, Setting]] = {setting.path: setting for table in TABLES.values() for setting in table}
