"""The modelled store: real records, which only the shipped `step` changes.

Records have a normal form at one fixed time: times before now equal now, the fence is always `FENCE`, the owner of the
record is `HOLDER`, and one lost attempt stands for several. This loses nothing: `step` compares owners and fences only
for equality, compares times only with now, checks only whether any attempt was lost, and makes a fence from the old
fence or from the clock. So an answer depends only on the record, the verb, the content and whether the requester holds
the record. One call of `step` serves all states in which these are equal.
"""

from types import ModuleType
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from tests.model.parts import Setting, Violation

NOW: Final = 1_000
FENCE: Final = 500
HOLDER: Final = b"holder"
STRANGER: Final = b"stranger"

_PLACE: Final = ("model", b"key")
_ENDS_IN: Final = {"complete": "C", "release": "R", "unavailable": "R", "give back": "R", "bury": "D"}
_PROVED: Final = {*_ENDS_IN, "renew", "abandon"}
_ADMISSIONS: Final = ("admit", "admit and run")
_ASKING: Final = {"claim", "mark", "take", *_ADMISSIONS}

ABSENT: Final = 0


class Ruling(NamedTuple):
    """The result of one request."""

    record: int
    answer: str  # the name of the verdict in lower case, or yes, no, nothing
    attempts: int
    left: int  # of the lease; for a marked record, until its expiry
    changed: bool
    handed_over: bool  # the record has a new owner, or none
    refenced: bool
    forgot: bool  # the record had expired and is removed
    suspect: bool  # the previous attempt was never settled
    forgiven: bool  # it was the first of a row, so it does not count


class Ledger:
    def __init__(self, claims: ModuleType, setting: Setting) -> None:
        self._claims = claims
        self._setting = setting
        self._about = claims.EventSummary("model", entity="person", delivery_id="evt-1")
        self._rulings: dict[tuple[int, str, int, bool, bool], Ruling] = {}
        self._ids: dict[Any, int] = {None: ABSENT}
        self._states = [""]
        self._contents = [-1]
        self.records: list[Any] = [None]

    def judge(self, record: int, verb: str, content: int, holds: bool, stale: bool) -> Ruling:
        asked = (record, verb, content, holds, stale)
        ruling = self._rulings.get(asked)
        if ruling is None:
            ruling = self._rulings[asked] = self._judge(*asked)
        return ruling

    def aged(self, record: int) -> int:
        """The same record one tick later."""
        before = self.records[record]
        if before is None:
            return ABSENT
        expires_at = before.expires_at
        if expires_at is not None and self._setting.expiry:
            expires_at -= 1
        return self._intern(replace(before, lease_until=before.lease_until - 1, expires_at=expires_at))

    def state(self, record: int) -> str:
        """The letter of the state; empty if the record is absent or expired."""
        return self._states[record]

    def content(self, record: int) -> int:
        """The content whose payload the record holds, or -1."""
        return self._contents[record]

    def is_alive(self, record: int) -> bool:
        """Whether the record has a live lease."""
        return self._states[record] == "P" and bool(self.records[record].lease_until > NOW)

    def lapses(self, record: int) -> bool:
        """Whether a live lease is over one tick later."""
        return self._states[record] == "P" and self.records[record].lease_until == NOW + 1

    # ── one judgement ─────────────────────────────────────────────────────────────────────────────────────

    def _judge(self, record: int, verb: str, content: int, holds: bool, stale: bool) -> Ruling:
        before = self.records[record]
        operation = self._operation(verb, content, HOLDER if holds else STRANGER, FENCE - stale)
        after, answer = self._claims.step(before, operation, NOW)
        if before is not None and _expired(before):
            self._must_not_matter(operation, after, answer)
            ruling = self._ruling(None, record, after, answer)
        else:
            _check(verb, holds, stale, before, after, answer)
            ruling = self._ruling(before, record, after, answer)
        return ruling

    def _ruling(self, before: Any, record: int, after: Any, answer: Any) -> Ruling:
        granted = _name(answer) == "granted"
        ident = self._intern(after)
        fresh = ident != record and (granted or _name(answer) == "admitted" or after is None or not after.owner)
        return Ruling(
            ident,
            _name(answer),
            after.attempts if granted else 0,
            max(_left(answer), 0) if granted else 0,
            ident != record,
            fresh,
            fresh and (after is None or before is None or after.fence != before.fence),
            before is None and ident != record and record != ABSENT,
            granted and after.lost > 0,
            fresh and before is not None and before.state == "P" and not before.lost,
        )

    def _operation(self, verb: str, content: int, owner: bytes, fence: int) -> Any:
        claims, terms, proof = self._claims, self._setting, (*_PLACE, owner, fence)
        digest, payload = b"hash %d" % content, b"%d" % content
        match verb:
            case "claim" | "mark":
                marks = verb == "mark"
                return claims.Claim(*_PLACE, owner, digest, terms.lease, terms.retention, self._about, marks=marks)
            case "admit" | "admit and run":
                lease = terms.lease if verb == "admit and run" else 0
                return claims.Admit(*_PLACE, owner, digest, payload, self._about, lease=lease)
            case "seed":
                return claims.seed(*_PLACE, owner=owner, retention=terms.retention, about=self._about)
            case "take":
                return claims.Take(*_PLACE, owner, terms.lease)
            case "renew":
                return claims.Renew(*proof, terms.lease)
            case "complete":
                return claims.Complete(*proof, terms.retention)
            case "release" | "give back" | "unavailable":
                return claims.Release(*proof, unstarted=verb == "give back", unavailable=verb == "unavailable")
            case "abandon":
                return claims.Abandon(*proof)
            case "bury":
                return claims.Bury(*proof, terms.dead_retention, payload, "why")
            case _:
                return self._operator_request(verb)

    def _operator_request(self, verb: str) -> Any:
        if verb.startswith("forget"):
            return self._claims.Forget(*_PLACE, self._setting.retention, waiting=verb == "forget waiting")
        return self._claims.Redrive(*_PLACE) if verb == "redrive" else self._claims.Reset(*_PLACE)

    def _must_not_matter(self, operation: Any, after: Any, answer: Any) -> None:
        swept, otherwise = self._claims.step(None, operation, NOW)
        if (self._intern(after), _name(answer)) != (self._intern(swept), _name(otherwise)):
            raise Violation(15, f"an expired record is answered with {_name(answer)}, a swept one {_name(otherwise)}")

    def _intern(self, record: Any) -> int:
        normal = None if record is None else _normal(record)
        ident = self._ids.setdefault(normal, len(self._ids))
        if ident == len(self.records):
            self._add(normal)
        return ident

    def _add(self, record: Any) -> None:
        gone = record is None or _expired(record)
        self.records.append(record)
        self._states.append("" if gone else record.state)
        self._contents.append(-1 if gone or record.payload is None else int(record.payload))


