"""Files of Debian packages that tests need: from the cache, or downloaded with apt, without root."""

import atexit
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

_PATIENCE = 45  # seconds for each request; both must end before the timeout of a test
_LARGE_PATIENCE = 240  # seconds for a package with its dependencies; its tests have a longer timeout


@cache
def packaged(package: str, pattern: str) -> Path | None:
    """Return the file of a package that matches the pattern. None if the package cannot be downloaded. A home that is
    not writable has no cache: then the file is in a folder that the system removes."""
    cached = _cache_folder() / Path(pattern).name
    if cached.is_file():
        return cached
    folder = Path(tempfile.mkdtemp(prefix="oncegate-apt-"))
    if not _download(["download", package], folder, _PATIENCE):
        shutil.rmtree(folder)
        return None
    file = next(folder.glob(pattern))
    with suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, new := cached.with_suffix(f".{os.getpid()}"))
        new.replace(cached)
        shutil.rmtree(folder)
        return cached
    return file


@cache
def unpacked(package: str, *others: str) -> Path | None:
    """Return a folder with the libraries, programs and fonts of these packages. It also has the packages that they
    depend on, except those that the system has. None if they cannot be downloaded. The lock makes parallel test
    processes wait for one download."""
    try:
        _cache_folder().mkdir(parents=True, exist_ok=True)
        lock = (_cache_folder() / f"{package}.lock").open("w")
    except OSError:  # a home that is not writable has no cache
        folder = Path(tempfile.mkdtemp(prefix="oncegate-apt-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return _unpack([package, *others], folder)
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cached = _cache_folder() / package
        if not cached.is_dir():
            with tempfile.TemporaryDirectory(prefix=f"{package}-", dir=_cache_folder()) as new:
                files = _unpack([package, *others], Path(new))
                if files is None:
                    return None
                files.rename(cached)
        return cached


def _unpack(packages: Sequence[str], folder: Path) -> Path | None:
    # The locks of apt are for packages that are installed. They belong to root.
    install = ["-o", "Debug::NoLocking=1", "install", "--yes", "--download-only", "--no-install-recommends", *packages]
    if not _download(install, folder, _LARGE_PATIENCE):
        return None
    (files := folder / "files").mkdir()
    for part in ("usr/lib", "usr/bin", "usr/share/fonts", "lib"):  # the documentation has a tenth of the size
        if (folder / part).is_dir():
            (files / part).parent.mkdir(parents=True, exist_ok=True)
            (folder / part).rename(files / part)
    return files


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oncegate-tests"


def _download(request: Sequence[str], folder: Path, patience: float) -> bool:
    """Download and unpack packages. Uses separate package lists: those of the system may be absent."""
    apt, unpack = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if not apt or not unpack:
        return False
    for part in ("state/lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    places = [f"Dir::State={folder}/state", "Dir::State::status=/var/lib/dpkg/status", f"Dir::Cache={folder}/cache"]
    options = [part for place in (*places, "APT::Sandbox::User=") for part in ("-o", place)]
    for command, limit in (([apt, *options, "update"], _PATIENCE), ([apt, *options, *request], patience)):
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=limit)
        except subprocess.SubprocessError:
            return False
    for archive in (*folder.glob("*.deb"), *folder.glob("cache/archives/*.deb")):
        subprocess.run([unpack, "-x", archive, folder], check=True, capture_output=True)
        archive.unlink()
    return True
