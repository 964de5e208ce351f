"""The actions of `oncegate genesys` that do not need AWS. They need the extra `genesys`."""

import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec.structs import asdict, replace

from oncegate.cli import exit_codes
from oncegate.cli.commands import CONFIG, chosen_config
from oncegate.cli.output import Progress, print_text, show_json, show_table
from oncegate.cli.steps import carry_out_all, remove_all, show_plan, step_fields, summary
from oncegate.cli.work import (
    abandon_handlers,
    announce_worker,
    check_lasting_store,
    figures_of,
    handler_of,
    run_worker,
)
from oncegate.durations import microseconds
from oncegate.durations import times as counted
from oncegate.errors import SettingError
from oncegate.gate import Gate
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.genesys.client import ClientCredentials, GenesysClient
from oncegate.genesys.integrations import COMMAND, genesys_platform, open_messaging_part
from oncegate.genesys.listener import AliveMark, NotificationWorker
from oncegate.genesys.notifications import ListenTimes, NotificationApi
from oncegate.genesys.permissions import NOT_IN_SDK, SCOPES, UNKNOWN, Check, Requirement, Use, check_permissions
from oncegate.genesys.regions import GenesysPlace, configured_place
from oncegate.genesys.topics import OfferedTopic, check_topics, offered_topics
from oncegate.infra.platform import FoundPart, Part, PartKind, Platform, Step
from oncegate.settings import Settings
from oncegate.settings.load import secrets_of, settings_file
from oncegate.settings.route_file import add_route, read_route
from oncegate.settings.routes import check_name
from oncegate.sources import read
from oncegate.sources.topics import topic_of
from oncegate.text import any_of, quoted

_PLACE: Final = "genesys"  # in the journal
_SIGNATURE: Final = "genesys-open-messaging"
_SECRET_BYTES: Final = 32
_CODES: Final = {"no": exit_codes.ERRORS_FOUND, "unknown": exit_codes.WARNINGS_FOUND}


@contextmanager
def connected(settings: Settings, progress: Progress | None = None, **options: Any) -> Iterator[GenesysClient]:
    """A client with the settings of `[genesys]`."""
    client = GenesysClient(_place(settings), _credentials(settings), **options)
    if progress is not None:
        client.on_wait = lambda what: progress.show(f"waiting for {what} …")
    with closing(client):
        yield client


def _place(settings: Settings) -> GenesysPlace:
    place = configured_place(settings)
    if place is None:
        raise SettingError(
            "the region of Genesys Cloud is missing; set genesys.region, ONCEGATE_GENESYS_REGION or --genesys-region to"
            " your domain, such as mypurecloud.de"
        )
    return place


def _credentials(settings: Settings) -> ClientCredentials:
    if settings["genesys.client_id"] is None:
        raise SettingError(
            "the OAuth client is missing; set genesys.client_id, ONCEGATE_GENESYS_CLIENT_ID or --genesys-client-id to"
            " the id of an OAuth client with the grant type Client Credentials"
        )
    found = secrets_of(settings, named="genesys.secret")
    if not found:
        raise SettingError(
            "the secret of the OAuth client is missing; put it into the variable ONCEGATE_GENESYS_CLIENT_SECRET, or"
            " name its file with genesys.secret_file"
        )
    if len(found) > 1:
        places = " and ".join(found)
        raise SettingError(f"the OAuth client has more than one secret ({places}); name one variable or one file")
    return ClientCredentials(settings["genesys.client_id"], next(iter(found.values())))


# ── topics and permissions ────────────────────────────────────────────────────────────────────────────────


def topics(settings: Settings, *, filter_: str, preview: bool, output: str) -> None:
    with Progress() as progress, connected(settings, progress) as client:
        found = offered_topics(client, filter_=filter_, preview=preview)
    if output == "json":
        show_json({"topics": [asdict(topic) for topic in found]})
    elif not found:
        print_text(f"No topic contains {filter_!r}." if filter_ else "Genesys Cloud lists no topics.")
    else:
        _show_topics(found)


def _show_topics(found: Sequence[OfferedTopic]) -> None:
    headers = ("topic", "event time", "id", "key", "entity", "transports", "permissions")
    rows = [
        (
            topic.name + (" (preview)" if topic.is_preview else ""),
            *(topic.time, topic.id, topic.key, topic.entity),
            *(", ".join(topic.transports) or None, _permissions_of(topic) or None),
        )
        for topic in found
    ]
    show_table(headers, rows, ("topic", "event time", "key", "id", "entity"), required=("topic", "key"))


def _permissions_of(topic: OfferedTopic) -> str:
    if topic.own_user_only:
        return "only the user of the topic"
    return (any_of if topic.any_permission and topic.permissions else ", ".join)(topic.permissions)


