"""Read the tables `[route.NAME]`, and list the routes of a service. Each table has the settings of one route, such as
its secret, key and handler."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from oncegate.errors import SettingError
from oncegate.settings.parsing import checked
from oncegate.settings.schema import GATE, HANDLER_OPTIONS, KEY, OF_ROUTE, OF_SIGNATURE, READ, SETTINGS, TABLES, Setting
from oncegate.settings.settings import DEFAULT, Settings, disagreements
from oncegate.text import quoted, unknown

ROUTE: Final = "route"
UNSIGNED: Final = "none"
_OUTSIDE_ROUTES: Final = "default"  # the name of the path `/events`
NO_ROUTE: Final = "(no route)"  # not a valid name of a route, so no route can have this name

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
_NAME_RULE: Final = (
    "invalid name of a route; it is part of the URL, so use small letters, digits, - and _, at most 64, the first one a"
    " letter or a digit"
)
# The settings that the table of a route may contain, by their names in this table. Settings that all routes share, such
# as the store, are not included.
_ALLOWED: Final[Mapping[str, Setting]] = {
    **{setting.name: setting for setting in (KEY, *GATE)},
    **{name: SETTINGS[f"serve.{name}"] for name in OF_ROUTE},
}
OF_ROUTES: Final = frozenset(setting.path for setting in (*_ALLOWED.values(), *READ))  # paths of these settings
_READ: Final[Mapping[str, Setting]] = {setting.name: setting for setting in READ}


def secret_variables(tables: Mapping[str, Any]) -> set[str]:
    """The names of the variables that contain secrets of routes. These variables are not settings, even if their names
    start with ONCEGATE_."""
    found: set[str] = set()
    for table in tables.values():
        named = table.get("secret_env", ()) if isinstance(table, dict) else ()
        found.update([named] if isinstance(named, str) else filter(_is_text, named))
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def read_routes(tables: Mapping[str, Any], settings: Settings, file: str) -> tuple[dict[str, Settings], list[str]]:
    """Read the tables of the routes. Returns the settings of each route by its name, and the problems found."""
    routes: dict[str, Settings] = {}
    problems: list[str] = []
    for name, table in tables.items():
        route = _Route(name, settings, f"{file} [{ROUTE}.{name}]")
        problems += route.read(table)
        routes[name] = Settings(route.values, route.origins, refused=frozenset(route.refused))
    return routes, problems + list(_shared_namespaces(routes, settings))


def routes_of(settings: Settings) -> dict[str, Settings]:
    """The settings of every route, by path. The path `/events` is included if `serve.signature` is set, or if there is
    no other route."""
    routes = {f"/events/{name}": route for name, route in settings.routes.items()}
    if not routes or settings.chosen("serve.signature") is not None:
        routes["/events"] = settings
    return routes


def name_of(path: str) -> str:
    """The name of the route that is served at this path."""
    return path.removeprefix("/events").removeprefix("/") or _OUTSIDE_ROUTES


def check_name(name: str) -> None:
    """Raises SettingError if no route can have this name."""
    if not _NAME.fullmatch(name):
        raise SettingError(f"{quoted(name)} is an {_NAME_RULE}")


def is_described(settings: Settings) -> bool:
    """Whether the settings configure a service."""
    return bool(settings.routes) or any(settings.chosen(setting.path) is not None for setting in TABLES["serve"])


def by_route(settings: Settings) -> dict[str, Settings]:
    """The settings of each route by its name. If no route has the namespace of the settings outside routes, these
    settings are added last, with the name NO_ROUTE. If a flag or a variable selects a namespace, only the routes with
    this namespace are returned. Flags for `key` and `[read]` override the settings of a route."""
    wanted = settings["namespace"] if _is_given(settings, "namespace", SETTINGS["namespace"].variable) else None
    found = {
        name: _with_flags(route, settings)
        for name, route in settings.routes.items()
        if wanted in (None, route["namespace"])
    }
    if all(route["namespace"] != settings["namespace"] for route in found.values()):
        found[NO_ROUTE] = settings
    return found


def _is_given(settings: Settings, path: str, *origins: str) -> bool:
    """Whether the value of the setting comes from its flag or from one of `origins`."""
    return settings.origins[path] in (SETTINGS[path].flag, *origins)


def _with_flags(route: Settings, settings: Settings) -> Settings:
    flags = [setting.path for setting in (KEY, *READ) if _is_given(settings, setting.path)]
    if not flags:
        return route
    values = {**route.values, **{path: settings.values[path] for path in flags}}
    return Settings(values, {**route.origins, **{path: settings.origins[path] for path in flags}})


class _Route:
    """The table of one route. The settings in this table override the settings outside routes."""

    def __init__(self, name: str, settings: Settings, origin: str) -> None:
        self._name = name
        self._origin = origin
        not_inherited = [f"serve.{option}" for option in OF_SIGNATURE]
        self.values = {**settings.values, **{path: SETTINGS[path].default for path in not_inherited}, "namespace": name}
        self.origins = {**settings.origins, **dict.fromkeys(not_inherited, DEFAULT), "namespace": origin}
        self.refused = set(settings.refused.difference(not_inherited))

    def read(self, table: Any) -> Iterator[str]:
        if not _NAME.fullmatch(self._name):
            yield f"{self._origin}: {_NAME_RULE}"
        elif not isinstance(table, dict):
            yield f"{self._origin}: it must be a table: write [{ROUTE}.{self._name}] and its settings below it"
        else:
            self._drop_inherited_action(table)
            yield from self._take(table)
            yield from self._check_together()

    def _drop_inherited_action(self, table: Mapping[str, Any]) -> None:
        """If the table sets `handler`, `forward` or `publish`, the route inherits none of these three settings."""
        if any(option in table for option in HANDLER_OPTIONS):
            for path in (f"serve.{option}" for option in HANDLER_OPTIONS):
                self.values[path], self.origins[path] = SETTINGS[path].default, DEFAULT

    def _take(
        self, table: Mapping[str, Any], known: Mapping[str, Setting] = _ALLOWED, within: str = ""
    ) -> Iterator[str]:
        for name, value in table.items():
            if name == "secret":
                self.refused.add("serve.secret_env")
                yield f"{self._origin}: {_INLINE_PROBLEM}"
            elif name in known:
                yield from self._set(known[name], f"{within}{name}", value)
            elif name == "read" and not within and isinstance(value, dict):
                yield from self._take(value, _READ, "read.")
            else:
                yield f"{self._origin}: {unknown(name, _names(known), 'setting of a route')}"

    def _set(self, setting: Setting, name: str, value: Any) -> Iterator[str]:
        try:
            self.values[setting.path] = checked(replace(setting, table="", name=name), value)
        except SettingError as error:
            self.refused.add(setting.path)
            yield f"{self._origin}: {error}"
        else:
            self.refused.discard(setting.path)
            self.origins[setting.path] = self._origin

    def _check_together(self) -> Iterator[str]:
        yield from disagreements(self.values, self.origins)
        signature = self.values["serve.signature"]
        if signature is None and "serve.signature" not in self.refused:
            self.refused.add("serve.signature")
            yield f'{self._origin}: it has no signature; name the signature scheme, or write signature = "{UNSIGNED}"'
        elif signature not in (None, UNSIGNED) and self.values["on_conflict"] == "duplicate":
            yield (
                f'{self._origin}: on_conflict="duplicate" would drop signed events;'
                ' use "bury" or "run" on a signed route'
            )


_INLINE_PROBLEM: Final = (
    'a secret must not be in this file; put it into a variable and write secret_env = "ITS_NAME",'
    ' or into a file and write secret_file = "its/path"'
)


def _names(known: Mapping[str, Setting]) -> Collection[str]:
    return [*known, "read"] if known is _ALLOWED else known.keys()


def _shared_namespaces(routes: Mapping[str, Settings], settings: Settings) -> Iterator[str]:
    """A problem for each namespace that two routes share. The handler of a route runs all waiting events of its
    namespace, so it would run the events of the other route."""
    owners: dict[str, str] = {}
    if settings["serve.signature"] is not None:
        owners[settings["namespace"]] = "POST /events"
    for name, route in routes.items():
        other = owners.setdefault(route["namespace"], name)
        if other != name:
            yield (
                f"{route.origins['namespace']}: namespace={route['namespace']!r} is used by {other}, too;"
                " give each route its own namespace"
            )
