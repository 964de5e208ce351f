"""Deferred stores: a remote store that cannot be reached at start, with each policy for store errors."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import Event, Gate, open_store
from oncegate.errors import SettingError, StoreError, StoreRefused, StoreUnavailable
from oncegate.stores.base import CountsDeadLetters, Inbox, JoinsTransactions, Transactional
from oncegate.stores.deferred import _TRY_EVERY, _deferred_class, open_or_defer
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


def test_gate_starts_without_its_store(tmp_path: Path) -> None:
    """Events of the unguarded types run, other events are refused; the store is used as soon as it can be reached."""
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


def test_service_starts_without_its_store(tmp_path: Path) -> None:
    """The service applies the policy, is not ready, and uses the store as soon as it can be reached, also if no event
    arrives meanwhile."""
    port = free_port()
    with Service(tmp_path, "--store", f"redis://127.0.0.1:{port}", *FLAGS) as service:
        assert "started without the store" in service.stderr()
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
    """With on_store_error="refuse", a gate and a service fail at start if the store cannot be reached."""
    url = f"redis://127.0.0.1:{free_port()}"
    for unreachable in (url, f"postgresql://127.0.0.1:{free_port()}/db"):
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            Gate(unreachable)
    command = [sys.executable, "-m", "oncegate", "serve", "--port", "0", "--store", url, "--serve-mode", "inline"]
    command += ["--handler", "log"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr


def test_refusal_is_not_deferred(redis_server: RedisServer) -> None:
    """A store that refuses the connection, and a URL with an unknown option, fail at start: trying again is no use."""
    with pytest.raises(StoreRefused, match="no database of this number"):
        open_or_defer(f"{redis_server.url}/99")
    with pytest.raises(SettingError):
        open_or_defer("redis://127.0.0.1:6379?colour=red")


class TestDeferredClass:
    def test_protocols(self) -> None:
        """A deferred store has the methods of its kind, and no others."""
        postgres, redis = _deferred_class(PostgresStore), _deferred_class(RedisStore)
        for protocol in (Inbox, Transactional, JoinsTransactions):
            assert (issubclass(postgres, protocol), issubclass(redis, protocol)) == (True, False)
        assert issubclass(postgres, CountsDeadLetters)
        assert issubclass(redis, CountsDeadLetters)

    def test_retries(self) -> None:
        """The store is tried once a second. Calls raise the error of the last try, until a try succeeds."""
        boot, tried = ManualClock(0), list[int]()
        answers: list[StoreError | MemoryStore] = [StoreUnavailable("second"), StoreRefused("third"), MemoryStore()]

        def open_now() -> MemoryStore:
            tried.append(boot.now)
            answer = answers.pop(0)
            if isinstance(answer, StoreError):
                raise answer
            return answer

        store = _deferred_class(MemoryStore)(open_now, StoreUnavailable("first"), boot)
        for message in ("first", "second", "third"):
            for _ in range(3):
                with pytest.raises(StoreError, match=message):
                    store.claim([claim_of()])  # type: ignore[attr-defined]
            boot.advance(_TRY_EVERY)
        assert granted(store).attempts == 1  # type: ignore[arg-type]
        assert tried == [1_000_000, 2_000_000, 3_000_000]

    def test_closed(self) -> None:
        """A store that was closed before it could be reached stays closed."""
        boot = ManualClock(0)
        store = _deferred_class(MemoryStore)(lambda: open_store("memory://"), StoreUnavailable("away"), boot)
        store.close()
        boot.advance("1m")
        with pytest.raises(StoreRefused, match="closed before it could be reached"):
            store.claim([claim_of()])  # type: ignore[attr-defined]
