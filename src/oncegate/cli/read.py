"""`oncegate read`: show the events of files, and compare key strategies."""

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from oncegate import keys
from oncegate.cli import exit_codes
from oncegate.cli.commands import CliCommand, FileName
from oncegate.cli.event_files import FoundEvent, check_readable, events_of
from oncegate.cli.options import number, output_option, with_settings
from oncegate.cli.output import print_copyable, print_indented, print_text, show_json_stream, show_table
from oncegate.durations import spoken, times
from oncegate.errors import SettingError
from oncegate.events import Event
from oncegate.inspection.similar_events import SimilarEvents, alias_setting
from oncegate.inspection.strategy_comparison import (
    Column,
    Group,
    Made,
    NamedStrategy,
    StrategyComparison,
    advice,
    listed,
)
from oncegate.settings import Settings
from oncegate.settings.parsing import strategy_of
from oncegate.settings.schema import READ
from oncegate.times import microseconds_of, readable_time, rfc3339

_ALWAYS = ("auto", "event_id", "content", 'state_change("500ms")')
_MOST_GROUPS = 10


@click.command(
    cls=CliCommand,
    short_help="Show events and compare key strategies.",
    examples=(
        "oncegate read events.jsonl",
        """oncegate read events.jsonl --key 'fields("data.case.id")' --limit 10""",
        "cat events.jsonl | oncegate read - --output json",
    ),
)
@click.argument("files", metavar="FILE...", type=FileName(), nargs=-1, required=True)
@click.option(
    "--key", "strategies", metavar="STRATEGY", multiple=True, help="An additional strategy to compare; repeatable."
)
@click.option(
    "--limit",
    type=number(),
    metavar="NUMBER",
    default=100,
    show_default=True,
    help="Maximum number of events to list.",
)
@with_settings(*READ)
@output_option
def read(files: tuple[str, ...], strategies: tuple[str, ...], limit: int, settings: Settings, output: str) -> None:
    """Show each event of the files, its key under every strategy, and the events that share a key.

    A FILE holds one JSON document, an array, or one document per line; - reads stdin. Nothing is claimed, run or
    stored. Exits with 1 if the files hold no event, and with 2 if a file cannot be read.
    """
    comparison, similar = StrategyComparison(_strategies(settings, strategies)), SimilarEvents()
    check_readable(files)

    def keyed() -> Iterator[tuple[FoundEvent, list[Made]]]:
        for found in events_of(files, settings.hints()):
            similar.add(found.event)
            yield found, comparison.add(found.event)

    if output == "json":
        events = (_fields(found, made) for found, made in keyed())
        show_json_stream("events", events, lambda: _summary(comparison, similar))
    else:
        _show(keyed(), comparison, similar, limit)
    if not comparison.count:
        raise click.exceptions.Exit(exit_codes.FAILED)


def _strategies(settings: Settings, names: tuple[str, ...]) -> list[NamedStrategy]:
    """The strategies to compare, each once: those that are always compared, the strategy of the settings, and the
    strategies in `names`."""
    found = {name: NamedStrategy(name, strategy_of(name, "")) for name in _ALWAYS}
    if settings.chosen("key") is not None:
        own = keys.strategy(settings.strategy())
        found.setdefault(settings["key"], NamedStrategy(settings["key"], own, own=True))
    for name in names:
        found.setdefault(name.strip(), NamedStrategy(name.strip(), _strategy(name.strip()), own=True))
    return list(found.values())


def _strategy(name: str) -> keys.Strategy:
    made = strategy_of(name, "--key")
    try:
        return keys.strategy(made)
    except SettingError as error:
        raise SettingError(f"--key: {error}") from error


