"""Metrics and readiness of the service."""

import asyncio
import re
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from oncegate import Gate, open_store
from oncegate.errors import StoreUnavailable
from oncegate.service import monitoring
from oncegate.service.monitoring import DeadLetterCounter, Readiness, StoreProbe, probe
from oncegate.stores.base import CountsDeadLetters
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.service.apps import signed
from tests.service.running import Service, until
from tests.signatures.sending import whsec


def metrics(service: Service) -> dict[tuple[str, ...], float]:
    """Every sample by its name and labels."""
    answer = service.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_deliveries(service: Service) -> None:
    """Events are counted by route, status and kind."""
    for _ in range(3):
        service.post({"id": "counted"})
    service.post("{")
    delivered = ("oncegate_deliveries_total", "kind=redelivery", "route=default", "status=duplicate")
    until(lambda: metrics(service).get(delivered) == 2)
    found = metrics(service)
    assert found["oncegate_deliveries_total", "kind=", "route=default", "status=processed"] == 1
    assert found["oncegate_deliveries_total", "kind=", "route=default", "status=invalid"] == 1
    assert found["oncegate_latency_seconds_count", "route=default"] >= 4
    assert found["oncegate_in_hand",] == 0


def test_rejections(service: Service) -> None:
    """Invalid signatures and requests above the limits are counted by route."""
    body = b'{"id": "signed"}'
    assert service.post(body, "/events/crm").status_code == 401
    codes = [service.post(body, "/events/crm", headers=signed(whsec(1), body)).status_code for _ in range(4)]
    assert 429 in codes
    found = metrics(service)
    assert found["oncegate_signature_refusals_total", "route=crm"] == 1
    assert found["oncegate_limited_total", "route=crm"] >= 1
    assert found["oncegate_signature_refusals_total", "route=default"] == 0


def test_every_metric_is_documented(service: Service) -> None:
    """The reference names each metric, and no other."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    shown = service.client.get("/metrics").text
    there_are = {line.split()[2] for line in shown.splitlines() if line.startswith("# TYPE") and "_created" not in line}
    listed = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `oncegate_")}
    assert there_are == listed


def test_separate_address(tmp_path: Path) -> None:
    """Metrics can be served at a separate address with a token. Nothing else is served there, and the metrics nowhere
    else."""
    (tmp_path / "token").write_text(f"{whsec(2)}\n")
    options = ("--metrics-host", "127.0.0.1", "--metrics-port", "0", "--metrics-token-file", "token")
    tokens = {"ONCEGATE_SERVE_METRICS_TOKEN_ENV": "ONCEGATE_METRICS_NOW", "ONCEGATE_METRICS_NOW": whsec(1)}
    with Service(tmp_path, *options, environ=tokens) as service:
        found = re.search(r"Metrics are at (\S+)/metrics\.", service.welcome)
        assert found
        assert service.post({"id": 1}).status_code == 200
        with httpx2.Client(base_url=found[1], trust_env=False, verify=False) as client:
            refused = client.get("/metrics")
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            headers = [{"authorization": f"Bearer {whsec(number)}"} for number in (1, 2, 3)]
            assert [client.get("/metrics", headers=each).status_code for each in headers] == [200, 200, 401]
            assert client.post("/metrics", headers=headers[0]).status_code == 405
            assert client.post("/events", json={"id": 2}).status_code == 404
            assert client.get("/healthz").status_code == 404
        assert service.client.get("/metrics", headers=headers[0]).status_code == 404
        assert whsec(1) not in service.stderr()


def test_token(tmp_path: Path) -> None:
    """Metrics can need a token at the address of the events; health and events then need none."""
    options = ("--metrics-token-env", "METRICS_TOKEN")
    with Service(tmp_path, *options, environ={"METRICS_TOKEN": whsec(1)}) as service:
        assert service.client.get("/metrics").status_code == 401
        assert service.client.get("/metrics", headers={"authorization": f"Bearer {whsec(1)}"}).status_code == 200
        assert service.client.get("/healthz").status_code == 200
        assert service.post({"id": 1}).status_code == 200


def test_dead_letters(tmp_path: Path) -> None:
    """The gauge counts the dead letters of each route's namespace, also those that another process has made."""
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db", namespace="crm", max_attempts=1)) as gate:
        gate.run_batch([{"id": number} for number in range(250)], lambda event: 1 / 0)
    routes = '[route.crm]\nnamespace = "crm"\nsignature = "none"\n[route.chat]\nsignature = "none"\n'
    with Service(tmp_path, toml=routes) as service:
        found = metrics(service)
    assert found["oncegate_dead_letters", "route=crm"] == 250
    assert found["oncegate_dead_letters", "route=chat"] == 0


