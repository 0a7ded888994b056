"""From a folder to a diagnosis: what the engine makes of the rules' verdicts, and the limit of a healthy run."""

import dataclasses
import json

import pytest

from hf_efficient.diagnosis.engine import diagnose, diagnose_case, limit_of
from hf_efficient.diagnosis.rules import RULES
from hf_efficient.records.findings import Abstention, Cost, Evidence, Finding, Gain, Remedy
from tests.diagnosis.made import MATMUL, case_in, kernels, leave_trace, settings, step
from tests.trace.made_trace import ADD


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
    assert found.limit is None


def test_a_consequence_is_ranked_behind_its_cause_and_is_no_warning(case):
    cause = finding("hog", seconds=1.0, explains=["starved", "broken"])
    said = [finding("starved", seconds=5.0), cause, finding("broken", "critical"), finding("other", seconds=0.5)]
    found = diagnose_case(case, [rule_that(one.rule, one) for one in said])
    assert names(found) == ["broken", "hog", "other", "starved"]
    assert [one.severity for one in found.findings] == ["critical", "warning", "warning", "info"]


def test_what_is_said_of_a_script_names_its_arguments_and_callbacks(tmp_path):
    """A file of the user's that is called train.py stays as it is, and so do the keys of overrides."""
    why = "train.logging_steps is 0; look at train.py:12, ./train.logging_steps and profile.trace"
    gain = Gain(0.5, 1.0, None, None, why)
    remedy = Remedy(why, {"train.logging_steps": 5}, why, gain)
    said = Finding("slow", why, evidence=[Evidence(why, why, "", why)], remedies=[remedy])
    rules = [
        rule_that("slow", said),
        rule_that("dumb", Abstention("dumb", why, "train.logging_steps")),
        rule_that("lone", Abstention("lone", why, "hf-efficient isolate RECIPE")),
    ]
    facts = {"settings": settings(arguments={"logging_steps": 0})}
    steps = [step(n) for n in range(1, 11)]
    case = case_in(tmp_path, steps, facts=facts)
    scripts = diagnose_case(case, rules)
    (found,), (dumb, lone) = scripts.findings, scripts.abstentions
    held, own = (
        found.remedies[0],
        "logging_steps is 0; look at train.py:12, ./train.logging_steps and TorchTraceCallback",
    )
    assert [found.title, found.evidence[0].what, held.what, held.costs, held.gain.basis, dumb.why] == [own] * 6
    assert (held.overrides, dumb.instrument) == (remedy.overrides, "logging_steps")
    assert lone.instrument == "a longer run on idle cores"
    recipes = diagnose_case(dataclasses.replace(case, recipe={"name": "a"}), rules)
    assert (recipes.findings[0].title, recipes.abstentions[0].why) == (why, why)


def test_a_few_steps_give_no_warning_but_what_is_wrong_stays_so(tmp_path):
    case = case_in(tmp_path, [step(n) for n in range(1, 8)])
    said = [finding("slow", seconds=3.0), finding("wrong", "critical")]
    found = diagnose_case(case, [rule_that(one.rule, one) for one in said])
    told = [(one.rule, one.severity, one.confidence) for one in found.findings]
    assert told == [("wrong", "critical", "measured"), ("slow", "info", "possible")]
    assert "too few" in diagnose_case(case, []).limit.text


def test_a_rule_that_fails_is_named_and_hides_no_other(case):
    def broken(case):
        raise ZeroDivisionError("division by zero")

    found = diagnose_case(case, [broken, rule_that("slow", finding("slow"))])
    assert names(found) == ["slow"]
    assert found.faults == ["broken: ZeroDivisionError: division by zero"]


MANY_SAVES = {"settings": settings(arguments={"save_strategy": "steps", "save_steps": 2})}


def saving(count=20):
    phases = {"forward": 0.4, "backward": 0.6}
    return [step(n, phases={**phases, "checkpointing": 1.0} if n % 2 == 0 else phases) for n in range(1, count + 1)]


def test_a_run_is_diagnosed_by_its_output_directory(tmp_path):
    case_in(tmp_path / "efficiency", saving(), facts=MANY_SAVES)
    found = diagnose(tmp_path)
    assert found.findings[0].rule == "saves_cost"
    assert found.loop_seconds == pytest.approx(30.0)
    assert found == diagnose(tmp_path / "efficiency")


@pytest.mark.parametrize("steps", [[], saving(1), [step(n) for n in range(1, 24)]], ids=["no step", "one", "plain"])
def test_without_evidence_no_finding_is_made_up(tmp_path, steps):
    case_in(tmp_path, steps)
    found = diagnose(tmp_path)
    assert (found.findings, found.faults) == ([], [])
    assert all(one.why for one in found.abstentions)
    assert found.rules == [rule.__name__ for rule in RULES]
    assert len(set(found.rules)) == len(RULES)


