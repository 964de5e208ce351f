"""Masking: a URL without the secrets in it."""

import re
from typing import Final

_MASK: Final = "***"
_PARAMETER: Final = re.compile(r"([?&;][^=&;]*(?:pass|pwd|secret|token|key|credential)[^=&;]*=)[^&;#]+", re.IGNORECASE)
_ANY_PARAMETER: Final = re.compile(r"(?<=[?&;#])([^=?&;#]*=)?[^?&;#]+")


def masked(url: str, *, wholly: bool = False) -> str:
    """The URL with its password and every parameter that looks like a secret starred out; `wholly`: the user's name and
    every parameter, for the URL of a stranger, who may call a secret anything, and for one that cannot be meant.

    A password that was not escaped may hold any character, so all up to the last @ may be part of it: rather too
    much is hidden than too little.
    """
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    before, question, after = rest.partition("?")
    if "@" in before:
        before = _without_password(before, wholly)
    elif "@" in after:
        before, question, after = _without_password(rest, wholly), "", ""
    pattern = _ANY_PARAMETER if wholly else _PARAMETER
    return pattern.sub(rf"\1{_MASK}", f"{scheme}{separator}{before}{question}{after}")


def quoted(url: str) -> str:
    """What an error says of a URL that cannot be meant: whatever of it may be a secret is starred out."""
    return repr(masked(url, wholly=True))


def _without_password(place: str, wholly: bool) -> str:
    user, _, host = place.rpartition("@")
    name, colon, _ = user.partition(":")
    if wholly:
        return f"{_MASK}@{host}"
    return f"{name}:{_MASK}@{host}" if colon else place