def check(settings: Settings, *, uses: Sequence[Use], topics: Sequence[str], output: str) -> int:
    with Progress() as progress, connected(settings, progress) as client:
        needed = _topic_requirements(client, topics, uses)
        found = check_permissions(client, uses, needed)
    worst = next((_CODES[state] for state in _CODES if any(each.granted == state for each in found)), exit_codes.OK)
    if output == "json":
        rows = [{**asdict(each.requirement), "granted": each.granted, "why": each.why} for each in found]
        scopes = {use: scope for use, scope in SCOPES.items() if use in uses}
        show_json({"permissions": rows, "scopes_of_user_tokens": scopes, "names_not_in_the_sdk": NOT_IN_SDK})
    else:
        _show_checks(found, uses)
    return worst


def _topic_requirements(client: GenesysClient, topics: Sequence[str], uses: Sequence[Use]) -> list[Requirement]:
    """The permissions that Genesys names for these topics. Only a subscription needs them."""
    if not topics:
        return []
    offered = {topic.name: topic for topic in offered_topics(client, preview=True)}
    found = []
    for name in check_topics(topics, template=True):
        topic = offered.get(name) or offered.get(topic_of(name)[0] or "")
        if topic is None:
            raise SettingError(f"Genesys Cloud does not offer the topic {name}; see `oncegate genesys topics`")
        if topic.own_user_only and "listen" in uses:
            raise SettingError(
                f"only the user of the topic can receive {name} over the WebSocket, and an OAuth client with the grant"
                " type Client Credentials has no user; leave out the topic, or check it with --for eventbridge"
            )
        needed, purpose = topic.permissions, f"receive {name}"
        if topic.any_permission:
            found += [Requirement(needed[0], "listen", purpose, alternatives=needed[1:])] if needed else []
        else:
            found += [Requirement(each, "listen", purpose) for each in needed]
    return found


def _show_checks(found: Sequence[Check], uses: Sequence[Use]) -> None:
    rows = [(each.requirement.text, each.granted, each.requirement.needed_to) for each in found]
    if rows:
        show_table(("permission", "granted", "needed to"), rows, ("permission", "granted"))
        print_text("")
    if missing := [each.requirement.text for each in found if each.granted == "no"]:
        print_text(f"Grant these permissions to a role of the OAuth client: {', '.join(dict.fromkeys(missing))}.")
    if any(each.granted == "unknown" for each in found):
        print_text(UNKNOWN)
    if "listen" in uses:
        print_text("A channel needs no permission. Each topic may need one: name the topics with --topics.")
    print_text("To receive events by EventBridge or by webhook, no permission and no scope is needed.")
    scopes = ", ".join(sorted({SCOPES[use] for use in uses}))
    print_text(f"Genesys documents these permissions. It checks scopes only of user tokens, which need: {scopes}.")
    print_text(f"Tutorials also name {', '.join(NOT_IN_SDK)}. The official SDK of Genesys has no such name.")


# ── Open Messaging ────────────────────────────────────────────────────────────────────────────────────────


def setup_open_messaging(
    settings: Settings,
    *,
    name: str,
    url: str,
    route: str | None,
    secret_env: str | None,
    secret_file: str | None,
    replace_secret: bool,
    dry_run: bool,
    output: str,
) -> None:
    route, path = _checked_route(url, route), settings_file(flags={CONFIG: chosen_config()})
    secret = partial(_message_secret, settings, secret_env, secret_file)
    secret()  # refuse an unreadable secret before the login
    named = {"secret_env": secret_env} if secret_env is not None else {"secret_file": secret_file}
    parts = [Part("secret", secret_file, secret_file, {}, name)] if secret_file is not None else []
    parts.append(Part("route", route, str(path), {"signature": _SIGNATURE, **named}, name))
    files = Platform(path, {"route": _ROUTE_KIND, "secret": _SECRET_KIND}, SettingError, COMMAND)
    with Progress() as progress, connected(settings, progress) as client:
        genesys = genesys_platform(client, secret=secret, replace_secret=replace_secret)
        steps: list[tuple[Platform[Any], Step]] = [(files, step) for step in files.plan(parts)]
        steps += [(genesys, step) for step in genesys.plan([open_messaging_part(name, url)])]
        planned = [step for _, step in steps]
        if dry_run:
            show_plan(planned, output)
            return
        carry_out_all(steps, progress, output)
    if output == "json":
        show_json({"parts": [step_fields(step) for step in planned], "file": str(path), "route": f"/events/{route}"})
        return
    print_text("")
    print_text(summary(planned))
    print_text(f"The route /events/{route} is in {path}. Start `oncegate serve` with this file, behind {url}.")


def _checked_route(url: str, route: str | None) -> str:
    path = _path_of(url)
    if path is None:
        raise SettingError(
            f"--url {quoted(url)} is not a public https URL; write it like https://events.example.com/events/messages"
        )
    before, _, last = path.rstrip("/").rpartition("/")
    if route is None and not before.endswith("/events"):
        # Genesys Cloud does not send a message again after an answer such as 404.
        raise SettingError(
            f"--url {quoted(url)} does not end with /events/ROUTE, where `oncegate serve` receives messages; if a proxy"
            " changes the path, name the route with --route"
        )
    found = route or last
    try:
        check_name(found)
    except SettingError as error:
        where = "--route" if route else "the last part of --url"
        raise SettingError(f"{where}: {error}. Change it, or name the route with --route") from None
    return found


