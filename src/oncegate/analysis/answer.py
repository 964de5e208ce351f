"""The answer of an analysis in sentences, and the settings that follow from it."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from oncegate.analysis.analysis import Analysis, TypeAnalysis
from oncegate.analysis.examples import Examples, ShownExample
from oncegate.analysis.judgement import KeyJudgement
from oncegate.analysis.timing import dynamodb_price, store_sizes
from oncegate.durations import microseconds
from oncegate.settings import load
from oncegate.times import readable_time

# What tutorials call the entity and the time of an event.
_ENTITIES: Final = {"genesys": "conversationId", "cxone": "the case or contact id"}
_CONVERSATIONS: Final = ("conversation", "openmessaging")  # types of Genesys events whose entity is a conversation
# The keys of tutorials that a sentence names, the most plausible first.
_NAMED: Final = ("entity + type + time", "entity + time", "entity + state", "envelope id", "entity")
_MOST_PATHS: Final = 3
_UNITS: Final = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def spoken_name(name: str, source: str, kind: str | None = None) -> str:
    """A candidate as users call it: `conversationId + timestamp` for the tutorial key `entity + time` of events whose
    entity is a conversation."""
    if not name.startswith("entity"):
        return f"the {name}" if name in ("envelope id", "md5 of the document") else name
    entity = _ENTITIES.get(source, "the entity")
    if source == "genesys" and not any(word in (kind or "") for word in _CONVERSATIONS):
        entity = "the entity"
    spoken = name.replace("entity", entity, 1)
    return spoken.replace("+ time to the minute", "+ minute").replace("+ time", "+ timestamp")


def counted(count: int, noun: str) -> str:
    """A number with its noun, such as `1 copy` or `1,204 copies`."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("o") else f"{noun}s"
    return f"{count:,} {plural}"


