"""Open and read files whose names come from a user."""

import errno
import os
import stat
from typing import BinaryIO, Final, TypeAlias

Path: TypeAlias = str | os.PathLike[str]

_NOT_A_NAME: Final = "no file can have this name"
_IS_A_DEVICE: Final = "it is a device, not a file"


def check_file(path: Path) -> None:
    """Raise OSError if the path is not a readable kind of file: a device, a folder, or a name that no file can have.

    A device is refused because it may have no end: /dev/zero would fill the memory. /dev/null and the terminal of stdin
    are allowed. Named pipes are allowed too: a shell passes `<(command)` as a pipe."""
    try:
        found = os.stat(path)
    except ValueError as error:  # NUL, or a character that the file system cannot encode
        raise OSError(errno.EINVAL, _NOT_A_NAME) from error
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISBLK(found.st_mode) or (stat.S_ISCHR(found.st_mode) and not _is_harmless(found.st_rdev)):
        raise OSError(errno.EINVAL, _IS_A_DEVICE)


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError, also for the paths that `check_file` refuses."""
    check_file(path)
    return open(path, "rb")


def read_file(path: Path) -> bytes:
    """The content of a file. Raises OSError, also for the paths that `check_file` refuses."""
    with open_file(path) as stream:
        return stream.read()


def _is_harmless(device: int) -> bool:
    if device == os.stat(os.devnull).st_rdev:
        return True
    try:
        return os.isatty(0) and os.fstat(0).st_rdev == device
    except OSError:  # stdin is closed
        return False
