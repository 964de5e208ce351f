"""The list of all settings: the settings of a gate, and a table for each command that has more settings."""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from oncegate.gate.options import OPTIONS, Option
from oncegate.sinks import PUBLISH_SCHEMES

Kind: TypeAlias = Literal[
    "text",
    "choice",
    "duration",
    "count",
    "truth",
    "names",
    "url",
    "place",
    "source",
    "journal",
    "strategy",
    "function",
    "port",
]

PREFIX: Final = "ONCEGATE_"
CONFIG_VARIABLE: Final = "ONCEGATE_CONFIG"
CONFIG_FLAG: Final = "--config"


# Tables that several commands use. The flags of their settings include the name of the table.
_SHARED: Final = ("read", "forward", "genesys")


class Setting(Struct, frozen=True, kw_only=True):
    """One setting: its names in the file, the environment and the command line, its values, and its meaning."""

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
        """The name in the file, with the name of the table."""
        return f"{self.table}.{self.name}" if self.table else self.name

    @property
    def parameter(self) -> str:
        """The name as an argument of a function."""
        return self.path.replace(".", "_")

    @property
    def variable(self) -> str:
        return PREFIX + self.path.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """The name on the command line. The command determines the table, so the flag contains only the name of the
        setting. The flag includes the name of the table if the table belongs to several commands, or if a gate has a
        setting with the same name. The flag of a setting `enabled` is the name of its table. A source is an argument of
        its command, and not an option."""
        if self.kind == "source":
            return self.name.upper()
        if self.name == "enabled":
            return f"--{self.table}"
        path = self.path if self.table in _SHARED or (self.table and self.name in OPTIONS) else self.name
        return f"--{path.replace('_', '-').replace('.', '-')}"


def _of_gate(name: str, option: Option) -> Setting:
    return Setting(
        name=name,
        kind=option.kind,
        default=option.default,
        meaning=option.doc,
        choices=option.choices,
        optional=option.optional,
        of_gate=True,
    )


STORE: Final = Setting(
    name="store", kind="url", default="sqlite:///oncegate.db", meaning="The URL of the store that holds the claims."
)
KEY: Final = Setting(
    name="key",
    kind="strategy",
    default="auto",
    meaning="What identifies an event: a key strategy in Python syntax, or `module:function`.",
)
LOG: Final = Setting(
    name="log",
    kind="choice",
    default="off",
    choices=("off", "json"),
    meaning="`json` writes one line of JSON to stdout for each event; `off` writes none. If this setting is not"
    " given, the commands `serve` and `work` still write a log line for each event.",
)
JOURNAL: Final = (
    Setting(
        name="journal",
        kind="journal",
        default="auto",
        optional=True,
        meaning="Where the history of decisions is written, for people to read: `auto`, or the URL of a journal. With"
        " `auto`, the commands `serve` and `work` write it beside the store, and a gate in a program writes none.",
    ),
    Setting(
        name="journal_payloads",
        kind="duration",
        default=None,
        optional=True,
        meaning="How long the journal holds payloads; with `off`, it holds only hashes of their values.",
    ),
    Setting(name="journal_max_age", kind="duration", default="14d", meaning="How long the journal holds a row."),
    Setting(
        name="journal_max_size",
        kind="count",
        default=1024 * 1024 * 1024,
        meaning="The largest size of the journal, in bytes; beyond it, the oldest rows are deleted.",
    ),
)


def _of_table(
    table: str, name: str, kind: Kind, default: object, meaning: str, choices: tuple[str, ...] = ()
) -> Setting:
    """A setting of the table of a command. The default None is written `off`. With this default, the setting is
    optional: its value may be `off`."""
    return Setting(
        table=table,
        name=name,
        kind=kind,
        default=default,
        meaning=meaning,
        choices=choices,
        optional=default is None,
    )


GATE: Final = tuple(_of_gate(name, option) for name, option in OPTIONS.items())


def _sinks(table: str) -> tuple[Setting, ...]:
    """The two settings that send events to a URL, a queue or a bus, instead of a handler."""
    return (
        _of_table(
            table,
            "forward",
            "place",
            None,
            "The URL to post each new event to, instead of a call to a handler; `[forward]` has the options.",
            ("https", "http"),
        ),
        _of_table(
            table,
            "publish",
            "place",
            None,
            "The queue or bus to send each new event to, instead of a call to a handler.",
            PUBLISH_SCHEMES,
        ),
    )


