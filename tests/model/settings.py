"""The worlds to explore, and their bounds.

In each world three workers take deliveries from one queue, a lease lasts two ticks and is renewed for at most three, an
event is tried at most twice, and handlers may fail. `faults` is the number of faults in one run, at any step and for
any worker: a worker crashes; a worker is stopped past its lease and continues; a request is lost; an answer is lost; a
request is delayed and arrives at any later time (one at a time for each worker, and no batch of two). A setting may
also allow one more delivery, a jump of the store's clock by one tick, and one action of an operator (redrive or reset,
or in some worlds the seed or the erasure of a key). `outages` is how often a handler finds a service unavailable. With
`abandons`, the crash of a worker may become known at any later step, and its claims are abandoned, in time or too late.
Time is not bounded. Without `expiry`, everything happens before the first record expires, which keeps those worlds
small enough for conflicts and more faults. `ways` is what a worker may do with a delivery: claim and run it; admit it
for a dispatcher, or with a lease to run it at once; or mark and run it.
"""

from typing import Final

from tests.model.parts import Content, Setting

# Two deliveries of one event, and one of another event with the same key. Copies of conflicts have other keys.
_CONFLICT: Final = (Content("a", 0, 1, 2), Content("b", 0, 2, 1))
_ONCE: Final = (Content("a", 0, 0, 1),)
_TWICE: Final = (Content("a", 0, 0, 2),)
_COPIED: Final = (Content("a", 0, 1, 2),)
_TWO_KEYS: Final = (Content("a", 0, 0, 1), Content("x", 1, 1, 1))
_TWO_KEYS_CONFLICT: Final = (Content("a", 0, 2, 1), Content("b", 0, 3, 1), Content("x", 1, 1, 1))
_POISON: Final = (Content("p", 0, 0, 1, poison=True), Content("x", 1, 1, 1))

CONFLICT: Final = Setting("an event twice and a conflict", _CONFLICT, faults=1)
FAULTS: Final = Setting("an event twice, two faults", _TWICE, faults=2)
TRANSACTION: Final = Setting("an event twice, in transactions", _TWICE, faults=2, transaction=True)
SKEW: Final = Setting("an event, a duplicate and a clock jump", _ONCE, faults=1, skews=1, duplicates=1)
OPERATOR: Final = Setting("an event twice, and an operator", _TWICE, faults=1, operators=1)
EXPIRY: Final = Setting("an event that expires", _TWICE, faults=1, expiry=True)
FORGETFUL: Final = EXPIRY._replace(name="an event with the shortest retention", retention=EXPIRY.lease)
BATCH: Final = Setting("a batch of two", _TWO_KEYS, faults=1, batch=2, failures=False)
BATCH_CONFLICT: Final = Setting("a batch with a conflict", _TWO_KEYS_CONFLICT, faults=0, batch=2, failures=False)
POISON: Final = Setting("a batch with a poison event", _POISON, faults=0, batch=2, failures=False)
ADMIT: Final = Setting("an event admitted twice", _TWICE, faults=1, ways=("admit",))
ADMIT_EXPIRY: Final = Setting("an admitted event that expires", _TWICE, faults=1, expiry=True, ways=("admit",))
ADMIT_CONFLICT: Final = Setting("a conflict, claimed or admitted", _CONFLICT, faults=0, ways=("claim", "admit"))
ADMIT_RUN: Final = Setting("an event admitted and run", _TWICE, faults=2, ways=("admit and run",))
MIXED: Final = Setting(
    "an event twice, claimed or admitted", _TWICE, faults=1, ways=("claim", "admit", "admit and run")
)
OUTAGE: Final = Setting("an event twice, and an outage", _TWICE, faults=1, outages=2)
SEED: Final = Setting(
    "a conflict and a seed", _CONFLICT, faults=0, operators=1, acts=("seed",), ways=("claim", "admit")
)
SEED_EXPIRY: Final = Setting(
    "a seeded event that expires", _COPIED, faults=0, operators=1, acts=("seed",), expiry=True, ways=("claim", "mark")
)
ERASE: Final = Setting(
    "an event twice, and an erasure", _TWICE, faults=1, operators=1, acts=("forget",), ways=("claim", "admit")
)
ERASE_EXPIRY: Final = Setting(
    "an erased event that expires",
    _COPIED,
    faults=0,
    operators=1,
    acts=("forget",),
    expiry=True,
    ways=("claim", "mark"),
)
ABANDON: Final = Setting("an event twice, with abandoned claims", _TWICE, faults=2, abandons=True)
MARK: Final = Setting("an event marked first", _COPIED, faults=2, ways=("mark",))
MARK_EXPIRY: Final = Setting(
    "an event marked first that expires", _COPIED, faults=1, expiry=True, retention=3, ways=("mark",)
)
MARK_ADMIT: Final = Setting("an event marked first or admitted", _COPIED, faults=1, ways=("mark", "admit"))

