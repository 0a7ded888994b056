"""All rules over a run, the variants of a recipe or a trace: findings ranked, abstentions, and what bounds the steps of
a run that has nothing to fix."""

import dataclasses
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hf_efficient.diagnosis.case import Case, IsolatedRecipe, Rule, S, TracedDevice, read_case
from hf_efficient.diagnosis.remedies import asked_of, confirm, for_script, measured_run, with_global_batch
from hf_efficient.diagnosis.rules import ISOLATED_RULES, RULES, TRACE_RULES
from hf_efficient.records.findings import (
    DIAGNOSIS_SCHEMA_VERSION,
    Abstention,
    Confidence,
    Diagnosis,
    Evidence,
    Finding,
    Limit,
)
from hf_efficient.records.isolation import Isolation
from hf_efficient.records.trace import DeviceBreakdown, TraceBreakdown
from hf_efficient.run_dir.paths import records_folder
from hf_efficient.text import counted, share
from hf_efficient.trace.families import operator_family
from hf_efficient.version import __version__

logger = logging.getLogger(__name__)
DIAGNOSIS_JSON = "diagnosis.json"
_SEVERITIES = ("critical", "warning", "info")


def _ask(rules: Sequence[Rule[S]], subject: S) -> tuple[list[Finding], list[Abstention], list[str]]:
    """A rule that fails is a defect of ours, named in the last list, and hides no other."""
    findings, abstentions, faults = list[Finding](), list[Abstention](), list[str]()
    for rule in rules:
        try:
            verdict = rule(subject)
        except Exception as error:
            logger.debug("The rule %s failed.", rule.__name__, exc_info=True)
            faults.append(f"{rule.__name__}: {type(error).__name__}: {error}")
            continue
        if isinstance(verdict, Finding):
            findings.append(verdict)
        elif verdict is not None:
            abstentions.append(verdict)
    return findings, abstentions, faults


def diagnose(run_dir: str | Path) -> Diagnosis:
    """What is wrong with a run, what to change, and what that would give. ``run_dir`` is the output directory of a run,
    or its ``efficiency`` folder; the run may be under way, have ended or died. Raises ``OutputError``: there is no such
    folder, no record in it, they cannot be read, or are of a newer version."""
    return diagnose_case(read_case(records_folder(run_dir)))


def diagnose_case(case: Case, rules: Sequence[Rule[Case]] = RULES) -> Diagnosis:
    """The diagnosis of a run that was read; of a few steps, which start-up outweighs, only what is wrong in itself
    warns."""
    found, abstentions, faults = _ask(rules, case)
    findings = [with_global_batch(finding, case) for finding in found]
    if case.is_short:
        findings = [_lowered(finding, "possible") for finding in findings]
    ordered = _ranked(findings)
    confirmed = []
    try:
        asked = asked_of(case.recipe or {})
        if asked is not None:
            confirmed = confirm(asked, measured_run(case), ordered, abstentions, is_short=case.is_short)
    except Exception as error:
        logger.debug("The prediction could not be held against the run.", exc_info=True)
        faults.append(f"confirmations: {type(error).__name__}: {error}")
    healthy = all(finding.severity == "info" for finding in ordered)
    limit = limit_of(case) if healthy and case.has_steps else None
    abstentions.sort(key=lambda one: one.rule)
    if case.recipe is None:
        ordered, abstentions, limit = for_script([ordered, abstentions, limit], case.settings("arguments"))
    return Diagnosis(
        schema_version=DIAGNOSIS_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        ended=case.account.ended,
        error=case.account.error,
        steps=case.account.steps.count,
        loop_seconds=case.loop_seconds,
        findings=ordered,
        abstentions=abstentions,
        limit=limit,
        rules=[rule.__name__ for rule in rules],
        faults=faults,
        confirmations=confirmed,
        recipe=case.recipe is not None,
    )


def diagnose_isolation(found: Isolation) -> Diagnosis:
    """Findings out of the variants of a recipe, what costs most first."""
    findings, abstentions, faults = _ask(ISOLATED_RULES, IsolatedRecipe(found))
    parts = [found.part(name) for name in ("forward", "backward_optimizer")]
    known = [part.seconds for part in parts if part is not None and part.seconds is not None]
    text = "the model's own part of a step was not measured"
    if len(known) == 2:
        text = f"{share(sum(known) / found.step_seconds)} of a step is the model's own forward, backward and update"
    return Diagnosis(
        schema_version=DIAGNOSIS_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        ended="done",
        error=None,
        steps=found.steps,
        loop_seconds=found.loop_seconds,
        findings=_ranked(findings),
        abstentions=abstentions,
        limit=None if findings else Limit("unknown", text),
        rules=[rule.__name__ for rule in ISOLATED_RULES],
        faults=faults,
    )


def findings_of_trace(breakdown: TraceBreakdown) -> list[Finding]:
    """Of the busiest device of a trace, the most important first; none where it has no events of any device."""
    if not breakdown.devices:
        return []
    device = max(breakdown.devices, key=lambda one: one.busy.busy_seconds)
    return _ranked(_ask(TRACE_RULES, TracedDevice(breakdown, device))[0])


def _ranked(findings: Sequence[Finding]) -> list[Finding]:
    explained = {name for one in findings if one.severity != "info" for name in one.explains}
    lowered = [_lowered(one) if one.rule in explained else one for one in findings]

    def place(one: Finding) -> tuple[float, ...]:
        cost = one.cost
        return _SEVERITIES.index(one.severity), one.rule in explained, -(cost.seconds or 0.0), -(cost.bytes or 0)

    return sorted(lowered, key=place)


