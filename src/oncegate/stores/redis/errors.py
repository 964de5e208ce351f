"""Describe failed commands, and convert their errors to store errors."""

import ssl
from typing import Any, Final

from msgspec import Struct
from redis import exceptions as redis_errors

from oncegate.errors import StoreError, StoreReadOnly, StoreRefused, StoreUnavailable

# Some cluster errors of redis-py are not subclasses of RedisError.
FAILURES: Final = (redis_errors.RedisError, redis_errors.RedisClusterException, OSError)
# After these errors, the server has not executed the command. A moment later, this server or another server may execute
# the command.
_NOT_EXECUTED_YET: Final = (
    redis_errors.AskError,  # the parent class of MovedError
    redis_errors.TryAgainError,
    redis_errors.ClusterDownError,
    redis_errors.ReadOnlyError,
)


class CommandFailed(Struct, frozen=True):
    """The result of a failed command. It is returned instead of a reply.

    `maybe_executed` is True if the server may have executed the command although the command failed.
    `unconfirmed_reply` is set if the server executed the command and sent this reply, but too few replicas confirmed
    the write."""

    error: Exception
    server: str
    maybe_executed: bool = False
    unconfirmed_reply: Any = None

    @property
    def is_transient(self) -> bool:
        """Whether a retry a moment later can succeed. False after a timeout: a server that timed out is not tried
        again."""
        if isinstance(self.error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
            return False
        return isinstance(self.error, (*_NOT_EXECUTED_YET, redis_errors.ConnectionError))

    @property
    def server_may_have_changed(self) -> bool:
        """Whether later replies may come from another server, or from the same server after it has lost its data."""
        return self.maybe_executed or self.is_transient

    @property
    def timed_out(self) -> bool:
        """Whether the server did not answer in time. A replica may have become the new primary."""
        return isinstance(self.error, redis_errors.TimeoutError)


def failed_reply(error: Exception, server: str) -> CommandFailed:
    """Return the failure of a command that was sent. If the server replied with an error, the server has not executed
    the command."""
    rejected = isinstance(error, redis_errors.ResponseError | redis_errors.BusyLoadingError)
    return CommandFailed(error, server, maybe_executed=not rejected)


def store_error(error: Exception, place: str) -> StoreError:
    """Return the store error for an error of redis-py, of the socket or of the server at `place`."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error.__context__, ssl.SSLError):  # redis-py raises its own error for a TLS error
        error = error.__context__
    for text, kind, message in _BY_TEXT:
        if text in str(error):
            return kind(message.format(place=place, error=error))
    for cause, kind, message in _BY_TYPE:
        if isinstance(error, cause):
            return kind(message.format(place=place, error=error))
    return StoreError(f"Redis at {place} failed: {error}")


_CLOSED: Final = (
    "Redis at {place} has closed the connection ({error}); check that it runs; if it requires TLS, use rediss://"
)
_SLOT_MOVING: Final = "the cluster of {place} is moving the slot ({error}); try again"
_UNREACHABLE: Final = "Redis at {place} cannot be reached ({error}); check that the server runs, and the host and port"

# Errors that redis-py does not distinguish by class.
_BY_TEXT: Final[list[tuple[str, type[StoreError], str]]] = [
    ("Connection closed by server", StoreUnavailable, _CLOSED),
    ("Connection reset by peer", StoreUnavailable, _CLOSED),
    (
        "DB index is out of range",
        StoreRefused,
        "Redis at {place} has no database of this number ({error}); use a lower number, or raise the server's "
        "databases setting",
    ),
    ("MISCONF", StoreReadOnly, "Redis at {place} rejects writes because it cannot save its data ({error})"),
    (
        "NOREPLICAS",
        StoreReadOnly,
        "Redis at {place} rejects writes because it has fewer replicas than min-replicas-to-write ({error})",
    ),
    ("BUSY", StoreUnavailable, "Redis at {place} is busy with a script ({error}); try again"),
    ("access a non local key", StoreUnavailable, "the cluster of {place} is moving the slot; try again"),
    (
        "This instance has cluster support disabled",
        StoreRefused,
        "Redis at {place} is not a node of a cluster; write redis:// instead of redis+cluster://",
    ),
]

_BY_TYPE: Final[list[tuple[type[Exception], type[StoreError], str]]] = [
    (
        redis_errors.AuthenticationError,
        StoreRefused,
        "Redis at {place} rejects the user name or password ({error}); correct them in the URL: "
        "redis://name:password@host",
    ),
    (
        redis_errors.NoPermissionError,
        StoreRefused,
        "Redis at {place} denies this user a permission that the store needs ({error}); extend the user's ACL",
    ),
    (
        redis_errors.MovedError,
        StoreRefused,
        "Redis at {place} is a node of a cluster; write redis+cluster:// instead of redis://",
    ),
    (redis_errors.AskError, StoreUnavailable, _SLOT_MOVING),
    (redis_errors.TryAgainError, StoreUnavailable, _SLOT_MOVING),
    (redis_errors.ClusterDownError, StoreUnavailable, "the cluster of {place} does not serve all slots ({error})"),
    (redis_errors.ReadOnlyError, StoreReadOnly, "Redis at {place} has become a read-only replica; nothing was written"),
    (
        redis_errors.OutOfMemoryError,
        StoreReadOnly,
        "Redis at {place} is out of memory; nothing was written: free memory or raise maxmemory",
    ),
    (redis_errors.BusyLoadingError, StoreUnavailable, "Redis at {place} is still loading its data; try again"),
    (
        redis_errors.TimeoutError,
        StoreUnavailable,
        "Redis at {place} did not answer in time ({error}); check that the server runs, and for rediss:// that it "
        "supports TLS",
    ),
    (
        redis_errors.InvalidResponse,
        StoreRefused,
        "the server at {place} is not Redis ({error}); correct the host and port",
    ),
    (redis_errors.ConnectionError, StoreUnavailable, _UNREACHABLE),
    (
        ssl.SSLError,
        StoreRefused,
        "Redis at {place} does not support TLS, or its certificate is not trusted ({error}); correct rediss:// or "
        "ca_file",
    ),
    (OSError, StoreUnavailable, _UNREACHABLE),
]
