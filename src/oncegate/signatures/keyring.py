"""Secrets as users give them: one, several, or several with labels. No error repeats any part of one."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from oncegate.errors import SettingError

Secret: TypeAlias = str | bytes
Secrets: TypeAlias = Secret | list[Secret] | tuple[Secret, ...] | Mapping[str, Secret]

# 112 bits, below which NIST (SP 800-131A) no longer lets a key for HMAC be.
SHORTEST: Final = 14


def keys_of(secrets: Secrets, key: Callable[[Secret], bytes]) -> dict[str, bytes]:
    """The key that each secret stands for, by its label, which is its place if it was given none."""
    alone = isinstance(secrets, str | bytes)
    keys = {
        label: _key("the secret" if alone else f"secret {label!r}", secret, key) for label, secret in _labelled(secrets)
    }
    if not keys:
        raise SettingError("a signature needs at least one secret")
    if len(set(keys.values())) < len(keys):
        raise SettingError("two of the secrets are the same, so that they cannot be told apart; leave one out")
    return keys


def long_enough(key: bytes, shortest: int = SHORTEST) -> bytes:
    """The key, or SettingError."""
    if len(key) < shortest:
        raise SettingError(f"has {len(key)} bytes; it needs {shortest} or more, chosen at random")
    return key


def utf8(secret: Secret) -> bytes:
    """The bytes of a secret that stands for itself."""
    return secret.encode() if isinstance(secret, str) else secret


def _labelled(secrets: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(secrets, str | bytes):
        return [("0", secrets)]
    if isinstance(secrets, Mapping):
        return [(str(label), secret) for label, secret in secrets.items()]
    if isinstance(secrets, list | tuple):
        return [(str(index), secret) for index, secret in enumerate(secrets)]
    raise SettingError("secrets are one text, a list of them, or a table of them by label")


def _key(called: str, secret: Any, key: Callable[[Secret], bytes]) -> bytes:
    problem = _problem(secret)
    if problem is None:
        try:
            return key(secret)
        except SettingError as error:
            problem = str(error)
    raise SettingError(f"{called} {problem}")


def _problem(secret: Any) -> str | None:
    if isinstance(secret, bytes):
        return None
    if not isinstance(secret, str):
        return "is neither text nor bytes"
    if secret != secret.strip():
        return "begins or ends with white space, perhaps the end of a line; cut it off"
    # Asked here, since the error of an encoder keeps what it was to encode.
    return "is not proper Unicode text" if any("\ud800" <= each <= "\udfff" for each in secret) else None
