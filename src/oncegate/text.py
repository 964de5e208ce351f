"""Text for people: error messages about names and choices, and URLs with their secrets masked."""

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Final

_MAX_LISTED: Final = 20  # only the settings have more names than this


def unknown(name: str, known: Collection[str], what: str) -> str:
    """The message for an unknown name. It suggests the most similar known name, or lists all known names."""
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    listed = ", ".join(sorted(known)) if len(known) <= _MAX_LISTED else f"{len(known)}: see oncegate config show"
    hint = f"did you mean {near[0]}?" if near else f"there are {listed}"
    return f"there is no {what} {name}; {hint}"


def not_a_choice(setting: str, value: object, choices: Collection[str]) -> str:
    """The message for a value that is not one of the choices."""
    return f"{setting}={value!r} is not a choice; it is one of {', '.join(choices)}"


def any_of(names: Sequence[str]) -> str:
    """The names as a list in a sentence: `a, b or c`."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


# ── URLs without secrets ──────────────────────────────────────────────────────────────────────────────────

MASK: Final = "***"
_PARAMETER: Final = re.compile(r"(?<=[?&;#])([^=?&;#]*=)?[^?&;#]+")
_SECRET_NAME: Final = re.compile(r"pass|pwd|secret|token|key|credential")
# URL options without secrets: the options of stores, queues and event buses, and common options of libpq.
_KNOWN_OPTIONS: Final = """
synchronous busy_timeout
prefix connect_timeout timeout wait_replicas wait_timeout evicting buckets ca_file cert_file
oncegate_schema oncegate_connections oncegate_timeout
host hostaddr port dbname user sslmode sslrootcert sslcert application_name target_session_attrs load_balance_hosts
channel_binding gssencmode keepalives keepalives_idle keepalives_interval keepalives_count tcp_user_timeout
region endpoint skew parallel account source
consumer subject group retry_topic start mechanism ca certificate
vhost exchange dead_letters
table columns expires until
"""
KNOWN: Final = frozenset(_KNOWN_OPTIONS.split())


def masked(url: str, *, wholly: bool = False) -> str:
    """The URL with its secrets masked: the password, and every parameter that is not a known option or looks like a
    secret.

    With `wholly`, the user name and all parameters are masked, too. Use `wholly` for URLs of third parties, because a
    secret in such a URL may have any name, and for invalid URLs. An unescaped password may contain any character, so
    everything before the last @ counts as part of the password: masking too much is better than masking too little.
    """
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    before, question, after = rest.partition("?")
    if "@" in before:
        before = _without_password(before, wholly)
    elif "@" in after:
        before, question, after = _without_password(rest, wholly), "", ""
    return _PARAMETER.sub(_masked_wholly if wholly else _masked, f"{scheme}{separator}{before}{question}{after}")


def _masked(parameter: re.Match[str]) -> str:
    name = (parameter[1] or "").removesuffix("=").lower()
    return parameter[0] if name in KNOWN and not _SECRET_NAME.search(name) else _masked_wholly(parameter)


def _masked_wholly(parameter: re.Match[str]) -> str:
    return f"{parameter[1] or ''}{MASK}"


def quoted(url: str) -> str:
    """An invalid URL for an error message: everything that may be a secret is masked."""
    return repr(masked(url, wholly=True))


def _without_password(place: str, wholly: bool) -> str:
    user, _, host = place.rpartition("@")
    name, colon, _ = user.partition(":")
    if wholly:
        return f"{MASK}@{host}"
    return f"{name}:{MASK}@{host}" if colon else place


# ── printable text ────────────────────────────────────────────────────────────────────────────────────────

_LINE_BREAK: Final = re.compile(r"[ \t]*[\r\n\v\f\x85\u2028\u2029]\s*")


def clean(text: object) -> str:
    """The text with control characters escaped, so that it cannot control a terminal."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)


def on_one_line(text: object) -> str:
    """The text on one line, for people: a line break and the blanks around it become one blank. Other control
    characters are escaped."""
    return clean(_LINE_BREAK.sub(" ", str(text).rstrip("\r\n")))
