"""Actions on one event: redrive, drop, reset, replay under a name, and copy as curl."""

from collections.abc import Sequence
from typing import Final

import htpy as h
from msgspec import Struct
from msgspec.structs import replace

from oncegate.claims import COMPLETED, DEAD, EventSummary, Record
from oncegate.console.components import copy_button, disabled, facts, panel, problem, prose, short_key
from oncegate.console.curl import LARGEST_PAYLOAD, curl_command, is_signed, route_address
from oncegate.console.layout import csrf_field, document, error_page
from oncegate.console.pages.dead_letters import CONFIRM, FROM_EVENT
from oncegate.console.pages.task import start_task
from oncegate.console.requests import Request, link
from oncegate.console.site import Site
from oncegate.console.tasks import Task
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.inspection.operators import CACHED, about_reset, reset_record
from oncegate.inspection.records import sentence
from oncegate.inspection.replays import LONGEST_NAME, no_replay, replay
from oncegate.inspection.runners import who_runs
from oncegate.journal import OPERATOR, ChangedEvent, OperatorLog, Row, RowFilter
from oncegate.stores.base import Entry
from oncegate.text import on_one_line

RESET: Final = "/event/reset"
REPLAY: Final = "/event/replay"
_MOST_ROWS: Final = 10  # journal rows whose payload is looked for
_COPIES: Final = ("duplicate", "in_flight", "skipped")  # their content may differ a little from that of the original
_NO_PAYLOAD: Final = 'Its payload is not stored. Set journal_payloads to a duration, such as "24h", for later events.'
_CHANGED: Final = "The record was changed meanwhile, so nothing was deleted."

_OTHER_PAYLOAD: Final = (
    "The payload on this page is that of one delivery. The event that owns the key has another payload. Curl sends the"
    " payload on this page. Replay runs the event that owns the key, with its own payload."
)
_SHOWN_PAYLOAD: Final = 2_000  # characters of the payload on the page that asks for confirmation


class _Target(Struct, frozen=True):
    """The event that an action is about. `place` is the route that received it, if the journal knows it."""

    event: ChangedEvent
    entry: Entry | None
    payload: bytes | None
    place: str | None

    @property
    def query(self) -> dict[str, str]:
        return {"key": self.event.key.hex(), "namespace": self.event.namespace}


def _target(site: Site, namespace: str, key: bytes, entry: Entry | None, rows: Sequence[Row]) -> _Target:
    """Returns the event with the payload that the record has, or else one of the rows in the journal. A row of a
    conflict has other content, unless the key is that of the dead letter of the conflict."""
    payload = None if entry is None else entry.record.payload
    journal = None if payload is not None or not rows else site.journal
    same = [row for row in rows if row.status != OPERATOR and (row.kept == key or row.status != "conflict")]
    deliveries = sorted(same, key=lambda row: row.status in _COPIES)[:_MOST_ROWS]
    for row in deliveries:
        if payload is None and journal is not None:
            payload = journal.payload(row.id)
    if entry is not None:
        about = entry.record.about
    elif rows:
        about = EventSummary(rows[0].source, rows[0].type, rows[0].entity, None, rows[0].event_id)
    else:
        about = EventSummary("")
    return _Target(ChangedEvent(namespace, key, about), entry, payload, deliveries[0].place if deliveries else None)


def event_actions(
    site: Site,
    namespace: str,
    key: bytes,
    entry: Entry | None,
    rows: Sequence[Row] = (),
    shown: bytes | None = None,
) -> h.Node:
    """The actions on an event. `entry` is the record of its key; None if there is none. `rows` are its rows in the
    journal, newest first: they may have the payload. `shown` is the payload that the page shows, if it is that of a
    row: curl sends this payload. An action that is not possible has its reason."""
    target = _target(site, namespace, key, entry, rows)
    no_reset = _no_reset(target)
    not_replayed = no_replay(site.settings, target.event, target.payload)
    is_dead = entry is not None and entry.record.state == DEAD
    change = {**target.query, "from": FROM_EVENT}
    return panel(
        "Actions",
        h.div(".row")[
            is_dead and h.a(".button", href=link(CONFIRM, {**change, "action": "redrive"}))["Redrive…"],
            is_dead and h.a(".button.quiet", href=link(CONFIRM, {**change, "action": "drop"}))["Drop…"],
            no_reset is None and h.a(".button.quiet", href=link(RESET, target.query))["Reset the key…"],
            not_replayed is None and h.a(".button.quiet", href=link(REPLAY, target.query))["Replay under a name…"],
        ],
        no_reset is not None and not is_dead and disabled(f"Reset is not possible. {no_reset}"),
        not_replayed is not None and disabled(f"Replay is not possible. {not_replayed}"),
        target.payload is not None and shown not in (None, target.payload) and h.p(".soft")[_OTHER_PAYLOAD],
        _curl(site, target if shown is None else replace(target, payload=shown)),
    )


