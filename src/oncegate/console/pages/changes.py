"""Redrive or drop dead letters: the page that asks for confirmation, and the background task."""

import re
from functools import partial
from itertools import islice
from typing import Final

import htpy as h

from oncegate.clocks import wall
from oncegate.console.components import empty, panel, problem, prose
from oncegate.console.dead_letter_query import DeadLetterQuery, dead_letter_query
from oncegate.console.layout import csrf_field, document, error_page
from oncegate.console.pages.dead_letters import MOST_READ, entry_table, query_facts
from oncegate.console.pages.task import start_task
from oncegate.console.requests import Request, link
from oncegate.console.site import Site
from oncegate.console.tasks import Task
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.inspection.operators import (
    BulkKind,
    BulkRecord,
    RedriveWarnings,
    Selection,
    change_dead_letters,
    letters,
)
from oncegate.inspection.runners import who_runs
from oncegate.journal import OperatorLog

_KINDS: Final[dict[str, BulkKind]] = {"redrive": "redrive", "drop": "drop"}
_COUNT: Final = re.compile(r"[0-9]{0,9}")
_DONE: Final[dict[BulkKind, str]] = {"redrive": "redriven", "drop": "dropped"}
_DOING: Final[dict[BulkKind, str]] = {"redrive": "Redriving", "drop": "Dropping"}
_DROP: Final = (
    "The payloads are deleted. The next delivery of such an event runs like a new event. There are two exceptions. The"
    " next delivery of a conflict is a conflict again. The next delivery of an event that failed after it was marked as"
    " done (mode mark_first) is a duplicate."
)
_REDRIVE: Final = "The events run, with their attempts counted from zero."


def who_runs_here(site: Site, selection: Selection) -> list[str]:
    return who_runs(site.settings, selection.namespaces, is_service=site.live is not None)


# ── confirmation ──────────────────────────────────────────────────────────────────────────────────────────


def confirm_change(site: Site, request: Request, notice: str | None = None) -> HttpAnswer:
    """The page that shows what an action will change. The dead letters are counted up to 10,000."""
    given = request.query if request.method != "POST" else request.form
    kind, query = _KINDS.get(given.get("action", "")), dead_letter_query(site.settings, given)
    if kind is None or query.problem is not None:
        return error_page(400, query.problem or "The action must be redrive or drop.", request)
    now = wall()
    selection, warnings = Selection(query.time_of), RedriveWarnings(site.settings)
    source = query.read(site.store)
    for entry in islice(source, MOST_READ):
        if query.matches(entry):
            selection.add(entry)
            if kind == "redrive":
                warnings.add(entry)
    is_cut = next(source, None) is not None
    count, back = len(selection.addresses), _back(query)
    if not count and not is_cut:
        nothing = empty("No dead letter matches.", "They were redriven, dropped, or have expired.")
        return document(request, "Dead letters", h.h1["Dead letters"], nothing, h.p[h.a(href=back)["Back"]])
    counted = f"{count:,}+ dead letters" if is_cut else letters(count)
    title = f"{kind.capitalize()} {counted}"
    return document(
        request,
        title,
        h.h1[title],
        notice and problem(notice),
        query_facts(query, next(iter(selection.newest), None)),
        is_cut and h.p(".soft")[f"The first {MOST_READ:,} dead letters were counted. The task changes all that match."],
        _consequences(site, kind, selection, list(warnings.sentences())),
        _form(request, kind, query, back, title, until=now, count=None if is_cut else count),
        panel(
            f"The newest {len(selection.newest)} of them" if count > len(selection.newest) else "What is changed",
            entry_table(site.settings, query, selection.newest),
        ),
    )


def _back(query: DeadLetterQuery) -> str:
    """The address of the list that an action was chosen from."""
    return link("/dead-letters", {name: value for name, value in query.parameters.items() if name != "key"})