def _show(
    events: Iterator[tuple[FoundEvent, list[Made]]], comparison: StrategyComparison, similar: SimilarEvents, limit: int
) -> None:
    """Print tables of the first events and their keys, then the results for all events."""
    shown: list[tuple[FoundEvent, list[Made]]] = []
    total = 0
    for found, made in events:
        total = found.number
        if total <= limit:
            shown.append((found, made))
    if shown:
        _show_events([found for found, _ in shown])
        _show_keys(shown)
    if total > limit:
        print_text(f"Showing the first {limit} of {total} events; use --limit to see more.")
        print()
    if comparison.count > 1:
        _show_columns(comparison, similar)
        _show_similar(comparison, similar)
    print_text(advice(comparison))


def _show_events(events: list[FoundEvent]) -> None:
    noted = any(found.event.problem or found.event.frame for found in events)
    rows = [_row(found) for found in events]
    headers = ("event", "place", "source", "type", "entity", "part", "state", "time", "id", "problem")
    essential = ("event", "state", "problem", "type", "entity", "time", "id")
    last = None if noted else -1
    show_table(headers[:last], [row[:last] for row in rows], essential, required=("state", "problem"))
    print()


def _row(found: FoundEvent) -> tuple[Any, ...]:
    event = found.event
    problem = f"not an event: {event.frame}" if event.frame else event.problem
    source = None if problem else event.source
    what = (event.type, event.entity, event.part, event.state, _time(event), event.id)
    return found.number, found.place, source, *what, problem


def _time(event: Event) -> str | None:
    return None if event.occurred_at is None else readable_time(microseconds_of(event.occurred_at))


def _show_keys(shown: list[tuple[FoundEvent, list[Made]]]) -> None:
    rows = [_key_row(found, made) for found, each in shown for made in each]
    if rows:
        headers = ("key", "event", "strategy", "made of")
        show_table(headers, rows, essential=headers, required=("made of",))
        print()


def _key_row(found: FoundEvent, made: Made) -> tuple[Any, ...]:
    if made.key is None:
        return "none", found.number, made.strategy, made.missing
    parts = msgspec.json.encode(made.key.parts).decode()
    joins = f", joins {made.merged.first}" if made.emission is not None and made.merged is not None else ""
    return str(made.key), found.number, made.strategy, f"{parts}{joins}"


def _show_columns(comparison: StrategyComparison, similar: SimilarEvents) -> None:
    """Print a line for each strategy, and a line for each group of events that share a key."""
    width = max(len(column.name) for column in comparison.columns)
    for column in comparison.columns:
        print_indented(f"{column.name.ljust(width)}  {_verdict(column, comparison.count)}", 0)
        for line in _details(column, similar):
            print_indented(line, width + 4)
    print()


def _verdict(column: Column, count: int) -> str:
    keyless = len(column.keyless)
    if keyless == count:
        return "no key for any event"
    found = f"{times(column.distinct, 'different event')} among {count - keyless}"
    return found if column.merged or keyless else f"all {column.distinct} events are different"


def _details(column: Column, similar: SimilarEvents) -> Iterator[str]:
    groups = column.groups
    for group in groups[:_MOST_GROUPS]:
        yield f"{listed(group.events)} share a key: {_relation(group)}{_differing(similar, *_unequal(group))}"
    if len(groups) > _MOST_GROUPS:
        yield f"and {len(groups) - _MOST_GROUPS} more groups"
    for reason, numbers in list(column.missing.items())[:_MOST_GROUPS]:
        yield f"{listed(numbers)}: {reason}"
    if column.splits:
        yield f"{listed(column.splits)} arrived too late to separate two events that were joined (timeline.split)"


