"""Check the settings of the gate."""

from collections.abc import Iterator
from typing import Final

from oncegate.clocks import wall
from oncegate.doctor.facts import Facts
from oncegate.doctor.findings import Finding, error, note, warning
from oncegate.durations import spoken
from oncegate.previous.base import read_place_url
from oncegate.settings.routes import UNSIGNED

_DAY: Final = 86_400
_SECOND: Final = 1_000_000
_ASYNC_AGE: Final = 6 * 3_600  # seconds; Lambda keeps an asynchronous event for at most six hours
_LEASES: Final = 10
_USUAL_DAYS: Final = 7
_TOKENS: Final = ("bearer", "api-key")  # a token authenticates the sender, but it does not sign the body


def retention(facts: Facts) -> Iterator[Finding]:
    """Retention is longer than the time during which an event can be redelivered."""
    horizon = _horizon(facts)
    if facts.config.retention > horizon * _SECOND:
        return
    yield error(
        "retention",
        f"a processed event is remembered for {spoken(facts.config.retention)}, but can be redelivered for"
        f" {spoken(horizon * _SECOND)}",
        "A redelivery after the retention takes effect a second time.",
        _longer_retention(facts),
    )


def _longer_retention(facts: Facts) -> dict[str, str]:
    """Return the setting of the retention. The value is long enough for both rules about the retention, so that the
    command of one rule does not undo the command of the other."""
    days = max(_horizon(facts) // _DAY + 1, -(-_LEASES * facts.config.lease // (_DAY * _SECOND)), _USUAL_DAYS)
    return {"retention": f"{days}d"}


def _horizon(facts: Facts) -> int:
    """Return for how many seconds an event can be redelivered. This is the time for which EventBridge retries, plus the
    time for which the queue or Lambda keeps the event."""
    retried = max((target.age for rule in facts.rules for target in rule.targets), default=0)
    if facts.queue is not None:
        return retried + facts.queue.retention
    return retried + (_ASYNC_AGE if facts.function is not None else 0)


def replays(facts: Facts) -> Iterator[Finding]:
    """With on_replay="duplicate", no archive keeps events for longer than the retention."""
    if facts.config.on_replay == "run":
        return
    days = facts.config.retention // (_DAY * _SECOND)
    for archive in facts.archives:
        if archive.days == 0 or archive.days * _DAY * _SECOND > facts.config.retention:
            kept = f"for {archive.days} d" if archive.days else "forever"
            choices = ["set on_replay=run to run replays again"]
            choices += [f"set retention={archive.days}d to remember events for as long"] if archive.days else []
            choices += [f"keep archived events for {days} d only, which deletes older ones"] if days else []
            yield warning(
                archive.name,
                f"the archive of the bus {archive.bus} keeps events {kept}, and a processed event is remembered for"
                f" {spoken(facts.config.retention)}",
                "A replay of an older event takes effect again, although on_replay is duplicate.",
                facts.aws("events describe-archive", archive_name=archive.name),
                f"Choose one: {'; or '.join(choices)}.",
            )


def attempts(facts: Facts) -> Iterator[Finding]:
    """Retention is at least ten times the lease, so that attempts are counted across retries."""
    config = facts.config
    if config.marks_first or config.retention >= _LEASES * config.lease:
        return
    yield warning(
        "retention",
        f"the retention is {spoken(config.retention)}, less than {_LEASES} times the lease of {spoken(config.lease)}",
        "The record of a failed event expires between retries: its attempts start at one again, and it never becomes a"
        " dead letter.",
        _longer_retention(facts),
    )


def signed(facts: Facts) -> Iterator[Finding]:
    """The sender of a route signs every part of the key."""
    for route in facts.routes:
        if route.signature in (None, UNSIGNED):
            yield warning(
                route.path,
                f"key={route.key} uses parts that are not signed: the body, and the ce-… headers of CloudEvents",
                "Anyone who can reach the address can forge an event with the key of another event; the genuine event"
                " is then a duplicate or a conflict.",
                "oncegate config check",
                "Set the signature scheme of the sender, and the secret that you share with the sender: see"
                " docs/guide/signatures.md.",
            )
        elif route.signature in _TOKENS:
            yield note(
                route.path,
                f"key={route.key} uses the body, which signature={route.signature} does not sign",
                "Anyone who knows the token can forge an event with any key.",
                "oncegate config check",
                "Use a signature if the sender supports one. Otherwise accept the token only over TLS.",
            )


def previous(facts: Facts) -> Iterator[Finding]:
    """The time `until` in the URL of `previous` has not passed."""
    if facts.config.previous is None:
        return
    until = read_place_url(facts.config.previous).until
    if until is None or wall() < until:
        return
    yield note(
        "previous",
        f"the look-ups in the old place ended {spoken(wall() - until)} ago, at the time until of its URL",
        "A mark that the old program wrote after until was chosen is no longer found: its event would run again.",
        "oncegate config show",
        "Check that the old program had stopped before until was chosen. Then remove the setting previous.",
    )


RULES: Final = (retention, replays, attempts, signed, previous)
