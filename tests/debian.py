"""Single files of Debian packages that tests need: from the cache, or downloaded with apt, without root."""

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

_PATIENCE = 45  # seconds for each request; both must end before the timeout of a test


@cache
def packaged(package: str, pattern: str) -> Path | None:
    """Return the file of a package that matches the pattern. None if the package cannot be downloaded. A home that is
    not writable has no cache: then the file is in a folder that the system removes."""
    name = Path(pattern).name
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oncegate-tests" / name
    if cached.is_file():
        return cached
    folder = Path(tempfile.mkdtemp(prefix="oncegate-apt-"))
    if not _download(package, folder):
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


def _download(package: str, folder: Path) -> bool:
    """Download and unpack a package. Uses separate package lists: those of the system may be absent."""
    apt, unpack = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if not apt or not unpack:
        return False
    for part in ("state/lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    places = [f"Dir::State={folder}/state", "Dir::State::status=/var/lib/dpkg/status", f"Dir::Cache={folder}/cache"]
    options = [part for place in (*places, "APT::Sandbox::User=") for part in ("-o", place)]
    for command in ([apt, *options, "update"], [apt, *options, "download", package]):
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_PATIENCE)
        except subprocess.SubprocessError:
            return False
    for archive in folder.glob("*.deb"):
        subprocess.run([unpack, "-x", archive, folder], check=True, capture_output=True)
    return True
