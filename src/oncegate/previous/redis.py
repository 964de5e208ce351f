"""An old place in Redis: a key for each processed event, as `SET key value NX EX ttl` writes it."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from oncegate import forks
from oncegate.clocks import wall
from oncegate.errors import SettingError
from oncegate.previous.base import KEY_TEXT, LONGEST_POSITION, BadRow, KeyPart, OldMark, OldRow, PlaceUrl, pages
from oncegate.previous.templates import Template
from oncegate.stores.redis import settings_of
from oncegate.stores.redis.errors import FAILURES, store_error
from oncegate.stores.redis.settings import RedisSettings

_ABSENT: Final = -2  # the reply of PTTL for a key that does not exist
_WITHOUT_TTL: Final = -1
_PAGE: Final = 500


class RedisPlace:
    """Keys of one server or of a cluster. redis-py sends the commands: the connections of the store are tuned for its
    scripts and buckets, and an old place has neither."""

    remote = True

    def __init__(self, url: PlaceUrl) -> None:
        if url.table or url.columns or url.expires:
            raise SettingError("table=, columns= and expires= are for tables; an old place in Redis has key=event:{id}")
        if len(url.key) > 1:
            raise SettingError("an old place in Redis has one key=, such as key=event:{conversationId}:{timestamp}")
        self._settings = settings_of(url.address)
        self._template = Template(url.key[0]) if url.key else None
        self._match = url.match
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock)
        self._client: Any = None
        self.name = f"Redis at {self._settings.host}:{self._settings.port}"

    def parts(self) -> Sequence[KeyPart]:
        if self._template is None:
            raise SettingError("the URL of an old place in Redis needs key=, such as key=event:dedup:{id}")
        return (KeyPart(KEY_TEXT, self._template),)

    def find(self, keys: Sequence[Sequence[Any]]) -> list[OldMark | None]:
        return [None if left is None else self._mark(left) for left in self._times_left([str(key) for (key,) in keys])]

    def key_columns(self) -> Sequence[str]:
        return ()

    def rows(self) -> Iterator[OldRow | BadRow]:
        try:
            for page in pages(self._connected().scan_iter(match=self._match, count=_PAGE), _PAGE):
                for key, left in zip(page, self._times_left(page), strict=True):
                    if left is not None:  # otherwise the key expired after the scan had found it
                        yield self._row(key, self._mark(left))
        except FAILURES as error:
            raise store_error(error, self._address) from error

    def _row(self, key: bytes, mark: OldMark) -> OldRow | BadRow:
        try:
            text = key.decode()
        except UnicodeDecodeError:
            return BadRow(f"key {key[:LONGEST_POSITION]!r}", "the key is not UTF-8 text")
        return OldRow(f"key {text[:LONGEST_POSITION]!r}", {KEY_TEXT: text}, mark.expires_at)

    def _times_left(self, keys: Sequence[str | bytes]) -> list[int | None]:
        """Return the time to live of each key in milliseconds; None if there is no such key."""
        try:
            with self._connected().pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.pttl(key)
                return [None if left == _ABSENT else left for left in pipeline.execute()]
        except FAILURES as error:
            raise store_error(error, self._address) from error

    def _mark(self, left: int) -> OldMark:
        return OldMark(None if left == _WITHOUT_TTL else wall() + left * 1_000)

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = _client(self._settings)
            return self._client

    @property
    def _address(self) -> str:
        return f"{self._settings.host}:{self._settings.port}"

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None


def _client(settings: RedisSettings) -> Any:
    options: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "username": settings.username,
        "password": settings.password,
        "socket_timeout": settings.timeout,
        "socket_connect_timeout": settings.connect_timeout,
        "ssl": settings.tls,
    }
    if settings.tls:
        options |= {
            "ssl_ca_certs": settings.ca_file,
            "ssl_certfile": settings.cert_file,
            "ssl_keyfile": settings.key_file,
        }
    if settings.cluster:
        return redis.RedisCluster(**options)
    return redis.Redis(**options, db=settings.database, retry=Retry(NoBackoff(), 1))
