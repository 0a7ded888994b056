"""Texts that would take a page over if it let them."""

import dataclasses

from sample_trace import DEVICE, TRACE

from hf_efficient.accounting.evaluations import SampleAnswers
from hf_efficient.recipe.load import ResolvedRecipe, ResolvedValue
from hf_efficient.records.account import NotMeasured
from hf_efficient.records.amounts import Evaluation, MemoryCategory
from hf_efficient.records.findings import Abstention, Cost, Diagnosis, Evidence, Finding, Gain, Remedy
from hf_efficient.reporting.run_data import RunData, RunTrace

SCRIPT = "</script><script>window.taken = 1</script>"
IMAGE = '<img src=x onerror="window.taken = 2">'
QUOTES = '" onmouseover="window.taken = 3" \''
TEMPLATE = "{{ 7 * 7 }} {% raw %} %{x} <b>bold</b> &lt;"
TEXTS = (SCRIPT, IMAGE, QUOTES, TEMPLATE)


def hostile(run: RunData) -> RunData:
    """The same run, with such texts wherever a text comes from outside."""
    account = run.account
    last = dataclasses.replace(account.time.processes[-1], ended="error", error=SCRIPT + IMAGE, open_phase=QUOTES)
    phases = {**account.time.phase_seconds, SCRIPT: 3.0, IMAGE: 2.0}
    assert run.series is not None
    steps = run.series.steps
    by_phase = {**steps.phase_seconds, IMAGE: [0.1] * len(steps), SCRIPT: [0.1] * len(steps)}
    band = next(iter(run.series.system.watts.values()))
    watts, gpus = {IMAGE: band}, {IMAGE: {"sm_clock_mhz": band}}
    throttled = {IMAGE: {SCRIPT: [1.0] * len(run.series.system)}}
    parts = dataclasses.replace(
        account, ended="error", error=SCRIPT + IMAGE,
        time=dataclasses.replace(account.time, processes=[last, last], phase_seconds=phases),
        memory=dataclasses.replace(account.memory, categories=[MemoryCategory(IMAGE, 2**30, "exact", SCRIPT)]),
        evaluations=[Evaluation(0, {SCRIPT: 1.0, IMAGE: 2.0, "loss": 2.0}, 1.0)],
        not_measured=[NotMeasured(SCRIPT, IMAGE + QUOTES)],
        money=dataclasses.replace(account.money, price_source=SCRIPT),
        energy=dataclasses.replace(account.energy, grid_source=IMAGE),
        work=dataclasses.replace(account.work, peak_source=SCRIPT, dtype=IMAGE),
    )  # fmt: skip
    series = dataclasses.replace(
        run.series, steps=dataclasses.replace(steps, phase_seconds=by_phase),
        system=dataclasses.replace(run.series.system, watts=watts, gpus=gpus, throttled=throttled),
    )  # fmt: skip
    values = [ResolvedValue(SCRIPT, IMAGE, QUOTES + SCRIPT), ResolvedValue("model.id", SCRIPT, None)]
    machine = {
        "cpu": IMAGE,
        "versions": {SCRIPT: IMAGE},
        "git_commit": QUOTES,
        "gpus": [{"name": SCRIPT, "memory_bytes": 1}],
    }
    answers = [SampleAnswers(SCRIPT, IMAGE, {0: QUOTES, 9: TEMPLATE + SCRIPT})]
    return dataclasses.replace(
        run, name=SCRIPT + IMAGE + QUOTES + TEMPLATE, directory=f"/tmp/{QUOTES}{SCRIPT}", account=parts, series=series,
        recipe=ResolvedRecipe(values, machine), answers=answers, diagnosis=_diagnosis(), trace=_trace(),
    )  # fmt: skip


def _diagnosis() -> Diagnosis:
    gain = Gain(0.1, 5.0, None, None, IMAGE)
    found = Finding(
        rule=SCRIPT, title=IMAGE, severity="warning", confidence="measured",
        evidence=[Evidence(QUOTES, IMAGE, "", SCRIPT), Evidence(IMAGE, 1.0, SCRIPT, QUOTES)], cost=Cost(9.0),
        remedies=[Remedy(SCRIPT, {IMAGE: SCRIPT, "train.x": QUOTES}, TEMPLATE, gain)],
    )  # fmt: skip
    abstention = Abstention(IMAGE, SCRIPT, QUOTES)
    return Diagnosis(1, SCRIPT, "error", SCRIPT, 9, 90.0, [found], [abstention], None, [SCRIPT], [IMAGE])


def _trace() -> RunTrace:
    kernel = dataclasses.replace(DEVICE.kernels[0], name=SCRIPT, operator=IMAGE)
    gap = dataclasses.replace(DEVICE.gaps[0], host=((SCRIPT, 0.5), (QUOTES, 0.5)))
    device = dataclasses.replace(DEVICE, name=IMAGE, kernels=(kernel,), gaps=(gap,))
    sync = dataclasses.replace(TRACE.syncs[0], site=QUOTES, operator=IMAGE)
    trace = dataclasses.replace(TRACE, devices=(device,), syncs=(sync,), remarks=(TEMPLATE,))
    return RunTrace(SCRIPT, QUOTES, trace, "", [IMAGE])
