"""Secrets: read from the variables and files that settings name, when they are needed and not before."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from oncegate.errors import SettingError
from oncegate.settings.settings import Settings

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def secrets_of(
    route: Settings, environ: Mapping[str, str] = os.environ, *, named: str = "serve.secret"
) -> dict[str, str]:
    """The secrets of a route by where they stand; SettingError with the place, and never with what may be a secret
    itself. `named` is what the two settings begin with that name them."""
    return {**dict(_from_variables(route, environ, f"{named}_env")), **dict(_from_files(route, f"{named}_file"))}


def _from_variables(route: Settings, environ: Mapping[str, str], path: str) -> Iterator[tuple[str, str]]:
    where = route.where(path)
    for name in route[path]:
        if not _VARIABLE.fullmatch(name):
            raise SettingError(f"{where}: it takes the name of a variable that holds the secret, not the secret")
        if not environ.get(name, "").strip():
            raise SettingError(f"{where}: the variable {name} is not set; put the secret into it")
        yield name, environ[name].strip()


def _from_files(route: Settings, path: str) -> Iterator[tuple[str, str]]:
    where = route.where(path)
    for name in route[path]:
        try:
            secret = Path(name).read_text("utf-8").strip()
        except FileNotFoundError as error:
            raise SettingError(f"{where}: there is no file {name}") from error
        except OSError as error:
            raise SettingError(f"{where}: the file {name} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise SettingError(f"{where}: the file {name} does not hold text") from error
        if not secret:
            raise SettingError(f"{where}: the file {name} is empty; it must hold the secret and nothing else")
        yield name, secret
