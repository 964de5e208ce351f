"""Redrive or drop dead letters: the page that asks for confirmation, and the background task."""

import re
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Final

import htpy as h

from oncegate.clocks import wall
from oncegate.console.components import empty, panel, problem, prose
from oncegate.console.dead_letter_query import DeadLetterQuery, dead_letter_query
from oncegate.console.layout import csrf_field, document, error_page
from oncegate.console.pages.dead_letters import FROM_EVENT, MOST_READ, entry_table, query_facts
from oncegate.console.pages.task import start_task
from oncegate.console.requests import Request, link
from oncegate.console.site import Site
from oncegate.console.tasks import Offer, Task
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
from oncegate.stores.base import Store

START: Final = "/dead-letters/start"
_KINDS: Final[dict[str, BulkKind]] = {"redrive": "redrive", "drop": "drop"}
_COUNT: Final = re.compile(r"[0-9]{0,9}")
_DONE: Final[dict[BulkKind, str]] = {"redrive": "redriven", "drop": "dropped"}
_DOING: Final[dict[BulkKind, str]] = {"redrive": "Redriving", "drop": "Dropping"}
_DROP: Final = (
    "The payloads are deleted. The next delivery of such an event runs like a new event. There are two exceptions. The"
    " next delivery of a conflict is a conflict again. The next delivery of an event that failed after it was marked as"
    " done (mode mark_first) is a duplicate."
)
_COUNT_FIRST: Final = (
    f"There are more than {MOST_READ:,} dead letters. They are counted first, which changes nothing. Then you confirm"
    " the number."
)
_REDRIVE: Final = "The events run, with their attempts counted from zero."


def who_runs_here(site: Site, selection: Selection) -> list[str]:
    return who_runs(site.settings, selection.namespaces, is_service=site.live is not None)


# ── confirmation ──────────────────────────────────────────────────────────────────────────────────────────


def confirm_change(site: Site, request: Request, notice: str | None = None) -> HttpAnswer:
    """The page that shows what an action will change. If there are more than 10,000 dead letters, it offers a task that
    counts them first."""
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
    count, back = len(selection.addresses), _back(query, given)
    if not count and not is_cut:
        nothing = empty("No dead letter matches.", "They were redriven, dropped, or have expired.")
        return document(request, "Dead letters", h.h1["Dead letters"], nothing, h.p[h.a(href=back)["Back"]])
    title = f"{kind.capitalize()} {'dead letters' if is_cut else letters(count)}"
    return document(
        request,
        title,
        h.h1[title],
        notice and problem(notice),
        query_facts(query, next(iter(selection.newest), None)),
        is_cut and h.p[_COUNT_FIRST],
        _consequences(site, kind, selection, [] if is_cut else list(warnings.sentences())),
        _form(
            request,
            "Count them" if is_cut else title,
            back,
            kind,
            _fields(query, given, kind, now, None if is_cut else count),
        ),
        not is_cut
        and panel(
            f"The newest {len(selection.newest)} of them" if count > len(selection.newest) else "What is changed",
            entry_table(site.settings, query, selection.newest),
        ),
    )


def _back(query: DeadLetterQuery, given: Mapping[str, str]) -> str:
    """The address of the page that an action was chosen from: the page of an event, or the list."""
    if given.get("from") == FROM_EVENT and query.key is not None:
        return link("/event", {"key": query.key.hex(), "namespace": query.namespace})
    return link("/dead-letters", {name: value for name, value in query.parameters.items() if name != "key"})


def _fields(
    query: DeadLetterQuery, given: Mapping[str, str], kind: BulkKind, until: int, count: int | None
) -> dict[str, str]:
    """The fields of the form that starts the task. Without a count, the task only counts."""
    counted = "" if count is None else str(count)
    return {**query.parameters, "from": given.get("from", ""), "action": kind, "until": str(until), "count": counted}


def _consequences(site: Site, kind: BulkKind, selection: Selection, warnings: list[str]) -> h.Node:
    if kind == "drop":
        return h.div(".stack")[h.p[_DROP]]
    return h.div(".stack")[
        h.p[_REDRIVE],
        (h.p[prose(each)] for each in who_runs_here(site, selection)),
        warnings and h.div(".notice.warn.stack", role="alert")[(h.p[prose(each)] for each in warnings)],
    ]


def _form(request: Request, name: str, back: str, kind: BulkKind, hidden: Mapping[str, str]) -> h.Node:
    return h.form(".row", method="post", action=link(START))[
        csrf_field(request),
        (h.input(type="hidden", name=field, value=value) for field, value in hidden.items()),
        h.button(".danger" if kind == "drop" and hidden["count"] else "", type="submit")[name],
        h.a(".button.quiet", href=back)["Do not change anything"],
    ]


# ── the task ──────────────────────────────────────────────────────────────────────────────────────────────


def start_change(site: Site, request: Request) -> HttpAnswer:
    form = request.form
    kind, query = _KINDS.get(form.get("action", "")), dead_letter_query(site.settings, form)
    count = form.get("count", "")
    if kind is None or query.problem is not None or not _COUNT.fullmatch(count):
        return error_page(400, query.problem or "The form is not complete. Load the page again.", request)
    back, refuse = _back(query, form), partial(confirm_change, site, request)
    if not count:
        counting = _Count(site, kind, query, form)
        return start_task(site, request, "Count dead letters", back, counting.run, refuse)
    change = _Change(site, kind, query, int(count))
    return start_task(site, request, f"{kind.capitalize()} {letters(int(count))}", back, change.run, refuse)


def _select(
    store: Store, query: DeadLetterQuery, task: Task, warnings: RedriveWarnings | None = None
) -> Selection | None:
    """Returns the dead letters that match; None if the task was stopped."""
    task.doing = "Reading dead letters"
    selection = Selection(query.time_of)
    for count, entry in enumerate(query.read(store), 1):
        task.done = count
        if task.stop_reason is not None:
            task.results.append(f"Stopped before a dead letter was changed: {task.stop_reason}.")
            return None
        if query.matches(entry):
            selection.add(entry)
            if warnings is not None:
                warnings.add(entry)
    return selection


class _Count:
    """The task that counts dead letters, and then offers to change them. `form` has the fields of the form."""

    def __init__(self, site: Site, kind: BulkKind, query: DeadLetterQuery, form: Mapping[str, str]) -> None:
        self._site = site
        self._kind = kind
        self._query = query
        self._form = form

    def run(self, task: Task, _log: OperatorLog) -> None:
        warnings = RedriveWarnings(self._site.settings) if self._kind == "redrive" else None
        selection = _select(self._site.store, self._query, task, warnings)
        if selection is None:
            return
        count = len(selection.addresses)
        task.results.append(f"{letters(count)} match{'es' if count == 1 else ''}. Nothing was changed yet.")
        task.results += [] if warnings is None else warnings.sentences()
        if count:
            fields = _fields(self._query, self._form, self._kind, self._query.until or wall(), count)
            task.offer = Offer(f"{self._kind.capitalize()} {letters(count)}", START, fields)


class _Change:
    """The task that changes dead letters. `confirmed` is the number that the person has confirmed."""

    def __init__(self, site: Site, kind: BulkKind, query: DeadLetterQuery, confirmed: int) -> None:
        self._site = site
        self._kind = kind
        self._query = query
        self._confirmed = confirmed

    def run(self, task: Task, log: OperatorLog) -> None:
        selection = _select(self._site.writable_store, self._query, task)
        if selection is None:
            return
        total = len(selection.addresses)
        if total > self._confirmed:
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
