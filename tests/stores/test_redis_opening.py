"""Opening the Redis store: what cannot be meant or trusted is refused, in one sentence that says what to do."""

import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from oncegate import Event, Gate, open_store
from oncegate.errors import SettingError, StoreError, StoreRefused, StoreUnavailable
from oncegate.stores.base import Change
from oncegate.stores.redis.checks import _check_version
from oncegate.testing.requests import (
    KEY,
    RETENTION,
    bury,
    claim_of,
    complete,
    granted,
    redrive,
    reset,
    take,
)
from tests.stores.proxy import Proxy
from tests.stores.redis_server import RedisServer
from tests.stores.servers import free_port, missing

ROOT = Path(__file__).parent.parent.parent

URL_ERRORS = [
    ("redis://", "names no server; write redis://host:6379"),
    ("redis:///0", "names no server"),
    ("redis://host:port", "cannot be read"),
    ("redis://host:0", "nothing listens at port 0"),
    ("rediss://host?ca_file=/no/such.pem", "ca_file='/no/such.pem' is no file"),
    ("redis://host/zero", "no number of a Redis database"),
    ("redis://host?colour=red", "has no option 'colour' here; it has prefix, connect_timeout, timeout, wait_replicas"),
    ("redis://host?buckets=4", "has no option 'buckets' here"),
    ("redis://host?ca_file=x", "has no option 'ca_file' here"),
    ("redis://host?prefix=", "cannot begin a key"),
    ("redis://host?prefix={x}", "cannot begin a key"),
    ("redis://host?timeout=5", "timeout='5' is not a duration"),
    ("redis://host?wait_replicas=many", "is not a number from 0 to 100"),
    ("redis+cluster://host/1", "a cluster has no database '1'"),
    ("redis+cluster://host?buckets=0", "is not a number from 1 to 1024"),
]


@pytest.mark.parametrize(("url", "said"), URL_ERRORS)
def test_urls_that_cannot_be_meant(url: str, said: str) -> None:
    """A URL that names no server or an unknown option is refused with what would do."""
    with pytest.raises(SettingError, match=re.escape(said)):
        open_store(url)


def test_without_the_extra() -> None:
    """Without redis-py the error has the line that installs it."""
    code = "import sys; sys.modules['redis'] = None; from oncegate import open_store; open_store('redis://localhost')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingExtra: the Redis store needs an optional dependency: pip install 'oncegate[redis]'" in done.stderr


def refused(url: str, said: str, kind: type[StoreError] = StoreRefused) -> None:
    with pytest.raises(kind, match=re.escape(said)) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


@contextmanager
def configured(server: RedisServer, **settings: str) -> Iterator[None]:
    """Settings that hold for a while."""
    names = {name.replace("_", "-"): value for name, value in settings.items()}
    before = {name: server.client.config_get(name)[name] for name in names}
    server.client.config_set(*[part for item in names.items() for part in item])
    try:
        yield
    finally:
        server.client.config_set(*[part for item in before.items() for part in item])


