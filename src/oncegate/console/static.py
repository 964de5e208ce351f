"""The static files of the console: style sheets, scripts and the icon."""

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from oncegate.console.requests import PREFIX
from oncegate.ingress.http_answers import HttpAnswer

# A file with another extension is not served.
_TYPES: Final = {
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_FOLDER: Final = "/static/"
# The address of a file contains a hash of its content, so a browser may keep the file for ever.
_KEPT: Final = (b"cache-control", b"public, max-age=31536000, immutable")


@cache
def _contents() -> dict[str, bytes]:
    """The content of each file by its name. A request is compared with these names, and never becomes a path."""
    folder = files("oncegate.console") / "static"
    return {file.name: file.read_bytes() for file in folder.iterdir() if _extension(file.name) in _TYPES}


@cache
def static_url(name: str) -> str:
    """Returns the address of a static file. Raises KeyError if there is no such file."""
    return f"{PREFIX}{_FOLDER}{hashlib.sha256(_contents()[name]).hexdigest()[:12]}/{name}"


def static_file(path: str) -> HttpAnswer | None:
    """Returns the response for the path of a static file; None if the path names no static file. `path` starts after
    `/console`."""
    name = path.rpartition("/")[2]
    if not path.startswith(_FOLDER) or name not in _contents() or PREFIX + path != static_url(name):
        return None
    return HttpAnswer(200, _contents()[name], [(b"content-type", _TYPES[_extension(name)]), _KEPT])


def _extension(name: str) -> str:
    return name.rpartition(".")[2]