def _show_similar(comparison: StrategyComparison, similar: SimilarEvents) -> None:
    """Print the events with one entity and state that no strategy joins, and the states that may have two names."""
    same, names = similar.same_state(comparison.is_joined), similar.two_names(comparison.is_joined)
    for each in same[:_MOST_GROUPS]:
        differing = _differing(similar, *each.events)
        print_text(f"{listed(each.events)} report the same state ({each.state}), {spoken(each.apart)} apart{differing}")
    if len(same) > _MOST_GROUPS:
        print_text(f"and {len(same) - _MOST_GROUPS} more pairs with the same state")
    for pair in names[:_MOST_GROUPS]:
        states = " and ".join(pair.states)
        print_text(f"{listed(pair.events)} report the states {states} of one entity, {spoken(pair.apart)} apart")
    if names:
        print_text("If these names mean the same state, set this key, or try it with --key:")
        print_copyable(f"    {_setting(alias_setting(names))}")
    if same or names:
        print()


def _setting(strategy: str) -> str:
    """The line of the settings file."""
    return f"key = '{strategy}'" if "'" not in strategy else f"key = {msgspec.json.encode(strategy).decode()}"


def _unequal(group: Group) -> list[int]:
    """The first event of a group, and the events whose content differs from it."""
    others = [number for number, each in zip(group.events[1:], group.merged, strict=True) if not each.same_content]
    return [group.events[0], *others]


def _differing(similar: SimilarEvents, *events: int) -> str:
    paths = similar.differing(*events)
    return f"; they differ at {', '.join(paths)}" if paths else ""


def _relation(group: Group) -> str:
    kinds = ", ".join(dict.fromkeys(merged.kind for merged in group.merged if not merged.conflict))
    if group.same_content:
        return f"same content ({kinds})"
    conflicts = [number for number, each in zip(group.events[1:], group.merged, strict=True) if each.conflict]
    if not conflicts:
        return f"different content, treated as duplicates ({kinds})"
    also = f"; the others have the same content ({kinds})" if kinds else ""
    return f"different content, so {listed(conflicts)} would be a conflict{also}"


def _fields(found: FoundEvent, made: list[Made]) -> dict[str, Any]:
    """An event and its keys, for JSON."""
    event = found.event
    return {
        "number": found.number,
        "file": found.file,
        "line": found.line,
        "index": found.index,
        "source": event.source,
        "type": event.type,
        "entity": event.entity,
        "part": event.part,
        "state": event.state,
        "occurred_at": None if event.occurred_at is None else rfc3339(microseconds_of(event.occurred_at)),
        "id": event.id,
        "replay": event.evidence.replay,
        "problem": event.problem,
        "frame": event.frame,
        "keys": [_key_fields(each) for each in made],
    }


def _key_fields(made: Made) -> dict[str, Any]:
    key, merged = made.key, made.merged
    return {
        "strategy": made.strategy,
        "key": None if key is None else str(key),
        "emission": None if made.emission is None else str(made.emission),
        "parts": None if key is None else key.parts,
        "binds": None if key is None else key.binds,
        "missing": made.missing,
        "same_as": None if merged is None else merged.first,
        "kind": None if merged is None or merged.conflict else merged.kind,
        "conflict": merged is not None and merged.conflict,
        "stale": made.stale,
        "splits": made.splits,
    }


def _summary(comparison: StrategyComparison, similar: SimilarEvents) -> dict[str, Any]:
    same, names = similar.same_state(comparison.is_joined), similar.two_names(comparison.is_joined)
    return {
        "strategies": [_column_fields(column, similar) for column in comparison.columns],
        "same_state": [
            {"events": each.events, "state": each.state, "differs_in": similar.differing(*each.events)} for each in same
        ],
        "two_names": [{"events": each.events, "states": each.states} for each in names],
        "suggested_key": alias_setting(names) if names else None,
        "advice": advice(comparison),
    }


def _column_fields(column: Column, similar: SimilarEvents) -> dict[str, Any]:
    return {
        "strategy": column.name,
        "distinct": column.distinct,
        "groups": [
            {
                "events": each.events,
                "same_content": each.same_content,
                "differs_in": similar.differing(*_unequal(each)),
            }
            for each in column.groups
        ],
        "missing": [{"reason": reason, "events": numbers} for reason, numbers in column.missing.items()],
        "splits": column.splits,
    }
