"""Rules for what the gate itself was told."""

from collections.abc import Iterator
from typing import Final

from oncegate.doctor.facts import Facts
from oncegate.doctor.findings import Finding, error, note, warning
from oncegate.durations import spoken
from oncegate.settings.routes import UNSIGNED

_DAY: Final = 86_400
_SECOND: Final = 1_000_000
_ASYNC_AGE: Final = 6 * 3_600  # for how long Lambda keeps what it was handed
_LEASES: Final = 10
_TOKENS: Final = ("bearer", "api-key")  # they prove who sends, and say nothing of what is sent


def retention(facts: Facts) -> Iterator[Finding]:
    """A processed event is remembered for longer than it can be delivered again."""
    horizon = _horizon(facts)
    if facts.terms.retention > horizon * _SECOND:
        return
    needed = horizon // _DAY + 1
    yield error(
        "retention",
        f"a processed event is remembered for {spoken(facts.terms.retention)}, but can be delivered again for"
        f" {spoken(horizon * _SECOND)}",
        "A copy that comes after its original was forgotten takes effect a second time.",
        f"export ONCEGATE_RETENTION={needed}d",
    )


def _horizon(facts: Facts) -> int:
    """For how many seconds a delivery can come again: as long as EventBridge tries, and then as long as it waits."""
    tried = max((target.age for rule in facts.rules for target in rule.targets), default=0)
    if facts.queue is not None:
        return tried + facts.queue.retention
    return tried + (_ASYNC_AGE if facts.function is not None else 0)


def replays(facts: Facts) -> Iterator[Finding]:
    """Nothing can be replayed from an archive that was forgotten already, if replays are to be duplicates."""
    if facts.terms.on_replay == "run":
        return
    days = max(1, facts.terms.retention // (_DAY * _SECOND))
    for archive in facts.archives:
        if archive.days == 0 or archive.days * _DAY * _SECOND > facts.terms.retention:
            kept = f"for {archive.days} d" if archive.days else "for ever"
            yield warning(
                archive.name,
                f"the archive of bus {archive.bus} keeps events {kept}, and a processed event is remembered for"
                f" {spoken(facts.terms.retention)}",
                "Older events take effect again when they are replayed, although on_replay says duplicate.",
                facts.aws("events update-archive", archive_name=archive.name, retention_days=str(days)),
            )


def attempts(facts: Facts) -> Iterator[Finding]:
    """Retention is so much longer than the lease that attempts are counted over all retries."""
    terms = facts.terms
    if terms.marks_first or terms.retention >= _LEASES * terms.lease:
        return
    yield warning(
        "retention",
        f"a key is forgotten after {spoken(terms.retention)}, little more than its lease of {spoken(terms.lease)}",
        "An event that fails is new again soon after: its attempts start from one, and it is never buried.",
        "export ONCEGATE_RETENTION=7d",
    )


def signed(facts: Facts) -> Iterator[Finding]:
    """Every part of a route's key is signed by its sender."""
    for route in facts.routes:
        mend = "oncegate config check"
        if route.path == "/events":
            mend = "oncegate serve --signature standard-webhooks --secret-env WEBHOOK_SECRET"
        if route.signature in (None, UNSIGNED):
            yield warning(
                route.path,
                f"key={route.key} is made of parts that nobody signs: the body, and the ce-… headers of CloudEvents",
                "Anyone who reaches the address can send an event under the key of another: the genuine one is then"
                " taken for a duplicate or a conflict. Name the signature of the sender and its secret.",
                mend,
            )
        elif route.signature in _TOKENS:
            yield note(
                route.path,
                f"key={route.key} is made of the body, which signature={route.signature} does not sign",
                "Anyone who has seen the token can send an event under any key. Prefer a signature where the sender has"
                " one, and let only TLS carry the token.",
                mend,
            )


RULES: Final = (retention, replays, attempts, signed)
