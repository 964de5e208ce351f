"""`oncegate explain`: say whether an event was run and why, with the facts about it."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import Any

import click
import msgspec

from oncegate.claims import DEAD, IN_PROGRESS
from oncegate.cli import exit_codes
from oncegate.cli.commands import CliCommand, FileName
from oncegate.cli.copies import (
    CopyGroup,
    FileSightings,
    RecordSightings,
    Sighting,
    conclusion,
    groups_of_deliveries,
    groups_of_records,
)
from oncegate.cli.event_files import FoundEvent, check_readable, events_of
from oncegate.cli.explanations import Explainers, Explanation, TriedRoute
from oncegate.cli.options import NAMESPACE_FILTER, namespace_of, output_option, read_only_store, with_settings
from oncegate.cli.output import (
    print_error,
    print_note,
    print_text,
    readable_time,
    rfc3339,
    show_facts,
    show_json,
    show_json_stream,
    show_table,
    state_name,
)
from oncegate.cli.record_filter import scan_option
from oncegate.cli.records import Search, fields, payload_text, search
from oncegate.durations import spoken, times
from oncegate.events import Key
from oncegate.gate.job import shortened
from oncegate.settings import Settings
from oncegate.settings.schema import KEY, READ, STORE
from oncegate.stores.base import Store

_SHOWN = 100
_MOST_COMPARED = 10_000  # events of a file that are held in memory, because the conclusion about them is printed first
_NO_COPIES_IN_RECORDS = "The records do not show copies ({count}, compared by content, key, type and time)."
_NO_COPIES_IN_FILE = "The file does not show copies ({count}, compared by content, key, and state within 500 ms)."
_NOT_RECORDED = (
    "The store does not record duplicates one by one. The log has a line for each delivery, with status, entity, state"
    " and occurred_at."
)


@click.command(
    cls=CliCommand,
    short_help="Say whether an event was run, and why.",
    examples=(
        "oncegate explain evt-1",
        "oncegate explain --file event.json --output json",
        "oncegate explain evt-1 --store sqlite:///oncegate.db --namespace default",
    ),
    exit_codes={
        exit_codes.OK: "the event is known",
        exit_codes.USAGE: exit_codes.MEANINGS[exit_codes.USAGE],
        exit_codes.STORE: exit_codes.MEANINGS[exit_codes.STORE],
        exit_codes.NOT_FOUND: "the event is not known",
    },
)
@click.argument("id_", metavar="[ID]", required=False)
@click.option("--file", type=FileName(), metavar="FILE", help="Explain each event of a file; - reads stdin.")
@scan_option
@with_settings(STORE, NAMESPACE_FILTER, KEY, *READ)
@output_option
def explain(id_: str | None, file: str | None, scan: int, settings: Settings, output: str) -> None:
    """Say whether an event was run, and why or why not.

    ID is a key, the id of the first delivery of an event, or the id of its entity, such as a conversation. With --file,
    each event of the file is looked up by its key. If the settings have routes, the key of each route is tried;
    --namespace selects one route. Nothing is claimed, run or changed.

    For an entity with several records, and for a file with several events, the first sentence says whether they are
    copies: retries, a re-emission, a double emission or a conflict.
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
    if not explained:
        _report_unknown(settings, id_, found, output)
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)
    entries = [each.entry for each in explained if each.entry is not None]
    sightings = RecordSightings(store, explainer.reader).of(entries)
    groups = groups_of_records(sightings)
    copies = conclusion(groups, _NO_COPIES_IN_RECORDS.format(count=times(len(entries), "record")))
    if found.full:
        copies = f"{copies.removesuffix('.')}; other records match too, but only {len(found.entries):,} were compared."
    headline = explained[0].sentence if len(explained) == 1 else _headline(id_, found, explained)
    if output == "json":
        shown = [_as_json(each) for each in explained]
        members = [[entries[each.number - 1].key.hex() for each in group.sightings] for group in groups]
        extent = {"looked_through": found.looked_through, "cut": found.cut}
        copies_fields = {"sentence": copies, "groups": _groups_as_json(groups, "keys", members)}
        show_json({"id": id_, "sentence": headline, "copies": copies_fields, "records": shown, **extent})
        return
    about_entity = len(explained) > 1 or shortened(id_) == entries[0].record.about.entity
    if len(explained) > 1 or (about_entity and groups):
        print_text(copies)
    if len(explained) == 1:
        _show(explained[0])
        if found.cut:
            print_text(f"Only the first {found.looked_through:,} records were scanned; use --scan to scan more.")
    else:
        print_text(headline)
        _show_table(explained)
        print_text("Explain one record with oncegate explain KEY; select a namespace with --namespace.")
    if about_entity:
        print_text(_NOT_RECORDED)


def _without_stages(explained: list[Explanation]) -> list[Explanation]:
    """Remove the explanations of consumers' records: these records are shown with the record of the published event."""
    shown = {(stage.namespace, stage.key) for each in explained for stage in each.handed_on}
    return [each for each in explained if each.entry is None or (each.entry.namespace, each.entry.key) not in shown]


def _headline(id_: str, found: Search, explained: list[Explanation]) -> str:
    """The number of records, and what happened to the latest of them."""
    more = f" among the first {found.looked_through:,} records (use --scan to scan more)" if found.cut else ""
    count = f"More than {len(found.entries):,} records" if found.full else times(len(explained), "record")
    return f"{count} with the key, event id or entity {id_}{more}. The latest: {explained[-1].sentence}"