class TestEviction:
    """A server that may evict records is refused, since an evicted event would run again."""

    @pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-ttl", "volatile-lfu"])
    def test_may_evict(self, redis_server: RedisServer, policy: str) -> None:
        """Every policy but noeviction can evict, also those for keys that expire, and before there is a limit."""
        for limit in ("1gb", "0"):
            with configured(redis_server, maxmemory=limit, maxmemory_policy=policy):
                refused(redis_server.url, f"may evict records to make room (maxmemory-policy {policy})")

    def test_what_to_do(self, redis_server: RedisServer) -> None:
        """The refusal names the default of ElastiCache and where it is changed, and the option that allows it."""
        with configured(redis_server, maxmemory_policy="volatile-lru"):
            refused(redis_server.url, "ElastiCache has volatile-lru by default: set noeviction in a parameter group")
            refused(redis_server.url, "is used with ?evicting=allowed")

    def test_allowed(self, redis_server: RedisServer) -> None:
        """Whoever says that it may evict is warned, and served."""
        with configured(redis_server, maxmemory_policy="volatile-lru"), pytest.warns(RuntimeWarning, match="may evict"):
            open_store(f"{redis_server.url}?evicting=allowed").close()

    def test_may_not(self, redis_server: RedisServer) -> None:
        """Whatever the limit, nothing is evicted with the policy that evicts nothing."""
        with configured(redis_server, maxmemory="1gb", maxmemory_policy="noeviction"):
            open_store(redis_server.url).close()

    def test_full(self, redis_server: RedisServer) -> None:
        """A server that is full and evicts nothing takes no part of a batch, and says so."""
        redis_server.client.flushall()
        with closing(open_store(redis_server.url)) as store:
            full, told = (
                configured(redis_server, maxmemory="1mb"),
                pytest.raises(StoreUnavailable, match="out of memory"),
            )
            with full, told:
                store.claim([claim_of(key=number.to_bytes(16)) for number in range(100)])
            assert store.browse() == []

    def test_full_for_a_while(self, redis_server: RedisServer) -> None:
        """After a new event was refused for want of room, duplicates are still told apart, and dead letters dropped."""
        redis_server.client.flushall()
        with closing(open_store(redis_server.url)) as store, closing(Gate(store, remember=None)) as gate:
            assert gate.run({"id": "done"}, lambda event: None).status == "processed"
            assert bury(store, granted(store))
            with configured(redis_server, maxmemory="1mb"):
                assert gate.run({"id": "new"}, never).status == "failed"
                assert gate.run({"id": "done"}, never).status == "duplicate"
                assert reset(store, only_dead=True)


def test_without_an_append_only_file(redis_server: RedisServer) -> None:
    """A server that keeps no log of its writes is used, with a warning that says what can be lost."""
    with configured(redis_server, appendonly="no"), pytest.warns(RuntimeWarning, match="keeps no append-only file"):
        open_store(redis_server.url).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_store(redis_server.url).close()


