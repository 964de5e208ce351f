"""Send requests to the API of Genesys Cloud: log in, renew the token, retry, and read pages.

Neither the secret nor a token is ever part of a message, a log line or a repr.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import httpx2
import msgspec

from oncegate.backoff import Backoff
from oncegate.errors import GenesysError
from oncegate.genesys.regions import GenesysPlace
from oncegate.text import MASK, clean

Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

_TIMEOUT: Final = 30.0  # seconds
_ATTEMPTS: Final = 5
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 10.0
_LONGEST_RETRY_AFTER: Final = 120.0  # a longer wait is reported at once
_RENEW_BEFORE: Final = 60.0  # a token is renewed this long before it expires, or after 90% of a shorter life
_PAGE_SIZE: Final = 100
_MOST_PAGES: Final = 1_000
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TOO_MANY = 401, 403, 404, 429
_SERVER_ERROR: Final = 500
_SHOWN: Final = 300  # characters of an error answer
_PERMISSION: Final = re.compile(r"[A-Za-z]\w*:[A-Za-z]\w*:[A-Za-z*]\w*")
# After these failures nothing was sent, so that even a request that creates something can be sent again.
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class GenesysDenied(GenesysError):
    """Genesys Cloud does not allow the request. `permissions` are the missing permissions that the answer names."""

    def __init__(self, text: str, permissions: tuple[str, ...] = ()) -> None:
        self.permissions = permissions
        super().__init__(text)


class GenesysMissing(GenesysError):
    """What the request names does not exist."""


class GenesysUnavailable(GenesysError):
    """Genesys Cloud does not answer now, or limits the rate. Retry later."""


class ClientCredentials:
    """The id and the secret of an OAuth client with the grant type client credentials."""

    def __init__(self, client_id: str, secret: str) -> None:
        self.client_id = client_id
        self._secret = secret

    def __repr__(self) -> str:
        return f"ClientCredentials({self.client_id!r}, {MASK!r})"

    @property
    def auth(self) -> httpx2.BasicAuth:
        return httpx2.BasicAuth(self.client_id, self._secret)

    def masked(self, text: str) -> str:
        return text.replace(self._secret, MASK)


class GenesysClient:
    """Sends requests to one region. Thread-safe.

    After 429 and after failures, a request is sent again, at most 5 times in total. A request that creates something is
    not retried after a failure that it may have survived. `on_wait` is called with the reason before each pause.
    `clock` and `sleep` are replaced in tests."""

    def __init__(
        self,
        place: GenesysPlace,
        credentials: ClientCredentials,
        *,
        on_wait: Callable[[str], None] = lambda _why: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.place = place
        self.credentials = credentials
        self.on_wait = on_wait
        self._clock = clock
        self._sleep = sleep
        self._http = httpx2.Client(timeout=_TIMEOUT, trust_env=False, headers={"User-Agent": "oncegate"})
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = 0.0

    def close(self) -> None:
        self._http.close()

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────

    def call(self, method: Method, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """Send a request and return the JSON of its answer; None if the answer is empty. Raises GenesysMissing,
        GenesysDenied, GenesysUnavailable, or GenesysError for any other failure."""
        what = f"{method} {path}"
        token = self._current_token()
        response = self._send(what, method, path, query, body, token)
        if response.status_code == _UNAUTHORIZED:  # the token was revoked, or it expired on the way
            token = self._current_token(instead_of=token)
            response = self._send(what, method, path, query, body, token)
        return self._checked(response, what)

    def find(self, path: str, *, query: Mapping[str, Any] | None = None) -> Any | None:
        """Send a GET request and return the answer, or None if there is no such resource."""
        try:
            return self.call("GET", path, query=query)
        except GenesysMissing:
            return None

    def pages(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Request all pages of a list, and yield their entities."""
        for number in range(1, _MOST_PAGES + 1):
            page = self.call("GET", path, query={**query, "pageSize": _PAGE_SIZE, "pageNumber": number}) or {}
            yield from page.get("entities") or []
            if number >= (page.get("pageCount") or 1):
                return
        raise GenesysError(f"{self._place} has more than {_MOST_PAGES} pages at {path}; this is not supported")

    def _send(
        self, what: str, method: Method, path: str, query: Mapping[str, Any] | None, body: Any, token: str
    ) -> httpx2.Response:
        url = f"{self.place.api}{path}"
        headers = {"Authorization": f"Bearer {token}"}

        def send() -> httpx2.Response:
            return self._http.request(method, url, params=_query(query), json=body, headers=headers)

        return self._retried(what, send, may_repeat=method != "POST")

    def _retried(self, what: str, send: Callable[[], httpx2.Response], *, may_repeat: bool) -> httpx2.Response:
        """Send a request until it has an answer that a retry would not change."""
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        for attempt in range(1, _ATTEMPTS + 1):
            pause = pauses.next_pause()
            try:
                response = send()
            except httpx2.TransportError as error:
                reason = f"it does not answer, or this machine cannot reach it ({type(error).__name__})"
                repeats = may_repeat or isinstance(error, _NOT_SENT)
            else:
                if response.status_code == _TOO_MANY:
                    reason, pause, repeats = "it limits the rate (429)", _pause_of(response, pause), True
                elif response.status_code >= _SERVER_ERROR:
                    reason, repeats = f"it answered {response.status_code}", may_repeat
                else:
                    return response
            if not repeats:
                raise GenesysUnavailable(
                    f"{self._place} did not confirm {what}: {reason}. It may have been carried out; run the command"
                    " again, which looks for it first"
                )
            if attempt == _ATTEMPTS or pause > _LONGEST_RETRY_AFTER:
                break
            self.on_wait(f"{self._place}: {reason}")
            self._sleep(pause)
        raise GenesysUnavailable(f"{self._place} cannot be used for {what}: {reason}; try again later")

    def _checked(self, response: httpx2.Response, what: str) -> Any:
        status = response.status_code
        if status < 300:
            return _json(response) if response.content else None
        message, permissions = self._problem(response)
        if status == _UNAUTHORIZED:
            raise GenesysDenied(f"{self._place} does not accept its own token for {what} ({message}); try again")
        if status == _FORBIDDEN:
            needed = " or ".join(permissions) or "the permission for it"
            needed = f"grant {needed} to a role of the OAuth client (in Genesys Cloud: Admin > Integrations > OAuth)"
            raise GenesysDenied(f"{self._place} does not allow {what} ({message}); {needed}", permissions)
        if status == _NOT_FOUND:
            raise GenesysMissing(f"{self._place} has nothing at {what} ({message}); check the id and the region")
        raise GenesysError(f"{self._place} refused {what} ({status}: {message})")

    def _problem(self, response: httpx2.Response) -> tuple[str, tuple[str, ...]]:
        """The message of an error answer, and the permissions that it names."""
        found = _json(response)
        if not isinstance(found, dict):
            return f"HTTP {response.status_code}", ()
        message = str(found.get("message") or found.get("description") or found.get("code") or "no reason is given")
        params = found.get("messageParams")
        named = " ".join(map(str, params.values())) if isinstance(params, dict) else ""
        permissions = tuple(dict.fromkeys(_PERMISSION.findall(f"{message} {named}")))
        return self._masked(message)[:_SHOWN], permissions

    def _masked(self, text: str) -> str:
        text = self.credentials.masked(text)
        return clean(text.replace(self._token, MASK) if self._token else text)

    @property
    def _place(self) -> str:
        return f"Genesys Cloud ({self.place.name})"

    # ── the token ─────────────────────────────────────────────────────────────────────────────────────────

    def check_login(self) -> None:
        """Log in, unless there is a valid token. Raises GenesysDenied if the login is refused."""
        self._current_token()

    def _current_token(self, instead_of: str = "") -> str:
        """Returns a valid token. A token that was refused is passed as `instead_of`, so that it is replaced."""
        with self._lock:
            if not self._token or self._token == instead_of or self._clock() >= self._renew_at:
                self._log_in()
            return self._token

    def _log_in(self) -> None:
        begun = self._clock()

        def send() -> httpx2.Response:
            form = {"grant_type": "client_credentials"}
            return self._http.post(f"{self.place.login}/oauth/token", data=form, auth=self.credentials.auth)

        response = self._retried("the login", send, may_repeat=True)
        found = _json(response)
        if response.status_code >= 300 or not isinstance(found, dict) or not found.get("access_token"):
            raise GenesysDenied(self._login_problem(response, found))
        self._token = str(found["access_token"])
        life = float(found.get("expires_in") or 0)
        self._renew_at = begun + max(life - _RENEW_BEFORE, 0.9 * life)

    def _login_problem(self, response: httpx2.Response, found: Any) -> str:
        why = ""
        if isinstance(found, dict):
            why = self._masked(str(found.get("error_description") or found.get("description") or found.get("error")))
        return (
            f"{self._place} refused the login of the OAuth client {clean(self.credentials.client_id)}"
            f" ({response.status_code}{': ' if why else ''}{why[:_SHOWN]}); check the region, the client id and the"
            " secret, and that the grant type of the client is Client Credentials"
        )


def _query(query: Mapping[str, Any] | None) -> dict[str, str] | None:
    """The parameters as text. A list is joined with commas, the format of Genesys Cloud."""
    if not query:
        return None
    return {
        name: ",".join(map(str, value))
        if isinstance(value, list | tuple)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
        for name, value in query.items()
    }


def _pause_of(response: httpx2.Response, otherwise: float) -> float:
    """The pause that the header Retry-After asks for, in seconds."""
    written = response.headers.get("retry-after", "").strip()
    return float(written) if written.isdecimal() else otherwise


def _json(response: httpx2.Response) -> Any:
    try:
        return msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        return None