def _path_of(url: str) -> str | None:
    """The path of a public https URL; None if it is not one."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # of an invalid host or port
        return None
    is_public = parts.scheme == "https" and host and "@" not in parts.netloc and not parts.query and not parts.fragment
    return parts.path if is_public else None


def _message_secret(settings: Settings, variable: str | None, file: str | None) -> str | None:
    """The secret of the signature; None if its file does not exist yet."""
    if file is not None and not os.path.lexists(file):
        return None
    named = {"serve.secret_env": (variable,) if variable else (), "serve.secret_file": (file,) if file else ()}
    origins = {"serve.secret_env": "--secret-env", "serve.secret_file": "--secret-file"}
    given = replace(settings, values={**settings.values, **named}, origins={**settings.origins, **origins})
    (secret,) = secrets_of(given).values()
    return secret


def _create_secret(_path: Path, part: Part) -> None:
    """Create the file with a random secret that only its owner can read."""
    try:
        with open(os.open(part.name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(f"{secrets.token_urlsafe(_SECRET_BYTES)}\n")
    except OSError as error:
        raise SettingError(f"--secret-file: cannot create {part.name}: {error.strerror}") from error


def _read_route(path: Path, part: Part) -> FoundPart | None:
    table = read_route(path, part.name)
    return None if table is None else FoundPart(part.arn, part.tags, table)


def _check_route(part: Part, found: FoundPart) -> None:
    """Refuse a route that has another signature or secret. A person wrote it, so it is not changed."""
    for name in ("signature", "secret_env", "secret_file"):
        current, wanted = found.properties.get(name), part.properties.get(name)
        if current not in (wanted, [wanted]):
            raise SettingError(
                f"{part.arn}: [route.{part.name}] has {name}={current!r}, not {wanted!r}; change it, or choose another"
                " route with --route"
            )


_ROUTE_KIND: Final = PartKind[Path](
    "route",
    _read_route,
    lambda path, part: add_route(
        path, part.name, part.properties, f"Open Messaging, added by `oncegate genesys setup` for {part.deployment}."
    ),
    lambda _path, _part, _found: None,
    fixed=("signature", "secret_env", "secret_file"),
    check=_check_route,
)
_SECRET_KIND: Final = PartKind[Path](
    "secret",
    lambda _path, part: FoundPart(part.arn, part.tags, {}) if os.path.lexists(part.name) else None,
    _create_secret,
    lambda _path, _part, _found: None,
)


def down_open_messaging(settings: Settings, name: str, *, yes: bool, dry_run: bool) -> None:
    with Progress() as progress, connected(settings, progress) as client:
        genesys = genesys_platform(client)
        steps = genesys.plan_removal(genesys.existing_parts([open_messaging_part(name, "")]))
        nothing = f"{COMMAND} created no Open Messaging integration with the name {name}"
        are_deleted = remove_all(
            [(genesys, step) for step in steps],
            progress,
            place=client.place.name,
            nothing=nothing,
            yes=yes,
            dry_run=dry_run,
        )
    if are_deleted:
        print_text("The route in the settings file was not changed. Remove it when no more messages arrive.")


# ── listen ────────────────────────────────────────────────────────────────────────────────────────────────


def listen(settings: Settings, topics: Sequence[str], times: ListenTimes | None = None) -> None:
    """Receive notifications until the listener is stopped. Tests pass shorter times."""
    topics = check_topics(topics, template=False)
    figures, observers = figures_of(settings)
    stopping = threading.Event()  # ends the pauses of the client
    with ExitStack() as stack:
        recorder = settings.recorder()
        if recorder is not None:
            stack.callback(recorder.close)
            recorder.start()
            observers = [*observers, recorder.of(_PLACE, awaits_keep=True)]
        handler = handler_of(settings)
        check_lasting_store(settings)
        client = stack.enter_context(connected(settings, sleep=stopping.wait))
        gate = stack.enter_context(closing(settings.gate(observers=observers)))
        worker = _listener(settings, gate, handler, client, topics, times or ListenTimes(), stack)
        stack.callback(stopping.set)
        announce_worker(f"{counted(len(topics), 'topic')} of Genesys Cloud ({client.place.name})", settings)
        run_worker(worker, figures)
    abandon_handlers(worker, settings)


def _listener(
    settings: Settings,
    gate: Gate,
    handler: Handler | AsyncHandler,
    client: GenesysClient,
    topics: Sequence[str],
    times: ListenTimes,
    stack: ExitStack,
) -> NotificationWorker:
    drain = settings["work.drain"]
    return NotificationWorker(
        gate,
        gate.inbox(handler, at_work=settings["work.in_hand"], drain=drain),
        NotificationApi(client, times),
        topics,
        read=partial(read, hints=settings.hints()),
        mark=AliveMark(gate.store, settings["namespace"], client.place.name, topics),
        gaps=stack.enter_context(closing(settings.gap_log(_PLACE))),
        times=times,
        drain=microseconds(drain, "drain") / 1e6,
    )
