"""The Event screen: the decision about one event, and everything that is known about it."""

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import htpy as h
import msgspec
from msgspec.structs import replace

from oncegate.claims import IN_PROGRESS
from oncegate.clocks import wall
from oncegate.console.components import badge, copy_button, disabled, empty, facts, moment, panel, short_key, table
from oncegate.console.event_filter import row_id
from oncegate.console.event_rows import conversation_link, copies_text, gap_text, lag_text
from oncegate.console.layout import document
from oncegate.console.pages.actions import event_actions
from oncegate.console.requests import Request, link
from oncegate.console.site import Site
from oncegate.durations import spoken, times
from oncegate.gate.job import shortened
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.inspection.explanations import Explainers
from oncegate.inspection.records import fields, payload_text, state_name
from oncegate.inspection.stories import MISSING, Difference, Stories, Story, StoryLine, ValueDifference, name_of
from oncegate.journal import OPERATOR, Journal, Row, RowFilter
from oncegate.journal.base import row_with_details
from oncegate.stores.base import Entry

_SCAN_LIMIT: Final = 10_000  # records that are scanned for other waiting events of the entity
_MOST_LINES: Final = 100  # rows at each end of a long history
_MOST_PATHS: Final = 100
_SHOWN_PAYLOAD: Final = 8_000  # characters
_LARGEST_PAYLOAD: Final = 1_000_000  # characters of a page with the parameter `payload=all`
_TIMES: Final = {"occurred_at", "first_seen", "completed_at", "unavailable_since", "lease_until", "expires_at"}


def event(site: Site, request: Request) -> HttpAnswer:
    story = _story(site, request)
    if story is None:
        hint = "The key may be wrong, or the record has expired and its rows were deleted. "
        text = empty("Nothing is known about this event.", hint, h.a(href=link("/events"))["Search for it"])
        return replace(document(request, "Event", h.h1["Event"], text), code=404)
    focus, entry = story.focus, _entry(story)
    is_row = _is_about_row(request, story)
    return document(
        request,
        f"Event {name_of(focus)}",
        h.div(".head")[
            h.h1[f"Event {name_of(focus)}"],
            focus.entity and h.a(".button.quiet", href=conversation_link(focus.entity))["Conversation"],
            bool(focus.key) and h.a(".button.quiet", href=link("/events", {"q": focus.key.hex()}))["All rows"],
        ],
        h.section(".panel.decision", aria_label="Decision")[
            h.p(".row")[_badges(story, is_row=is_row), bool(story.lines) and h.span(".soft")[story.deliveries_text]],
            h.p(".lead")[story.sentence],
            story.replay is not None and _replayed(story.replay),
            story.is_copy and _delivery(story),
            None if entry is None else _lease(entry),
        ],
        None if story.difference is None or not _differs(story) else _difference(site, story, story.difference),
        h.div(".split")[
            _history(site, request, story),
            h.div(".stack")[
                _actions(site, story),
                _key(story),
                _strategies(story),
                None if entry is None else _record(story, entry),
                _states(story),
                _stages(story),
            ],
        ],
        _payload(site, request, story),
        scripts=["event.js"],
    )


# ── the story ─────────────────────────────────────────────────────────────────────────────────────────────


def _story(site: Site, request: Request) -> Story | None:
    """The story of the key or the row of a URL; None if nothing is known about it."""
    key, journal = _key_of(request.query.get("key", "")), site.journal
    namespace, chosen = request.query.get("namespace"), row_id(request.query.get("row"))
    explainers = Explainers(site.store, site.settings, _SCAN_LIMIT)
    if journal is not None:
        stories = Stories(explainers, journal)
        if key:
            namespace = namespace or _namespace_of(journal, key)
            story = None if namespace is None else stories.of_key(namespace, key, chosen, is_first=True)
        else:
            row = _row(journal, chosen)
            story = None if row is None else stories.of_row(row)
        if story is not None:
            return story
    entries = site.store.browse(namespace, key=key, limit=1) if key else []
    return _story_of_record(explainers, entries[0]) if entries else None


