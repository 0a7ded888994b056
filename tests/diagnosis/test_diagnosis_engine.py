"""What the engine makes of the rules' verdicts."""

from __future__ import annotations

import dataclasses

import pytest

from hf_efficient.diagnosis.engine import diagnose_case
from hf_efficient.diagnosis.rules import RULES
from hf_efficient.records.findings import Abstention, Cost, Finding
from tests.diagnosis.cases import case_in, step


def finding(rule, severity="warning", seconds=None, held=None, explains=()):
    return Finding(rule, f"{rule} it is", severity, "measured", [], Cost(seconds, held), explains=list(explains))


def rule_that(name, says):
    def rule(case):
        return says

    rule.__name__ = name
    return rule


@pytest.fixture
def case(tmp_path):
    return case_in(tmp_path, [step(n) for n in range(1, 11)])


def names(diagnosis):
    return [one.rule for one in diagnosis.findings]


def test_findings_are_ranked_by_severity_then_by_what_they_cost(case):
    said = [finding("slow", seconds=3.0), finding("slower", seconds=5.0), finding("wrong", "critical")]
    said += [finding("note", "info", seconds=9.0), finding("large", held=7), finding("larger", held=8)]
    found = diagnose_case(case, [rule_that(one.rule, one) for one in said])
    assert names(found) == ["wrong", "slower", "slow", "larger", "large", "note"]
    assert not found.is_healthy
    assert found.limit is None


def test_a_consequence_is_ranked_behind_its_cause_and_is_no_warning(case):
    cause = finding("hog", seconds=1.0, explains=["starved", "broken"])
    said = [finding("starved", seconds=5.0), cause, finding("broken", "critical"), finding("other", seconds=0.5)]
    found = diagnose_case(case, [rule_that(one.rule, one) for one in said])
    assert names(found) == ["broken", "hog", "other", "starved"]
    assert [one.severity for one in found.findings] == ["critical", "warning", "warning", "info"]


def test_a_few_steps_give_no_warning_but_what_is_wrong_stays_so(tmp_path):
    case = case_in(tmp_path, [step(n) for n in range(1, 8)])
    said = [finding("slow", seconds=3.0), finding("wrong", "critical")]
    found = diagnose_case(case, [rule_that(one.rule, one) for one in said])
    told = [(one.rule, one.severity, one.confidence) for one in found.findings]
    assert told == [("wrong", "critical", "measured"), ("slow", "info", "possible")]
    assert "too few" in diagnose_case(case, []).limit.text


def test_what_is_only_worth_knowing_explains_nothing(case):
    said = [finding("note", "info", explains=["slow"]), finding("slow", seconds=1.0)]
    found = diagnose_case(case, [rule_that(one.rule, one) for one in said])
    assert found.findings[0].severity == "warning"


def test_a_rule_that_fails_is_named_and_hides_no_other(case):
    def broken(case):
        raise ZeroDivisionError("division by zero")

    found = diagnose_case(case, [broken, rule_that("slow", finding("slow"))])
    assert names(found) == ["slow"]
    assert found.faults == ["broken: ZeroDivisionError: division by zero"]


def test_abstentions_are_kept_by_name(case):
    said = [Abstention("b", "no device"), Abstention("a", "no trace", "efficiency.profile.trace")]
    found = diagnose_case(case, [rule_that(one.rule, one) for one in said])
    assert [one.rule for one in found.abstentions] == ["a", "b"]
    assert found.is_healthy


def test_a_healthy_run_is_told_its_limit(case):
    found = diagnose_case(case, [rule_that("note", finding("note", "info"))])
    assert found.is_healthy
    assert found.limit is not None
    assert found.limit.kind == "unknown"


def test_a_run_without_steps_has_no_limit_and_no_finding(tmp_path):
    found = diagnose_case(case_in(tmp_path))
    assert found.findings == []
    assert found.limit is None
    assert found.faults == []


def test_no_rule_fails_on_a_plain_run_and_each_is_named_once(case):
    found = diagnose_case(case)
    assert found.faults == []
    assert found.rules == [rule.__name__ for rule in RULES]
    assert len(set(found.rules)) == len(RULES)


def test_a_limit_bound_by_arithmetic_says_how_near_the_peak_it_is(case):
    work = dataclasses.replace(case.account.work, hfu=0.62, dtype="bf16")
    near = dataclasses.replace(case, account=dataclasses.replace(case.account, work=work))
    limit = diagnose_case(near, []).limit
    assert limit.kind == "math"
    assert "62.0%" in limit.text or "62%" in limit.text
