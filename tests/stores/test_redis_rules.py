"""The rules in Lua: a script that is wrong in one line does not pass the contract."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from msgspec.structs import asdict

from oncegate import open_store
from oncegate.stores.base import Store
from oncegate.stores.redis import scripts
from oncegate.testing import ManualClock, SharedStoreContract
from oncegate.testing.asking import bury, complete, release, renew
from tests.stores.redis_server import RedisServer

Check = Callable[[SharedStoreContract, Store, ManualClock], Any]

# What is broken, the script, what it says, what it says then, and the part of the contract that notices.
ABLATIONS: list[tuple[str, str, str, str, Check]] = [
    (
        "a lease one longer",
        "CLAIM",
        "and now < r.moment",
        "and now <= r.moment",
        lambda contract, store, clock: contract.test_lease_boundary(store, clock),
    ),
    (
        "a late copy is granted",
        "CLAIM",
        "state == 'R' and own",
        "false",
        lambda contract, store, clock: contract.test_late_copy_of_a_released_claim(store),
    ),
    (
        "all keys bind",
        "CLAIM",
        "ask.binds and r.hash",
        "r.hash",
        lambda contract, store, clock: contract.test_other_content_without_binding(store),
    ),
    (
        "completed for ever",
        "CLAIM",
        "and now < struct.unpack('>I7', value, EXPIRES)",
        "",
        lambda contract, store, clock: contract.test_duplicates_do_not_prolong(store, clock),
    ),
    (
        "a marked event loses its lease",
        "CLAIM",
        "struct.pack('>I7', now + lease)",
        "struct.pack('>I7', now)",
        lambda contract, store, clock: contract.test_marking_claim(store, clock),
    ),
    (
        "duplicates slide back",
        "CLAIM",
        "if expires <= r.expires then",
        "if false then",
        lambda contract, store, clock: contract.test_sliding_duplicates_prolong(store, clock),
    ),
    (
        "no proof is asked for",
        "SETTLE",
        "~= proof then",
        "== nil then",
        lambda contract, store, clock: contract.test_not_the_owner(store, complete),
    ),
    (
        "no proof is asked for on the short way",
        "SETTLE",
        "and sub(value, PROOF, PROOF + proof - 1) == sub(batch, at + where, at + where + proof - 1)",
        "",
        lambda contract, store, clock: contract.test_not_the_owner(store, partial(complete, result=b"null")),
    ),
    (
        "what has expired is settled",
        "SETTLE",
        "now >= r.expires",
        "false",
        lambda contract, store, clock: contract.test_late_and_expired(store, clock, renew),
    ),
    (
        "what has ended ends again",
        "SETTLE",
        "string.upper(state) == string.upper(verb)",
        "true",
        lambda contract, store, clock: contract.test_another_settle_after(store, release, bury, "R", "D"),
    ),
    (
        "a release takes the attempt",
        "SETTLE",
        "unstarted and 1 or 0",
        "0",
        lambda contract, store, clock: contract.test_release_unstarted(store),
    ),
    (
        "a batch is read ahead and not again",
        "SETTLE",
        "  ahead[key] = nil\n",
        "",
        lambda contract, store, clock: contract.test_batch_of_settles(store),
    ),
    (
        "a claim that was put off is overtaken",
        "CLAIM",
        "and not (later and later[key])",
        "",
        lambda contract, store, clock: contract.test_sliding_in_a_batch(store, clock),
    ),
    (
        "a settle that was put off is overtaken",
        "SETTLE",
        "and not (later and later[key])",
        "",
        lambda contract, store, clock: contract.test_two_endings_of_one_claim(store),
    ),
    (
        "a redriven event keeps its attempts",
        "OPERATE",
        "'r', '', 0, 0, 0",
        "'r', '', r.attempts, 0, 0",
        lambda contract, store, clock: contract.test_redrive(store),
    ),
    (
        "every version will do",
        "SWAP",
        "version ~= expected",
        "false",
        lambda contract, store, clock: contract.test_stale_swap(store),
    ),
]


@pytest.mark.parametrize(("name", "right", "wrong", "check"), [pytest.param(*row[1:], id=row[0]) for row in ABLATIONS])
def test_the_contract_catches(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, name: str, right: str, wrong: str, check: Check
) -> None:
    """One rule of one script broken: the part of the contract that is about it fails, and passes as it is shipped."""
    script = getattr(scripts, name)
    assert right.encode() in script.text
    _checked(redis_server, check)
    broken = script.text.replace(right.encode(), wrong.encode())
    monkeypatch.setattr(scripts, name, scripts.script_of(broken, **_how(script)))
    with pytest.raises(AssertionError):
        _checked(redis_server, check)


def _how(script: scripts.Script) -> dict[str, bool]:
    return {name: value for name, value in asdict(script).items() if isinstance(value, bool)}


def _checked(server: RedisServer, check: Check) -> None:
    server.client.flushall()
    clock = ManualClock()
    with closing(open_store(server.url, clock=clock)) as store:
        check(SharedStoreContract(), store, clock)