def test_a_run_that_crashed_in_its_first_step(tmp_path):
    case_in(tmp_path)
    spans = (tmp_path / "spans.jsonl").read_text().splitlines()[:-2]
    error = {"ended": "error", "error": "OutOfMemoryError: CUDA out of memory", "process": 0}
    spans.append(json.dumps({"kind": "train_end", "segment": 0, "at_seconds": 3.0, **error}))
    spans.append(json.dumps({"kind": "end", "at_seconds": 3.0, "memory": {}, **error}))
    (tmp_path / "spans.jsonl").write_text("\n".join(spans) + "\n")
    found = diagnose(tmp_path)
    assert (found.ended, found.error, found.steps) == ("error", "OutOfMemoryError: CUDA out of memory", 0)
    assert [one.rule for one in found.findings] == ["out_of_memory"]
    assert found.faults == []
    assert found.limit is None


def test_where_only_the_account_was_kept_the_rules_abstain(tmp_path):
    from hf_efficient.accounting.account import account_of, write_account

    case_in(tmp_path, saving(), facts=MANY_SAVES)
    write_account(tmp_path, account_of(tmp_path))
    for name in ("steps.jsonl", "spans.jsonl"):
        (tmp_path / name).unlink()
    found = diagnose(tmp_path)
    assert found.findings == []
    assert {"saves_cost", "padding_waste"} <= {one.rule for one in found.abstentions}


def limit(tmp_path, hfu=None, device=None, trace=(), operators=None, count=30):
    """Steps of 1 s, on a device of 1e12 FLOP/s; ``operators``: seconds of a table of 10 s, on a CPU."""
    if trace:
        leave_trace(tmp_path, trace)
    more = {} if hfu is None else {"work": {"model_flops": int(hfu * 1e12), "hardware_flops": int(hfu * 1e12)}}
    if device is not None:
        more["device_seconds"] = device
    facts = {
        "settings": settings(device={"type": "cuda" if operators is None else "cpu"}),
        "work": {"peak_flops_per_second": 1e12, "dtype": "bf16", "reason": None},
    }
    if operators is not None:
        (tmp_path / "profile").mkdir()
        (tmp_path / "profile/operators.rank0.json").write_text(json.dumps(table(**operators)), encoding="utf-8")
        told = {"cost_seconds": 0.1, "own_seconds": 0.1, "steps": 3, "files": ["profile/operators.rank0.json"]}
        facts["profile"] = {"trace": told}
    steps = [step(n, phases={"forward": 0.4, "backward": 0.6}, **more) for n in range(1, count + 1)]
    return limit_of(case_in(tmp_path, steps, facts=facts))


def table(**seconds):
    """An operator table of 10 s; by operator, its seconds."""
    rows = [
        {"name": f"aten::{name}", "calls": 1, "self_cpu_seconds": value, "self_device_seconds": None, "flops": None}
        for name, value in seconds.items()
    ]
    known = {"rank": 0, "steps": 3, "wall_seconds": 10.0, "self_device_seconds": None, "operators": rows}
    return {**known, "self_cpu_seconds": sum(seconds.values())}


SHORT = kernels(*((MATMUL, 10.0 * n, 10.0 * n + 5, 10.0 * n - 2) for n in range(1, 11)))
LATE = kernels((MATMUL, 100, 400, 10), (MATMUL, 600, 1100, 590))
MOVES = kernels((MATMUL, 0, 400, 0), (ADD, 400, 1000, 10))
MULTIPLIES = kernels((MATMUL, 0, 600, 0), (ADD, 600, 1000, 10))


@pytest.mark.parametrize(
    ("known", "kind", "told"),
    [
        ({"hfu": 0.6}, "math", "60% of the dense peak in bf16"),
        ({"hfu": 0.3}, "unknown", ""),
        ({}, "unknown", ""),
        ({"hfu": 0.6, "count": 3}, "unknown", "too few"),
        ({"hfu": 0.6, "device": {"forward": 0.3, "exposed_wait": 0.2}}, "host", "between steps in 20%"),
        ({"hfu": 0.1, "trace": SHORT}, "launch", "47.4%"),
        ({"hfu": 0.1, "trace": LATE}, "host", ""),
        ({"hfu": 0.2, "trace": MOVES}, "bandwidth", "take 60% of the time"),
        ({"hfu": 0.3, "trace": MULTIPLIES}, "math", "60% of the time, at 50% of the peak"),
        ({"hfu": 0.3, "operators": {"mm": 6.0, "mul": 2.0}}, "math", ""),
        ({"hfu": 0.1, "operators": {"mm": 2.0, "mul": 6.0}}, "bandwidth", ""),
        ({"hfu": 0.1, "operators": {"mm": 2.0, "mul": 1.0}}, "host", "70% of the time is spent outside of any"),
        ({"hfu": 0.1, "operators": {"mm": 4.0, "mul": 3.0}}, "unknown", "take 40% of the time, moving memory 30%"),
    ],
)
def test_what_bounds_a_healthy_run(tmp_path, known, kind, told):
    """By the steps alone, by the device's events, by a trace; on a CPU by the operator table."""
    found = limit(tmp_path, **known)
    assert found.kind == kind
    assert told in found.text
