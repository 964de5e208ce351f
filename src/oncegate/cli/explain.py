"""`oncegate explain`: whether an event was run, why or why not, and what is known of it."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import click
import msgspec

from oncegate.claims import DEAD, IN_PROGRESS
from oncegate.cli import exit_codes
from oncegate.cli.event_files import FoundEvent, events_of, refuse_unreadable
from oncegate.cli.explanations import Explained, Explainers, Tried
from oncegate.cli.options import LOOKED_IN, counted, looked_at, namespace_of, output_option, with_settings
from oncegate.cli.output import (
    moment,
    say,
    say_error,
    show_facts,
    show_json,
    show_json_stream,
    show_table,
    stamp,
    state_name,
)
from oncegate.cli.records import Search, fields, payload_text, search
from oncegate.durations import spoken, times
from oncegate.events import Key
from oncegate.settings import Settings
from oncegate.settings.schema import KEY, READ, STORE
from oncegate.stores.base import Store

_MOST = 1_000_000
_SHOWN = 100


@click.command()
@click.argument("wanted", metavar="[ID]", required=False)
@click.option("--file", metavar="FILE", help="Explain each event of a file; - is what comes on stdin.")
@click.option("--scan", type=counted(), default=_MOST, show_default=True, help="How many records to look through.")
@with_settings(STORE, LOOKED_IN, KEY, *READ)
@output_option
def explain(wanted: str | None, file: str | None, scan: int, settings: Settings, output: str) -> None:
    """Say whether an event was run, and why or why not.

    ID is a key, the id that an event first came with, or that of what it is about, such as a conversation. With --file
    the keys of the events in it are made as the settings say, and each is looked up. If the settings have routes, the
    key of each route is tried in its namespace; --namespace chooses one. Nothing is claimed, run or changed.

    Exit codes: 0 it is known, 4 it is not, 2 the command cannot be meant, 3 the store cannot be used.
    """
    if (wanted is None) is (file is None) or wanted == "":
        raise click.UsageError("name one ID (a key, an event id, a conversation), or a --file of events")
    with closing(looked_at(settings)) as store:
        explainer = Explainers(store, settings, scan)
        if wanted is not None:
            _explain_id(store, settings, explainer, wanted, scan, output)
        else:
            _explain_file(explainer, file or "", output)


# ── by an id ──────────────────────────────────────────────────────────────────────────────────────────────


def _explain_id(store: Store, settings: Settings, explainer: Explainers, wanted: str, scan: int, output: str) -> None:
    found = search(store, namespace_of(settings), wanted, scan)
    explained = _without_stages([explainer.record(entry) for entry in found.entries])
    if output == "json":
        shown = [_as_json(each) for each in explained]
        told = {"looked_through": found.looked_through, "cut": found.cut}
        show_json({"id": wanted, "sentence": _headline(wanted, found, explained, settings), "records": shown, **told})
    elif len(explained) == 1:
        _show(explained[0])
        _tell_of_cut(found)
    elif explained:
        say(_headline(wanted, found, explained, settings))
        _show_table(explained)
        say("See one of them with oncegate explain KEY; --namespace looks in one namespace only.")
    if not explained:
        if output != "json":
            say_error(_headline(wanted, found, explained, settings))
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)


def _without_stages(explained: list[Explained]) -> list[Explained]:
    """Records of where an event was handed on to are shown with that of the event."""
    shown = {(stage.namespace, stage.key) for each in explained for stage in each.handed_on}
    return [each for each in explained if each.entry is None or (each.entry.namespace, each.entry.key) not in shown]


def _headline(wanted: str, found: Search, explained: list[Explained], settings: Settings) -> str:
    if len(explained) == 1:
        return explained[0].sentence
    if explained:
        more = f" among the first {found.looked_through:,} records; look through more with --scan" if found.cut else ""
        return f"{times(len(explained), 'record')} have {wanted} as their key, event id or entity{more}:"
    if found.cut:
        return (
            f"{wanted} was not found among the first {found.looked_through:,} records, and there are more; look through"
            " them with --scan, narrow it with --namespace, or give its key or its payload (--file)"
        )
    return (
        f"{wanted} is not known: it was never seen, or it was processed longer ago than it is remembered (retention,"
        f" {settings['retention']} by these settings), or it is a copy that came under another id than the first;"
        " --file finds an event by its content"
    )


def _tell_of_cut(found: Search) -> None:
    if found.cut:
        say(
            f"There may be others: only the first {found.looked_through:,} of the records were looked through (--scan)."
        )


def _show_table(explained: list[Explained]) -> None:
    headers = ("key", "namespace", "event id", "type", "entity", "state", "attempts", "happened", "first seen", "error")
    rows = []
    for each in explained[:_SHOWN]:
        entry = each.entry
        assert entry is not None  # noqa: S101  # these were found
        record, about = entry.record, entry.record.about
        times_of = (moment(about.occurred_at), moment(record.first_seen))
        what = (about.delivery_id, about.type, about.entity, state_name(record.state), record.attempts)
        rows.append((entry.key.hex(), entry.namespace, *what, *times_of, (record.error or "").split("\n")[0]))
    show_table(headers, rows, essential=("key", "event id", "type", "state", "happened"))
    if len(explained) > _SHOWN:
        say(f"These are the first {_SHOWN} of {len(explained)}; all of them are in --output json.")


# ── by a payload ──────────────────────────────────────────────────────────────────────────────────────────


def _explain_file(explainer: Explainers, file: str, output: str) -> None:
    refuse_unreadable([file])
    known = count = 0

    def each() -> Iterator[tuple[FoundEvent, Explained]]:
        nonlocal known, count
        for found in events_of([file], explainer.hints):
            explained = explainer.event(found.event)
            known, count = known + (explained.entry is not None), count + 1
            yield found, explained

    if output == "json":
        shown = (_place(found) | _as_json(explained) for found, explained in each())
        show_json_stream("events", shown, lambda: {"known": known, "count": count})
    else:
        for found, explained in each():
            say(f"{found.place}  {found.event.id or ''}".rstrip())
            _show(explained)
            print()
    if not count:
        say_error(f"there is no event in {click.format_filename(file)}")
    if not known:
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)


def _place(found: FoundEvent) -> dict[str, Any]:
    return {"file": found.file, "line": found.line, "index": found.index, "event_id": found.event.id}


# ── how it is shown ───────────────────────────────────────────────────────────────────────────────────────


def _show(explained: Explained) -> None:
    say(explained.sentence)
    if facts := _facts(explained):
        show_facts(facts)
    for stage in explained.handed_on:
        print()
        show_facts({name: value for name, value in fields(stage, moment).items() if value is not None})
    if explained.timeline:
        print()
        rows = [(moment(at), state, key, "this event" if own else "") for at, state, key, own in explained.timeline]
        show_table(("time", "state", "key", ""), rows, essential=("time", "state", "key", ""))


def _facts(explained: Explained) -> dict[str, Any]:
    """What is known, in the order in which one asks for it."""
    entry, key = explained.entry, explained.key
    facts = {} if entry is None else fields(entry, moment)
    if entry is not None:
        record = entry.record
        left = record.lease_until - explained.at
        facts["lease_left"] = spoken(left) if record.state == IN_PROGRESS and left > 0 else None
        facts["payload"] = payload_text(record) if record.state == DEAD else None
        facts["result"] = None if record.result in (None, b"null") else record.result.decode()
    if key is not None:
        facts.setdefault("key", str(key))
        facts |= {"strategy": _strategy(key), "made_of": msgspec.json.encode(key.parts).decode()}
    facts |= {"kind": explained.kind, "differs_in": ", ".join(explained.differs) or None}
    facts["tried"] = "; ".join(map(_tried, explained.tried)) if len(explained.tried) > 1 else None
    return {name: value for name, value in facts.items() if value is not None}


def _tried(tried: Tried) -> str:
    if tried.key is None:
        return f"{tried.route} (no key: {tried.problem})"
    return f"{tried.route} ({'known' if tried.known else 'not known'} in namespace {tried.namespace}, key {tried.key})"


def _strategy(key: Key) -> str:
    """As people name it: which of its ways `auto` went is seen in the parts."""
    return key.strategy.partition(".")[0]


def _as_json(explained: Explained) -> dict[str, Any]:
    entry, key = explained.entry, explained.key
    record = None if entry is None else fields(entry) | {"payload": payload_text(entry.record)}
    timeline = [{"time": stamp(at), "state": state, "key": key} for at, state, key, _ in explained.timeline]
    return {
        "sentence": explained.sentence,
        "record": record,
        "key": None if key is None else {"key": str(key), "strategy": _strategy(key), "parts": key.parts},
        "kind": explained.kind,
        "differs_in": list(explained.differs),
        "timeline": timeline,
        "tried": [msgspec.structs.asdict(each) for each in explained.tried],
        "handed_on": [fields(stage) for stage in explained.handed_on],
    }
