"""`oncegate explain`: say whether an event was run and why, with the facts about it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import chain, islice
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from msgspec.structs import replace

from oncegate.claims import DEAD, IN_PROGRESS
from oncegate.cli import exit_codes
from oncegate.cli.commands import CliCommand, FileName
from oncegate.cli.event_files import FoundEvent, check_readable, events_of
from oncegate.cli.options import NAMESPACE_FILTER, namespace_of, output_option, read_only_store, with_settings
from oncegate.cli.output import (
    Progress,
    print_error,
    print_note,
    print_text,
    show_facts,
    show_json,
    show_json_stream,
    show_table,
)
from oncegate.cli.record_options import scan_option
from oncegate.cli.stories import JOURNAL, delivery_sentence, journal_or_reason, line_fields, show_story, story_fields
from oncegate.clocks import wall
from oncegate.durations import microseconds, spoken, times
from oncegate.events import Key
from oncegate.gate.job import shortened
from oncegate.inspection.conversations import ConversationLine, conversation_lines
from oncegate.inspection.copies import (
    CopyGroup,
    FileSightings,
    RecordSightings,
    Sighting,
    conclusion,
    groups_of_deliveries,
    groups_of_records,
)
from oncegate.inspection.explanations import Explainers, Explanation, TriedRoute
from oncegate.inspection.records import event_order, fields, key_of, payload_text, search, state_name
from oncegate.inspection.stories import EventMatch, EventMatches, Stories, Story, find_events
from oncegate.journal import OPERATOR, Journal, RowFilter
from oncegate.journal.base import all_rows
from oncegate.settings import Settings
from oncegate.settings.routes import by_route
from oncegate.settings.schema import KEY, READ, STORE
from oncegate.stores.base import Entry
from oncegate.times import readable_time, rfc3339

_SHOWN = 100
_READS = 10_000  # reads of the journal: all of it
_MOST_ROWS = 1_000  # rows of the timeline of several events
_EXPLAIN_ONE = "Explain one record with oncegate explain KEY; select a namespace with --namespace."
_MOST_COMPARED = 10_000  # events of a file that are held in memory, because the conclusion about them is printed first
_NO_COPIES_IN_RECORDS = "The records do not show copies ({count}, compared by content, key, type and time)."
_NO_COPIES_IN_FILE = "The file does not show copies ({count}, compared by content, key, and state within 500 ms)."
_NOT_RECORDED = (
    "The store does not record duplicates one by one. The journal does, but it was not read: {reason}. The log has a"
    " line for each delivery, with status, entity, state and occurred_at."
)
_NOT_SCANNED = "The store was not scanned (the journal has the id); --scan N scans it, too."
_NOT_IN_JOURNAL = "The journal has no rows of it: they were dropped, or deleted, or the event came before the journal."


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
@with_settings(STORE, JOURNAL, NAMESPACE_FILTER, KEY, *READ)
@output_option
def explain(id_: str | None, file: str | None, scan: int, settings: Settings, output: str) -> None:
    """Say whether an event was run, and why or why not.

    ID is an event id, a key, the id of an entity, such as a conversation, or the id of a delivery, such as an SQS
    message id. With --file, or if ID is the name of a file, each event of the file is looked up by its key. If the
    settings have routes, the key of each route is tried; --namespace selects one route. Nothing is claimed, run or
    changed.

    The first sentence is the decision. If several events match, it is about the event with the key ID, or else about
    the latest of them, and the next sentence says whether they are copies: retries, a re-emission, a double emission or
    a conflict. Then the journal shows each delivery and each attempt, the difference to the original, the parts of the
    key, and what other key strategies would have decided. Without a journal, only the record in the store is explained.

    If the journal has ID, the records are read by their keys. All records are scanned if the journal does not have ID,
    if ID is an entity and the journal is younger than the retention, or if --scan is given.
    """
    if (id_ is None) is (file is None) or id_ == "":
        raise click.UsageError(
            "name one ID (an event id, a key, a conversation, a delivery id or a file) or a --file of events"
        )
    if id_ is not None and os.path.isfile(id_):
        id_, file = None, id_
    with ExitStack() as stack:
        store = stack.enter_context(closing(read_only_store(settings)))
        explainer = Explainers(store, settings, scan)
        journal, reason = journal_or_reason(settings)
        if journal is not None:
            stack.enter_context(closing(journal))
        if id_ is not None:
            source = click.get_current_context().get_parameter_source("scan")
            is_default = source is ParameterSource.DEFAULT
            _IdExplanation(settings, explainer, journal, reason, id_, scan, always_scan=not is_default).show(output)
        else:
            _explain_file(explainer, journal, file or "", output)


# ── by id ─────────────────────────────────────────────────────────────────────────────────────────────────


class _IdExplanation:
    """What the store and the journal know about an id."""

    def __init__(
        self,
        settings: Settings,
        explainer: Explainers,
        journal: Journal | None,
        no_journal: str,
        id_: str,
        scan: int,
        *,
        always_scan: bool,
    ) -> None:
        self._settings, self._explainer, self._id = settings, explainer, id_
        self._journal, self._no_journal = journal, no_journal
        self._key = key_of(id_)
        namespace, found = namespace_of(settings), EventMatches([])
        if journal is not None:
            found = self._find(journal, RowFilter(namespace=namespace, operators=True))
        deliveries = [match for match in found.events if match.latest.status != OPERATOR]
        self._matches = EventMatches(deliveries, found.next)
        self._is_scanned = always_scan or self._needs_scan()
        with Progress("records") as progress:
            limit = scan if self._is_scanned else 0
            self._found = search(explainer.store, namespace, id_, limit, progress.update)
        entries = sorted([*self._found.entries, *self._by_journal(found.events)], key=event_order)
        explained = [explainer.record(entry) for entry in entries]
        # The records of consumers are shown with the record of the published event.
        stages = {(stage.namespace, stage.key) for each in explained for stage in each.handed_on}
        self._explained = [each for each in explained if each.entry is None or _address(each.entry) not in stages]
        self._entries = [each.entry for each in self._explained if each.entry is not None]
        self._sightings = RecordSightings(explainer.store, explainer.reader).of(self._entries)
        published = [match for match in deliveries if (match.namespace, match.key) not in stages]
        self._matches = EventMatches(published, found.next)

    def _find(self, journal: Journal, where: RowFilter) -> EventMatches:
        """The events that the journal has for this id. If the id is a key, the events with this key are first: the
        sender of another event can use a key as its id."""
        found = find_events(journal, self._id, where, reads=_READS)
        if self._key is None:
            return found
        of_key = find_events(journal, self._id, replace(where, key=self._key), reads=_READS).events
        known = {(each.namespace, each.key or each.latest.id) for each in of_key}
        others = [each for each in found.events if (each.namespace, each.key or each.latest.id) not in known]
        return EventMatches([*of_key, *others], found.next)

    def _needs_scan(self) -> bool:
        """Whether a scan may find records that the journal does not show. If the journal is younger than the retention,
        an entity may have older events, so its records are scanned. An event id nearly always has one event."""
        if self._journal is None or not self._matches.events or self._matches.next is not None:
            return True
        if all(match.latest.entity != shortened(self._id) for match in self._matches.events):
            return False
        retention = max(microseconds(route["retention"]) for route in by_route(self._settings).values())
        return not self._journal.rows(RowFilter(operators=True, until=wall() - retention), limit=1)

    def _by_journal(self, matches: Sequence[EventMatch]) -> Iterator[Entry]:
        """The records of the keys that the journal has for this id, unless the search has found them."""
        known = {(entry.namespace, entry.key) for entry in self._found.entries}
        for match in matches:
            row, keys = match.latest, {self._key_of(match)}
            if shortened(self._id) in (row.event_id, row.entity):
                keys |= match.kept
            for key in keys - {b""}:
                if (match.namespace, key) not in known:
                    known.add((match.namespace, key))
                    yield from self._explainer.store.browse(match.namespace, key=key)

    def _key_of(self, match: EventMatch) -> bytes:
        """The key of the record of a match. If the id is that of a dead letter, or of the delivery that became a dead
        letter, or if the event has no key, it is the key of the dead letter."""
        if self._key is not None and self._key in match.kept:
            return self._key
        row = match.latest
        return row.kept if row.kept and (not match.key or self._id == row.delivery_id) else match.key

    def show(self, output: str) -> None:
        if not self._explained and not self._matches.events:
            self._report_unknown(output)
            raise click.exceptions.Exit(exit_codes.NOT_FOUND)
        groups = groups_of_records(self._sightings)
        copies = conclusion(groups, _NO_COPIES_IN_RECORDS.format(count=times(len(self._entries), "record")))
        if self._found.full:
            full = len(self._found.entries)
            copies = f"{copies.removesuffix('.')}; other records match too, but only {full:,} were compared."
        story = self._story()
        headline = self._headline(story)
        if output == "json":
            self._show_json(headline, copies, groups, story)
        elif story is None:
            self._show_records(headline, copies, groups)
        else:
            self._show_story(headline, copies, groups, story)

    def _story(self) -> Story | None:
        """The story of the event with this key, or else of the latest event. None if the journal has no rows of it."""
        if self._journal is None or not self._matches.events:
            return None
        match = self._matches.events[0]
        key = self._key_of(match)
        if key != self._key and self._record_of_key is not None:
            return None
        decided_by = key if key in (self._key, match.latest.kept) else None
        return Stories(self._explainer, self._journal).of_row(match.latest, decided_by)

    @property
    def _record_of_key(self) -> Explanation | None:
        """The explanation of the record whose key is the id."""
        pairs = zip(self._explained, self._entries, strict=True)
        return next((explained for explained, entry in pairs if entry.key == self._key), None)

    @property
    def _count(self) -> int:
        """The number of events: those of the records, and those that only the journal knows. An event that failed after
        it was marked as done has two records."""
        events = {_address(self._entries[each.number - 1]) for each in self._sightings}
        second_records = {_address(entry) for entry in self._entries} - events
        known = {(each.namespace, self._key_of(each) or each.latest.id) for each in self._matches.events}
        return len(events | (known - second_records))

    def _headline(self, story: Story | None) -> str:
        """The decision. With several events: how many there are, and what happened to the latest of them. If the id is
        a key, the decision is about this key."""
        has_rows = any(self._key_of(match) == self._key for match in self._matches.events[:1])
        decided = story if has_rows else self._record_of_key
        if decided is not None:
            return f"{decided.sentence}{self._others}"
        if story is None and len(self._explained) == 1:
            return self._explained[0].sentence
        found = self._found
        if story is not None:
            if self._count == 1:
                return story.sentence
            at_least = "at least " if found.full or self._matches.next is not None else ""
            latest = self._latest_sentence(story)
            return f"{latest} This is the latest of {at_least}{self._count:,} events with the id {self._id}."
        more = f" among the first {found.looked_through:,} records (use --scan to scan more)" if found.cut else ""
        count = f"more than {len(found.entries):,} records" if found.full else times(len(self._explained), "record")
        latest = self._explained[-1].sentence
        return f"{latest} This is the latest of {count} with the key, event id or entity {self._id}{more}."

    @property
    def _others(self) -> str:
        """A sentence about the events that have the key of this event as their id or entity."""
        count = self._count - 1
        return f" {times(count, 'other event')} {'has' if count == 1 else 'have'} the id {self._id}." if count else ""

    def _latest_sentence(self, story: Story) -> str:
        """The decision about the latest event. The journal may have no rows of it yet, such as of a replay that waits:
        then only its record is later than the row of the story."""
        keys = {(match.namespace, match.key) for match in self._matches.events}
        sentence, latest = story.sentence, story.focus.at
        for explained, entry in zip(self._explained, self._entries, strict=True):
            at = entry.record.completed_at or entry.record.first_seen
            if at > latest and (entry.namespace, entry.key) not in keys:
                sentence, latest = explained.sentence, at
        return sentence

    # ── output ────────────────────────────────────────────────────────────────────────────────────────────

    def _show_json(self, headline: str, copies: str, groups: Sequence[CopyGroup], story: Story | None) -> None:
        members = [[self._entries[each.number - 1].key.hex() for each in group.sightings] for group in groups]
        lines = [] if story is None else self._timeline(story) or story.lines
        show_json(
            {
                "id": self._id,
                "sentence": headline,
                "copies": {"sentence": copies, "groups": _groups_as_json(groups, "keys", members)},
                "records": [_as_json(each) for each in self._explained],
                "looked_through": self._found.looked_through,
                "cut": self._found.cut,
                "scanned": self._is_scanned,
                "journal": self._no_journal or None,
                "timeline": [line_fields(line) for line in lines],
                "story": None if story is None else story_fields(story),
            }
        )

    def _show_records(self, headline: str, copies: str, groups: Sequence[CopyGroup]) -> None:
        """Print what the store knows, if the journal knows nothing."""
        print_text(headline)
        about_entity = shortened(self._id) == self._entries[0].record.about.entity
        if len(self._explained) > 1 or (about_entity and groups):
            print_text(copies)
        if len(self._explained) == 1:
            _show_details(self._explained[0])
            self._print_extent()
        else:
            _show_table(self._explained)
            print_text(_EXPLAIN_ONE)
        if self._journal is not None:
            print_text(_NOT_IN_JOURNAL)
        else:
            print_text(_NOT_RECORDED.format(reason=self._no_journal.removesuffix(".")))

    def _show_story(self, headline: str, copies: str, groups: Sequence[CopyGroup], story: Story) -> None:
        """Print the decision, the records, and what the journal knows."""
        print_text(headline)
        if story.is_copy:
            print_text(delivery_sentence(story.focus, self._id))
        if len(self._sightings) > 1 or (self._count > 1 and groups):
            print_text(copies)
        if len(self._explained) > 1:
            _show_table(self._explained)
            print_text(_EXPLAIN_ONE)
        elif self._explained and self._count == 1:
            _show_details(self._explained[0])
        self._print_extent()
        show_story(story, self._timeline(story))

    def _print_extent(self) -> None:
        if self._found.cut:
            print_text(f"Only the first {self._found.looked_through:,} records were scanned; use --scan to scan more.")
        elif not self._is_scanned and not self._found.entries:
            print_text(_NOT_SCANNED)

    def _timeline(self, story: Story) -> list[ConversationLine] | None:
        """The rows of all events, if there are several; None if there is one event."""
        keys = {match.key for match in self._matches.events}
        if self._journal is None or len(self._matches.events) == 1 or keys == {story.focus.key}:
            return None
        where = RowFilter(namespace=namespace_of(self._settings), term=self._id, operators=True)
        return list(conversation_lines(all_rows(self._journal, where, _MOST_ROWS)[::-1]))

    def _report_unknown(self, output: str) -> None:
        found, reasons = self._found, list[str]()
        if found.cut:
            sentence = (
                f"{self._id} was not found in the first {found.looked_through:,} records; use --scan to scan more,"
                " --namespace to scan less, or name the key or the payload (--file)"
            )
        else:
            sentence = f"{self._id} is not known: no record has this key, event id or entity. Possible reasons:"
            reasons = _reasons(self._settings, self._no_journal)
        if output == "json":
            answer: dict[str, Any] = {"id": self._id, "sentence": sentence, "reasons": reasons, "copies": None}
            answer |= {"records": [], "looked_through": found.looked_through, "cut": found.cut, "scanned": True}
            show_json(answer | {"journal": self._no_journal or None, "timeline": [], "story": None})
            return
        print_error(sentence)
        for reason in reasons:
            print_note(f"- {reason}")


def _address(entry: Entry) -> tuple[str, bytes]:
    return entry.namespace, entry.key


def _reasons(settings: Settings, no_journal: str) -> list[str]:
    """Why an event may not be known, each with the command, log line or metric that shows it."""
    namespace = namespace_of(settings)
    other = "another store" if namespace is None else f"another store, or in another namespace than {namespace}"
    later = "The id is the id of a later delivery. The store holds only the id of the first delivery"
    if no_journal:
        later += f", and the journal was not read: {no_journal.removesuffix('.')}"
    else:
        later += f", and the journal has no row of it: journal_max_age is {settings['journal_max_age']}"
    return [
        "The event never arrived. The log of the sender shows whether it was sent.",
        f"Its record has expired (retention is {settings['retention']}), or an operator reset or dropped it.",
        f"The event is in {other}. oncegate config show prints the store.",
        f"{later}. oncegate explain --file FILE finds the event by its content.",
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


def _explain_file(explainer: Explainers, journal: Journal | None, file: str, output: str) -> None:
    check_readable([file])
    explained_file = _ExplainedFile(explainer, file)
    if output == "json":
        shown = (
            _place(found) | _as_json(explained) | {"story": _story_as_json(explainer, journal, found, explained)}
            for found, explained in explained_file.events()
        )
        show_json_stream("events", shown, explained_file.summary)
    else:
        events = explained_file.events()
        compared = list(islice(events, _MOST_COMPARED + 1))  # one more, to know whether the file has more
        if len(compared) > 1:
            print_text(explained_file.summary()["copies"]["sentence"])
            print()
        for found, explained in chain(compared, events):
            place = f"{found.place}  {found.event.id or ''}".rstrip()
            for text in (explained.sentence, place) if len(compared) == 1 else (place, explained.sentence):
                print_text(text)
            _show_details(explained)
            if len(compared) == 1 and (story := _story_of(explainer, journal, found, explained)) is not None:
                show_story(story)
            print()
    if not explained_file.count:
        print_error(f"there is no event in {click.format_filename(file)}")
    if not explained_file.known:
        raise click.exceptions.Exit(exit_codes.NOT_FOUND)


def _story_of(
    explainer: Explainers, journal: Journal | None, found: FoundEvent, explained: Explanation
) -> Story | None:
    """The story of an event of a file; None if there is no journal, no key, or no row of the key."""
    if journal is None or explained.key is None:
        return None
    namespace = explainer.namespace if explained.entry is None else explained.entry.namespace
    return Stories(explainer, journal).of_event(namespace, explained.key, found.event)


def _story_as_json(
    explainer: Explainers, journal: Journal | None, found: FoundEvent, explained: Explanation
) -> dict[str, Any] | None:
    """The story of one of the first events of a file. A story takes several reads of the journal, so a long file has
    stories of its first events only."""
    story = _story_of(explainer, journal, found, explained) if found.number <= _SHOWN else None
    return None if story is None else story_fields(story)


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


def _show_details(explained: Explanation) -> None:
    if facts := _facts(explained):
        show_facts(facts)
    for stage in explained.handed_on:
        print()
        show_facts(_worth_showing(fields(stage, readable_time)))
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
    return _worth_showing(facts)


def _worth_showing(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts without those that say nothing. The fence is for programs: `oncegate keys show` has it."""
    empty = {"fence"} if facts.get("lost") else {"fence", "lost"}
    return {name: value for name, value in facts.items() if value is not None and name not in empty}


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