def _lowered(finding: Finding, confidence: Confidence | None = None) -> Finding:
    if finding.severity == "critical":
        return finding
    return dataclasses.replace(finding, severity="info", confidence=confidence or finding.confidence)


_MUCH_WAIT = 0.15
_MOST = 0.5
_PRODUCTS = ("matmul", "attention")
_MOVING = ("elementwise", "reduction", "normalisation", "embedding", "optimizer", "copy", "memset")
"""Families that do a few FLOPs per byte: the memory's bandwidth is their roof (``estimate/roofline.py``)."""
_TRACE, _OPERATORS = "profile/trace.rank0", "profile/operators.rank0.json"


def limit_of(case: Case) -> Limit:
    """The limit, with its distance from the roofline. The first that holds: the host, where a device waits for it in
    15% of its time or more; arithmetic, from half of the dense peak on; bandwidth, where more than half of the time is
    in operators that move memory; arithmetic, in products below their peak; the host, outside of operators. The last
    three take a trace or an operator table."""
    if case.is_short:
        return Limit("unknown", f"{counted(case.account.steps.count, 'step')}: too few to show one")
    used, device = case.account.work.hfu, case.traced_device
    evidence: list[Evidence] = []
    if used is not None:
        evidence.append(Evidence("hardware FLOP/s over the peak", used, "share", "run.json: work.hfu"))
    waiting = _waiting(case, device, evidence)
    if waiting is not None:
        return waiting
    if used is not None and used >= _MOST:
        text = f"it is bound by arithmetic: {share(used)} of the dense peak in {case.account.work.dtype}"
        return Limit("math", text, evidence)
    by_operators = _by_operators(case, device, used, evidence)
    if by_operators is not None:
        return by_operators
    if used is None:
        why = case.account.work.reason or "the FLOPs of its steps or the device's peak are not known"
        return Limit("unknown", f"no limit is known: {why}", evidence)
    text = (
        f"the matrix products would take {share(used)} of the time at the dense peak; what binds the rest, memory "
        "traffic or small operators, only a trace shows (profile.trace)"
    )
    return Limit("unknown", text, evidence)


def _waiting(case: Case, device: DeviceBreakdown | None, evidence: list[Evidence]) -> Limit | None:
    events, training = case.account.time.device_seconds, case.account.time.training_seconds
    if events and training > 0:
        between = events.get("exposed_wait", 0.0) / training
        evidence.append(Evidence("device waits between steps", between, "share", "steps.jsonl: device_seconds"))
        if between >= _MUCH_WAIT:
            text = f"the device waits for the host between steps in {share(between)} of the time"
            return Limit("host", text, evidence)
    if device is None or device.busy.window_seconds <= 0:
        return None
    idle, window = device.busy.idle, device.busy.window_seconds
    launch, host = idle.launch_bound_seconds / window, idle.host_bound_seconds / window
    evidence.append(Evidence("device waits for the next launch", launch, "share", _TRACE))
    evidence.append(Evidence("device waits for the host otherwise", host, "share", _TRACE))
    if max(launch, host) < _MUCH_WAIT:
        return None
    if launch >= host:
        return Limit("launch", f"it is bound by launches: the device waits for them in {share(launch)} of it", evidence)
    return Limit("host", f"the device waits for the host in {share(host)} of the time", evidence)


def _by_operators(
    case: Case, device: DeviceBreakdown | None, used: float | None, evidence: list[Evidence]
) -> Limit | None:
    """By the shares of the time in a trace, or on a CPU in the table of operators, which shows the time of Python and
    the Trainer too; None without either."""
    table = case.account.profile.operators if case.account.profile is not None else None
    seconds: Counter[str] = Counter()
    if device is not None:
        whole, idle, source = device.busy.window_seconds, 0.0, _TRACE
        seconds.update({one.family: one.seconds for one in device.families})
    elif table is not None and not case.on_cuda:
        whole, idle, source = table.wall_seconds, table.wall_seconds - table.self_cpu_seconds, _OPERATORS
        for one in table.operators:
            seconds.update({operator_family(one.name): one.self_cpu_seconds})
    else:
        return None
    if whole <= 0:
        return None
    products, moving = (sum(seconds[name] for name in names) / whole for names in (_PRODUCTS, _MOVING))
    outside = max(0.0, idle / whole)
    evidence.append(Evidence("matrix products and attention, of the time", products, "share", source))
    evidence.append(Evidence("operators that move memory, of the time", moving, "share", source))
    if outside:
        evidence.append(Evidence("outside of any operator", outside, "share", source))
    if moving >= _MOST:
        text = f"it is bound by memory bandwidth: operators that move memory take {share(moving)} of the time"
        return Limit("bandwidth", text, evidence)
    if products >= _MOST:
        text = f"it is bound by arithmetic: matrix products take {share(products)} of the time"
        if used is not None:
            reached = min(1.0, used / products)
            evidence.append(Evidence("the products' own rate over the peak", reached, "share", "run.json: work.hfu"))
            text += f", at {share(reached)} of the peak: larger ones come closer to it"
        return Limit("math", text, evidence)
    if outside >= _MOST:
        text = f"it is bound by the host: {share(outside)} of the time is spent outside of any operator"
        return Limit("host", text, evidence)
    text = (
        f"nothing binds it alone: products take {share(products)} of the time, moving memory "
        f"{share(moving)}, the host outside of operators {share(outside)}"
    )
    return Limit("unknown", text, evidence)
