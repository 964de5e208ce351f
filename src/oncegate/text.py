"""Words for what was asked and cannot be: the name that was probably meant, and the choices there are."""

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

_MANY: Final = 20  # only settings are more


def unknown(name: str, known: Collection[str], what: str) -> str:
    """A sentence for a name that is not known, with the nearest one that is."""
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    listed = ", ".join(sorted(known)) if len(known) <= _MANY else f"{len(known)}: see docs/settings.md"
    hint = f"did you mean {near[0]}?" if near else f"there are {listed}"
    return f"there is no {what} {name}; {hint}"


def not_a_choice(setting: str, value: object, choices: Collection[str]) -> str:
    """A sentence for a value that is none of the choices."""
    return f"{setting}={value!r} is not a choice; it is one of {', '.join(choices)}"


# Masking: a URL without the secrets in it.


_MASK: Final = "***"
_PARAMETER: Final = re.compile(r"(?<=[?&;#])([^=?&;#]*=)?[^?&;#]+")
_OF_SECRETS: Final = re.compile(r"pass|pwd|secret|token|key|credential")
# The options of stores, queues and buses that hold no secret; of Postgres also those of libpq that people write.
_OF_STORES: Final = """
synchronous busy_timeout
prefix connect_timeout timeout wait_replicas wait_timeout evicting buckets ca_file cert_file
oncegate_schema oncegate_connections oncegate_timeout
host hostaddr port dbname user sslmode sslrootcert sslcert application_name target_session_attrs load_balance_hosts
channel_binding gssencmode keepalives keepalives_idle keepalives_interval keepalives_count tcp_user_timeout
region endpoint skew parallel account source
"""
KNOWN: Final = frozenset(_OF_STORES.split())


def masked(url: str, *, wholly: bool = False) -> str:
    """The URL with its password starred out, and the value of every parameter that is not a known option or looks like
    a secret; `wholly`: the user's name and every parameter, for the URL of a stranger, who may call a secret anything,
    and for one that cannot be meant.

    A password that was not escaped may hold any character, so all up to the last @ may be part of it: rather too
    much is hidden than too little.
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
    return parameter[0] if name in KNOWN and not _OF_SECRETS.search(name) else _masked_wholly(parameter)


def _masked_wholly(parameter: re.Match[str]) -> str:
    return f"{parameter[1] or ''}{_MASK}"


def quoted(url: str) -> str:
    """What an error says of a URL that cannot be meant: whatever of it may be a secret is starred out."""
    return repr(masked(url, wholly=True))


def _without_password(place: str, wholly: bool) -> str:
    user, _, host = place.rpartition("@")
    name, colon, _ = user.partition(":")
    if wholly:
        return f"{_MASK}@{host}"
    return f"{name}:{_MASK}@{host}" if colon else place


# ── printable text ────────────────────────────────────────────────────────────────────────────────────────


def clean(text: object) -> str:
    """The text with control characters escaped, so that it cannot control a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