def _is_about_row(request: Request, story: Story) -> bool:
    """Whether the page is about one row: the row of the URL, or the delivery that a dead letter holds. Other pages are
    about the event."""
    focus = story.focus
    return focus.id == row_id(request.query.get("row")) or focus.key != _key_of(request.query.get("key", ""))


def _story_of_record(explainers: Explainers, entry: Entry) -> Story:
    """The story of an event without rows in the journal."""
    about, explanation = entry.record.about, explainers.record(entry)
    focus = Row(
        key=entry.key,
        event_id=about.delivery_id,
        entity=about.entity,
        namespace=entry.namespace,
        source=about.source,
        type=about.type,
    )
    return Story(explanation.sentence, entry.namespace, (), focus, explanation=explanation, missing=MISSING)


def _namespace_of(journal: Journal, key: bytes) -> str | None:
    found = journal.rows(RowFilter(key=key, operators=True), limit=1)
    return found[0].namespace if found else None


def _row(journal: Journal, number: int | None) -> Row | None:
    if number is None:
        return None
    found = journal.rows(RowFilter(operators=True), before=number + 1, after=number - 1, limit=1)
    return found[0] if found else None


def _key_of(text: str) -> bytes:
    try:
        return bytes.fromhex(text) if len(text) == 32 else b""
    except ValueError:
        return b""


def _entry(story: Story) -> Entry | None:
    return None if story.explanation is None else story.explanation.entry


# ── the decision ──────────────────────────────────────────────────────────────────────────────────────────


def _badges(story: Story, *, is_row: bool) -> h.Node:
    entry, focus = _entry(story), story.focus
    return [
        badge(state_name(entry.record.state)) if entry else h.span(".badge.tone-neutral")["no record"],
        is_row and focus.status and badge(focus.status, focus.kind),
        focus.type and h.span(".soft.name")[focus.type],
    ]


def _replayed(replay: Row) -> h.Element:
    """Who made this event from another one."""
    original = h.a(href=link("/event", _address(replay.namespace, replay.key)))[name_of(replay)]
    return h.p[f"{replay.worker} made it from the event ", original, ", ", moment(replay.at), ": ", replay.reason]


def _delivery(story: Story) -> h.Element:
    """What was decided about the delivery that this page is about, if it is a copy."""
    same = None if _differs(story) else " The content is the same as that of the original."
    return h.p["This delivery, ", moment(story.focus.at), ": ", story.focus.reason, same]


def _differs(story: Story) -> bool:
    """Whether the content differs from that of the original, or may differ."""
    return story.difference is not None and story.difference.paths != ()


