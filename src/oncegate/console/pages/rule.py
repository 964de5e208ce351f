"""Test a key strategy on the newest deliveries: a part of the Keys screen, with the engine of `oncegate analyze`."""

import tempfile
from pathlib import Path
from typing import Final

import htpy as h

from oncegate import keys
from oncegate.analysis.analysis import Analysis, AnalysisOptions, analyze
from oncegate.analysis.answer import facts as traffic_facts
from oncegate.analysis.answer import total_sentence
from oncegate.analysis.recording import DocumentBatch
from oncegate.console.components import disabled, facts, panel, problem, table
from oncegate.console.requests import Request, link
from oncegate.console.site import Site
from oncegate.errors import MissingExtra, OncegateError, SettingError
from oncegate.inspection.journal_recording import JournalRecording
from oncegate.journal import Journal, RowFilter
from oncegate.journal.base import all_rows
from oncegate.settings.parsing import names_function, parsed

# A test of 2,000 deliveries takes about a second of the thread that makes all pages.
_NUMBERS: Final = ("500", "2000")
_LONGEST_RULE: Final = 500  # characters
_NO_PAYLOADS: Final = (
    "A rule can be tested only on payloads. The journal holds none: set `journal_payloads`, such as `24h`, or run"
    " `oncegate analyze` on a recording."
)
_NO_FUNCTION: Final = "A function of a module cannot be tested here; use oncegate analyze --key"


def rule_panel(site: Site, journal: Journal, request: Request) -> h.Element:
    """The form, and the result if the request names a rule."""
    if site.settings["journal_payloads"] is None:
        return panel("Test a rule", disabled(_NO_PAYLOADS))
    rule, last = request.query.get("rule", "").strip(), request.query.get("last", _NUMBERS[0])
    return panel(
        "Test a rule",
        h.p(".soft")["What another key would have done with the newest deliveries. Nothing is changed."],
        _form(request, rule, last),
        _result(site, journal, rule, int(last) if last in _NUMBERS else int(_NUMBERS[0])) if rule else None,
    )


def _form(request: Request, rule: str, last: str) -> h.Element:
    kept = request.query.get("range")
    return h.form(".stack", method="get", action=link("/keys"))[
        kept and h.input(type="hidden", name="range", value=kept),
        h.div(".filters.narrow")[
            h.label[
                "Strategy",
                h.input(
                    name="rule",
                    value=rule,
                    required=True,
                    maxlength=str(_LONGEST_RULE),
                    autocomplete="off",
                    spellcheck="false",
                    placeholder='fields("conversationId", "eventTime")',
                ),
            ],
            h.label[
                "Newest deliveries",
                h.select(name="last")[
                    (h.option(value=each, selected=each == last)[f"{int(each):,}"] for each in _NUMBERS)
                ],
            ],
        ],
        h.div[h.button(type="submit")["Test"]],
    ]


def _result(site: Site, journal: Journal, rule: str, last: int) -> h.Node:
    try:
        _check(rule)
        analysis = _analyzed(site, journal, rule, last)
    except (SettingError, MissingExtra) as error:
        return problem(str(error))
    except OncegateError:
        return problem("The newest rows of the journal have no payloads. Payloads are held from now on.")
    names = dict.fromkeys((rule, analysis.current, analysis.recommended.name))
    return [
        facts((name, text) for name, text in traffic_facts(analysis).items()),
        _comparison(analysis, list(names)),
        h.p[total_sentence(analysis)],
    ]


def _check(rule: str) -> None:
    """Refuse a rule that would import a module: a page must not run other code."""
    if len(rule) > _LONGEST_RULE:
        raise SettingError(f"the strategy is longer than {_LONGEST_RULE} characters")
    if names_function(rule):
        raise SettingError(_NO_FUNCTION)
    keys.strategy(parsed(rule))


def _analyzed(site: Site, journal: Journal, rule: str, last: int) -> Analysis:
    recording = JournalRecording(journal, RowFilter())
    lines = [recording.line(row) for row in reversed(all_rows(journal, RowFilter(), last))]
    documents = [(place, line) for place, line in enumerate(lines) if line is not None]
    batch = DocumentBatch(0, 0, documents)
    current = site.settings["key"].strip()
    with tempfile.TemporaryDirectory(prefix="oncegate-rule-") as folder:
        options = AnalysisOptions(current=current, own=(rule,), hints=site.settings.hints(), workers=1)
        return analyze([], [batch], Path(folder), options, size=0)


def _comparison(analysis: Analysis, names: list[str]) -> h.Element:
    headers = ["Key", "Caught", "Missed", "Probable", "Lost", "May be lost", "Conflicts", "Without a key"]
    return table(
        "What each key would have done",
        headers,
        (
            [
                h.code[found.name],
                *(
                    f"{count:,}"
                    for count in (
                        *(found.caught, found.missed, found.inferred, found.wrong),
                        *(found.doubtful, found.conflicts, found.keyless),
                    )
                ),
            ]
            for found in map(analysis.of, names)
        ),
    )
