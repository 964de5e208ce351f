"""On SQLite, the claims of a process that has ended are free at once; claims of any other process are not."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from oncegate.claims import Granted, InFlight
from oncegate.instances import instance, instance_of, owners
from oncegate.stores.base import TakeRequest
from oncegate.stores.sqlite import SqliteStore
from oncegate.stores.sqlite.instance_locks import InstanceLocks
from oncegate.testing.requests import LEASE, NAMESPACE, claim, complete, granted, stored
from tests.stores.forking import run

# Claims an event, takes another from the inbox, prints that, and then waits.
HOLDER = """
import sys, threading
from oncegate.claims import Granted
from oncegate.instances import owners
from oncegate.stores.base import TakeRequest
from oncegate.stores.sqlite import SqliteStore
from oncegate.testing.requests import LEASE, NAMESPACE, admit, claim

store = SqliteStore(sys.argv[1])
first, second, third = owners(3)
assert isinstance(claim(store, owner=first), Granted)
admit(store, owner=second, key=b"p" * 16)
(taken,) = store.take([TakeRequest(NAMESPACE, third, LEASE)])
assert taken is not None
print("ready", flush=True)
threading.Event().wait()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@contextmanager
def holder(path: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds a claim and an event of the inbox, both for 30 seconds."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def take_event(store: SqliteStore) -> bytes | None:
    (entry,) = store.take([TakeRequest(NAMESPACE, owners(1)[0], LEASE)])
    return None if entry is None else entry.key


def test_killed(path: str) -> None:
    """The claims of a killed process are granted at once, with a higher fence; the record counts the lost attempt."""
    with closing(SqliteStore(path)) as store, holder(path) as process:
        assert isinstance(before := claim(store), InFlight)
        assert take_event(store) is None
        process.kill()
        process.wait()
        time.sleep(0.3)  # a process is checked every 0.25 s
        after = granted(store)
        assert (after.fence, after.lost) == (before.record.fence + 1, 1)
        assert take_event(store) == b"p" * 16


def test_killed_before_the_store_is_opened(path: str) -> None:
    """A process that starts after another was killed gets the events of the other with its first `take`."""
    with holder(path):
        pass
    with closing(SqliteStore(path)) as store:
        assert take_event(store) == b"p" * 16
        assert granted(store).lost == 1


def test_stopped(path: str) -> None:
    """A stopped process keeps its claims: it may continue and complete them."""
    with closing(SqliteStore(path)) as store, holder(path) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert isinstance(claim(store), InFlight)
        assert take_event(store) is None


def test_a_late_completion(path: str) -> None:
    """After an abandoned claim was granted to another owner, its former owner cannot complete it."""
    with holder(path), closing(SqliteStore(path)) as store:
        before = stored(store)
        assert before is not None
    with closing(SqliteStore(path)) as store:
        granted(store)
        assert not complete(store, before)


def test_unknown(path: str) -> None:
    """A claim of an owner without a process name, or whose process has no lock file, ends with its lease."""
    with closing(SqliteStore(path)) as store:
        granted(store, "ann")
        assert isinstance(claim(store, "bob"), InFlight)
        granted(store, owner=b"12345678" * 2, key=b"o" * 16)
        assert isinstance(claim(store, "bob", key=b"o" * 16), InFlight)


def test_two_stores_of_one_process(path: str) -> None:
    """Claims of this process are not abandoned, also if it has opened the store twice and closed it once."""
    with closing(SqliteStore(path)) as store, closing(SqliteStore(path)) as other:
        record = granted(store, owner=owners(1)[0])
        assert isinstance(claim(other), InFlight)
        assert complete(store, record)
        other.close()
        assert os.listdir(f"{path}-instances") == [instance().hex()]
    assert not os.path.exists(f"{path}-instances")


def test_a_child_has_its_own_lock(path: str) -> None:
    """After a fork, parent and child hold separate locks: the end of one frees its own claims only."""
    done = run(
        f"""
        import os
        from oncegate.instances import owners
        from oncegate.stores.sqlite import SqliteStore
        from oncegate.testing.requests import claim
        store = SqliteStore({path!r})
        claim(store, owner=owners(1)[0])
        child = os.fork()
        if child == 0:
            print(type(claim(store, owner=owners(1)[0])).__name__, flush=True)
            claim(store, owner=owners(1)[0], key=b"c" * 16)
            os._exit(0)
        os.waitpid(child, 0)
        print(type(claim(store, owner=owners(1)[0], key=b"c" * 16)).__name__)
        store.close()
        """
    )
    assert (done.stdout.split(), done.stderr) == (["InFlight", "Granted"], "")


def test_a_child_does_not_keep_its_parents_lock(path: str) -> None:
    """The claims of a killed parent are free, although its forked child is still running."""
    code = f"""
import os, signal, time
from oncegate.instances import owners
from oncegate.stores.sqlite import SqliteStore
from oncegate.testing.requests import claim
store = SqliteStore({path!r})
claim(store, owner=owners(1)[0])
forked, tell = os.pipe()
if os.fork() == 0:
    os.write(tell, b"x")
    time.sleep(30)
    os._exit(0)
os.read(forked, 1)  # until the child has returned from the fork
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.wait(20) == -signal.SIGKILL
            with closing(SqliteStore(path)) as store:
                granted(store)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_an_ended_process_is_listed_once(path: str) -> None:
    """An ended process is listed once; its file stays for a day and is then removed."""
    with holder(path):
        pass
    locks = InstanceLocks(path)
    (ended,) = locks.newly_ended()
    locks.mark_freed([ended])
    assert InstanceLocks(path).newly_ended() == []
    assert InstanceLocks(path).has_ended(ended + b"12345678")
    file = f"{path}-instances/{ended.hex()}"
    os.utime(file, (time.time() - 90_000,) * 2)
    assert InstanceLocks(path).newly_ended() == []
    assert not os.path.exists(file)


@pytest.mark.parametrize("umask", [0, 0o777])
def test_modes(path: str, umask: int) -> None:
    """Only the user of the process can read the lock files, whatever the umask."""
    before = os.umask(umask)
    try:
        with closing(SqliteStore(path)):
            folder = Path(f"{path}-instances")
            assert [oct(each.stat().st_mode & 0o777) for each in (folder, *folder.iterdir())] == ["0o700", "0o600"]
    finally:
        os.umask(before)


def test_a_folder_that_cannot_be_created(path: str) -> None:
    """A process that cannot create its lock file works normally and counts as running."""
    Path(f"{path}-instances").write_text("in the way")
    with closing(SqliteStore(path)) as store:
        assert isinstance(claim(store, owner=owners(1)[0]), Granted)
        assert isinstance(claim(store), InFlight)


def test_owners() -> None:
    """Owners are 16 unique bytes that start with the name of the process."""
    drawn = owners(1_000)
    assert len(set(drawn)) == 1_000
    assert {(instance_of(owner), len(owner)) for owner in drawn} == {(instance(), 16)}
    assert instance_of(b"short") is None


def test_links(tmp_path: Path) -> None:
    """A store that is opened through links to its file or folder is one store with one lock."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "link.db").symlink_to(tmp_path / "folder" / "store.db")
    names = ["folder/store.db", "link/store.db", "link.db"]
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(SqliteStore(str(tmp_path / name)))) for name in names]
        granted(stores[0], owner=owners(1)[0])
        assert [type(claim(store)).__name__ for store in stores] == ["InFlight"] * 3
        assert len(list(tmp_path.glob("folder/store.db-instances/*"))) == 1


def test_a_store_that_is_not_closed(path: str) -> None:
    """A program that ends with all its claims settled leaves no lock file behind."""
    done = run(f"from oncegate import Gate; Gate('sqlite:///{path}').run({{'id': 'a'}}, lambda event: None)")
    assert (done.returncode, os.path.exists(f"{path}-instances")) == (0, False), done


def test_closed_with_open_claims(path: str) -> None:
    """A process that closes its store with unsettled claims keeps its lock: the claims are free when it ends."""
    code = f"""
from oncegate.instances import owners
from oncegate.stores.sqlite import SqliteStore
from oncegate.testing.requests import claim
store = SqliteStore({path!r})
claim(store, owner=owners(1)[0])
store.close()
print("closed", flush=True)
input()
"""
    command = [sys.executable, "-c", code]
    with (
        closing(SqliteStore(path)) as store,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "closed\n"
        assert isinstance(claim(store), InFlight)
        process.communicate("\n", timeout=20)
        time.sleep(0.3)  # a process is checked every 0.25 s
        granted(store)
