"""The Settings screen: what is in force, where each value comes from, and what the doctor finds."""

from collections.abc import Iterable, Sequence
from typing import Final

import htpy as h

from oncegate.console.components import copy_button, facts, panel, table
from oncegate.console.layout import document
from oncegate.console.requests import Request, link
from oncegate.console.site import Site
from oncegate.doctor.findings import Finding
from oncegate.doctor.rules import check, summary
from oncegate.doctor.settings_facts import settings_facts, with_store
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.settings import Settings
from oncegate.settings.parsing import as_text
from oncegate.settings.routes import OF_ROUTES
from oncegate.settings.schema import SETTINGS, TABLES
from oncegate.settings.settings import DEFAULT, Shown

_CHECK_LIMIT: Final = 2.0  # seconds for the integrity check of an SQLite file; the page waits for it
_PREFIX: Final = "serve."  # the table of a route has these settings without the prefix
_TONES: Final = {"error": "bad", "warning": "warn", "note": "info"}


def settings(site: Site, request: Request) -> HttpAnswer:
    found = site.settings.shown()
    common = [each for each in found if each.setting in SETTINGS]
    chosen = [each for each in common if each.origin != DEFAULT]
    return document(
        request,
        "Settings",
        h.div(".head")[
            h.h1["Settings"],
            h.a(".button.quiet", href=link("/settings", {"check": "1"}))["Check the settings and the store"],
        ],
        h.p(".soft")[
            "What is in force since the last start. A flag overrides a variable, and a variable overrides the file."
            " Secrets are masked. ",
            h.code["oncegate config show"],
            " shows the same.",
        ],
        request.query.get("check") and _checked(site),
        panel("Settings that are set", _values(chosen) if chosen else h.p(".soft")["Every setting has its default."]),
        (_route(name, route) for name, route in site.settings.routes.items()),
        _retries(site.settings),
        (_defaults(table_name, common) for table_name in TABLES),
    )


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────


def _values(shown: Iterable[Shown], prefix: str = "") -> h.Element:
    """A table of settings. `prefix` is left out of their names."""
    return table(
        "Settings",
        ["Setting", "Value", "From", "Meaning"],
        (
            [
                h.code(".setting")[each.setting.removeprefix(prefix)],
                h.code(".name")[as_text(each.value) or "none"],
                h.span(".name")[each.origin],
                h.span(".soft")[_plain(SETTINGS[each.setting].meaning)],
            ]
            for each in shown
        ),
    )


def _plain(meaning: str) -> str:
    return meaning.replace("`", "")


def _route(name: str, route: Settings) -> h.Element:
    """The settings of a route: those of its table, and those that it inherits or that have their defaults."""
    in_force = [each for each in route.shown() if each.setting in OF_ROUTES]
    own = [each for each in in_force if each.origin.endswith(f"[route.{name}]")]
    rest = [each for each in in_force if each not in own]
    return panel(
        f"Route {name}",
        _values(own, _PREFIX),
        h.details(".data")[h.summary[f"{len(rest)} inherited settings and defaults"], _values(rest, _PREFIX)],
    )


def _defaults(table_name: str, common: Sequence[Shown]) -> h.Node:
    paths = {setting.path for setting in TABLES[table_name]}
    rest = [each for each in common if each.setting in paths and each.origin == DEFAULT]
    title = f"Defaults of [{table_name}]" if table_name else "Defaults of the settings without a table"
    return h.details(".data")[h.summary[f"{title}: {len(rest)}"], _values(rest)] if rest else None


def _retries(settings: Settings) -> h.Element:
    lines = ((name, text[0].upper() + text[1:] + ".") for name, text in settings.retry_times().items())
    return panel("How long an event is retried", facts(lines))


# ── the doctor ────────────────────────────────────────────────────────────────────────────────────────────


def _checked(site: Site) -> h.Element:
    """What the doctor finds in the settings and the store. It reads nothing from AWS, which needs permissions."""
    known = with_store(settings_facts(site.settings), site.settings, _CHECK_LIMIT)
    found = check(known)
    return panel(
        "What the doctor finds",
        h.p(role="status")[summary(known, found)],
        (_finding(rule, finding) for rule, finding in found),
        h.p(".soft")[
            "The settings and the store were checked. To check a queue, a function or a table in AWS, run ",
            h.code["oncegate doctor --name NAME"],
            '. The page "The doctor" in the documentation of Oncegate describes the rules.',
        ],
    )


def _finding(rule: str, finding: Finding) -> h.Element:
    return h.article(".finding.stack")[
        h.h3[
            h.span(class_=["badge", f"tone-{_TONES[finding.severity]}"])[finding.severity],
            " ",
            finding.what,
            " ",
            h.span(".soft")[rule],
        ],
        facts(
            [
                ("Found", finding.found),
                ("Why it matters", finding.why),
                ("Decide", finding.decision),
                (
                    "Command" if finding.decision is None else "First step",
                    h.div(".row")[h.pre(".wrap")[finding.mend], copy_button(finding.mend)],
                ),
                (
                    "To keep it",
                    finding.keep and f"The command changes only this shell. To keep the change, write {finding.keep}.",
                ),
            ]
        ),
    ]