# Explored completely in every test run, together more than a million states. Worlds that are part of a larger one here
# are left out. The slowest come first, so that two processors finish at about the same time.
ORDINARY: Final = (
    *(OPERATOR, ABANDON, MIXED, BATCH, TRANSACTION, ERASE, ERASE_EXPIRY, SEED_EXPIRY, SEED, OUTAGE, SKEW, FORGETFUL),
    *(MARK_ADMIT, BATCH_CONFLICT, POISON, MARK),
)

# Explored on demand, each up to a number of states. Worlds that are part of a larger one here are left out.
WHOLE: Final = 10_000_000
LARGE: Final = (
    (CONFLICT, WHOLE),
    (CONFLICT._replace(name="an event twice and a conflict, two faults", faults=2), 1_500_000),
    (CONFLICT._replace(name="an event twice and a conflict, in transactions", faults=2, transaction=True), 1_000_000),
    (EXPIRY._replace(name="an event that expires, and an operator", operators=1), WHOLE),
    (CONFLICT._replace(name="a conflict and an operator", operators=1), 600_000),
    (BATCH._replace(name="a batch of two whose handlers may fail", failures=True), WHOLE),
    (SKEW._replace(faults=2), WHOLE),
    (FAULTS._replace(name="an event twice, many faults", faults=3), WHOLE),
    (OPERATOR, WHOLE),
    (BATCH_CONFLICT._replace(name="a batch with a conflict whose handlers may fail", failures=True), WHOLE),
    (FORGETFUL._replace(faults=2), WHOLE),
    (POISON, WHOLE),
    (OUTAGE._replace(name="an event twice, and an outage, two faults", faults=2), WHOLE),
    (ABANDON._replace(name="an event twice, with abandoned claims, many faults", faults=3), 600_000),
    (ADMIT._replace(name="an event admitted twice, many faults", faults=3), WHOLE),
    (ADMIT_CONFLICT._replace(name="an event twice and a conflict, admitted", faults=1, ways=("admit",)), WHOLE),
    (ADMIT_CONFLICT._replace(faults=1), 600_000),
    (ADMIT_RUN, WHOLE),
    (ADMIT_RUN._replace(name="an event admitted and run, many faults", faults=3), 600_000),
    (ADMIT_EXPIRY, WHOLE),
    (ADMIT_EXPIRY._replace(name="an admitted event that expires, and an operator", operators=1), 600_000),
    (
        MARK_ADMIT._replace(
            name="an event claimed, admitted or marked", ways=("claim", "admit", "admit and run", "mark")
        ),
        WHOLE,
    ),
    (MARK_EXPIRY, WHOLE),
    (MARK_EXPIRY._replace(name="an event marked first that expires, and an operator", operators=1), 600_000),
    (Setting("a conflict marked first", _CONFLICT, faults=1, ways=("mark",)), WHOLE),
    (MARK._replace(name="an event marked first, many faults", faults=3), WHOLE),
    (SEED._replace(name="a conflict and a seed, with a fault", faults=1), 600_000),
    (ERASE._replace(name="an event twice, and an erasure, two faults", faults=2), WHOLE),
    (
        ERASE_EXPIRY._replace(
            name="an erased event that expires, redriven or not", faults=1, operators=2, acts=("forget", "redrive")
        ),
        600_000,
    ),
)
