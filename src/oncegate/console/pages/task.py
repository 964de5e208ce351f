"""Start a background task, and the page of the task: its progress, its result, and a button that cancels it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

import htpy as h
import msgspec

from oncegate.console.components import facts, moment, notice, problem, progress, prose
from oncegate.console.layout import csrf_field, document, error_page
from oncegate.console.requests import Request, link, redirect
from oncegate.console.site import Site
from oncegate.console.tasks import CANCELLED, Task, TooManyTasks
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.journal import OperatorLog

_REFRESH: Final = 2  # seconds, for a browser without scripts
_JSON: Final = (b"content-type", b"application/json")
_UNKNOWN: Final = (
    "This task is not known. Tasks are known until the process of the console ends, and the record of actions on the"
    " screen Dead letters says what was done."
)


def start_task(
    site: Site,
    request: Request,
    title: str,
    back: str,
    run: Callable[[Task, OperatorLog], None],
    refuse: Callable[[str], HttpAnswer] | None = None,
) -> HttpAnswer:
    """Run a function in the background, and lead to the page of its task. The function records what it does in the
    operator log. `refuse` makes the page that says that too many tasks are running; by default, an error page."""
    who = f"{request.user} ({request.sender})" if request.sender else request.user

    def recorded(task: Task) -> None:
        with closing(site.settings.operator_log(who)) as log:
            try:
                run(task, log)
            finally:
                if log.problem is not None:
                    task.results.append(f"The record of this action is only in the log of the service: {log.problem}")

    try:
        task = site.tasks.start(title, who, back, recorded)
    except TooManyTasks as error:
        reason = f"{str(error).capitalize()}."
        return error_page(503, reason, request) if refuse is None else refuse(reason)
    return redirect(link("/task", {"id": task.id}))


def task_page(site: Site, request: Request) -> HttpAnswer:
    task = site.tasks.find(request.query.get("id", ""))
    if request.query.get("format") == "json":
        return HttpAnswer(404 if task is None else 200, msgspec.json.encode(_state(task)), [_JSON])
    if task is None:
        back = h.a(".button.quiet", href=link("/dead-letters"))["Dead letters"]
        return document(request, "Task", h.h1["Task"], problem(_UNKNOWN), h.p[back], code=404)
    return document(
        request,
        task.title,
        h.h1[task.title],
        _running(request, task) if task.is_running else list(_ended(request, task)),
        facts([("Started by", task.who), ("Started", moment(task.started_at)), ("Ended", moment(task.ended_at))]),
        h.p[h.a(".button.quiet", href=task.back)["Back"]],
        scripts=["task.js"] if task.is_running else [],
        refresh=_REFRESH if task.is_running else None,
    )


def _running(request: Request, task: Task) -> h.Node:
    count = _count(task)
    return [
        h.div(".panel.stack", data_task=link("/task", {"id": task.id, "format": "json"}))[
            h.p(data_text=True, role="status")[count],
            progress(task.done, task.total, count)
            if task.total is not None
            else h.progress(".progress", aria_label=count),
            h.form(method="post", action=link("/task/cancel"))[
                csrf_field(request),
                h.input(type="hidden", name="id", value=task.id),
                h.button(".quiet", type="submit", disabled=task.stop_reason is not None)["Cancel"],
            ],
        ],
        h.p(".soft")["The task goes on if you close this page."],
    ]


def _count(task: Task) -> str:
    of = "" if task.total is None else f" of {task.total:,}"
    cancelled = "" if task.stop_reason is None else f" Stopping: {task.stop_reason}."
    return f"{task.doing or 'Starting'}: {task.done:,}{of}.{cancelled}"


def _ended(request: Request, task: Task) -> Iterator[h.Node]:
    if task.problem is not None:
        yield problem(task.problem)
    first, *others = task.results or [""]
    if first:
        yield notice(prose(first))
    yield from (h.p[prose(each)] for each in others)
    if (offer := task.offer) is not None:
        yield h.form(method="post", action=link(offer.path))[
            csrf_field(request),
            (h.input(type="hidden", name=name, value=value) for name, value in offer.fields.items()),
            h.button(".danger", type="submit")[offer.name],
        ]


def _state(task: Task | None) -> dict[str, object]:
    if task is None:
        return {"running": False}
    return {"running": task.is_running, "text": _count(task), "done": task.done, "total": task.total}


def cancel_task(site: Site, request: Request) -> HttpAnswer:
    task_id = request.form.get("id", "")
    if (task := site.tasks.find(task_id)) is not None:
        task.stop(CANCELLED)
    return redirect(link("/task", {"id": task_id}))
