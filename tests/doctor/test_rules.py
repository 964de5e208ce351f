"""Each rule reports a deployment that breaks it and no other, with a command line that fixes it."""

import json
import re
import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from oncegate.doctor.facts import Facts
from oncegate.doctor.rules import RULES, check, unchecked
from oncegate.gate.options import validate
from oncegate.infra.rights import allow_rule, sid
from tests.doctor import commands
from tests.doctor.cases import (
    AUDITS,
    BEHIND_A_QUEUE,
    BEHIND_A_RULE,
    BROKEN,
    DEAD,
    PARTNER,
    RULE,
    WITH_A_WORKER,
    audits,
    lacking,
    queue,
    rule,
    target,
    with_rule,
)

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()


@pytest.mark.parametrize("facts", [BEHIND_A_QUEUE, BEHIND_A_RULE, WITH_A_WORKER, Facts()])
def test_a_sound_deployment(facts: Facts) -> None:
    """No rule reports a correct deployment, or parts that were not read."""
    assert check(facts) == []


@pytest.mark.parametrize(
    ("rule", "severity", "facts"), [(rule, *broken) for rule, all_ in BROKEN.items() for broken in all_]
)
def test_a_broken_deployment(rule: str, severity: str, facts: Facts) -> None:
    """Only the broken rule reports, with a reason and a valid command line."""
    found = check(facts)
    assert [(name, finding.severity) for name, finding in found] == [(rule, severity)]
    (_, finding) = found[0]
    assert finding.why.endswith(".")
    assert finding.what
    assert finding.found
    assert finding.decision is None or finding.decision.endswith(".")
    commands.check(finding.mend)


def test_every_rule_is_broken_here() -> None:
    """There is a broken deployment for each rule."""
    assert set(BROKEN) == set(RULES)


@pytest.mark.parametrize(("rule", "facts"), [(rule, facts) for rule, all_ in BROKEN.items() for _, facts in all_])
def test_what_speaks_was_asked(rule: str, facts: Facts) -> None:
    """A rule with a finding is not listed as unchecked."""
    assert rule not in unchecked(facts)


def test_what_was_not_asked() -> None:
    """For a complete deployment only rules about other stores are unchecked; without one only rules about settings are
    checked."""
    assert set(unchecked(BEHIND_A_QUEUE).values()) <= {"Redis server", "archive", "other clock", "store"}
    assert set(RULES) - set(unchecked(Facts())) == {
        "aws.readable",
        "settings.retention",
        "settings.attempts",
        "settings.previous",
    }


def test_the_end_of_the_look_ups() -> None:
    """A person decides about the setting `previous`: only they know whether the old program has stopped. No command
    removes the setting."""
    ((_, facts),) = BROKEN["settings.previous"]
    (finding,) = [finding for name, finding in check(facts) if name == "settings.previous"]
    assert finding.found.startswith("the look-ups in the old place ended ")
    assert "expired" not in finding.why
    assert finding.mend == "oncegate config show"
    assert finding.decision
    assert finding.decision.startswith("Check that the old program had stopped")


def test_the_worst_comes_first() -> None:
    """Errors come first, then warnings, then notes."""
    facts = with_rule(lacking(BEHIND_A_QUEUE, queue={"max_receives": 2}, table={"sweeps_by": "id"}), bus="forwarded")
    assert [finding.severity for _, finding in check(facts)] == ["error", "warning", "note"]


def test_replays_that_shall_run() -> None:
    """With on_replay="run" no archive is too long."""
    (_, broken), *_ = BROKEN["settings.replays"]
    assert check(lacking(broken, config=validate({"on_replay": "run"}))) == []


def test_a_pattern_about_something_else() -> None:
    """A rule for other events than Genesys events is not checked for their shape."""
    pattern = {"source": ["com.example.shop"], "detail": {"orderId": [{"exists": True}]}}
    assert check(with_rule(BEHIND_A_QUEUE, bus="shop", matches=None, pattern=pattern)) == []


def test_the_page_lists_every_rule() -> None:
    """The page lists the name, the severities and the docstring of each rule."""
    listed = re.findall(r"^\| `([a-z_.]+)` \| ([a-z, ]+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert listed == [
        (name, ", ".join(sorted({severity for severity, _ in BROKEN[name]})), judge.__doc__)
        for name, judge in RULES.items()
    ]


def test_policies_are_added_to() -> None:
    """The fix of a queue policy keeps other permissions and allows every rule that needs access."""
    theirs = allow_rule(DEAD, f"{RULE}-theirs")
    lacking_rights = {"dead_admits": False, "dead_statements": (theirs,)}
    rules = [replace(each, targets=(replace(target, **lacking_rights),)) for each in (rule, audits)]
    found = check(replace(BEHIND_A_QUEUE, queue=replace(queue, statements=(theirs,)), rules=tuple(rules)))
    mends = [finding.mend for name, finding in found if name in ("queue.policy", "rule.dead_policy")]
    assert len(mends) == 4
    for mend in mends:
        _, _, parameters = commands.request(shlex.split(mend))
        statements = json.loads(parameters["Attributes"]["Policy"])["Statement"]
        assert [statement["Sid"] for statement in statements] == [sid(f"{RULE}-theirs"), sid(RULE), sid(AUDITS)]


def test_one_dead_letter_queue_for_rules_of_one_name() -> None:
    """Two rules of one name on two buses are offered the same queue, because SQS cannot create it twice."""
    bare = replace(rule, targets=(replace(target, dead_arn=None),))
    other = replace(bare, bus="default", arn=RULE.replace(f"{PARTNER}/", ""))
    found = check(replace(BEHIND_A_QUEUE, rules=(bare, other)))
    mends = [finding.mend.split(" && ")[0] for name, finding in found if name == "rule.dead_letters"]
    assert len(mends) == 2
    assert len(set(mends)) == 1
