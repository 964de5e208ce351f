"""The web console without the service, for `oncegate console`."""

import threading
from collections.abc import Sequence
from typing import Final

from oncegate.console.access import Access
from oncegate.console.app import Console
from oncegate.console.requests import PREFIX, redirect
from oncegate.console.site import Site
from oncegate.ingress.http_answers import HttpAnswer, problem
from oncegate.service.app import App, Scope
from oncegate.service.config import proxies_of
from oncegate.service.monitoring import Metrics
from oncegate.settings import Settings

_HEALTH: Final = "/healthz"
_CLOSE_TIMEOUT: Final = 3.0  # seconds


class ConsoleApp(App):
    """The ASGI application of the console alone: /console and /healthz."""

    async def _get(self, scope: Scope) -> HttpAnswer:
        if scope["path"] == _HEALTH:
            return await self._read(App._health, scope)
        if scope["path"] == "/":
            return redirect(PREFIX)
        return problem(404, f"not found; this address serves only {PREFIX} and {_HEALTH}")


class ConsoleService:
    """The parts of a console that runs alone. Raises StoreError if the store cannot be opened."""

    def __init__(self, settings: Settings) -> None:
        self._proxies, self._site = proxies_of(settings), Site(settings)
        self.app = ConsoleApp({}, Metrics(), proxies=self._proxies)
        self._site.store  # noqa: B018  # a wrong URL is reported now, and not with the first page

    def add_console(self, tokens: Sequence[str]) -> None:
        """Serve the console for people who have one of these tokens."""
        self.app.console = Console(self._site, Access(tokens), self._proxies)

    def close(self) -> None:
        """Close the store. Waits at most 3 s, because a page may wait for a store that does not answer."""
        closing = threading.Thread(target=self._close, name="oncegate-closing", daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT)

    def _close(self) -> None:
        if self.app.console is None:
            self._site.close()
        else:
            self.app.console.close()