class TestDeadLetterCounter:
    def test_bounds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The store is asked at most once a minute, and for no more dead letters than the bound."""
        monkeypatch.setattr(monitoring, "_MAX_COUNTED", 200)
        store, clock, counts = open_store("memory://"), ManualClock(), list[tuple[str, int]]()
        gate = Gate(store, max_attempts=1)
        gate.run_batch([{"id": number} for number in range(350)], lambda event: 1 / 0)
        limits = []
        assert isinstance(store, CountsDeadLetters)
        count = store.count_dead_letters

        def recorded(namespace: str, limit: int) -> int:
            limits.append(limit)
            return count(namespace, limit)

        monkeypatch.setattr(store, "count_dead_letters", recorded)
        monkeypatch.delattr(MemoryStore, "dead_letters")  # returns payloads, so the counter must not call it
        counter = DeadLetterCounter(store, ["default", "other"], lambda *each: counts.append(each), clock)

        async def scrape() -> None:
            for _ in range(5):
                await counter.update()

        asyncio.run(scrape())
        assert (counts, limits) == ([("default", 200), ("other", 0)], [200, 200])
        clock.advance("59s")
        asyncio.run(scrape())
        assert len(limits) == 2
        clock.advance("1s")
        asyncio.run(scrape())
        assert (len(limits), len(counts)) == (4, 4)
        counter.close()

    def test_a_store_that_fails(self) -> None:
        """A scrape gets an answer while the store fails, and no number is reported."""

        class Away(MemoryStore):
            def count_dead_letters(self, *_arguments: Any, **_options: Any) -> Any:
                raise StoreUnavailable("it is away")

        counts: list[tuple[str, int]] = []
        counter = DeadLetterCounter(Away(), ["default"], lambda *each: counts.append(each), ManualClock())
        asyncio.run(counter.update())
        assert counts == []
        counter.close()


def test_hung_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store hangs, all callers of a probe get an answer in time, and the store is called once. When the store
    answers again, it is called again."""
    monkeypatch.setattr(monitoring, "_PROBE_TIMEOUT", 0.1)
    answers, asked = threading.Event(), list[int]()

    def hang() -> None:
        asked.append(1)
        assert answers.wait(10)

    async def main() -> None:
        start = time.monotonic()
        assert await asyncio.gather(*(look.succeeds() for _ in range(20))) == [False] * 20
        assert (time.monotonic() - start < 1, len(asked)) == (True, 1)
        answers.set()
        while not await look.succeeds():
            """The pending call may not have ended yet."""
        assert (await look.succeeds(), len(asked) > 1) == (True, True)

    look = StoreProbe(hang)
    asyncio.run(main())
    look.close()


def test_store_without_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store without `probe` is checked with a read."""

    def away(*_: object) -> None:
        raise StoreUnavailable("it is away")

    store = MemoryStore()
    look = probe(store)
    assert asyncio.run(look.succeeds())
    monkeypatch.setattr(store, "load", away)
    assert not asyncio.run(look.succeeds())
    look.close()


def test_the_journal(service: Service) -> None:
    """Rows of the journal are counted."""
    before = metrics(service)
    assert before["oncegate_journal_dropped_total",] == 0
    service.post({"id": "journaled"})
    until(lambda: metrics(service)["oncegate_journal_rows_total",] > before["oncegate_journal_rows_total",])


def test_the_latency_of_the_store_is_the_median_of_probes() -> None:
    """Failed probes are not counted: their time is that of the timeout."""

    class SlowStore(MemoryStore):
        takes: Any = iter((0.05, 0.1, None, 0.0))

        def load(self, *arguments: Any, **options: Any) -> Any:
            if (seconds := next(self.takes)) is None:
                raise StoreUnavailable("down")
            time.sleep(seconds)
            return super().load(*arguments, **options)

    async def main() -> list[int | None]:
        with closing(Readiness(SlowStore())) as readiness:
            found = [readiness.latency]
            for _ in range(4):
                await readiness.problem()
                found.append(readiness.latency)
            return found

    before, first, _, third, fourth = asyncio.run(main())
    assert before is None
    assert first is not None
    assert first >= 50_000
    assert third is not None
    assert third >= 100_000  # of two answers, the slower one; the error did not change it
    assert fourth == first