def _normal(record: Any) -> Any:
    return replace(
        record,
        owner=HOLDER if record.owner else record.owner,
        fence=FENCE,
        lease_until=max(record.lease_until, NOW),
        expires_at=None if record.expires_at is None else max(record.expires_at, NOW),
        first_seen=NOW,
        completed_at=None,
        error=None,
        lost=min(record.lost, 1),
        unavailable_since=None if record.unavailable_since is None else NOW,
    )


def _expired(record: Any) -> bool:
    return record.expires_at is not None and bool(record.expires_at <= NOW)


def _name(answer: Any) -> str:
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    return "nothing" if answer is None else type(answer).__name__.lower()


# ── the invariants that one judgement can break ───────────────────────────────────────────────────────────


def _left(granted: Any) -> int:
    record = granted.record
    left: int = (record.expires_at if record.state == "C" else record.lease_until) - granted.at
    return left


def _check(verb: str, holds: bool, stale: bool, before: Any, after: Any, answer: Any) -> None:
    name, same = _name(answer), after is before
    if verb in _PROVED and (not holds or stale) and (name == "yes" or not same):
        raise Violation(3, f"{verb} is accepted from one that does not hold the claim")
    if name == "granted" and not same and (before.fence if before else FENCE) >= after.fence:
        raise Violation(5, "the fence does not rise with the grant")
    if before is None:
        return
    alive = before.state == "P" and before.lease_until > NOW
    if verb in _ASKING and alive and not holds and not same:
        raise Violation(3, f"a {verb} is accepted from a stranger while the lease is alive")
    given = _given(verb, before, alive) if holds else None
    if given is not None and (name != given or not same):
        raise Violation(7, f"the owner asks to {verb} again, and is answered {name}")
    if holds and not stale and before.state == _ENDS_IN.get(verb) and (name != "yes" or not same):
        raise Violation(7, f"the same {verb} again is answered {name}")
    if before.state == "C" and verb != "reset" and (after is None or after.state != "C"):
        raise Violation(4, f"a completed record is left by {verb}")
    _check_payload(verb, before, same)
    _check_seed(verb, before, name, same)
    if verb.startswith("forget"):
        _check_forget(verb, before, after, alive)


def _given(verb: str, before: Any, alive: bool) -> str | None:
    """The answer that the owner got, if the record is still as its request left it."""
    if (verb == "claim" and alive) or (verb == "mark" and before.state == "C"):
        return "granted"
    if verb in _ADMISSIONS and before.payload is not None and (alive or before.state == "R"):
        return "granted" if alive else "admitted"
    return None


def _check_seed(verb: str, before: Any, name: str, same: bool) -> None:
    if verb == "seed" and not same:
        raise Violation(18, f"a seed changes a record in state {before.state}")
    if verb in _ASKING - {"take"} and not before.payload_hash and (name != "duplicate" or not same):
        raise Violation(18, f"a {verb} of a seeded event is answered {name}")


def _check_forget(verb: str, before: Any, after: Any, alive: bool) -> None:
    waits = before.payload is not None and before.state != "D"
    if alive or (waits and verb == "forget"):
        if after is not before:
            raise Violation(19, f"{verb} changes a record in state {before.state} that it must leave")
        return
    if after is None or after.payload or after.result or after.about.entity or after.about.delivery_id:
        raise Violation(19, f"{verb} leaves a record in state {before.state} that identifies a person")
    kept = ("state", "owner", "fence", "expires_at", "attempts", "payload_hash")
    if before.payload is None and any(getattr(after, name) != getattr(before, name) for name in kept):
        raise Violation(19, f"{verb} changes more than the summary of a record in state {before.state}")
    if before.payload is not None and (after.state, after.owner) != ("C", b""):
        raise Violation(19, f"{verb} takes the payload from a record that can still run")


def _check_payload(verb: str, before: Any, same: bool) -> None:
    if before.payload is None or same:
        return
    if verb in _ADMISSIONS:
        raise Violation(17, f"an admission changes a record in state {before.state} that has a payload")
    if verb in ("claim", "mark") and before.state == "R":
        raise Violation(17, f"a {verb} of a delivery is granted what was admitted")
