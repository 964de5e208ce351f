"""A server clock that tests can set, with libfaketime: the server sees the machine's time plus an offset."""

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.stores.servers import missing

_LIBRARY = "libfaketimeMT.so.1"
_INSTALL = "apt-get install libfaketime"


class SteppedClock:
    """`environment` makes a program use this clock. All files are in the folder: root runs Postgres as nobody."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._offset = folder / "offset"
        self.environment = {
            "LD_PRELOAD": str(_library(folder)),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.set(0)

    def set(self, seconds: int) -> None:
        """Set the clock that many seconds ahead of the machine's time."""
        written = self._offset.with_suffix(".new")
        written.write_text(f"{seconds:+d}\n")
        written.chmod(0o644)
        written.replace(self._offset)


def _library(folder: Path) -> Path:
    """Copy the library into the folder: from the system, from the cache, or from the Debian package."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oncegate-tests" / _LIBRARY
    for found in (*Path("/usr").glob(f"lib*/**/faketime/{_LIBRARY}"), cached):
        if found.is_file():
            return Path(shutil.copy(found, folder))
    with tempfile.TemporaryDirectory(prefix="oncegate-apt-") as unpacked:
        library = Path(shutil.copy(_downloaded(Path(unpacked)), folder))
    with suppress(OSError):  # a home that is not writable: the next run downloads it again
        cached.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, new := cached.with_suffix(f".{os.getpid()}"))
        new.replace(cached)
    return library


def _downloaded(folder: Path) -> Path:
    """Download the library with apt, without root. Uses separate package lists: those of the system may be absent."""
    apt, unpack = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if not apt or not unpack:
        missing("libfaketime", _INSTALL)
    for part in ("state/lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    places = [f"Dir::State={folder}/state", "Dir::State::status=/var/lib/dpkg/status", f"Dir::Cache={folder}/cache"]
    options = [part for place in (*places, "APT::Sandbox::User=") for part in ("-o", place)]
    for command in ([apt, *options, "update"], [apt, *options, "download", "libfaketime"]):
        if subprocess.run(command, cwd=folder, capture_output=True, timeout=60).returncode:
            missing("libfaketime", _INSTALL)
    for package in folder.glob("*.deb"):
        subprocess.run([unpack, "-x", package, folder], check=True, capture_output=True)
    return next(folder.glob(f"usr/lib/*/faketime/{_LIBRARY}"))