def size_text(count: float) -> str:
    """A number of bytes, such as `1.5 GB`."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} bytes"


# ── what the recording holds ──────────────────────────────────────────────────────────────────────────────


def facts(analysis: Analysis) -> dict[str, str | None]:
    """What is certain and what is inferred about the deliveries."""
    traffic, read = analysis.traffic, analysis.read
    certain = Counter[str]()
    for each in analysis.types:
        for copy in each.copies:
            certain[copy.kind] += 0 if copy.is_inferred else copy.count
    return {
        "deliveries": f"{traffic.deliveries:,} of {counted(len(analysis.types), 'type')}{period(analysis)}",
        "events": f"{traffic.events:,}",
        "copies": f"{traffic.duplicates:,} certain{_listed(certain)}",
        "probable": f"{counted(traffic.inferred, 'copy')} by inference: {INFERRED}" if traffic.inferred else None,
        "possible": f"{counted(traffic.possible, 'delivery')} that may be a copy or a different event: {POSSIBLE}"
        if traffic.possible
        else None,
        "conflicts": f"{counted(traffic.conflicts, 'delivery')} with the id of another event, and other content"
        if traffic.conflicts
        else None,
        "unreadable": f"{counted(read.unreadable, 'document')}; left out" if read.unreadable else None,
        "no events": f"{counted(read.frames, 'message')} of a transport; left out" if read.frames else None,
    }


INFERRED: Final = "the same state within 5 s, only times differ; or an equal body with the same send time"
POSSIBLE: Final = "an equal body without an event time; or other content with the same state within 5 s"


def period(analysis: Analysis) -> str:
    begin, end = readable_time(analysis.timing.begin), readable_time(analysis.timing.end)
    if begin is None or end is None:
        return ""
    return f", {begin[:16]} to {end[11:16] if begin[:10] == end[:10] else end[:16]} UTC"


def _listed(counts: Counter[str]) -> str:
    named = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common() if count)
    return f" ({named})" if named else ""


# ── sentences ─────────────────────────────────────────────────────────────────────────────────────────────


def type_sentence(found: TypeAnalysis, examples: Examples | None = None) -> str:
    """What to use for a type, and what a key of a tutorial would do."""
    sentence = f"Use {found.best.name}: {_achievement(found.best, found)}"
    warning = next(_warnings(found, examples), None)
    return f"{sentence}; {warning}." if warning else f"{sentence}."


def _achievement(judgement: KeyJudgement, found: TypeAnalysis) -> str:
    caught = []
    if found.traffic.duplicates:
        caught.append(f"{judgement.caught:,} of {counted(found.traffic.duplicates, 'duplicate')}")
    if judgement.inferred:
        caught.append(f"{judgement.inferred:,} of {counted(found.traffic.inferred, 'probable copy')}")
    does = [
        f"merges {counted(judgement.wrong, 'different event')}" if judgement.wrong else "",
        f"has no key for {counted(judgement.keyless, 'delivery')}" if judgement.keyless else "",
        f"merges {counted(judgement.doubtful, 'delivery')} that may be different events" if judgement.doubtful else "",
    ]
    said = " and ".join(filter(None, does)) or "merges nothing else"
    if not caught:
        return f"there are no duplicates, and it {said}"
    return f"it catches {' and '.join(caught)}, and {said}"


def _warnings(found: TypeAnalysis, examples: Examples | None) -> Iterator[str]:
    """What is wrong with keys of tutorials, the most plausible key first."""
    by_name = {each.name: each for each in found.judgements}
    tutorials = [by_name[name] for name in _NAMED if name in by_name]
    for judgement in tutorials:
        if judgement.wrong:
            shown = None if examples is None else examples.show(judgement.lost_example)
            name = spoken_name(judgement.name, found.source, found.type)
            yield f"{name} would lose {counted(judgement.wrong, 'event')}{_such_as(shown)}"
    for judgement in tutorials:
        if judgement.missed:
            name = spoken_name(judgement.name, found.source, found.type)
            yield f"{name} would run {counted(judgement.missed, 'copy')} again"


def _such_as(example: ShownExample | None) -> str:
    return "" if example is None else f", e.g. {example.second} ({difference(example)})"


def difference(example: ShownExample) -> str:
    """In what two deliveries differ: in their types, or in members of their bodies."""
    if example.first_type != example.second_type:
        return f"{short_type(example.second_type)} after {short_type(example.first_type)}"
    paths = [member.path for member in example.members]
    more = " and more" if len(paths) > _MOST_PATHS else ""
    return f"it differs at {', '.join(paths[:_MOST_PATHS])}{more}" if paths else "the bodies are equal"


def short_type(name: str | None) -> str:
    """The end of a type that is a topic: `acd.end` for `v2.detail.events.conversation.{id}.acd.end`."""
    return "an event without a type" if name is None else name.rpartition("{id}.")[2] or name


def total_sentence(analysis: Analysis) -> str:
    """The recommendation for all types together."""
    best, traffic = analysis.recommended, analysis.traffic
    caught = [f"{best.caught:,} of {counted(traffic.duplicates, 'duplicate')}"]
    if traffic.inferred:
        caught.append(f"{best.inferred:,} of {counted(traffic.inferred, 'probable copy')}")
    merges = f"merges {counted(best.wrong, 'different event')}" if best.wrong else "merges no two different events"
    said = [f"For all types together, use {best.name}: it catches {' and '.join(caught)}, and {merges}."]
    if best.conflicts and best.binds:
        said.append(f"{counted(best.conflicts, 'delivery')} with other content would be dead letters (conflicts).")
    if best.doubtful:
        said.append(f"It merges {counted(best.doubtful, 'delivery')} that may be different events.")
    return " ".join(filter(None, [*said, _echo_sentence(analysis)]))


def _echo_sentence(analysis: Analysis) -> str | None:
    """Why a strategy that catches more echoes is not recommended."""
    best = analysis.recommended
    more = [each for each in analysis.totals if each.is_setting and each.inferred > best.inferred]
    if not more:
        return None
    found = min(more, key=lambda each: each.rank)
    cost = found.wrong + found.keyless + found.dropped
    return (
        f"{found.name} would also catch {counted(found.inferred, 'probable copy')}, but would drop"
        f" {counted(cost, 'delivery')} with other content without a trace; use it on a route of its own, for the types"
        " above that name it."
    )


def current_sentence(analysis: Analysis) -> str | None:
    """What the current settings do; None if they are what is recommended."""
    found = analysis.of(analysis.current)
    if analysis.would_lose:
        parts = [f"{counted(found.wrong, 'event')} with the key of a different event"] if found.wrong else []
        parts += [f"{counted(found.keyless, 'delivery')} without a key"] if found.keyless else []
        return f"The current key {found.name} would lose {' and '.join(parts)}."
    if found.name == analysis.recommended.name:
        return None
    return (
        f"The current key {found.name} loses no event; it catches {counted(found.caught, 'duplicate')} and"
        f" {counted(found.inferred, 'probable copy')}."
    )


def time_sentences(analysis: Analysis) -> list[str]:
    """Retention, window, order, and what a store needs."""
    timing, retention = analysis.timing, analysis.retention
    said = [f"Retention {retention.duration}: {retention.reason}."]
    if timing.longest_gap > microseconds(analysis.current_retention):
        said.append(
            f"The current retention {analysis.current_retention} is shorter than that gap: such a copy would run again."
        )
    copies = sum(copy.count for each in analysis.types for copy in each.copies)
    if timing.known_gaps < copies:
        said.append(
            f"The gaps of {counted(copies - timing.known_gaps, 'copy')} are not known: the recording has no time of"
            " arrival for them."
        )
    if timing.echoes:
        said.append(f"Window {analysis.window.duration}: {analysis.window.reason}.")
    if timing.ordered:
        late, ties = timing.late / timing.ordered, timing.ties / timing.ordered
        said.append(
            f"Order: {late:.1%} of events arrive after a later event of their entity, and {ties:.1%} have the same time"
            " as another event of their entity."
        )
    said += _store_sentences(analysis)
    return said


def _store_sentences(analysis: Analysis) -> list[str]:
    timing, traffic = analysis.timing, analysis.traffic
    if timing.span < 60_000_000:
        return []
    rate, kept = traffic.events / (timing.span / 1e6), microseconds(analysis.retention.duration)
    sizes = ", ".join(f"{each.store} {size_text(each.bytes)}" for each in store_sizes(rate, kept))
    copies = traffic.duplicates + traffic.inferred
    price, formula = dynamodb_price(traffic.events, copies, timing.span, kept)
    return [
        f"Store: {rate:,.2f} events per second for {analysis.retention.duration} need: {sizes}.",
        f"DynamoDB costs about ${price:,.2f} a month: {formula} (us-east-1, on demand; check the current prices).",
    ]


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────


def settings_text(analysis: Analysis) -> str:
    """The settings file that the analysis recommends. It is loaded once, so that a user can use it as it is."""
    traffic = analysis.traffic
    key = analysis.recommended.name
    quoted = f"'{key}'" if "'" not in key else f'"""{key}"""'
    text = (
        f"# Chosen by oncegate analyze from {traffic.deliveries:,} deliveries{period(analysis)}.\n"
        f"key = {quoted}\n"
        f'retention = "{analysis.retention.duration}"\n'
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "oncegate.toml"
        path.write_text(text, encoding="utf-8")
        load(path, environ={})
    return text
