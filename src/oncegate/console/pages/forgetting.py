"""Erase a conversation or a person: a dry run first, then the erasure."""

from contextlib import ExitStack, closing
from typing import Final

import htpy as h

from oncegate.console.components import facts
from oncegate.console.layout import csrf_field, document, error_page
from oncegate.console.pages.task import start_task
from oncegate.console.requests import Request, link
from oncegate.console.site import Site
from oncegate.console.tasks import Offer, Task
from oncegate.durations import times
from oncegate.errors import NoStore, OncegateError, SettingError
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.inspection.erasure import ErasurePlan, ErasureResult, erase, plan_erasure, recorded_erasure
from oncegate.journal import Journal, OperatorLog

FORGET: Final = "/conversation/forget"
ERASE: Final = "/conversation/erase"
_WHAT: Final = (
    "Records keep their key, type, source and times, so duplicates are still recognised. They lose the entity, the"
    " event id, the result and the error. Dead letters lose their payload, too, and never run. The rows of the journal"
    " are deleted."
)
_AFTERWARDS: Final = (
    "Running processes may keep the erased data in memory for up to a minute, and may still write journal rows. Repeat"
    " the action after a minute to erase these rows, too. `oncegate forget --vacuum` also removes what SQLite deleted"
    " earlier."
)


def ask_to_forget(_site: Site, request: Request) -> HttpAnswer:
    entity = request.query.get("id", "")
    if not entity:
        return _no_entity(request)
    return document(
        request,
        "Forget a conversation",
        h.h1["Forget a conversation"],
        facts([("Conversation", entity)]),
        h.p[_WHAT],
        h.p["First, a dry run reads all records and counts what would be erased. It changes nothing."],
        h.form(".stack", method="post", action=link(FORGET))[
            csrf_field(request),
            h.input(type="hidden", name="id", value=entity),
            h.label[
                h.input(type="checkbox", name="waiting", value="yes"),
                " Also erase events that have not run yet. They never run then.",
            ],
            h.div(".row")[
                h.button(type="submit")["Start the dry run"],
                h.a(".button.quiet", href=_conversation(entity))["Do not change anything"],
            ],
        ],
    )


def _no_entity(request: Request) -> HttpAnswer:
    return error_page(400, "The address must have the id of a conversation.", request)


def _conversation(entity: str) -> str:
    return link("/conversation", {"id": entity})


def start_dry_run(site: Site, request: Request) -> HttpAnswer:
    entity, waiting = request.form.get("id", ""), request.form.get("waiting") == "yes"
    if not entity:
        return _no_entity(request)

    def run(task: Task, _log: OperatorLog) -> None:
        plan = _plan(site, task, entity, site.journal)
        task.results += _found(plan, waiting=waiting)
        if plan.is_empty:
            return
        fields = {"id": entity, "waiting": "yes" if waiting else "", "task": task.id}
        task.results.append("The dry run has changed nothing. An erasure cannot be undone.")
        task.offer = Offer("Erase", ERASE, fields)

    return start_task(site, request, "Dry run: forget a conversation", _conversation(entity), run)


def start_erasure(site: Site, request: Request) -> HttpAnswer:
    entity, waiting = request.form.get("id", ""), request.form.get("waiting") == "yes"
    if not entity:
        return _no_entity(request)

    def run(task: Task, log: OperatorLog) -> None:
        with ExitStack() as stack:
            journal = _writable_journal(site)
            if journal is not None:
                stack.enter_context(closing(journal))
            plan = _plan(site, task, entity, journal)
            try:
                with recorded_erasure(log, plan) as result:
                    _erase(site, task, plan, journal, result, waiting=waiting)
            finally:
                task.results.append(result.sentence)
        task.results.append(_AFTERWARDS)
        if result.end is not None:
            task.problem = "Some data is left. Repeat the action to erase the rest."
        elif result.left or plan.is_cut or not result.is_purged:
            left = times(result.left, "event")
            task.problem = f"Some data is left ({left} with the entity). Repeat the action when the events have run."
        site.tasks.discard(request.form.get("task", ""))  # the dry run has the entity in its form

    # Nothing of the task that is kept names the entity.
    return start_task(site, request, "Forget a conversation", link("/events"), run)


def _writable_journal(site: Site) -> Journal | None:
    try:
        return site.settings.open_journal(writes=True)
    except (NoStore, SettingError):
        return None


def _plan(site: Site, task: Task, entity: str, journal: Journal | None) -> ErasurePlan:
    def show(what: str, count: int) -> None:
        if task.stop_reason is not None:
            raise _Stopped(f"Nothing was erased: {task.stop_reason}.")
        task.doing, task.done = what.capitalize(), count

    return plan_erasure(site.store, journal, entity, progress=show)


class _Stopped(OncegateError):
    """The task was stopped before it has changed anything."""


def _erase(
    site: Site, task: Task, plan: ErasurePlan, journal: Journal | None, result: ErasureResult, *, waiting: bool
) -> None:
    task.doing, task.done, task.total = "Erasing records", 0, len(plan.erasable(waiting=waiting))

    def show(_what: str, count: int) -> None:
        task.done = count
        task.pause()

    store, settings = site.writable_store, site.settings
    erase(plan, store, journal, settings, result, waiting=waiting, progress=show, stop_reason=lambda: task.stop_reason)


def _found(plan: ErasurePlan, *, waiting: bool) -> list[str]:
    rows = "no journal" if plan.rows is None else times(plan.rows, "journal row")
    found = [f"Found {times(len(plan.records), 'record')}, {times(len(plan.dead_letters), 'dead letter')} and {rows}."]
    if plan.waiting:
        end = "will never run" if waiting else "will be left"
        found.append(f"{times(len(plan.waiting), 'waiting event')} {end}.")
    if plan.in_progress:
        found.append(f"{times(len(plan.in_progress), 'event')} in progress will be left.")
    return found
