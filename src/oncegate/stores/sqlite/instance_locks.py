"""Instance locks: which of the processes that use an SQLite file still run.

Each process holds a lock on a file of its own, `<store>-instances/<name in hex>`, for as long as it has the store open.
The system releases the lock when the process ends, however it ends; a process that is stopped keeps it. So a file whose
lock is free belongs to a process that has ended. A process without a file is unknown, and counts as running.
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
except ImportError:  # not on this system: every other process counts as running
    fcntl = None  # type: ignore[assignment]

_LOOK_EVERY: Final = 0.25  # seconds between two looks at the same process, or at the folder
_KEEP_FOR: Final = 86_400  # seconds for which the file of a process that has ended stays, for claims without a payload


class InstanceLocks:
    """The locks beside one store, for one open store of this process."""

    def __init__(self, path: str) -> None:
        self._folder = f"{os.path.realpath(path)}-instances"
        self._held = False
        self._running: dict[bytes, float] = {}  # until when a process counts as running without another look
        self._looked = 0.0

    def hold(self) -> None:
        """Hold the lock of this process. Without one (the folder cannot be written, say) nobody knows when it ends."""
        if not self._held and fcntl is not None:
            _held.acquire(self._folder)
            self._held = True

    def drop(self) -> None:
        if self._held:
            self._held = False
            _held.release(self._folder)

    def has_ended(self, owner: bytes) -> bool:
        """Whether the process that made a claim under this owner is known to have ended."""
        name = instance_of(owner)
        if name is None or name == instance() or fcntl is None:
            return False
        now = time.monotonic()
        if now < self._running.get(name, 0.0):
            return False
        if _is_free(self._file(name.hex())):
            return True
        if len(self._running) > 1_000:
            self._running.clear()
        self._running[name] = now + _LOOK_EVERY
        return False

    def newly_ended(self) -> list[bytes]:
        """The processes that have ended and of which no caller, here or in another process, was told before. Looks at
        most a few times a second."""
        now = time.monotonic()
        if now < self._looked or fcntl is None:
            return []
        self._looked = now + _LOOK_EVERY
        others = [name for name in self._names() if name != instance().hex()]
        return [bytes.fromhex(name) for name in others if not self._is_noted(name) and _is_free(self._file(name))]

    def note(self, names: Sequence[bytes]) -> None:
        """The claims of these that can be listed are free now: `newly_ended` need not name them again. Their files get
        a byte, which tells the other processes too."""
        for name in names:
            _if_ended(self._file(name.hex()), lambda path: os.truncate(path, 1))

    def _is_noted(self, name: str) -> bool:
        """Whether a process was noted. The file of one that was noted long ago is removed."""
        path = self._file(name)
        try:
            status = os.stat(path)
        except OSError:
            return True
        if status.st_size and time.time() - status.st_mtime > _KEEP_FOR:
            _if_ended(path, os.unlink)
        return status.st_size > 0

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if len(name) == 2 * len(instance())]
        except OSError:
            return []

    def _file(self, name: str) -> str:
        return os.path.join(self._folder, name)


class _Held:
    """The locks that this process holds, by folder, and how many open stores need each."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[int | None, int]] = {}
        self._lock = threading.Lock()
        self._over_forks = forks.holding(self._lock, self._forget)

    def acquire(self, folder: str) -> None:
        with self._lock:
            file, users = self._files.get(folder, (None, 0))
            self._files[folder] = (_locked(folder) if users == 0 else file, users + 1)

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

    def _forget(self) -> None:
        """In a child, which has another name: the locks stay the parent's."""
        for file, _ in self._files.values():
            if file is not None:
                os.close(file)
        self._files.clear()


def _locked(folder: str) -> int | None:
    """The file of this process with its lock held, None where files cannot be locked."""
    path = os.path.join(folder, instance().hex())
    for _ in range(10):
        try:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
                os.chmod(folder, 0o700)  # the umask may have taken more away
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
            time.sleep(0.005)  # another process looks whether we have ended
        except OSError:
            pass
        os.close(file)
    return None


def _if_ended(path: str, change: Callable[[str], object]) -> None:
    """Change the file of a process that has ended. Does nothing while another process has its lock."""
    with suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            change(path)
        finally:
            os.close(file)


def _is_free(path: str) -> bool:
    """Whether a file is there and nobody holds its lock."""
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


_held: Final = _Held()
