"""Print rows of the journal and the story of an event, for `oncegate explain` and `oncegate events`."""

import sys
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from oncegate.cli.output import print_text, show_facts, show_table
from oncegate.durations import spoken
from oncegate.errors import NoStore, SettingError, StoreError
from oncegate.inspection.conversations import ConversationLine
from oncegate.inspection.stories import Difference, Story, StoryLine, StrategyDecision, name_of
from oncegate.journal import OPERATOR, Journal, Row
from oncegate.settings import Settings
from oncegate.settings.schema import SETTINGS
from oncegate.times import readable_time, rfc3339

JOURNAL: Final = SETTINGS["journal"]
MOST_SHOWN: Final = 100  # rows of a table
_MOST_PATHS: Final = 20
_LONGEST_VALUE: Final = 60  # characters
_DATE: Final = len("2026-01-01 ")
_WHOLE_BODY: Final = "(whole body)"


def journal_or_reason(settings: Settings) -> tuple[Journal | None, str]:
    """Opens the journal for reading. Without a journal, returns the reason why there is none."""
    try:
        return settings.open_journal(), ""
    except (NoStore, SettingError) as error:
        return None, str(error)
    except StoreError as error:
        return None, f"the journal cannot be read: {error}"


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────


def row_fields(row: Row) -> dict[str, Any]:
    """The fields of a row for programs. Durations are in milliseconds. `row` is a cursor; it is text, because it does
    not fit into the numbers of JavaScript."""
    return {
        "row": str(row.id),
        "at": rfc3339(row.at),
        "status": row.status,
        "kind": row.kind,
        "route": row.place,
        "namespace": row.namespace,
        "source": row.source,
        "type": row.type,
        "event_id": row.event_id,
        "delivery_id": row.delivery_id,
        "key": row.key_text,
        "strategy": row.strategy or None,
        "entity": row.entity,
        "part": row.part,
        "state": row.state,
        "stale": row.stale,
        "occurred_at": rfc3339(row.occurred_at),
        "lag_ms": None if row.lag is None else round(row.lag / 1_000, 3),
        "attempt": row.attempt or None,
        "took_ms": None if row.took is None else round(row.took / 1_000, 3),
        "reason": row.reason,
        "original": row.original,
        "original_at": rfc3339(row.original_at),
        "dead_letter": row.kept.hex() or None,
        "worker": row.worker or None,
        "count": row.count,
        "since": rfc3339(row.since),
    }


def outcome_text(row: Row) -> str:
    """The status of a row, with its kind, and with the number of copies that it stands for. If an operator changed
    several events, the row of each event has no place, and the row of the action has one."""
    kind = "" if row.kind is None else f" ({row.kind})"
    count = "" if row.count == 1 else f", {row.counted}"
    of_several = ", one of several events" if row.status == OPERATOR and not row.place else ""
    return f"{row.status}{kind}{count}{of_several}"


def delivery_sentence(row: Row, id_: str) -> str:
    """What happened to the delivery of this row, which was found by an id."""
    which = "This delivery" if id_ in (row.delivery_id, str(row.id)) else "The latest delivery"
    return f"{which}, at {readable_time(row.at)}: {row.reason}"


def times_of(moments: Sequence[int]) -> list[str]:
    """The times of rows for a table. On a terminal, if all rows are of one day, this day is printed above the table and
    left out of the times."""
    times = [readable_time(moment) or "" for moment in moments]
    if not sys.stdout.isatty() or len({time[:_DATE] for time in times}) != 1:
        return times
    print_text(f"{times[0][:_DATE].strip()} (UTC)")
    return [time[_DATE:] for time in times]


def show_timeline(lines: Sequence[StoryLine | ConversationLine], *, by_key: bool) -> None:
    """Print rows as a table, oldest first: at most the newest 100. With `by_key`, all rows have the same key."""
    shown = lines[-MOST_SHOWN:]
    times = times_of([line.row.start for line in shown])
    headers = ("time", "after", "outcome", "event id", "delivery id", "state", "attempt", "took", "reason")
    rows = []
    for time, line in zip(times, shown, strict=True):
        row = line.row
        took = None if row.took is None else spoken(row.took)
        after = None if line.gap is None else spoken(line.gap)
        mark = f", {line.mark}" if isinstance(line, ConversationLine) and line.mark is not None else ""
        what = (f"{outcome_text(row)}{mark}", row.event_id, row.delivery_id, row.state)
        rows.append((time, after, *what, row.attempt or None, took, row.reason))
    first, last = ("after", "event id") if by_key else ("event id", "after")
    essential = ("time", "outcome", first, "reason", "attempt", "took", "state", last, "delivery id")
    show_table(headers, rows, essential, required=("outcome", "reason"))
    if len(lines) > len(shown):
        print_text(f"Showing the newest {len(shown)} of {len(lines):,} rows; --output json has all of them.")