def _lease(entry: Entry) -> h.Node:
    """Who holds the claim while the event runs, and until when. The script counts down."""
    record, left = entry.record, entry.record.lease_until - wall()
    if record.state != IN_PROGRESS:
        return None
    countdown = f"in {spoken(left)}" if left > 0 else "over"
    return facts(
        [
            ("Lease owner", h.code[record.owner.hex()]),
            ("Fence", h.code[str(record.fence)]),
            ("Attempt", str(record.attempts)),
            (
                "Lease ends",
                [
                    moment(record.lease_until),
                    " (",
                    h.span(role="timer", data_countdown=str(max(0, left // 1_000)))[countdown],
                    ") unless the worker renews it",
                ],
            ),
        ]
    )


def _actions(site: Site, story: Story) -> h.Node:
    entry = _entry(story)
    key = story.focus.key if entry is None else entry.key
    rows = [line.row for line in reversed(story.lines)]
    return [
        _own_dead_letter(story, key),
        event_actions(site, story.namespace, key, entry, rows, _row_payload(site, story)) if key else None,
    ]


def _own_dead_letter(story: Story, key: bytes) -> h.Node:
    """A link to the dead letter of this delivery, if the actions of the page are about another record."""
    kept = story.focus.kept
    if not kept or kept == key or story.focus.status == OPERATOR:
        return None
    letter = h.a(href=link("/event", _address(story.namespace, kept)))["The page of the dead letter"]
    text = h.p["This delivery was stored as a dead letter. ", letter, " shows its state and its actions."]
    return panel("Dead letter", text)


# ── the history ───────────────────────────────────────────────────────────────────────────────────────────


def _history(site: Site, request: Request, story: Story) -> h.Element:
    if not story.lines:
        reason = site.no_journal or (
            "The journal has no row of this event. A row is written within a second, and deleted after journal_max_age."
        )
        return panel("History", disabled(reason))
    lines = story.lines
    hidden = max(0, len(lines) - 2 * _MOST_LINES)
    shown: Iterator[StoryLine] = iter(lines)
    if hidden:
        shown = chain(lines[:_MOST_LINES], lines[-_MOST_LINES:])
    return panel(
        "History",
        h.p(".soft")[_completeness(story)],
        hidden > 0 and h.p(".soft")[f"{hidden:,} rows in the middle are not shown here."],
        h.ol(".timeline")[(_line(request, story, line) for line in shown)],
    )


def _completeness(story: Story) -> str:
    seen = f"{story.deliveries_text[0].upper()}{story.deliveries_text[1:]}"
    if not story.missing:
        return f"{seen}. Oldest first."
    cut = f" Only the newest {times(len(story.lines), 'row')} are read." if story.is_cut else ""
    return f"{seen}: {story.missing}.{cut} Oldest first."


def _line(request: Request, story: Story, line: StoryLine) -> h.Element:
    row = line.row
    kind = "operator" if row.status == OPERATOR else "attempt" if line.is_attempt and not line.is_arrival else "arrival"
    is_focus = row.id == story.focus.id and _is_about_row(request, story)
    return h.li(class_=f"status-{row.status.replace('_', '-')}", aria_current="true" if is_focus else None)[
        h.div(".row")[
            badge(row.status, row.kind),
            moment(row.start),
            line.gap is not None and h.span(".soft.number")[gap_text(line.gap)],
            h.span(".soft")[_circumstances(row, kind)],
        ],
        h.div[(text := copies_text(row)) and [h.strong[text], " "], row.reason],
        bool(row.kept) and _other_event(story, row),
        is_focus and len(story.lines) > 1 and h.div(".soft")[f"This page is about this {_NAMES.get(kind, kind)}."],
        kind == "arrival" and len(story.lines) > 1 and not is_focus and _compare_link(request, story, row),
    ]


_NAMES: Final = {"arrival": "delivery", "operator": "action"}


def _other_event(story: Story, row: Row) -> h.Node:
    """A link to the dead letter or the replay that a row has made. On their pages, a link to the event of the row."""
    is_replay, key = row.status == OPERATOR, row.kept
    label = "Replay" if is_replay else "Dead letter"
    if key == story.focus.key:
        label, key = ("Replay of" if is_replay else "Key of the delivery"), row.key
    return h.div[label, " ", short_key(key.hex(), link("/event", _address(row.namespace, key)))] if key else None


def _circumstances(row: Row, kind: str) -> str:
    """What is known about an arrival, an attempt or an action, on one line."""
    parts = [
        kind if kind != "operator" else "",
        f"route {row.place}" if row.place and kind != "operator" else "",
        f"attempt {row.attempt}" if row.attempt else "",
        f"lag {lag_text(row.lag)}" if row.lag is not None else "",
        f"took {spoken(row.took)}" if row.took is not None else "",
        f"delivery {row.delivery_id}" if row.delivery_id and row.delivery_id != row.event_id else "",
        f"by {row.worker}" if row.worker else "",
    ]
    return " · ".join(part for part in parts if part)


def _compare_link(request: Request, story: Story, row: Row) -> h.Node:
    if story.original is None or row.id == story.original.id:
        return h.div(".soft")["The original."] if story.original is not None else None
    to = request.url(**_address(row.namespace, row.key), row=row.id, payload=None)
    return h.div[h.a(href=to)["Compare this delivery with the original"]]


def _address(namespace: str, key: bytes) -> dict[str, str]:
    return {"key": key.hex(), "namespace": namespace}


# ── the difference ────────────────────────────────────────────────────────────────────────────────────────


def _difference(site: Site, story: Story, difference: Difference) -> h.Element:
    if difference.values:
        content: h.Node = table(
            "Values that differ",
            ("Path", f"Original: {_name(story.original)}", f"This delivery: {_name(story.focus)}"),
            (_value_row(each) for each in difference.values),
        )
    elif difference.paths:
        content = [
            h.ul[(h.li[h.code[path]] for path in difference.paths[:_MOST_PATHS])],
            disabled(_no_values(site, difference)),
        ]
    else:
        content = disabled(f"The content cannot be compared: {difference.reason}.")
    return panel("Difference from the original", content)


def _value_row(each: ValueDifference) -> list[h.Node]:
    if each.original is None:
        sign, mark = "+ added", "added"
    elif each.value is None:
        sign, mark = "\N{MINUS SIGN} removed", "removed"
    else:
        sign, mark = "\N{NOT EQUAL TO} changed", "changed"
    return [
        [h.code[each.path or "(whole body)"], " ", h.span(class_=["badge", _TONES[mark]])[sign]],
        each.original is not None and h.code(class_="removed" if mark != "added" else None)[each.original],
        each.value is not None and h.code(class_="added" if mark != "removed" else None)[each.value],
    ]


_TONES: Final = {"added": "tone-good", "removed": "tone-bad", "changed": "tone-warn"}


def _name(row: Row | None) -> str:
    return "" if row is None else shortened(row.delivery_id or name_of(row)) or ""


def _no_values(site: Site, difference: Difference) -> str:
    if site.settings["journal_payloads"] is None:
        return (
            "Only the paths are known. The journal holds no payloads: set journal_payloads, for example to 7d, to see"
            " the values of later events."
        )
    return f"Only the paths are known: {difference.reason}."


# ── the key, the record and the payload ───────────────────────────────────────────────────────────────────


def _key(story: Story) -> h.Node:
    key, focus = story.key, story.focus
    if not focus.key:
        return panel("Key", h.p["The event has no key."])
    parts: h.Node = None
    if key is not None and key.parts is not None:
        parts = h.ol(".parts")[(h.li[h.code[_part(part)]] for part in key.parts)]
    elif key is not None and key.reason:
        parts = h.span(".soft")[f"Not known: {key.reason}."]
    return panel(
        "Key",
        facts(
            [
                ("Key", [h.code[focus.key.hex()], " ", copy_button(focus.key.hex())]),
                ("Namespace", story.namespace or None),
                ("Strategy", h.code[focus.strategy] if focus.strategy else None),
                ("Made of", parts),
            ]
        ),
    )


def _part(part: Any) -> str:
    return part if isinstance(part, str) else json.dumps(part, default=str, ensure_ascii=False)


def _strategies(story: Story) -> h.Node:
    if not story.strategies:
        return None
    title = "With another key strategy"
    if all(each.decision == "not known" for each in story.strategies):
        return panel(title, disabled("Not known: the row has no keys of other strategies. A busy recorder omits them."))
    rows = (
        (
            h.code[each.strategy],
            each.text if each.row is None else h.a(href=link("/event", _of_row(each.row)))[each.text],
        )
        for each in story.strategies
    )
    note = f"Compared with {times(story.compared, 'earlier row')} of this key, event id or conversation."
    return panel(title, h.p(".soft")[note], table("Key strategies", ("Strategy", "Decision"), rows))


def _of_row(row: Row) -> dict[str, object]:
    return {**_address(row.namespace, row.key), "row": row.id} if row.key else {"row": row.id}


def _record(story: Story, entry: Entry) -> h.Element:
    """The fields of the record. The panel of the key has its namespace, and its key unless it is a dead letter with a
    key of its own."""
    left_out = {"namespace", "key"} if entry.key == story.focus.key else {"namespace"}
    shown = ((name, value) for name, value in fields(entry).items() if name not in left_out)
    return panel("Record in the store", facts((_title(name), _field(name, value)) for name, value in shown))


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _field(name: str, value: Any) -> h.Node:
    if value is None or value == "":
        return None
    if name == "state":
        return badge(value)
    if name in _TIMES:
        return h.time(datetime=value)[value.replace("T", " ")]
    if name == "entity":
        return h.a(href=conversation_link(value))[value]
    if name == "result":
        return h.pre(".wrap")[json.dumps(value, indent=2, ensure_ascii=False)[:_SHOWN_PAYLOAD]]
    return h.code[value] if name in ("key", "payload_hash") else str(value)


def _states(story: Story) -> h.Node:
    """The timeline of states that the store has, for the key strategy state_change."""
    states = () if story.explanation is None else story.explanation.timeline
    if not states:
        return None
    rows = (
        (moment(at), state, short_key(key, link("/event", {"key": key, "namespace": story.namespace})), own and "this")
        for at, state, key, own in states
    )
    return panel("States of this part", table("States", ("Event time", "State", "Key", "This event"), rows))


def _stages(story: Story) -> h.Node:
    """The records that the consumers of a published event have."""
    stages = () if story.explanation is None else story.explanation.handed_on
    if not stages:
        return None
    rows = (
        (
            short_key(each.key.hex(), link("/event", _address(each.namespace, each.key))),
            badge(state_name(each.record.state)),
        )
        for each in stages
    )
    return panel("At the consumers", table("Consumers", ("Key", "State"), rows))


def _payload(site: Site, request: Request, story: Story) -> h.Element:
    text, place = _stored_payload(site, story)
    if text is None:
        return panel("Payload", disabled(_no_payload(site)))
    pretty = _pretty(text)
    most = _LARGEST_PAYLOAD if request.query.get("payload") == "all" else _SHOWN_PAYLOAD
    rest = len(pretty) - most
    more: h.Node = None
    if rest > 0 and most == _SHOWN_PAYLOAD:
        more = h.p[h.a(href=request.url(payload="all"))[f"Show all {len(pretty):,} characters"]]
    elif rest > 0:
        more = h.p(".soft")[f"{rest:,} more characters are not shown."]
    return panel(
        "Payload",
        # A part of a payload must not be taken for the payload, so only a whole payload can be copied.
        h.div(".head")[
            h.p(".soft")[place, pretty != text and " Indented for reading."], copy_button(text) if rest <= 0 else None
        ],
        h.pre(".wrap", tabindex="0")[pretty[:most]],
        more,
    )


def _stored_payload(site: Site, story: Story) -> tuple[str | None, str]:
    """The payload of this delivery as text, and where it is stored."""
    entry, stored = _entry(story), _row_payload(site, story)
    if stored is not None:
        return stored.decode("utf-8", "backslashreplace"), f"{_payload_origin(story)}, from the journal."
    if entry is not None and (text := payload_text(entry.record)) is not None:
        return text, "From the record in the store, which holds it until the event has run or is dropped."
    return None, ""


def _row_payload(site: Site, story: Story) -> bytes | None:
    """The payload of the row that the page shows, if the journal has it."""
    journal, focus = site.journal, story.focus
    if journal is None or not focus.id:
        return None
    details = row_with_details(journal, focus)
    return journal.payload(focus.id) or (None if details is None else journal.payload(details.id))


def _payload_origin(story: Story) -> str:
    focus = story.focus
    if story.original is not None and focus.id == story.original.id:
        return "As it arrived with the first delivery"
    is_arrival = any(line.row.id == focus.id and line.is_arrival for line in story.lines)
    return "As it arrived with this delivery" if is_arrival else "As it was run"


def _pretty(text: str) -> str:
    """JSON with one member on each line; other text as it is. Only the space between values is changed: numbers,
    escaped characters and repeated members stay as they arrived."""
    try:
        return msgspec.json.format(text, indent=2)
    except (ValueError, RecursionError):
        return text


def _no_payload(site: Site) -> str:
    kept = site.settings["journal_payloads"]
    if kept is None:
        return (
            "The journal holds no payloads, because journal_payloads is off. Set journal_payloads, for example to 7d,"
            " to see the payloads of later events."
        )
    return f"No payload is stored: it was deleted after journal_payloads ({kept}), was too large, or was never stored."
