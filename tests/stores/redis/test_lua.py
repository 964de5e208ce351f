"""The Lua scripts: with one wrong line, a script does not pass the contract."""

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


# What is broken, the script, the right text, the wrong text, and the test of the contract that must fail.
ABLATIONS: list[tuple[str, str, str, str, Check]] = [
    (
        "a lease is one microsecond longer",
        "CLAIM",
        "and now < r.moment",
        "and now <= r.moment",
        lambda contract, store, clock: contract.test_lease_boundary(store, clock),
    ),
    (
        "a late copy of a released claim is granted",
        "CLAIM",
        "state == 'R' and own",
        "false",
        lambda contract, store, clock: contract.test_late_copy_of_a_released_claim(store),
    ),
    (
        "every key binds the content",
        "CLAIM",
        "request.binds and r.hash",
        "r.hash",
        lambda contract, store, clock: contract.test_other_content_without_binding(store),
    ),
    (
        "a completed record never expires",
        "CLAIM",
        "and now < struct.unpack('>I7', value, EXPIRES)",
        "",
        lambda contract, store, clock: contract.test_duplicates_do_not_extend_retention(store, clock),
    ),
    (
        "a marking claim has no lease",
        "CLAIM",
        "struct.pack('>I7', now + lease)",
        "struct.pack('>I7', now)",
        lambda contract, store, clock: contract.test_marking_claim(store, clock),
    ),
    (
        "a duplicate shortens the retention",
        "CLAIM",
        "if expires <= r.expires then",
        "if false then",
        lambda contract, store, clock: contract.test_sliding_duplicates_extend_retention(store, clock),
    ),
    (
        "the proof is not checked",
        "SETTLE",
        "~= proof then",
        "== nil then",
        lambda contract, store, clock: contract.test_not_the_owner(store, complete),
    ),
    (
        "the proof is not checked on the fast path",
        "SETTLE",
        "and sub(value, PROOF, PROOF + proof - 1) == sub(batch, at + address, at + address + proof - 1)",
        "",
        lambda contract, store, clock: contract.test_not_the_owner(store, partial(complete, result=b"null")),
    ),
    (
        "an expired record is settled",
        "SETTLE",
        "now >= r.expires",
        "false",
        lambda contract, store, clock: contract.test_late_and_expired(store, clock, renew),
    ),
    (
        "a settled claim is settled again",
        "SETTLE",
        "string.upper(state) == ENDS_IN[verb]",
        "true",
        lambda contract, store, clock: contract.test_another_settle_after(store, release, bury, "R", "D"),
    ),
    (
        "an unstarted release counts as an attempt",
        "SETTLE",
        "unstarted or unavailable) and 1 or 0",
        "unavailable) and 1 or 0",
        lambda contract, store, clock: contract.test_release_unstarted(store),
    ),
    (
        "a changed record is not read again",
        "SETTLE",
        "  ahead[key] = nil\n",
        "",
        lambda contract, store, clock: contract.test_batch_of_settles(store),
    ),
    (
        "a deferred claim is overtaken",
        "CLAIM",
        "and not (deferred and deferred[key])",
        "",
        lambda contract, store, clock: contract.test_sliding_in_a_batch(store, clock),
    ),
    (
        "a deferred settlement is overtaken",
        "SETTLE",
        "and not (deferred and deferred[key])",
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
        "every lost attempt counts",
        "CLAIM",
        "counts = lost > 0 and 1 or 0",
        "counts = 1",
        lambda contract, store, clock: contract.test_the_first_loss_does_not_count(store, clock),
    ),
    (
        "no lost attempt counts",
        "CLAIM",
        "counts = lost > 0 and 1 or 0",
        "counts = 0",
        lambda contract, store, clock: contract.test_the_first_loss_does_not_count(store, clock),
    ),
    (
        "the lost attempt of a dispatcher does not count",
        "TAKE",
        "if r.state == 'P' or r.state == 'p' then",
        "if r.state == 'P' then",
        lambda contract, store, clock: contract.test_taken_and_lost_is_taken_again(store, clock),
    ),
    (
        "a marking claim keeps the lost attempts",
        "CLAIM",
        "texts[PAYLOAD], texts[LEASE], texts[LOST], texts[SINCE] =",
        "texts[PAYLOAD], texts[LEASE] =",
        lambda contract, store, clock: contract.test_marking_resets_the_counts(store, clock),
    ),
    (
        "the fast path for a record with other texts",
        "SETTLE",
        "and about + byte(value, about) == #value",
        "",
        lambda contract, store, clock: contract.test_completing_resets_the_counts(store, clock, b"null", None),
    ),
    (
        "an unavailable service counts as an attempt",
        "SETTLE",
        "(unstarted or unavailable)",
        "unstarted",
        lambda contract, store, clock: contract.test_unavailable_gives_the_attempt_back(store, clock),
    ),
    (
        "the last time of unavailability is kept, not the first",
        "SETTLE",
        "(texts[SINCE] or struct.pack('>I7', now))",
        "struct.pack('>I7', now)",
        lambda contract, store, clock: contract.test_unavailable_gives_the_attempt_back(store, clock),
    ),
    (
        "an unstarted release resets the lost attempts",
        "SETTLE",
        "if not unstarted then",
        "if true then",
        lambda contract, store, clock: contract.test_unstarted_keeps_a_row_of_losses(store, clock),
    ),
    (
        "a second completion that hands on is rejected",
        "SETTLE",
        "H = 'C', ",
        "",
        lambda contract, store, clock: contract.test_handed_on(store, b"null", None),
    ),
    (
        "a redriven event keeps its lost attempts",
        "OPERATE",
        "texts[LOST], texts[SINCE] = nil, nil",
        "",
        lambda contract, store, clock: contract.test_buried_keeps_the_counts(store, clock),
    ),
    (
        "a running event is erased",
        "FORGET",
        "has_lease(r) or",
        "",
        lambda contract, store, clock: contract.test_forget_in_progress(store, clock),
    ),
    (
        "an erased event keeps its delivery id",
        "FORGET",
        "elements[3], elements[4] = NIL, NIL",
        "elements[4] = NIL",
        lambda contract, store, clock: contract.test_forget_every_summary(store),
    ),
    (
        "an erased result is null",
        "FORGET",
        "r.tail = r.tail .. '\\255'",
        "",
        lambda contract, store, clock: contract.test_forget_completed(store, b"null", None),
    ),
    (
        "the version is not compared",
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
    """With one rule of one script broken, the part of the contract about that rule fails; with the script as shipped it
    passes."""
    script = getattr(script_calls, name)
    assert right.encode() in script.text
    _run_check(redis_server, check)
    broken = script.text.replace(right.encode(), wrong.encode())
    monkeypatch.setattr(script_calls, name, script_calls.build_script(broken, **_flags(script)))
    with pytest.raises(AssertionError):
        _run_check(redis_server, check)


def _flags(script: script_calls.Script) -> dict[str, bool]:
    return {name: value for name, value in asdict(script).items() if isinstance(value, bool)}


def _run_check(server: RedisServer, check: Check) -> None:
    server.client.flushall()
    clock = ManualClock()
    with closing(open_store(server.url, clock=clock)) as store:
        check(SharedStoreContract(), store, clock)
