"""Records of versions without `lost`, `unavailable_since` and `handed_to`, and a check that they can be used.

`tests/data/older` contains them as each store wrote them: in every state, with and without a payload."""

from contextlib import closing
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from oncegate.claims import (
    COMPLETED,
    DEAD,
    IN_PROGRESS,
    RELEASED,
    Address,
    Claim,
    Complete,
    EventSummary,
    Granted,
    Record,
    Redrive,
    Release,
)
from oncegate.stores.base import Document, Inbox, Store, TakeRequest
from oncegate.testing import ManualClock

DATA: Final = Path(__file__).parent.parent / "data" / "older"
NAMESPACE: Final = "crm"
START: Final = 1_765_551_752_000_000
LEASE: Final = 30_000_000
DAY: Final = 86_400_000_000
_ABOUT = EventSummary(
    "genesys", "v2.detail.events.conversation.{id}.customer.end", "conversation-1", 1_765_551_751_000_000, "evt-1"
)


def _name(text: str, fill: bytes) -> bytes:
    return text.encode().ljust(16, fill)


def _first(at: int) -> Record:
    """Return a record that was granted `at` microseconds after the start."""
    now = START + at
    return Record(
        IN_PROGRESS, _name("ann", b"."), now, now + LEASE, 1, b"h" * 16, now + 7 * DAY, _ABOUT, first_seen=now
    )


def _done(at: int, result: bytes) -> Record:
    ended: dict[str, Any] = {"state": COMPLETED, "lease_until": 0, "result": result}
    return replace(_first(at), **ended, completed_at=START + 2, expires_at=START + 2 + 7 * DAY)


def _admitted(payload: bytes, **changed: Any) -> Record:
    now = START + 2
    record = Record(RELEASED, _name("bob", b"."), now, now, 0, b"i" * 16, None, EventSummary("plain"), first_seen=now)
    return replace(record, payload=payload, **changed)


RECORDS: Final = {
    "held": _first(0),
    "released": replace(_first(1), state=RELEASED, lease_until=START + 1, error="boom"),
    "completed": _done(1, b'{"ok":true}'),
    "null": _done(2, b"null"),
    "marked": replace(_first(2), state=COMPLETED, completed_at=START + 2),
    "buried": replace(
        _first(2),
        state=DEAD,
        lease_until=0,
        expires_at=START + 2 + 30 * DAY,
        payload=b'{"id":"evt-4"}',
        error="ValueError: boom",
    ),
    "redriven": replace(
        _first(2),
        state=RELEASED,
        owner=b"",
        lease_until=0,
        attempts=0,
        expires_at=None,
        payload=b'{"id":"evt-7"}',
        error="ValueError: boom",
    ),
    "retried": replace(_first(2), owner=_name("cid", b"."), fence=START + 3, attempts=2, error="boom"),
    "admitted": _admitted(b'{"id":"evt-5"}'),
    "taken": _admitted(
        b'{"id":"evt-6"}', state=IN_PROGRESS, fence=START + 3, lease_until=START + 2 + LEASE, attempts=1
    ),
}
INBOX_ONLY: Final = {"admitted", "taken"}  # only in stores with an inbox
DOCUMENT: Final = Document(START + 2, b"[]")


def key(name: str) -> bytes:
    return _name(name, b"-")


def assert_usable(store: Store, clock: ManualClock) -> None:
    """Check that the old records are read as they were written, and follow the current rules."""
    with closing(store):
        clock.now = START + 10
        assert {entry.key: entry.record for entry in store.browse(NAMESPACE)} == {
            key(name): record for name, record in RECORDS.items() if _is_stored(store, name)
        }
        assert store.load([Address(NAMESPACE, key("document"))]) == [DOCUMENT]
        _assert_settled(store)
        clock.advance(LEASE)
        _assert_granted(store)


def _assert_settled(store: Store) -> None:
    """Check that an old claim can be settled by its holder; a second settlement changes nothing."""
    proof = (RECORDS["retried"].owner, RECORDS["retried"].fence)
    completion = Complete(NAMESPACE, key("retried"), *proof, DAY, b"null", handed_to="sqs://queue")
    assert store.settle([completion, completion]) == [True, True]
    after = _stored(store, "retried")
    assert (after.attempts, after.handed_to, after.about) == (2, "sqs://queue", _ABOUT)
    done = RECORDS["null"]
    assert store.settle([Complete(NAMESPACE, key("null"), done.owner, done.fence, DAY)]) == [True]
    assert _stored(store, "null") == done


def _assert_granted(store: Store) -> None:
    """Check that a lost attempt does not count, a failed attempt does, and a dead letter starts with no attempts."""
    names = ["held", "released", "completed", "buried"]
    answers = store.claim([_claim(name, "dan") for name in names])
    assert [type(answer).__name__ for answer in answers] == ["Granted", "Granted", "Duplicate", "Buried"]
    assert [(answer.record.attempts, answer.record.lost) for answer in answers[:2]] == [(1, 1), (2, 0)]
    held = answers[0].record
    assert store.settle([Release(NAMESPACE, key("held"), held.owner, held.fence, "refused", unavailable=True)]) == [
        True
    ]
    after = _stored(store, "held")
    assert (after.attempts, after.lost, after.unavailable_since) == (0, 0, START + 10 + LEASE)
    assert store.redrive([Redrive(NAMESPACE, key("buried"))]) == [True]
    wants = [TakeRequest(NAMESPACE, bytes([number]) * 16, LEASE) for number in range(5)]
    taken = {entry.key: entry.record for entry in store.take(wants) if entry is not None}
    expected = {"admitted": (1, 0), "taken": (1, 1), "buried": (1, 0), "redriven": (1, 0)}
    assert {each: (record.attempts, record.lost) for each, record in taken.items()} == {
        key(name): tries for name, tries in expected.items() if _is_stored(store, name)
    }
    again = store.claim([_claim("released", "dan")])[0]
    assert isinstance(again, Granted)
    assert again.record == answers[1].record


def _is_stored(store: Store, name: str) -> bool:
    return isinstance(store, Inbox) or name not in INBOX_ONLY


def _claim(name: str, by: str) -> Claim:
    return Claim(NAMESPACE, key(name), _name(by, b"."), b"h" * 16, LEASE, 7 * DAY, _ABOUT)


def _stored(store: Store, name: str) -> Record:
    (entry,) = store.browse(NAMESPACE, key=key(name))
    return entry.record
