"""A diagnosis with a finding of every kind of plot."""

import dataclasses

from hf_efficient.records.findings import Abstention, Cost, Diagnosis, Evidence, Finding, Gain, Limit, Remedy
from hf_efficient.reporting.run_data import RunData

GIB = 2**30
BASIS = "a checkpoint after every 65 steps, each as long as those that were measured"


def finding(rule: str = "saves_cost", **parts: object) -> Finding:
    """A warning of 6.8 s of which the first remedy saves 5.1 s; parts can be given in place of these."""
    plain: dict[str, object] = {
        "title": "3.5% of the training loop is spent in checkpoints",
        "severity": "warning",
        "confidence": "measured",
        "evidence": [
            Evidence("share of the loop in checkpoints", 0.035, "share", "steps.jsonl: phase_seconds.checkpointing"),
            Evidence("mean checkpoint", 1.7, "seconds", "spans.jsonl: save"),
        ],
        "cost": Cost(6.8, None, 0.0075),
        "remedies": [
            Remedy(
                "save every 120 steps",
                {"train.save_strategy": "steps", "train.save_steps": 120},
                "a run that dies has up to 120 steps to do again",
                Gain(0.026, 5.1, None, 0.0056, BASIS),
            ),
            Remedy("save the weights without optimizer state", {"train.save_only_model": True}),
        ],
    }
    return Finding(rule=rule, **{**plain, **parts})  # type: ignore[arg-type]


def _findings() -> list[Finding]:
    held = [Evidence("peak, reserved", 46 * GIB, "bytes", "run.json: memory.device_peak_reserved_bytes")]
    waits = [Evidence("data wait of a step", 0.021, "seconds", "steps.jsonl: phase_seconds.data_wait")]
    return [
        finding("learning_rate_idle", title="the loss does not fall", severity="critical", cost=Cost(), remedies=[]),
        finding(),
        finding("padding_waste", title="13.3% of the positions that are computed are padding"),
        finding("few_workers", title="the loop waits for data", evidence=waits, confidence="likely"),
        finding("cpu_contention", title="others keep the cores busy", remedies=[]),
        finding("throttling", title="the GPU is held back by its temperature", remedies=[]),
        finding("straggler", title="rank 1 is slower than the others", remedies=[]),
        finding("near_out_of_memory", title="the device is nearly full", cost=Cost(None, 46 * GIB), evidence=held),
        finding("of_a_newer_version", title="a rule that no plot was made for", severity="info"),
    ]


def diagnosed(run: RunData) -> RunData:
    """The run with a finding of every kind of plot."""
    found = Diagnosis(
        1, "0.1.0", "done", None, 120, 195.0, _findings(),
        [
            Abstention("launch_bound", "no trace was taken", "profile.trace"),
            Abstention("data_storage", "the data loader was not watched"),
            Abstention("slow_host", "too few readings", "a longer run"),
            Abstention("loss_rises", "too few losses", "train.logging_steps, or a longer run"),
        ],
        None, ["saves_cost", "padding_waste", "launch_bound", "data_storage", "slow_host", "loss_rises"],
        ["float32_products: KeyError: 'fp32'"],
    )  # fmt: skip
    return dataclasses.replace(run, diagnosis=found)


def healthy(run: RunData) -> RunData:
    """The run with nothing to fix."""
    shown = Evidence("hardware FLOP/s over the peak", 0.503, "share", "run.json: work.hfu")
    limit = Limit("math", "it is bound by arithmetic: 50.3% of the dense peak in bfloat16", [shown])
    nothing = Diagnosis(1, "0.1.0", "done", None, 120, 195.0, [], [], limit, ["saves_cost"])
    return dataclasses.replace(run, diagnosis=nothing)
