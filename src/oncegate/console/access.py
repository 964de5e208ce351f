"""Who may use the console: the login token, the session cookie and the token of forms."""

import hashlib
import hmac
import logging
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from oncegate.console.requests import PREFIX

_LIFETIME: Final = 12 * 3600  # seconds
_LONGEST_NAME: Final = 60  # characters
_MOST_FAILURES: Final = 10  # wrong tokens of one sender in a minute
_MOST_SENDERS: Final = 1_000  # whose wrong tokens are counted
_MOST_LINES: Final = 100  # about wrong tokens in the log, in a minute
_MOST_ENDED: Final = 1_000  # sessions that ended by a logout
_MINUTE: Final = 60.0  # seconds

_log = logging.getLogger("oncegate.console")


class Session(Struct, frozen=True):
    """A login. `until` is in seconds since 1970. `csrf` is the token that every form of this session must send."""

    user: str
    until: int
    csrf: str


class Access:
    """Checks login tokens and makes session cookies. A cookie is signed with a key that is made of the login tokens. So
    no session is stored, and a changed token ends all sessions. Only the sessions that ended by a logout are in memory.
    After a restart, their cookies are valid again until they expire.

    The name of the cookie contains a hash of the key. A browser sends the cookies of all ports of a host to each of
    them, so two consoles on one host would otherwise overwrite each other's cookie."""

    def __init__(
        self,
        tokens: Sequence[str],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not tokens:
            raise ValueError("the console needs a token")
        self._hashes = [_hash(token) for token in tokens]
        self._key = hashlib.sha256(b"oncegate console\0" + b"".join(sorted(self._hashes))).digest()
        self.cookie_name = f"oncegate_console_{hashlib.sha256(self._key).hexdigest()[:8]}"
        self._clock = clock
        self._monotonic = monotonic
        self._failures: dict[str, deque[float]] = {}  # the times of wrong tokens by sender; the latest sender is last
        self._ended: dict[str, int] = {}  # when the session would have expired, by the CSRF token; the latest is last
        self._lines: deque[float] = deque(maxlen=_MOST_LINES)

    def is_valid(self, token: str, sender: str) -> bool:
        """Whether this is a login token. Wrong tokens are logged and counted: see `is_blocked`."""
        given = _hash(token.strip())
        matches = [hmac.compare_digest(given, known) for known in self._hashes]  # always all, for a constant time
        if not any(matches):
            self._count_failure(sender)
        return any(matches)

    def _count_failure(self, sender: str) -> None:
        now = self._monotonic()
        times = self._failures.pop(sender, None) or deque(maxlen=_MOST_FAILURES)
        times.append(now)
        self._failures[sender] = times
        if len(self._failures) > _MOST_SENDERS:
            del self._failures[next(iter(self._failures))]
        if not _is_full(self._lines, now):
            self._lines.append(now)
            _log.warning("a login to the console from %s was refused: wrong token", sender)

    def is_blocked(self, sender: str) -> bool:
        """Whether this sender has sent 10 wrong tokens in the last minute. Wrong tokens of other senders do not count:
        otherwise anyone could lock out the operators."""
        return sender in self._failures and _is_full(self._failures[sender], self._monotonic())

    def cookie(self, user: str, *, secure: bool) -> str:
        """Returns the value of the Set-Cookie header for a new session."""
        # The random part distinguishes two logins of one name in one second: a logout must not end the other session.
        data = msgspec.json.encode([user, int(self._clock()) + _LIFETIME, secrets.token_urlsafe(8)])
        value = f"{_text(data)}.{_text(self._sign(data))}"
        return self._set_cookie(value, _LIFETIME, secure=secure)

    def ended_cookie(self, *, secure: bool) -> str:
        """Returns the value of the Set-Cookie header that ends a session."""
        return self._set_cookie("", 0, secure=secure)

    def session(self, cookies: str | None) -> Session | None:
        """Returns the session of a Cookie header; None if there is none, or if it is not valid any more."""
        try:
            data, _, signature = _cookie_value(cookies or "", self.cookie_name).partition(".")
            signed = _bytes(data)
            if not hmac.compare_digest(self._sign(signed), _bytes(signature)):
                return None
            user, until, _ = msgspec.json.decode(signed, type=tuple[str, int, str])
        except (ValueError, msgspec.MsgspecError):
            return None
        csrf = _text(self._sign(b"csrf\0" + signed))
        return None if until <= self._clock() or csrf in self._ended else Session(user, until, csrf)

    def end(self, session: Session) -> None:
        """End a session, also for copies of its cookie."""
        now = self._clock()
        self._ended = {csrf: until for csrf, until in self._ended.items() if until > now}
        self._ended[session.csrf] = session.until
        if len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def _sign(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")

    def _set_cookie(self, value: str, age: int, *, secure: bool) -> str:
        rest = "; Secure" if secure else ""
        return f"{self.cookie_name}={value}; Path={PREFIX}; Max-Age={age}; HttpOnly; SameSite=Strict{rest}"


def tidy_name(text: str) -> str:
    """Returns the name of a person, on one line and short; "" if the text is blank."""
    return " ".join(text.split())[:_LONGEST_NAME]


def _cookie_value(cookies: str, name: str) -> str:
    """Returns the value of a cookie in a Cookie header; "" if there is none. `http.cookies` is not used: it stops at
    the first cookie that it cannot parse, and other programs on the same host may have set such a cookie. The header is
    not split: to split 30 kB of semicolons takes 3 ms."""
    mark = f"{name}="
    start = cookies.find(mark)
    while start >= 0:
        before, end = cookies[:start].rstrip(), start + len(mark)
        if not before or before[-1] == ";":
            return cookies[end:].partition(";")[0].strip()
        start = cookies.find(mark, end)
    return ""


def _is_full(times: deque[float], now: float) -> bool:
    """Whether all times of a full queue are in the last minute."""
    return len(times) == times.maxlen and times[0] > now - _MINUTE


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
