"""The rules in Lua: a script that is wrong in one line does not pass the contract."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from msgspec.structs import asdict

from oncegate import open_store
from oncegate.stores.base import Store
from oncegate.stores.redis import script_calls
from oncegate.testing import ManualClock, SharedStoreContract
from oncegate.testing.requests import bury, complete, release, renew
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
        lambda contract, store, clock: contract.test_duplicates_do_not_extend_retention(store, clock),
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
        lambda contract, store, clock: contract.test_sliding_duplicates_extend_retention(store, clock),
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
        "string.upper(state) == ENDS_IN[verb]",
        "true",
        lambda contract, store, clock: contract.test_another_settle_after(store, release, bury, "R", "D"),
    ),
    (
        "a release takes the attempt",
        "SETTLE",
        "unstarted or unavailable) and 1 or 0",
        "unavailable) and 1 or 0",
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
        lambda contract, store, clock: contract.test_two_settlements_of_one_claim(store),
    ),
    (
        "a redriven event keeps its attempts",
        "OPERATE",
        "'r', '', 0, 0, 0",
        "'r', '', r.attempts, 0, 0",
        lambda contract, store, clock: contract.test_redrive(store),
    ),
    (
        "every loss counts",
        "CLAIM",
        "counts = lost > 0 and 1 or 0",
        "counts = 1",
        lambda contract, store, clock: contract.test_the_first_loss_does_not_count(store, clock),
    ),
    (
        "no loss counts",
        "CLAIM",
        "counts = lost > 0 and 1 or 0",
        "counts = 0",
        lambda contract, store, clock: contract.test_the_first_loss_does_not_count(store, clock),
    ),
    (
        "a dispatcher's loss is not counted",
        "TAKE",
        "if r.state == 'P' or r.state == 'p' then",
        "if r.state == 'P' then",
        lambda contract, store, clock: contract.test_taken_and_lost_is_taken_again(store, clock),
    ),
    (
        "a mark keeps what was lost",
        "CLAIM",
        "t[PAYLOAD], t[LEASE], t[LOST], t[SINCE] =",
        "t[PAYLOAD], t[LEASE] =",
        lambda contract, store, clock: contract.test_marking_resets_the_counts(store, clock),
    ),
    (
        "the short way for what was tried before",
        "SETTLE",
        "and about + byte(value, about) == #value",
        "",
        lambda contract, store, clock: contract.test_completing_resets_the_counts(store, clock, b"null", None),
    ),
    (
        "unavailable counts",
        "SETTLE",
        "(unstarted or unavailable)",
        "unstarted",
        lambda contract, store, clock: contract.test_unavailable_gives_the_attempt_back(store, clock),
    ),
    (
        "the time of the last is kept",
        "SETTLE",
        "(t[SINCE] or struct.pack('>I7', now))",
        "struct.pack('>I7', now)",
        lambda contract, store, clock: contract.test_unavailable_gives_the_attempt_back(store, clock),
    ),
    (
        "what was never started forgets",
        "SETTLE",
        "if not unstarted then",
        "if true then",
        lambda contract, store, clock: contract.test_unstarted_keeps_a_row_of_losses(store, clock),
    ),
    (
        "handed on twice",
        "SETTLE",
        "H = 'C', ",
        "",
        lambda contract, store, clock: contract.test_handed_on(store, b"null", None),
    ),
    (
        "a redriven event keeps what was lost",
        "OPERATE",
        "t[LOST], t[SINCE] = nil, nil",
        "",
        lambda contract, store, clock: contract.test_buried_keeps_the_counts(store, clock),
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
    script = getattr(script_calls, name)
    assert right.encode() in script.text
    _checked(redis_server, check)
    broken = script.text.replace(right.encode(), wrong.encode())
    monkeypatch.setattr(script_calls, name, script_calls.script_of(broken, **_how(script)))
    with pytest.raises(AssertionError):
        _checked(redis_server, check)


def _how(script: script_calls.Script) -> dict[str, bool]:
    return {name: value for name, value in asdict(script).items() if isinstance(value, bool)}


def _checked(server: RedisServer, check: Check) -> None:
    server.client.flushall()
    clock = ManualClock()
    with closing(open_store(server.url, clock=clock)) as store:
        check(SharedStoreContract(), store, clock)
