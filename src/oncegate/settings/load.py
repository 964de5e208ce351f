"""Load settings from the file, the environment and flags, and collect all problems of these settings.

Secrets are not part of the settings. A setting contains the name of a variable or of a file, and the secret is read
from there when it is needed.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from oncegate.errors import SettingError
from oncegate.files import read_file
from oncegate.settings.parsing import checked, from_text
from oncegate.settings.routes import ROUTE, read_routes, secret_variables
from oncegate.settings.schema import CONFIG_FLAG, CONFIG_VARIABLE, PREFIX, SETTINGS, TABLES, Setting
from oncegate.settings.settings import DEFAULT, Settings, disagreements
from oncegate.text import unknown

FILE: Final = "oncegate.toml"
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NO_FLAGS: Final[Mapping[str, Any]] = MappingProxyType({})


def load(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, Any] = _NO_FLAGS,
) -> Settings:
    """Load the settings. Raises SettingError with one line for each problem.

    Without a `path`, the flag `config` or the variable ONCEGATE_CONFIG names the file. If neither is set, the file is
    `oncegate.toml` in the current folder, if this file exists. `flags` maps the path of a setting, such as
    `serve.port`, to a value. The value None means that the flag is not given.
    """
    settings, problems = examine(path, environ, flags)
    if problems:
        raise SettingError("\n".join(problems))
    return settings


def examine(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, Any] = _NO_FLAGS,
) -> tuple[Settings, list[str]]:
    """Load the settings without raising SettingError. Returns the settings and the problems found. A setting with an
    invalid value has its default."""
    found = _Found()
    file = _find_file(path, environ, flags)
    if file is not None:
        _read_file(file, found)
    _read_environment(environ, found)
    _read_flags(flags, found)
    _check_together(found)
    settings = Settings(found.values, found.origins, refused=frozenset(found.refused))
    routes, problems = read_routes(found.routes, settings, str(file and file.path))
    return replace(settings, routes=routes), found.problems + problems


class _Found:
    """The values and problems found so far. A value that is found later replaces an earlier value."""

    def __init__(self) -> None:
        self.values = {path: setting.default for path, setting in SETTINGS.items()}
        self.origins = dict.fromkeys(SETTINGS, DEFAULT)
        self.routes: Mapping[str, Any] = {}
        self.problems: list[str] = []
        self.refused: set[str] = set()

    def take(self, setting: Setting, value: Any, origin: str) -> None:
        try:
            self.values[setting.path] = checked(setting, value)
        except SettingError as error:
            self.problems.append(f"{origin}: {error}")
            self.refused.add(setting.path)
        else:
            self.origins[setting.path] = origin
            self.refused.discard(setting.path)


class _File(Struct, frozen=True):
    """A settings file. `named_by` is the flag or the variable that contains the path of the file, for error
    messages."""

    path: Path
    named_by: str = ""


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────


def settings_file(environ: Mapping[str, str] = os.environ, flags: Mapping[str, Any] = _NO_FLAGS) -> Path:
    """The path of the settings file, which may not exist yet."""
    found = _find_file(None, environ, flags)
    return Path(FILE) if found is None else found.path


def _find_file(
    path: str | os.PathLike[str] | None, environ: Mapping[str, str], flags: Mapping[str, Any]
) -> _File | None:
    if path is not None:
        return _File(Path(path))
    if flags.get("config") is not None:
        return _File(Path(flags["config"]), f"{CONFIG_FLAG}: ")
    if environ.get(CONFIG_VARIABLE, "").strip():
        return _File(Path(environ[CONFIG_VARIABLE]), f"{CONFIG_VARIABLE}: ")
    return _File(Path(FILE)) if os.path.lexists(FILE) else None


def _read_file(file: _File, found: _Found) -> None:
    name = str(file.path)
    try:
        document = tomllib.loads(read_file(file.path).decode("utf-8-sig"))
    except FileNotFoundError:
        found.problems.append(f"{file.named_by}there is no settings file {name}")
    except OSError as error:
        found.problems.append(f"{file.named_by}cannot read the settings file {name}: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        found.problems.append(f"{name} is not TOML: {error}")
    else:
        _read_table("", document, name, found)


def _read_table(table: str, document: Mapping[str, Any], file: str, found: _Found) -> None:
    settings = {setting.name: setting for setting in TABLES[table]}
    for name, value in document.items():
        if name in settings:
            found.take(settings[name], value, file)
        elif not table and name == ROUTE and isinstance(value, dict):
            found.routes = value
        elif table or name not in (*TABLES, ROUTE):
            found.problems.append(f"{file}: {_unknown_setting(name, table)}")
        elif isinstance(value, dict):
            _read_table(name, value, file, found)
        elif name == ROUTE:
            found.problems.append(
                f"{file}: {ROUTE} must have a table for each route: write [{ROUTE}.NAME], not [[{ROUTE}]], and the"
                " settings of the route below it"
            )
        else:
            found.problems.append(f"{file}: {name}={value!r} must be a table: write [{name}] and its settings below it")


def _unknown_setting(name: str, table: str) -> str:
    if not table:
        return unknown(name, [*SETTINGS, *filter(None, TABLES), ROUTE], "setting")
    if name in SETTINGS:
        return f"there is no setting {table}.{name}; write {name} above the first table such as [{table}]"
    return unknown(f"{table}.{name}", [setting.path for setting in TABLES[table]], "setting")


# ── variables and flags ───────────────────────────────────────────────────────────────────────────────────


def _read_environment(environ: Mapping[str, str], found: _Found) -> None:
    """Read the variables. An empty variable counts as unset, because many tools set a variable to "" to unset it."""
    settings = {setting.variable: setting for setting in SETTINGS.values()}
    names = [*(variable.removeprefix(PREFIX) for variable in settings), CONFIG_VARIABLE.removeprefix(PREFIX)]
    given = sorted(name for name in environ if name.startswith(PREFIX) and environ[name].strip())
    for variable in filter(settings.__contains__, given):
        found.take(settings[variable], from_text(settings[variable], environ[variable]), variable)
    others = {CONFIG_VARIABLE, *secret_variables(found.routes), *found.values["serve.secret_env"]}
    for path in ("serve.metrics_token_env", "console.token_env", "genesys.secret_env"):
        others |= {*found.values[path]}
    for variable in given:
        if variable not in settings and variable not in others:
            found.problems.append(f"{variable}: {unknown(variable.removeprefix(PREFIX), names, 'setting')}")


def _read_flags(flags: Mapping[str, Any], found: _Found) -> None:
    for path, value in flags.items():
        if path == "config" or value is None:
            continue
        if path not in SETTINGS:
            found.problems.append(unknown(path, SETTINGS, "setting"))
            continue
        setting = SETTINGS[path]
        found.take(setting, from_text(setting, value) if isinstance(value, str) else value, setting.flag)


def _check_together(found: _Found) -> None:
    found.problems += disagreements(found.values, found.origins)


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────────────


def secrets_of(
    route: Settings, environ: Mapping[str, str] = os.environ, *, named: str = "serve.secret"
) -> dict[str, str]:
    """Read the secrets of a route. Returns each secret by the name of its variable or file. Two settings contain these
    names, one the variables and one the files; `named` is the common start of the names of the two settings.

    Raises SettingError if a secret cannot be read. A variable that is only the default of its setting may be unset. The
    error names the setting, and never contains a value that may be a secret."""
    return {**dict(_from_variables(route, environ, f"{named}_env")), **dict(_from_files(route, f"{named}_file"))}


def _from_variables(route: Settings, environ: Mapping[str, str], path: str) -> Iterator[tuple[str, str]]:
    where = route.where(path)
    for name in route[path]:
        if route.chosen(path) is None and not environ.get(name, "").strip():
            continue
        if not _VARIABLE.fullmatch(name):
            raise SettingError(f"{where}: write the name of a variable that holds the secret, not the secret itself")
        if not environ.get(name, "").strip():
            raise SettingError(f"{where}: the variable {name} is not set; set it to the secret")
        yield name, environ[name].strip()


def _from_files(route: Settings, path: str) -> Iterator[tuple[str, str]]:
    where = route.where(path)
    for name in route[path]:
        try:
            secret = read_file(name).decode("utf-8").strip()
        except FileNotFoundError as error:
            raise SettingError(f"{where}: there is no file {name}") from error
        except OSError as error:
            raise SettingError(f"{where}: cannot read the file {name}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise SettingError(f"{where}: the file {name} is not UTF-8 text") from error
        if not secret:
            raise SettingError(f"{where}: the file {name} is empty; write the secret, and nothing else, into it")
        yield name, secret