def _report_unknown(settings: Settings, id_: str, found: Search, output: str) -> None:
    if found.cut:
        sentence = (
            f"{id_} was not found in the first {found.looked_through:,} records; use --scan to scan more, --namespace"
            " to scan less, or name the key or the payload (--file)"
        )
        reasons = []
    else:
        sentence = f"{id_} is not known: no record has this key, event id or entity. Possible reasons:"
        reasons = _reasons(settings)
    if output == "json":
        extent = {"looked_through": found.looked_through, "cut": found.cut}
        show_json({"id": id_, "sentence": sentence, "reasons": reasons, "copies": None, "records": [], **extent})
        return
    print_error(sentence)
    for reason in reasons:
        print_note(f"- {reason}")


def _reasons(settings: Settings) -> list[str]:
    """Why the store may have no record of an event, each with the command, log line or metric that shows it."""
    namespace = namespace_of(settings)
    other = "another store" if namespace is None else f"another store, or in another namespace than {namespace}"
    return [
        "The event never arrived. The log of the sender shows whether it was sent.",
        f"Its record has expired (retention is {settings['retention']}), or an operator reset or dropped it.",
        f"The event is in {other}. oncegate config show prints the store.",
        "The id is the id of a later delivery. The store holds only the id of the first delivery. oncegate explain"
        " --file FILE finds the event by its content.",
        "The event ran without a record. Its log line has the status unguarded.",
        "The event could not be read (answer 400), so its dead letter has no id: oncegate dlq list",
        "The signature was missing or wrong (answer 401). Such a request is not recorded, and its log line has no event"
        " id. Metric: oncegate_signature_refusals_total. Log line: rejected a request from ADDRESS (in a Lambda"
        " function: a request was rejected).",
        "The request was over a limit (answer 413, 429 or 503). Such a request is not recorded, and no log line has its"
        " event id. Metrics: oncegate_limited_total (429), oncegate_shed_total (503). A body that is too large (413)"
        " has no metric and no log line: only the sender sees the answer.",
    ]


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
    essential = ("key", "state", "error", "event id", "type", "occurred")
    show_table(headers, rows, essential, required=("state", "error"))
    if len(explained) > _SHOWN:
        print_text(f"Showing the first {_SHOWN} of {len(explained)}; --output json has all of them.")


# ── by payload ────────────────────────────────────────────────────────────────────────────────────────────


def _explain_file(explainer: Explainers, file: str, output: str) -> None:
    check_readable([file])
    explained_file = _ExplainedFile(explainer, file)
    if output == "json":
        shown = (_place(found) | _as_json(explained) for found, explained in explained_file.events())
        show_json_stream("events", shown, explained_file.summary)
    else:
        events = explained_file.events()
        compared = list(islice(events, _MOST_COMPARED + 1))  # one more, to know whether the file has more
        if len(compared) > 1:
            print_text(explained_file.summary()["copies"]["sentence"])
            print()
        for found, explained in chain(compared, events):
            print_text(f"{found.place}  {found.event.id or ''}".rstrip())
            _show(explained)
            print()
    if not explained_file.count:
        print_error(f"there is no event in {click.format_filename(file)}")
    if not explained_file.known:
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)


class _ExplainedFile:
    """The events of a file that were explained so far: how many there are, how many are known, and their copies."""

    def __init__(self, explainer: Explainers, file: str) -> None:
        self.count = self.known = 0
        self._explainer, self._file = explainer, file
        self._look = FileSightings(explainer.store)
        self._sightings: list[Sighting] = []

    def events(self) -> Iterator[tuple[FoundEvent, Explanation]]:
        for found in events_of([self._file], self._explainer.hints):
            explained = self._explainer.event(found.event)
            self.known, self.count = self.known + (explained.entry is not None), self.count + 1
            if self.count <= _MOST_COMPARED and (sighting := self._sighting(found, explained)) is not None:
                self._sightings.append(sighting)
            yield found, explained

    def _sighting(self, found: FoundEvent, explained: Explanation) -> Sighting | None:
        entry = explained.entry
        if entry is None:
            return self._look.add(found.event, self._explainer.namespace, explained.key, None)
        return self._look.add(found.event, entry.namespace, explained.key, entry.record)

    def summary(self) -> dict[str, Any]:
        groups = groups_of_deliveries(self._sightings)
        sentence = conclusion(groups, _NO_COPIES_IN_FILE.format(count=times(len(self._sightings), "event")))
        if self.count > _MOST_COMPARED:
            sentence = f"{sentence.removesuffix('.')}; only the first {_MOST_COMPARED:,} events were compared."
        members = [[each.number for each in group.sightings] for group in groups]
        copies = {"sentence": sentence, "groups": _groups_as_json(groups, "events", members)}
        return {"known": self.known, "count": self.count, "copies": copies}


def _groups_as_json(groups: Sequence[CopyGroup], name: str, members: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [
        {"verdict": group.verdict, "sentence": group.sentence, name: listed}
        for group, listed in zip(groups, members, strict=True)
    ]


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
        headers = ("time", "state", "key", "")
        show_table(headers, rows, essential=headers, required=("state",))


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
