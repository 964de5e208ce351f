"""Add a route to a settings file. Everything else in the file stays as it is, also its comments."""

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oncegate.errors import SettingError
from oncegate.files import read_file
from oncegate.settings.routes import ROUTE


def read_route(path: Path, name: str) -> dict[str, Any] | None:
    """The table of a route; None if the file or the table does not exist. Raises SettingError if the file cannot be
    read."""
    table = _parsed(path, _text(path)).get(ROUTE, {})
    found = table.get(name) if isinstance(table, dict) else None
    if found is not None and not isinstance(found, dict):
        raise SettingError(f"{path}: [{ROUTE}.{name}] is not a table; correct it first")
    return found


def add_route(path: Path, name: str, table: Mapping[str, str], comment: str) -> None:
    """Append the table of a route to the file, which is created if it does not exist. Raises SettingError if the result
    would not be valid; the file is then unchanged."""
    text = _text(path)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [f"# {comment}", f"[{ROUTE}.{name}]", *(f"{key} = {_quoted(value)}" for key, value in table.items())]
    before = text if not text or text.endswith("\n") else text + newline
    changed = f"{before}{newline if before else ''}{newline.join(lines)}{newline}"
    if _parsed(path, changed) != _with_route(_parsed(path, text), name, table):
        raise SettingError(f"{path}: [{ROUTE}.{name}] cannot be added at the end of the file; add it by hand")
    _replace(path, changed)


def _with_route(document: dict[str, Any], name: str, table: Mapping[str, str]) -> dict[str, Any]:
    return {**document, ROUTE: {**document.get(ROUTE, {}), name: dict(table)}}


def _text(path: Path) -> str:
    try:
        return read_file(path).decode("utf-8")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SettingError(f"cannot read the settings file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"the settings file {path} is not UTF-8 text") from error


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path} is not TOML: {error}; correct it first") from error


def _quoted(value: str) -> str:
    """The value as a TOML string. The escapes of JSON are also escapes of TOML."""
    return json.dumps(value, ensure_ascii=False)


def _replace(path: Path, text: str) -> None:
    """Replace the content of the file at once, so that a crash leaves the old or the new content."""
    target = Path(os.path.realpath(path))  # a link stays a link
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    try:
        with tempfile.NamedTemporaryFile("wb", dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            temporary = Path(file.name)
            try:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
                temporary.chmod(mode)
                temporary.replace(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise SettingError(f"cannot write the settings file {path}: {error.strerror}") from error
