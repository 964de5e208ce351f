"""A store that is away at start, where the policy lets events run without it; and where it does not."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import Event, Gate, open_store
from oncegate.errors import SettingError, StoreError, StoreRefused, StoreUnavailable
from oncegate.stores.base import Inbox, JoinsTransactions, Transactional
from oncegate.stores.deferred import _TRY_EVERY, _deferred, open_or_defer
from oncegate.stores.memory import MemoryStore
from oncegate.stores.postgres import PostgresStore
from oncegate.stores.redis import RedisStore
from oncegate.testing import ManualClock
from oncegate.testing.requests import claim_of, granted
from tests.service.running import Service, until
from tests.stores.redis_server import RedisServer
from tests.stores.servers import free_port

UNGUARDED = {"on_store_error": "unguarded", "unguarded_types": ["call.ended"]}
FLAGS = ("--on-store-error", "unguarded", "--unguarded-types", "call.ended", "--serve-mode", "inline")


def handled(_event: Event) -> str:
    return "done"


def test_a_gate_starts_without_its_store(tmp_path: Path) -> None:
    """Events of the types that may run unguarded do, others are refused; when the store comes up it is used."""
    port = free_port()
    with pytest.warns(RuntimeWarning, match=rf"started without the store.*127\.0\.0\.1:{port} cannot be reached"):
        gate = Gate(f"redis://127.0.0.1:{port}", breaker=None, **UNGUARDED)  # type: ignore[arg-type]
    with closing(gate):
        assert gate.run({"id": 1, "type": "call.ended"}, handled).status == "unguarded"
        refused = gate.run({"id": 2, "type": "call.started"}, handled)
        assert (refused.status, refused.acked) == ("failed", False)
        assert "cannot be reached" in (refused.error or "")
        server = RedisServer(tmp_path, port=port)
        try:
            until(lambda: gate.run({"id": 3, "type": "call.started"}, handled).status == "processed", within=10)
            assert gate.run({"id": 1, "type": "call.ended"}, handled).status == "processed"
            assert gate.run({"id": 1, "type": "call.ended"}, handled).status == "duplicate"
        finally:
            gate.close()
            server.stop()


def test_a_service_starts_without_its_store(tmp_path: Path) -> None:
    """It serves by the policy, is not ready, and uses the store when it comes up, also if nothing is sent meanwhile."""
    port = free_port()
    with Service(tmp_path, "--store", f"redis://127.0.0.1:{port}", *FLAGS) as service:
        assert "started without the store" in service.said()
        assert service.post({"id": 1, "type": "call.ended"}).json()["status"] == "unguarded"
        assert service.post({"id": 2, "type": "call.started"}).status_code == 503
        assert service.client.get("/readyz").status_code == 503
        server = RedisServer(tmp_path / "redis", port=port)
        try:
            until(lambda: service.client.get("/readyz").status_code == 200, within=10)
            until(lambda: service.post({"id": 3, "type": "call.started"}).status_code == 200, within=40)
            assert service.post({"id": 3, "type": "call.started"}).json()["status"] == "duplicate"
            assert service.stop() == 0
        finally:
            server.stop()


def test_other_policies_fail_at_start(tmp_path: Path) -> None:
    """A gate that refuses what the store cannot be asked for says at once that it is away, and so does the service."""
    url = f"redis://127.0.0.1:{free_port()}"
    for away in (url, f"postgresql://127.0.0.1:{free_port()}/db"):
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            Gate(away)
    command = [sys.executable, "-m", "oncegate", "serve", "--port", "0", "--store", url, "--serve-mode", "inline"]
    command += ["--handler", "log"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_person_has_to_put_right_fails_at_start(redis_server: RedisServer) -> None:
    """A store that refuses to be used is no store that is away."""
    with pytest.raises(StoreRefused, match="no database of this number"):
        open_or_defer(f"{redis_server.url}/99")
    with pytest.raises(SettingError):
        open_or_defer("redis://127.0.0.1:6379?colour=red")


class TestVerbs:
    def test_protocols(self) -> None:
        """A late store has the verbs of its kind, and no others."""
        postgres, redis = _deferred(PostgresStore), _deferred(RedisStore)
        for protocol in (Inbox, Transactional, JoinsTransactions):
            assert (issubclass(postgres, protocol), issubclass(redis, protocol)) == (True, False)

    def test_tries(self) -> None:
        """It is tried once a second; the error is that of the last try, and the store is there after one that works."""
        boot, tried = ManualClock(0), list[int]()
        answers: list[StoreError | MemoryStore] = [StoreUnavailable("second"), StoreRefused("third"), MemoryStore()]

        def opening() -> MemoryStore:
            tried.append(boot.now)
            answer = answers.pop(0)
            if isinstance(answer, StoreError):
                raise answer
            return answer

        store = _deferred(MemoryStore)(opening, StoreUnavailable("first"), boot)
        for said in ("first", "second", "third"):
            for _ in range(3):
                with pytest.raises(StoreError, match=said):
                    store.claim([claim_of()])  # type: ignore[attr-defined]
            boot.advance(_TRY_EVERY)
        assert granted(store).attempts == 1  # type: ignore[arg-type]
        assert tried == [1_000_000, 2_000_000, 3_000_000]

    def test_closed(self) -> None:
        """One that was closed before it could be reached stays closed."""
        boot = ManualClock(0)
        store = _deferred(MemoryStore)(lambda: open_store("memory://"), StoreUnavailable("away"), boot)
        store.close()
        boot.advance("1m")
        with pytest.raises(StoreRefused, match="closed before it could be reached"):
            store.claim([claim_of()])  # type: ignore[attr-defined]
