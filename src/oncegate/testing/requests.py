"""Short functions for requests to a store, shared by the contract tests."""

from typing import Any

from oncegate.claims import (
    Address,
    Admit,
    Bury,
    Claim,
    Complete,
    EventSummary,
    Forget,
    Granted,
    Record,
    Redrive,
    Release,
    Renew,
    Reset,
    seed,
)
from oncegate.stores.base import Entry, Inbox, Store, TakeRequest

NAMESPACE = "contract"
KEY = b"k" * 16
SECOND = 1_000_000
LEASE = 30 * SECOND
RETENTION = 3_600 * SECOND
BURIED_FOR = 30 * 86_400 * SECOND
ABOUT = EventSummary("plain", "call.ended", "conversation-1", 1_765_551_752_433_000, "evt-1")


def owner(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def content(name: str) -> bytes:
    return name.encode().ljust(16, b"#")


def claim_of(by: str = "ann", **changed: Any) -> Claim:
    """A claim by the worker of this name, with usual values for everything that is not given."""
    fields: dict[str, Any] = {
        "namespace": NAMESPACE,
        "key": KEY,
        "owner": owner(by),
        "payload_hash": content("one"),
        "lease": LEASE,
        "retention": RETENTION,
        "about": ABOUT,
    }
    return Claim(**(fields | changed))


def claim(store: Store, by: str = "ann", **changed: Any) -> Any:
    (verdict,) = store.claim([claim_of(by, **changed)])
    return verdict


def seeded(store: Store, by: str = "operator", retention: int = RETENTION, key: bytes = KEY) -> Any:
    (verdict,) = store.claim([seed(NAMESPACE, key, owner=owner(by), retention=retention, about=ABOUT)])
    return verdict


def granted(store: Store, by: str = "ann", **changed: Any) -> Record:
    verdict = claim(store, by, **changed)
    assert isinstance(verdict, Granted), verdict
    return verdict.record


def admit(store: Inbox, by: str = "ann", payload: bytes = b'{"id":"evt-1"}', **changed: Any) -> Any:
    """Admit a payload, with usual values for everything that is not given."""
    fields: dict[str, Any] = {"namespace": NAMESPACE, "key": KEY, "owner": owner(by), "payload": payload}
    (answer,) = store.admit([Admit(**(fields | {"payload_hash": content("one"), "about": ABOUT} | changed))])
    return answer


def _proof(record: Record, changed: dict[str, Any]) -> dict[str, Any]:
    return {"namespace": NAMESPACE, "key": KEY, "owner": record.owner, "fence": record.fence} | changed


def complete(store: Store, record: Record, result: bytes | None = b'"done"', **changed: Any) -> bool:
    fields = {"retention": RETENTION, "result": result}
    (answer,) = store.settle([Complete(**(_proof(record, fields | changed)))])
    return answer


def release(store: Store, record: Record, **changed: Any) -> bool:
    (answer,) = store.settle([Release(**_proof(record, changed))])
    return answer


def bury(store: Store, record: Record, **changed: Any) -> bool:
    fields = {"retention": BURIED_FOR, "payload": b'{"id":"evt-1"}', "error": "ValueError: boom"}
    (answer,) = store.settle([Bury(**(_proof(record, fields | changed)))])
    return answer


def renew(store: Store, record: Record, **changed: Any) -> bool:
    (answer,) = store.renew([Renew(**(_proof(record, {"lease": LEASE} | changed)))])
    return answer


def redrive(store: Store, key: bytes = KEY) -> bool:
    (answer,) = store.redrive([Redrive(NAMESPACE, key)])
    return answer


def reset(store: Store, key: bytes = KEY, **changed: Any) -> bool:
    (answer,) = store.reset([Reset(NAMESPACE, key, **changed)])
    return answer


def forget(store: Store, key: bytes = KEY, **changed: Any) -> bool:
    (answer,) = store.forget([Forget(NAMESPACE, key, **({"retention": RETENTION} | changed))])
    return answer


def take(store: Store, by: str = "dispatcher", namespace: str = NAMESPACE, *, in_order: bool = False) -> Entry | None:
    (entry,) = store.take([TakeRequest(namespace, owner(by), LEASE, in_order)])
    return entry


def stored(store: Store, key: bytes = KEY, namespace: str = NAMESPACE) -> Record | None:
    """The record as an operator sees it."""
    entries = store.browse(namespace, key=key)
    return entries[0].record if entries else None


def address(name: str, namespace: str = NAMESPACE) -> Address:
    return Address(namespace, name.encode().ljust(16, b"-"))
