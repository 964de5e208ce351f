"""Opening files whose names come from a user."""

import errno
import os
from pathlib import Path

import pytest

from oncegate.files import check_file, open_file, read_file


def test_a_file(tmp_path: Path) -> None:
    """A file is read in full."""
    (tmp_path / "a").write_bytes(b"content")
    assert read_file(tmp_path / "a") == b"content"
    with open_file(str(tmp_path / "a")) as stream:
        assert stream.read(3) == b"con"


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("a\0b", errno.EINVAL, "no file can have this name"),
        ("\ud800", errno.EINVAL, "no file can have this name"),
        ("/dev/zero", errno.EINVAL, "it is a device, not a file"),
        (".", errno.EISDIR, os.strerror(errno.EISDIR)),
        ("x" * 300, errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)),
        ("absent", errno.ENOENT, os.strerror(errno.ENOENT)),
    ],
)
def test_no_file(name: str, code: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is no file raises an OSError with the reason."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError) as raised:  # noqa: PT011  # the next line checks the message
        check_file(name)
    assert (raised.value.errno, raised.value.strerror) == (code, reason)


def test_the_null_device() -> None:
    """/dev/null is an empty file."""
    assert read_file(os.devnull) == b""