def _consequences(site: Site, kind: BulkKind, selection: Selection, warnings: list[str]) -> h.Node:
    if kind == "drop":
        return h.div(".stack")[h.p[_DROP]]
    return h.div(".stack")[
        h.p[_REDRIVE],
        (h.p[prose(each)] for each in who_runs_here(site, selection)),
        warnings and h.div(".notice.warn.stack", role="alert")[(h.p[prose(each)] for each in warnings)],
    ]


def _form(
    request: Request, kind: BulkKind, query: DeadLetterQuery, back: str, name: str, *, until: int, count: int | None
) -> h.Node:
    hidden = {**query.parameters, "action": kind, "until": str(until), "count": "" if count is None else str(count)}
    return h.form(".row", method="post", action=link("/dead-letters/start"))[
        csrf_field(request),
        (h.input(type="hidden", name=field, value=value) for field, value in hidden.items()),
        h.button(".danger" if kind == "drop" else "", type="submit")[name],
        h.a(".button.quiet", href=back)["Do not change anything"],
    ]


# ── the task ──────────────────────────────────────────────────────────────────────────────────────────────


def start_change(site: Site, request: Request) -> HttpAnswer:
    form = request.form
    kind, query = _KINDS.get(form.get("action", "")), dead_letter_query(site.settings, form)
    count = form.get("count", "")
    if kind is None or query.problem is not None or not _COUNT.fullmatch(count):
        return error_page(400, query.problem or "The form is not complete. Load the page again.", request)
    confirmed = int(count) if count else None
    title = f"{kind.capitalize()} {'dead letters' if confirmed is None else letters(confirmed)}"
    change = _Change(site, kind, query, confirmed)
    return start_task(site, request, title, _back(query), change.run, partial(confirm_change, site, request))


class _Change:
    """The task. `confirmed` is the number of dead letters that the person has confirmed; None if they were too many to
    count."""

    def __init__(self, site: Site, kind: BulkKind, query: DeadLetterQuery, confirmed: int | None) -> None:
        self._site = site
        self._kind = kind
        self._query = query
        self._confirmed = confirmed

    def run(self, task: Task, log: OperatorLog) -> None:
        selection = self._select(task)
        if selection is None:
            return
        total = len(selection.addresses)
        if self._confirmed is not None and total > self._confirmed:
            task.problem = (
                f"{letters(total)} match now, and {self._confirmed:,} were confirmed. Nothing was changed."
                " Go back and confirm again."
            )
            return
        chosen = self._query.text(selection.newest[0] if selection.newest else None)
        record = BulkRecord(log, self._kind, selection, chosen)
        try:
            with record:
                self._change(task, selection, record)
        finally:
            task.results += self._results(record.done, total, record.end, selection)

    def _select(self, task: Task) -> Selection | None:
        """Returns the dead letters to change; None if the task was stopped."""
        task.doing = "Reading dead letters"
        selection = Selection(self._query.time_of)
        for count, entry in enumerate(self._query.read(self._site.writable_store), 1):
            task.done = count
            if task.stop_reason is not None:
                task.results.append(f"Stopped before a dead letter was changed: {task.stop_reason}.")
                return None
            if self._query.matches(entry):
                selection.add(entry)
        return selection

    def _change(self, task: Task, selection: Selection, record: BulkRecord) -> None:
        task.doing, task.done, task.total = _DOING[self._kind], 0, len(selection.addresses)
        for changed in change_dead_letters(self._site.writable_store, self._kind, selection.addresses):
            record.add(changed)
            task.done = record.done
            if task.stop_reason is not None and record.done < task.total:
                record.end = task.stop_reason
                return
            task.pause()

    def _results(self, done: int, total: int, end: str | None, selection: Selection) -> list[str]:
        verb = _DONE[self._kind]
        if not total:
            return ["No dead letter matches any more. Nothing was changed."]
        if end is not None:
            return [f"{done:,} of {letters(total)} {verb}; {end}. The others were not changed."]
        results = [f"{letters(done)} {verb}."]
        if done < total:
            results.append(f"{total - done:,} could not be {verb}: another process changed them meanwhile.")
        if self._kind == "redrive" and done:
            results += who_runs_here(self._site, selection)
        return results