@pytest.fixture(scope="module")
def replica(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    replica = RedisServer(tmp_path_factory.mktemp("replica"), "--replicaof", f"127.0.0.1 {redis_server.port}")
    replica.until_it_follows()
    yield replica
    replica.stop()


def never(event: Event) -> None:
    pytest.fail(f"{event.id} was run")


class TestReplicas:
    def test_a_replica(self, redis_server: RedisServer, replica: RedisServer) -> None:
        """A replica cannot be written; the error names its primary."""
        refused(replica.url, f"is a read-only replica; name its primary instead: 127.0.0.1:{redis_server.port}")

    def test_waiting_for_replicas(self, redis_server: RedisServer, replica: RedisServer) -> None:
        """With wait_replicas a write is answered when so many have it; when they do not, that is told."""
        redis_server.client.flushall()
        with closing(open_store(f"{redis_server.url}?wait_replicas=1")) as store:
            record = granted(store)
            assert replica.client.keys("oncegate:r*")
        with closing(open_store(f"{redis_server.url}?wait_replicas=2&wait_timeout=50ms")) as store:
            with pytest.raises(StoreUnavailable, match=r"1 of 2 replicas .* have confirmed"):
                complete(store, record)
            assert [entry.record.state for entry in store.browse()] == ["C"]

    def test_a_claim_that_is_not_confirmed_counts_as_no_attempt(
        self, redis_server: RedisServer, replica: RedisServer
    ) -> None:
        """What is granted and not confirmed in time is given back: however often that happens, nothing has run."""
        redis_server.client.flushall()
        with closing(open_store(f"{redis_server.url}?wait_replicas=2&wait_timeout=50ms")) as store:
            gate = Gate(store, max_attempts=2, breaker=None)
            outcomes = [gate.run({"id": "a"}, never) for _ in range(4)]
            assert {outcome.status for outcome in outcomes} == {"failed"}
            assert "1 of 2 replicas" in (outcomes[-1].error or "")
            assert [(entry.record.state, entry.record.attempts) for entry in store.browse()] == [("R", 0)]


class TestRights:
    @pytest.fixture(autouse=True)
    def _users(self, redis_server: RedisServer) -> Iterator[None]:
        page = (ROOT / "docs" / "stores" / "redis.md").read_text()
        (listed,) = re.findall(r"`(~oncegate\* [^`]+)`, or `([^`]+)`", page)
        rules = {"ann": listed[0], "bob": f"~oncegate* {listed[1]}", "eve": "~oncegate* +info +get +set"}
        for name, rule in rules.items():
            redis_server.client.execute_command("ACL", "SETUSER", name, "on", ">secret", *rule.split())
        yield
        redis_server.client.execute_command("ACL", "DELUSER", *rules)

    @pytest.mark.parametrize("name", ["ann", "bob"])
    def test_right_name_and_password(self, redis_server: RedisServer, name: str) -> None:
        """A user with the rights that the page on this store lists can do all that the store does."""
        redis_server.client.flushall()
        with closing(open_store(redis_server.url.replace("//", f"//{name}:secret@"))) as store:
            assert complete(store, granted(store))
            assert bury(store, granted(store, key=b"2" * 16), key=b"2" * 16)
            assert redrive(store, b"2" * 16)
            assert take(store) is not None
            assert len(store.browse()) == 2
            assert len(store.browse(key=KEY)) == 1
            assert store.dead_letters() == []
            assert store.swap([Change("a", b"1", 0, b"body", RETENTION)]) == [True]
            assert reset(store)

    def test_wrong_password(self, redis_server: RedisServer) -> None:
        """Name or password that are refused need a person, and are not repeated in the error."""
        refused(redis_server.url.replace("//", "//ann:secret2@"), "refuses the name or password")

    def test_missing_rights(self, redis_server: RedisServer) -> None:
        """A user that may not do what the store does is told which right is missing."""
        told = pytest.raises(StoreRefused, match="no permissions to run the 'evalsha' command")
        with closing(open_store(redis_server.url.replace("//", "//eve:secret@"))) as store, told:
            granted(store)

    def test_other_prefix(self, redis_server: RedisServer) -> None:
        """A user that is confined to one prefix cannot use another."""
        refused(redis_server.url.replace("//", "//ann:secret@") + "?prefix=other", "does not permit this user")


class TestNowhere:
    """What does not answer is told of within the time that was set for it."""

    def test_nobody_there(self) -> None:
        """A port at which nothing listens may be a server that starts in a moment."""
        refused(f"redis://127.0.0.1:{free_port()}", "cannot be reached", StoreUnavailable)

    def test_unknown_name(self) -> None:
        """A name that cannot be looked up is told of as such."""
        refused("redis://no-such-host.invalid", "no-such-host.invalid:6379 cannot be reached", StoreUnavailable)

    def test_silence(self) -> None:
        """What takes the connection and says nothing is not waited for longer than the timeout."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            start = time.monotonic()
            refused(
                f"redis://127.0.0.1:{silent.getsockname()[1]}?timeout=200ms", "did not answer in time", StoreUnavailable
            )
            assert time.monotonic() - start < 1.0

    def test_another_protocol(self) -> None:
        """A server of another kind is told from Redis."""

        def answer(listener: socket.socket) -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=answer, args=(listener,))
            thread.start()
            refused(f"redis://127.0.0.1:{listener.getsockname()[1]}", "is not Redis")
            thread.join()

    def test_another_kind_of_server(self, redis_server: RedisServer) -> None:
        """A server alone is no cluster."""
        refused(redis_server.url.replace("redis://", "redis+cluster://"), "write redis:// instead of redis+cluster://")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    request = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    if shutil.which("openssl") is None:
        missing("openssl", "apt-get install openssl")
    command = ["openssl", *request.split(), "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def test_no_such_database(redis_server: RedisServer) -> None:
    """A database that the server does not have is told of as that."""
    refused(f"{redis_server.url}/99", "has no database of this number")


class TestEncryption:
    @pytest.fixture
    def port(self, certificate: Path, redis_server: RedisServer) -> Iterator[int]:
        redis_server.client.flushall()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        proxy = Proxy(redis_server.port, context)
        yield proxy.port
        proxy.close()

    def test_trusted(self, port: int, certificate: Path) -> None:
        """With rediss:// and a certificate that is trusted, all is said in TLS."""
        with closing(open_store(f"rediss://localhost:{port}?ca_file={certificate}/cert.pem")) as store:
            assert complete(store, granted(store))

    def test_not_in_tls(self, port: int) -> None:
        """Who speaks without TLS to a server that wants it is told how to."""
        refused(f"redis://localhost:{port}", "if it speaks TLS, write rediss://", StoreUnavailable)

    def test_not_trusted(self, port: int) -> None:
        """A certificate that nobody vouches for is refused."""
        refused(f"rediss://localhost:{port}", "its certificate is not trusted")

    def test_another_name(self, port: int, certificate: Path) -> None:
        """A certificate for another name is refused, though it is trusted."""
        refused(f"rediss://127.0.0.1:{port}?ca_file={certificate}/cert.pem", "its certificate is not trusted")

    def test_no_tls(self, redis_server: RedisServer) -> None:
        """A server that speaks no TLS waits for more; that is given up in time, and the cause is named."""
        for option in ("timeout", "connect_timeout"):
            start = time.monotonic()
            url = redis_server.url.replace("redis://", "rediss://") + f"?{option}=200ms"
            refused(url, "for rediss:// that it speaks TLS", StoreUnavailable)
            assert time.monotonic() - start < 1.0


@pytest.mark.parametrize("version", ["6.0.16", "5.0.7", "6.1.240"])
def test_too_old(version: str) -> None:
    """Redis before 6.2 is refused; there is none here to try it on."""
    with pytest.raises(StoreRefused, match="is too old"):
        _check_version({"redis_version": version}, "here")
    _check_version({"redis_version": "6.2.0"}, "here")
    _check_version({"redis_version": "7.2.4"}, "here")


class TestLayout:
    @pytest.fixture(autouse=True)
    def _empty(self, redis_server: RedisServer) -> None:
        redis_server.client.flushall()

    def test_only_look(self, redis_server: RedisServer) -> None:
        """Who only looks is told that there is no store with this prefix, and none is made."""
        with pytest.raises(StoreRefused, match="there is no store elsewhere at"):
            open_store(f"{redis_server.url}?prefix=elsewhere", create=False)
        assert redis_server.client.dbsize() == 0
        open_store(redis_server.url).close()
        open_store(redis_server.url, create=False).close()

    def test_newer(self, redis_server: RedisServer) -> None:
        """A store that a later version has made is not written by an earlier one."""
        redis_server.client.set("oncegate{layout}", "3 1")
        refused(redis_server.url, "was written by a newer Oncegate (layout 3")

    def test_older(self, redis_server: RedisServer) -> None:
        """A store of the layout before is noted as one of this layout by those who write in it, and not by others."""
        redis_server.client.set("oncegate{layout}", "1 1")
        open_store(redis_server.url, create=False).close()
        assert redis_server.client.get("oncegate{layout}") == b"1 1"
        open_store(redis_server.url).close()
        assert redis_server.client.get("oncegate{layout}") == b"2 1"

    def test_not_ours(self, redis_server: RedisServer) -> None:
        """A key of another program's where the version is looked for is told of as that."""
        redis_server.client.set("oncegate{layout}", "landscape")
        refused(redis_server.url, "the key oncegate{layout} at")

    def test_keys_of_another_program(self, redis_server: RedisServer) -> None:
        """Keys that begin like ours and are no records are passed by."""
        redis_server.client.set("oncegate:requests", "12")
        with closing(open_store(redis_server.url)) as store:
            granted(store)
            assert len(store.browse()) == 1

    @pytest.mark.filterwarnings("ignore:Redis at .* keeps no append-only file:RuntimeWarning")
    def test_a_server_that_has_lost_its_data(self, tmp_path: Path) -> None:
        """When a server comes back with nothing, people find the store that goes on in it."""
        server = RedisServer(tmp_path, "--appendonly", "no")
        with ExitStack() as until, closing(open_store(server.url)) as store:
            until.callback(server.stop)
            granted(store)
            server.kill()
            with pytest.raises(StoreUnavailable):
                granted(store, "bob")
            server.start()
            server.wait()
            granted(store, "bob")
            with closing(open_store(server.url, create=False)) as looking:
                assert len(looking.browse()) == 1

    def test_other_buckets(self, redis_server: RedisServer) -> None:
        """A store made for a cluster is not used as one of a single server."""
        redis_server.client.set("oncegate{layout}", "2 16")
        refused(redis_server.url, "was made with 16 buckets, not 1")