SERVE: Final = (
    _of_table("serve", "host", "text", "127.0.0.1", "The address to listen on."),
    _of_table("serve", "port", "port", 8080, "The port to listen on; 0 selects a free port."),
    _of_table(
        "serve",
        "handler",
        "function",
        None,
        "The function to call with each new event, as `module:function`. The name `log` selects a handler that only"
        " logs the event. Without a handler, events are stored for `oncegate work inbox`.",
    ),
    *_sinks("serve"),
    _of_table(
        "serve",
        "trace",
        "truth",
        False,
        "Whether each event is recorded as an OpenTelemetry span; start the service with `opentelemetry-instrument`.",
    ),
    _of_table(
        "serve",
        "mode",
        "choice",
        "inbox",
        "`inbox` stores an event, answers, and then runs it; `inline` runs it while the sender waits.",
        choices=("inbox", "inline"),
    ),
    _of_table(
        "serve",
        "signature",
        "text",
        None,
        "The signature scheme of `POST /events`, or `none`; when off, only this machine can send.",
    ),
    _of_table(
        "serve",
        "secret_env",
        "names",
        (),
        "The environment variables that hold the secret of the signature; several can be valid at a time.",
    ),
    _of_table(
        "serve", "secret_file", "names", (), "The files that hold the secret of the signature, one secret in each file."
    ),
    _of_table(
        "serve",
        "signature_options",
        "names",
        (),
        "Options of the signature scheme, each in the form `NAME=VALUE`, such as `header=x-signature`.",
    ),
    _of_table(
        "serve", "max_rate", "count", None, "How many events per second each route accepts; more are answered with 429."
    ),
    _of_table(
        "serve",
        "max_live_keys",
        "count",
        None,
        "How many remembered events each route may have at a time; more are answered with 429.",
    ),
    _of_table("serve", "max_body", "count", 1024 * 1024, "The largest request body, in bytes."),
    _of_table(
        "serve",
        "max_events",
        "count",
        1_000,
        "How many events one request may hold; a request with more is answered with 413.",
    ),
    _of_table(
        "serve",
        "max_bytes_in_hand",
        "count",
        64 * 1024 * 1024,
        "How many bytes of request bodies may be in flight at a time; more are answered with 503.",
    ),
    _of_table(
        "serve",
        "max_bytes_arriving",
        "count",
        16 * 1024 * 1024,
        "How many bytes of incomplete requests are held at a time; above the limit, the oldest are answered with 408.",
    ),
    _of_table(
        "serve",
        "max_connections",
        "count",
        4_000,
        "How many connections may be open; above the limit, the connection that has waited longest is closed.",
    ),
    _of_table(
        "serve",
        "request_within",
        "duration",
        "10s",
        "How long a request may take to arrive in full; then its connection is closed.",
    ),
    _of_table(
        "serve",
        "drain_within",
        "duration",
        "25s",
        "How long events in flight may take to finish when the service stops.",
    ),
    _of_table(
        "serve",
        "proxies",
        "names",
        (),
        "The addresses or networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` headers are trusted.",
    ),
    _of_table(
        "serve",
        "tls_cert",
        "text",
        None,
        "The file with the certificate chain; with it the service accepts only TLS 1.2 or newer.",
    ),
    _of_table("serve", "tls_key", "text", None, "The file with the private key of the certificate."),
    _of_table(
        "serve",
        "metrics_host",
        "text",
        None,
        "The only address that serves `/metrics`; when off, `/metrics` is on the address that receives events.",
    ),
    _of_table("serve", "metrics_port", "port", 9464, "The port of `serve.metrics_host`; 0 selects a free port."),
    _of_table(
        "serve",
        "metrics_token_env",
        "names",
        (),
        "The environment variables that hold the token for `/metrics`; several can be valid at a time. A request"
        " without a valid token is answered with 401.",
    ),
    _of_table(
        "serve",
        "metrics_token_file",
        "names",
        (),
        "The files that hold the token for `/metrics`, one token in each file.",
    ),
)

CONSOLE_TOKEN: Final = "ONCEGATE_CONSOLE_TOKEN"  # noqa: S105  # the name of a variable
CONSOLE: Final = (
    _of_table("console", "enabled", "truth", True, "Whether `oncegate serve` serves the web console at `/console`."),
    _of_table("console", "host", "text", "127.0.0.1", "The address on which `oncegate console` listens."),
    _of_table("console", "port", "port", 8081, "The port on which `oncegate console` listens; 0 selects a free port."),
    _of_table(
        "console",
        "token_env",
        "names",
        (CONSOLE_TOKEN,),
        "The environment variables that hold the token for the login to the console; several can be valid at a time."
        " Without a token, the console is served only on a loopback address, with a token that is generated.",
    ),
    _of_table(
        "console",
        "token_file",
        "names",
        (),
        "The files that hold the token for the login to the console, one token in each file.",
    ),
)

