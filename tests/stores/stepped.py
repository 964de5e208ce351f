"""A server clock that tests can set, with libfaketime: the server sees the machine's time plus an offset."""

import shutil
from pathlib import Path

from tests.debian import packaged
from tests.stores.servers import missing

_LIBRARY = "libfaketimeMT.so.1"


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
    """Copy the library into the folder: from the system, or from the Debian package."""
    found = next(Path("/usr").glob(f"lib*/**/faketime/{_LIBRARY}"), None)
    if found is None:
        found = packaged("libfaketime", f"usr/lib/*/faketime/{_LIBRARY}")
    if found is None:
        missing("libfaketime", "apt-get install libfaketime")
    return Path(shutil.copy(found, folder))
