"""`oncegate explain`: say whether an event was run and why, with the facts about it."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import click
import msgspec

from oncegate.claims import DEAD, IN_PROGRESS
from oncegate.cli import exit_codes
from oncegate.cli.commands import CliCommand, FileName
from oncegate.cli.event_files import FoundEvent, check_readable, events_of
from oncegate.cli.explanations import Explainers, Explanation, TriedRoute
from oncegate.cli.options import NAMESPACE_FILTER, namespace_of, number, output_option, read_only_store, with_settings
from oncegate.cli.output import (
    print_error,
    print_text,
    readable_time,
    rfc3339,
    show_facts,
    show_json,
    show_json_stream,
    show_table,
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


@click.command(
    cls=CliCommand,
    short_help="Say whether an event was run, and why.",
    examples=(
        "oncegate explain evt-1",
        "oncegate explain --file event.json --output json",
        "oncegate explain evt-1 --store sqlite:///oncegate.db --namespace default",
    ),
)
@click.argument("id_", metavar="[ID]", required=False)
@click.option("--file", type=FileName(), metavar="FILE", help="Explain each event of a file; - reads stdin.")
@click.option(
    "--scan",
    type=number(),
    metavar="NUMBER",
    default=_MOST,
    show_default=True,
    help="Maximum number of records to scan.",
)
@with_settings(STORE, NAMESPACE_FILTER, KEY, *READ)
@output_option
def explain(id_: str | None, file: str | None, scan: int, settings: Settings, output: str) -> None:
    """Say whether an event was run, and why or why not.

    ID is a key, the id of the first delivery of an event, or the id of its entity, such as a conversation. With --file,
    each event of the file is looked up by its key. If the settings have routes, the key of each route is tried;
    --namespace selects one route. Nothing is claimed, run or changed.

    \b
    Exit codes:
      0  the event is known
      2  invalid option, argument or setting
      3  the store cannot be used
      4  the event is not known
    """
    if (id_ is None) is (file is None) or id_ == "":
        raise click.UsageError("name one ID (a key, an event id or a conversation) or a --file of events")
    with closing(read_only_store(settings)) as store:
        explainer = Explainers(store, settings, scan)
        if id_ is not None:
            _explain_id(store, settings, explainer, id_, scan, output)
        else:
            _explain_file(explainer, file or "", output)


# ── by id ─────────────────────────────────────────────────────────────────────────────────────────────────


def _explain_id(store: Store, settings: Settings, explainer: Explainers, id_: str, scan: int, output: str) -> None:
    found = search(store, namespace_of(settings), id_, scan)
    explained = _without_stages([explainer.record(entry) for entry in found.entries])
    if output == "json":
        shown = [_as_json(each) for each in explained]
        extent = {"looked_through": found.looked_through, "cut": found.cut}
        show_json({"id": id_, "sentence": _headline(id_, found, explained, settings), "records": shown, **extent})
    elif len(explained) == 1:
        _show(explained[0])
        if found.cut:
            print_text(f"Only the first {found.looked_through:,} records were scanned; use --scan to scan more.")
    elif explained:
        print_text(_headline(id_, found, explained, settings))
        _show_table(explained)
        print_text("Explain one record with oncegate explain KEY; select a namespace with --namespace.")
    if not explained:
        if output != "json":
            print_error(_headline(id_, found, explained, settings))
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)


def _without_stages(explained: list[Explanation]) -> list[Explanation]:
    """Remove the explanations of consumers' records: these records are shown with the record of the published event."""
    shown = {(stage.namespace, stage.key) for each in explained for stage in each.handed_on}
    return [each for each in explained if each.entry is None or (each.entry.namespace, each.entry.key) not in shown]


def _headline(id_: str, found: Search, explained: list[Explanation], settings: Settings) -> str:
    if len(explained) == 1:
        return explained[0].sentence
    if explained:
        more = f" among the first {found.looked_through:,} records (use --scan to scan more)" if found.cut else ""
        return f"{times(len(explained), 'record')} with the key, event id or entity {id_}{more}:"
    if found.cut:
        return (
            f"{id_} was not found in the first {found.looked_through:,} records; use --scan to scan more, --namespace"
            " to scan less, or name the key or the payload (--file)"
        )
    return (
        f"{id_} is not known: the event was never seen, its record has expired (retention is {settings['retention']}),"
        " or the id is that of a later delivery; use --file to find an event by its content"
    )


def _show_table(explained: list[Explanation]) -> None:
    headers = ("key", "namespace", "event id", "type", "entity", "state", "attempts", "occurred", "first seen", "error")
    rows = []
    for each in explained[:_SHOWN]:
        entry = each.entry
        assert entry is not None  # noqa: S101  # a search finds only existing records
        record, about = entry.record, entry.record.about
        times_of = (readable_time(about.occurred_at), readable_time(record.first_seen))
        what = (about.delivery_id, about.type, about.entity, state_name(record.state), record.attempts)
        rows.append((entry.key.hex(), entry.namespace, *what, *times_of, (record.error or "").split("\n")[0]))
    show_table(headers, rows, essential=("key", "event id", "type", "state", "occurred"))
    if len(explained) > _SHOWN:
        print_text(f"Showing the first {_SHOWN} of {len(explained)}; --output json has all of them.")


# ── by payload ────────────────────────────────────────────────────────────────────────────────────────────


def _explain_file(explainer: Explainers, file: str, output: str) -> None:
    check_readable([file])
    known = count = 0

    def each() -> Iterator[tuple[FoundEvent, Explanation]]:
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
            print_text(f"{found.place}  {found.event.id or ''}".rstrip())
            _show(explained)
            print()
    if not count:
        print_error(f"there is no event in {click.format_filename(file)}")
    if not known:
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)


def _place(found: FoundEvent) -> dict[str, Any]:
    return {"file": found.file, "line": found.line, "index": found.index, "event_id": found.event.id}


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────


def _show(explained: Explanation) -> None:
    print_text(explained.sentence)
    if facts := _facts(explained):
        show_facts(facts)
    for stage in explained.handed_on:
        print()
        show_facts({name: value for name, value in fields(stage, readable_time).items() if value is not None})
    if explained.timeline:
        print()
        rows = [
            (readable_time(at), state, key, "this event" if own else "") for at, state, key, own in explained.timeline
        ]
        show_table(("time", "state", "key", ""), rows, essential=("time", "state", "key", ""))


def _facts(explained: Explanation) -> dict[str, Any]:
    """The known facts, with the most important facts first."""
    entry, key = explained.entry, explained.key
    facts = {} if entry is None else fields(entry, readable_time)
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


def _tried(tried: TriedRoute) -> str:
    if tried.key is None:
        return f"{tried.route} (no key: {tried.problem})"
    return f"{tried.route} ({'known' if tried.known else 'not known'} in namespace {tried.namespace}, key {tried.key})"


def _strategy(key: Key) -> str:
    """The strategy as the settings name it, without the variant that `auto` chose: the parts show the variant."""
    return key.strategy.partition(".")[0]


def _as_json(explained: Explanation) -> dict[str, Any]:
    entry, key = explained.entry, explained.key
    record = None if entry is None else fields(entry) | {"payload": payload_text(entry.record)}
    timeline = [{"time": rfc3339(at), "state": state, "key": key} for at, state, key, _ in explained.timeline]
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
