"""The service's application without a network: helpers to build it and to send requests to it."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import httpx2
from standardwebhooks import Webhook

from oncegate import Gate
from oncegate.service.admission import InFlightBudget, InlineAdmission
from oncegate.service.app import App
from oncegate.service.monitoring import Metrics
from oncegate.service.route import Route
from oncegate.stores.memory import MemoryStore


class CountingStore(MemoryStore):
    """Counts the calls of its methods."""

    calls = 0

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and callable(getattr(MemoryStore, name, None)):
            CountingStore.calls += 1
        return super().__getattribute__(name)


def post(app: App, path: str, body: bytes, headers: dict[str, str] | None = None) -> httpx2.Response:
    (answer,) = posted(app, [(path, body, headers or {})])
    return answer


def posted(app: App, requests: list[tuple[str, bytes, dict[str, str]]]) -> list[httpx2.Response]:
    """Send the requests one after the other, in one event loop."""

    async def main() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
            return [await client.post(path, content=body, headers=headers) for path, body, headers in requests]

    return asyncio.run(main())


def get(app: App, path: str) -> httpx2.Response:
    async def main() -> httpx2.Response:
        transport = httpx2.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get(path)

    return asyncio.run(main())


def app_of(gate: Gate, *, budget: InFlightBudget | None = None, **options: Any) -> App:
    """An application with one inline route, whose handler does nothing. `options` are those of the route."""
    metrics = Metrics()
    admission = InlineAdmission(gate, lambda event: None, ThreadPoolExecutor(1))
    return App({"/events": Route("default", admission, metrics, **options)}, metrics, budget=budget)


def signed(secret: str, body: bytes, at: float | None = None, message: str = "msg_1") -> dict[str, str]:
    """The headers of a request that the reference library of Standard Webhooks signs."""
    moment = int(time.time() if at is None else at)
    signature = Webhook(secret).sign(message, datetime.fromtimestamp(moment, UTC), body.decode())
    return {"webhook-id": message, "webhook-timestamp": str(moment), "webhook-signature": signature}