def _no_reset(target: _Target) -> str | None:
    """Returns why the record of a key cannot be deleted; None if it can."""
    if target.entry is None:
        return "The key has no record, so the next delivery runs anyway."
    return "A dead letter is redriven or dropped instead." if target.entry.record.state == DEAD else None


def _curl(site: Site, target: _Target) -> h.Node:
    if target.payload is None:
        return disabled(f"Copy as curl is not possible. {_NO_PAYLOAD}")
    if len(target.payload) > LARGEST_PAYLOAD:
        return disabled(
            f"Copy as curl is not possible. The payload has {len(target.payload):,} bytes, and only a payload of up to"
            f" {LARGEST_PAYLOAD:,} bytes can be pasted as a command. If the journal holds the payload, `oncegate events"
            f" export FILE --id {target.event.key.hex()}` writes it to a file, and `oncegate simulate --replay FILE"
            " --to URL` sends it."
        )
    settings, namespace = site.settings, target.event.namespace
    command = curl_command(route_address(settings, site.address, namespace, target.place), target.payload)
    return h.details[
        h.summary["Send it again with curl"],
        h.div(".stack")[
            h.p(".soft")[
                "The service treats it like any other delivery: if the event was processed, it is a duplicate.",
                is_signed(settings, namespace) and " The route checks a signature, which you must add.",
            ],
            h.pre(".wrap")[h.code[command]],
            copy_button(command, "Copy as curl"),
        ],
    ]


# ── the pages that ask for confirmation ───────────────────────────────────────────────────────────────────


def _find(site: Site, request: Request) -> _Target | None:
    """The event that the address or the form names; None if it does not name one."""
    given = request.form if request.method == "POST" else request.query
    try:
        key = bytes.fromhex(given.get("key", ""))
    except ValueError:
        return None
    namespace = given.get("namespace", "")
    if not key or not namespace:
        return None
    entry = next(iter(site.store.browse(namespace, key=key)), None)
    where = RowFilter(namespace=namespace, key=key)
    rows = [] if site.journal is None else site.journal.rows(where, limit=_MOST_ROWS)
    return _target(site, namespace, key, entry, rows)


def _no_event(request: Request) -> HttpAnswer:
    return error_page(400, "The address must have the key and the namespace of an event.", request)


def _about(target: _Target) -> h.Node:
    about = target.event.about
    return facts(
        [
            ("Event", on_one_line(about.delivery_id or "without an id")),
            ("Type", about.type and on_one_line(about.type)),
            ("Key", short_key(target.event.key.hex(), _event_page(target))),
            ("Namespace", target.event.namespace),
            ("Record", "none" if target.entry is None else sentence(target.entry.record)),
        ]
    )


def _event_page(target: _Target) -> str:
    return link("/event", target.query)


def _confirmation(
    request: Request,
    target: _Target,
    title: str,
    path: str,
    sentences: Sequence[str],
    *fields: h.Node,
    notice: str = "",
) -> HttpAnswer:
    return document(
        request,
        title,
        h.h1[title],
        notice and problem(notice),
        _about(target),
        h.div(".stack")[(h.p[prose(each)] for each in sentences)],
        h.form(".stack", method="post", action=link(path))[
            csrf_field(request),
            (h.input(type="hidden", name=name, value=value) for name, value in target.query.items()),
            fields,
            h.div(".row")[
                h.button(type="submit")[title],
                h.a(".button.quiet", href=_event_page(target))["Do not change anything"],
            ],
        ],
        code=409 if notice else 200,
    )


def confirm_reset(site: Site, request: Request) -> HttpAnswer:
    target = _find(site, request)
    return _no_event(request) if target is None else _confirm_reset(site, request, target)