# Options of `forward`.
FORWARD: Final = (
    _of_table("forward", "timeout", "duration", "10s", "How long one request may take in total."),
    _of_table(
        "forward",
        "headers",
        "text",
        None,
        "A file of headers to send, such as `Authorization`, one on each line; the file is read again for each event.",
    ),
    _of_table(
        "forward",
        "hosts",
        "names",
        (),
        "The only hosts that events may be forwarded to; `*.example.com` is any host below it. Empty: any host.",
    ),
    _of_table(
        "forward",
        "allow_private",
        "truth",
        False,
        "Whether the host may have a private or loopback address; an `http://` URL needs this.",
    ),
    _of_table(
        "forward",
        "pins",
        "names",
        (),
        "SHA-256 hashes of public keys (SPKI), written `sha256//BASE64`; the receiver's certificate must match one.",
    ),
    _of_table("forward", "ca", "text", None, "A file of certificate authorities to trust instead of the system's."),
    _of_table(
        "forward", "certificate", "text", None, "The file with the client certificate, if the receiver requires one."
    ),
    _of_table(
        "forward",
        "certificate_key",
        "text",
        None,
        "The file with the private key of the client certificate, if separate.",
    ),
)

WORK: Final = (
    _of_table(
        "work",
        "source",
        "source",
        None,
        "The source of the events: the URL of a queue or a bus, or `inbox`. If the URL has a password, set the"
        " variable: other users of the machine can read arguments.",
    ),
    _of_table(
        "work",
        "handler",
        "function",
        None,
        "The function to call with each new event, as `module:function`; the function may be async. The name `log`"
        " selects a handler that only logs the event.",
    ),
    *_sinks("work"),
    _of_table("work", "batch", "count", 10, "How many messages to request at a time: up to 10 of SQS, 1,000 of a bus."),
    _of_table("work", "wait", "duration", "20s", "How long a poll waits for a message while no event is in flight."),
    _of_table(
        "work",
        "visibility",
        "duration",
        "30s",
        "How long a message is hidden from other workers; renewed while its event is in flight.",
    ),
    _of_table("work", "in_hand", "count", 100, "The in-flight limit: how many events the worker processes at a time."),
    _of_table("work", "receivers", "count", 4, "The largest number of open polls."),
    _of_table(
        "work",
        "drain",
        "duration",
        "25s",
        "How long running handlers may take to finish when the worker stops.",
    ),
)
GENESYS_SECRET: Final = "ONCEGATE_GENESYS_CLIENT_SECRET"  # noqa: S105  # the name of a variable
GENESYS: Final = (
    _of_table(
        "genesys",
        "region",
        "text",
        None,
        "The region of your organisation in Genesys Cloud: its domain, such as `mypurecloud.de`, or its AWS region.",
    ),
    _of_table(
        "genesys", "client_id", "text", None, "The id of an OAuth client with the grant type Client Credentials."
    ),
    _of_table(
        "genesys",
        "secret_env",
        "names",
        (GENESYS_SECRET,),
        "The environment variable that holds the secret of the OAuth client.",
    ),
    _of_table("genesys", "secret_file", "names", (), "The file that holds the secret of the OAuth client."),
    _of_table("genesys", "endpoint", "text", None, "The address of an emulator of Genesys Cloud, for tests."),
)
# OF_ROUTE has the settings of [serve] that a table [route.NAME] may contain under the same names. A route never
# inherits the settings of OF_SIGNATURE.
OF_SIGNATURE: Final = ("signature", "secret_env", "secret_file", "signature_options")
INBOX: Final = "inbox"  # the source of a worker that runs the events of the inbox
HANDLER_OPTIONS: Final = ("handler", "forward", "publish")  # what to do with an event; at most one is set
LOG_ONLY: Final = "log"  # the handler that does nothing: events are only logged
OF_ROUTE: Final = (*OF_SIGNATURE, *HANDLER_OPTIONS, "max_events", "max_rate", "max_live_keys")

# Where to find the fields of events that no source recognizes. A value may list several paths, separated by blanks. The
# first path that exists in the event is used.
READ: Final = tuple(
    Setting(table="read", name=name, kind="text", default=None, optional=True, meaning=meaning)
    for name, meaning in (
        ("topic", "The topic of Genesys events that arrive as a bare `eventBody`."),
        ("source", 'The source name of plain events, instead of the name "plain".'),
        ("id", "The paths to the id of a plain event, separated by blanks."),
        ("type", "The paths to the type of a plain event, separated by blanks."),
        ("entity", "The paths to the entity of a plain event (a conversation, a case), separated by blanks."),
        ("part", "The paths to the part of the entity (a session, a participant), separated by blanks."),
        ("state", "The paths to the state of a plain event, separated by blanks."),
        ("time", "The paths to the time at which a plain event happened, separated by blanks."),
    )
)

# The tables of the file. The table "" holds the settings above the first table.
TABLES: Final[Mapping[str, tuple[Setting, ...]]] = {
    "": (STORE, KEY, LOG, *JOURNAL, *GATE),
    "read": READ,
    "serve": SERVE,
    "console": CONSOLE,
    "forward": FORWARD,
    "work": WORK,
    "genesys": GENESYS,
}
SETTINGS: Final[Mapping[str, Setting]] = {setting.path: setting for table in TABLES.values() for setting in table}
