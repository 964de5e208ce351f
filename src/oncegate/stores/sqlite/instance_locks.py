"""Instance locks: find out which processes that use an SQLite file have ended.

Each process holds a lock on its own file, `<store>-instances/<instance name in hex>`, while it has the store open. The
operating system releases the lock when the process ends, for whatever reason; a stopped process keeps it. So a file
whose lock is free belongs to a process that has ended. A process without a file is unknown, and counts as running.
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
except ImportError:  # Windows has no fcntl: every other process counts as running
    fcntl = None  # type: ignore[assignment]

_CHECK_SECONDS: Final = 0.25  # between two checks of the same process, or of the folder
# The file of an ended process stays this long: its claims without a payload become free one by one, when their events
# are delivered again.
_KEEP_SECONDS: Final = 86_400


class InstanceLocks:
    """The locks of one store file, for one open store of this process."""

    def __init__(self, path: str) -> None:
        self._folder = f"{os.path.realpath(path)}-instances"
        self._held = False
        self._running_until: dict[bytes, float] = {}  # a process counts as running until then, without a check
        self._next_check = 0.0

    def acquire(self) -> None:
        """Acquire the lock of this process. If that fails (the folder is not writable, for example), other processes
        cannot find out when this process ends."""
        if not self._held and fcntl is not None:
            _process_locks.acquire(self._folder)
            self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            _process_locks.release(self._folder)

    def has_ended(self, owner: bytes) -> bool:
        """Whether the process of this claim owner is known to have ended."""
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
        """Return the ended processes that no process has passed to `mark_freed`. Checks the folder at most every
        `_CHECK_SECONDS`, and returns an empty list in between."""
        now = time.monotonic()
        if now < self._next_check or fcntl is None:
            return []
        self._next_check = now + _CHECK_SECONDS
        others = [name for name in self._names() if name != instance().hex()]
        return [bytes.fromhex(name) for name in others if not self._is_marked(name) and _is_free(self._file(name))]

    def mark_freed(self, names: Sequence[bytes]) -> None:
        """Leave these ended processes out of `newly_ended` from now on, in all processes: their claims with a payload
        are free. The mark is one byte in the lock file."""
        for name in names:
            _if_ended(self._file(name.hex()), lambda path: os.truncate(path, 1))

    def _is_marked(self, name: str) -> bool:
        """Whether the file of an ended process has the mark, or is gone. Removes a file that was marked long ago."""
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
    """The lock files of this process by folder, each with the number of open stores that use it."""

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
                with suppress(OSError):  # another store of this process may still need the folder
                    os.rmdir(folder)
                os.close(file)

    def _close_in_child(self) -> None:
        """Close the files in a forked child, which has another instance name: the locks stay with the parent."""
        for file, _ in self._files.values():
            if file is not None:
                os.close(file)
        self._files.clear()


def _create_locked(folder: str) -> int | None:
    """Return the descriptor of the locked file of this process, None if the file cannot be created or locked."""
    path = os.path.join(folder, instance().hex())
    for _ in range(10):
        try:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
                os.chmod(folder, 0o700)  # whatever the umask
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
    """Call `change` with the path of a lock file, if the file is there and its lock is free."""
    with suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            change(path)
        finally:
            os.close(file)


def _is_free(path: str) -> bool:
    """Whether the file is there and no process holds its lock."""
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