def _confirm_reset(site: Site, request: Request, target: _Target, notice: str = "") -> HttpAnswer:
    """The confirmation of a reset. `notice` says why a form that was sent has deleted nothing."""
    reason = _no_reset(target)
    if target.entry is None or reason is not None:
        return error_page(409, f"{notice} Reset is not possible. {reason}".strip(), request)
    _, *consequences = about_reset(site.store, target.entry)
    sentences = ["1 record is deleted. The next delivery of its event then runs like a new event.", *consequences]
    shown = h.input(type="hidden", name="shown", value=_version(target.entry.record))
    return _confirmation(request, target, "Reset the key", RESET, sentences, shown, notice=notice)


def _version(record: Record) -> str:
    """Identifies what a person confirms: one run of one event in one state. The payload counts because a delivery can
    add it to a released record and change nothing else."""
    payload = "" if record.payload is None else "-payload"
    return f"{record.state}-{record.fence}-{record.first_seen}{payload}"


def confirm_replay(site: Site, request: Request) -> HttpAnswer:
    target = _find(site, request)
    if target is None:
        return _no_event(request)
    reason = no_replay(site.settings, target.event, target.payload)
    if reason is not None:
        return error_page(409, f"Replay is not possible. {reason}", request)
    sentences = [
        "1 event runs again, and its effect happens again. The copy has a separate key, made of the key and the name."
        " The record of the event stays as it is.",
        "The event runs once for each name. A second replay with the same name runs nothing.",
        *who_runs(site.settings, [target.event.namespace], is_service=site.live is not None),
    ]
    name = h.input(name="name", required=True, maxlength=str(LONGEST_NAME), autocomplete="off")
    field = h.div(".filters")[h.label["Name of the replay", name]]
    return _confirmation(request, target, "Replay the event", REPLAY, sentences, _payload(target), field)


def _payload(target: _Target) -> h.Element:
    """The start of the payload that runs."""
    text = (target.payload or b"").decode("utf-8", "backslashreplace")
    rest = len(text) - _SHOWN_PAYLOAD
    return h.div(".stack")[
        h.p["The event runs with this payload:"],
        h.pre(".wrap", tabindex="0")[text[:_SHOWN_PAYLOAD]],
        rest > 0 and h.p(".soft")[f"{rest:,} more characters are not shown."],
    ]


# ── the tasks ─────────────────────────────────────────────────────────────────────────────────────────────


def reset_key(site: Site, request: Request) -> HttpAnswer:
    target = _find(site, request)
    if target is None:
        return _no_event(request)
    entry, key = target.entry, target.event.key.hex()
    if entry is None or entry.record.state == DEAD or _version(entry.record) != request.form.get("shown"):
        return _confirm_reset(site, request, target, _CHANGED)

    def run(task: Task, log: OperatorLog) -> None:
        if reset_record(site.writable_store, entry, log):
            task.results.append(f"Deleted the record of {key}. The next delivery of its event runs.")
            if entry.record.state == COMPLETED:
                task.results.append(CACHED)
        else:
            task.problem = f"Another process deleted the record of {key} before."

    return start_task(site, request, "Reset the key", _event_page(target), run)


def replay_event(site: Site, request: Request) -> HttpAnswer:
    target, name = _find(site, request), on_one_line(request.form.get("name", "").strip())[:LONGEST_NAME]
    if target is None:
        return _no_event(request)
    if not name:
        return error_page(400, "A replay needs a name.", request)
    payload = target.payload

    def run(task: Task, log: OperatorLog) -> None:
        reason = no_replay(site.settings, target.event, payload)
        if reason is not None or payload is None:
            task.problem = f"Replay is not possible. {reason or _NO_PAYLOAD}"
            return
        outcome = replay(site.writable_store, site.settings, target.event, payload, name, log)
        if outcome.status == "accepted":
            task.results += [f'Replayed under the name "{name}". The copy has the key {outcome.key}.']
            task.results += who_runs(site.settings, [target.event.namespace], is_service=site.live is not None)
        elif outcome.status in ("duplicate", "in_flight", "buried"):
            task.problem = (
                f'The event was replayed under the name "{name}" before, so nothing runs. Its copy has the key'
                f" {outcome.key}. Choose another name to run it again."
            )
        else:
            task.problem = outcome.reason

    return start_task(site, request, "Replay the event", _event_page(target), run)