# ── stories ───────────────────────────────────────────────────────────────────────────────────────────────


def show_story(story: Story, lines: Sequence[StoryLine | ConversationLine] | None = None) -> None:
    """Print what the journal has about an event: the rows, the original and the difference, the key, and the other
    strategies. `lines` are the rows of several events, if other events match, too."""
    print()
    deliveries = f"{story.deliveries_text} of {name_of(story.focus)}{_from(story)}"
    if lines is None:
        print_text(f"Journal: {deliveries}.")
        show_timeline(story.lines, by_key=True)
        print()
    else:
        print_text(f"Journal: {len(lines):,} rows of several events.")
        show_timeline(lines, by_key=False)
        print()
        print_text(f"The event of the first line: {deliveries}.")
    show_facts(_facts(story))
    if story.difference is not None and story.difference.values:
        print()
        headers = ("field", "original", "this delivery")
        shown = story.difference.values[:_MOST_PATHS]
        rows = [(each.path or _WHOLE_BODY, _short(each.original), _short(each.value)) for each in shown]
        show_table(headers, rows, essential=headers)
        if len(story.difference.values) > len(shown):
            count = len(story.difference.values)
            print_text(f"Showing {len(shown)} of {count} fields; --output json has all of them.")


def _from(story: Story) -> str:
    if story.is_cut:
        return f", the newest {len(story.lines):,} rows"
    return f" ({story.missing})" if story.missing else ""


def _short(text: str | None) -> str:
    if text is None:
        return "(none)"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _facts(story: Story) -> dict[str, Any]:
    facts: dict[str, Any] = {"this delivery" if story.is_copy else "delivery": _delivery_text(story.focus)}
    original, replay = story.original, story.replay
    if replay is not None:
        facts["replay"] = f"{replay.reason} The event has the key {replay.key_text}. By {replay.worker}."
    if original is not None and story.is_copy:
        facts["original"] = _delivery_text(original)
    if story.difference is not None:
        facts["difference"] = _difference_text(story.difference)
    if story.key is not None:
        parts = msgspec.json.encode(story.key.parts).decode() if story.key.parts is not None else None
        facts["key parts"] = f"{story.key.strategy}: {parts or f'not known, because {story.key.reason}'}"
    if story.strategies:
        decided = [f"{each.strategy}: {each.text}" for each in story.strategies]
        rows = "1 earlier row" if story.compared == 1 else f"{story.compared} earlier rows"
        facts["other strategies"] = "\n".join([*decided, f"compared with {rows} of this key, event id or entity"])
    return facts


def _delivery_text(row: Row) -> str:
    if not row.status:
        return f"{name_of(row)}, the event of the file"
    delivery = f", delivery {row.delivery_id}" if row.delivery_id else ""
    return f"{name_of(row)}{delivery}, {outcome_text(row)} at {readable_time(row.at)}"


def _difference_text(difference: Difference) -> str:
    if difference.paths is None:
        return f"not known, because {difference.reason}"
    if not difference.paths:
        return "none: the content is the same"
    paths = ", ".join(path or _WHOLE_BODY for path in difference.paths[:_MOST_PATHS])
    more = len(difference.paths) - _MOST_PATHS
    why = "" if difference.reason is None else f" (values not known, because {difference.reason})"
    return f"{paths}{f' and {more} more' if more > 0 else ''}{why}"


def story_fields(story: Story) -> dict[str, Any]:
    """The story for programs."""
    difference, key = story.difference, story.key
    return {
        "sentence": story.sentence,
        "deliveries": story.deliveries,
        "is_complete": story.is_complete,
        "is_cut": story.is_cut,
        "row": row_fields(story.focus) if story.focus.status else None,
        "original": None if story.original is None else row_fields(story.original),
        "difference": None if difference is None else msgspec.to_builtins(difference),
        "key": None if key is None else msgspec.to_builtins(key),
        "strategies": [_strategy_fields(each) for each in story.strategies],
        "compared": story.compared,
        "rows": [line_fields(line) for line in story.lines],
    }


def _strategy_fields(decided: StrategyDecision) -> dict[str, Any]:
    row = decided.row
    joined = {} if row is None else {"row": str(row.id), "event_id": row.event_id, "at": rfc3339(row.at)}
    return {"strategy": decided.strategy, "decision": decided.decision, "earlier": joined or None}


def line_fields(line: StoryLine | ConversationLine) -> dict[str, Any]:
    """A row of a timeline for programs. `gap_ms` is the time since the row before it."""
    fields = row_fields(line.row) | {"gap_ms": None if line.gap is None else round(line.gap / 1_000, 3)}
    if isinstance(line, StoryLine):
        return fields | {"is_arrival": line.is_arrival, "is_attempt": line.is_attempt}
    return fields | {"mark": line.mark, "mark_of": None if line.of is None else line.of.event_id}
