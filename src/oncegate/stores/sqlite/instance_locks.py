"""Instance locks show which of the processes that used an SQLite file have ended.

Each process that has the store open holds a lock on a file: `<store>-instances/<instance name in hex>`. The operating
system releases the lock when the process ends for any reason. A process that is only stopped (SIGSTOP) keeps its lock.
So if the lock of a file is free, the process of this file has ended. A process without a file counts as running.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from oncegate import forks
from oncegate.instances import instance, instance_of

try:
    import fcntl
except ImportError:  # Windows has no fcntl; every other process counts as running there
    fcntl = None  # type: ignore[assignment]

_CHECK_SECONDS: Final = 0.25  # the shortest time between two checks of the same process, or of the folder
# How long the file of an ended process is kept. Its claims without a payload become free one by one, when their events
# are delivered again, and each time the file shows that the process has ended.
_KEEP_SECONDS: Final = 86_400


class InstanceLocks:
    """The instance locks of one store file. Each open store of this process has its own InstanceLocks object."""

    def __init__(self, path: str) -> None:
        self._folder = f"{os.path.realpath(path)}-instances"
        self._held = False
        self._running_until: dict[bytes, float] = {}  # until this time, the process counts as running without a check
        self._next_check = 0.0

    def acquire(self) -> None:
        """Acquire the lock of this process. If the lock cannot be acquired, for example because the folder is not
        writable, no error is raised. Other processes then cannot detect the end of this process."""
        if not self._held and fcntl is not None:
            _process_locks.acquire(self._folder)
            self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            _process_locks.release(self._folder)

    def has_ended(self, owner: bytes) -> bool:
        """Return True if the process of this claim owner is known to have ended. False: it may still run."""
        name = instance_of(owner)
        if name is None or name == instance() or fcntl is None:
            return False
        now = time.monotonic()
        if now < self._running_until.get(name, 0.0):
            return False
        if _is_free(self._file(name.hex())):
            return True
        if len(self._running_until) > 1_000:
            self._running_until.clear()
        self._running_until[name] = now + _CHECK_SECONDS
        return False

    def newly_ended(self) -> list[bytes]:
        """Return the names of ended processes that were not yet passed to `mark_freed`, by this or another process. The
        folder is checked at most once in `_CHECK_SECONDS`; between two checks, the list is empty."""
        now = time.monotonic()
        if now < self._next_check or fcntl is None:
            return []
        self._next_check = now + _CHECK_SECONDS
        others = [name for name in self._names() if name != instance().hex()]
        return [bytes.fromhex(name) for name in others if not self._is_marked(name) and _is_free(self._file(name))]

    def mark_freed(self, names: Sequence[bytes]) -> None:
        """Mark these ended processes: their claims with a payload are free. From now on, `newly_ended` does not return
        them in any process. The mark is one byte in the lock file."""
        for name in names:
            _if_ended(self._file(name.hex()), lambda path: os.truncate(path, 1))

    def _is_marked(self, name: str) -> bool:
        """Return whether the lock file has the mark or does not exist. A file of an ended process that was marked more
        than `_KEEP_SECONDS` ago is removed."""
        path = self._file(name)
        try:
            status = os.stat(path)
        except OSError:
            return True
        if status.st_size and time.time() - status.st_mtime > _KEEP_SECONDS:
            _if_ended(path, os.unlink)
        return status.st_size > 0

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if len(name) == 2 * len(instance())]
        except OSError:
            return []

    def _file(self, name: str) -> str:
        return os.path.join(self._folder, name)


class _ProcessLocks:
    """The lock files of this process, by folder. Each lock file has a count of the open stores that use the file."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[int | None, int]] = {}
        self._lock = threading.Lock()
        self._over_forks = forks.holding(self._lock, self._close_in_child)

    def acquire(self, folder: str) -> None:
        with self._lock:
            file, users = self._files.get(folder, (None, 0))
            self._files[folder] = (_create_locked(folder) if users == 0 else file, users + 1)

    def release(self, folder: str) -> None:
        with self._lock:
            file, users = self._files.pop(folder, (None, 0))
            if users > 1:
                self._files[folder] = (file, users - 1)
            elif file is not None:
                with suppress(OSError):
                    os.unlink(os.path.join(folder, instance().hex()))
                with suppress(OSError):  # fails if another process has a file in the folder
                    os.rmdir(folder)
                os.close(file)

    def _close_in_child(self) -> None:
        """Close the files in a forked child. The child has a different instance name, and the locks stay with the
        parent."""
        for file, _ in self._files.values():
            if file is not None:
                os.close(file)
        self._files.clear()


def _create_locked(folder: str) -> int | None:
    """Create and lock the file of this process. Return its descriptor, or None if the file cannot be created or
    locked."""
    path = os.path.join(folder, instance().hex())
    for _ in range(10):
        try:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
                os.chmod(folder, 0o700)  # whatever the umask is
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.fchmod(file, 0o600)
        except FileNotFoundError:
            continue  # another process has just removed the empty folder
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_ino == os.stat(path).st_ino:
                os.truncate(file, 0)
                return file
        except BlockingIOError:
            time.sleep(0.005)  # another process is checking the lock
        except OSError:
            pass
        os.close(file)
    return None


def _if_ended(path: str, change: Callable[[str], object]) -> None:
    """Call `change` with the path of a lock file if the file exists and its lock is free."""
    with suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            change(path)
        finally:
            os.close(file)


def _is_free(path: str) -> bool:
    """Return whether the file exists and no process holds its lock."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


_process_locks: Final = _ProcessLocks()
