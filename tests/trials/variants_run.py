"""What variants took, made by hand."""

from typing import Any

from hf_efficient.records.isolation import IsolationSchedule, VariantMeasurement, VariantOutcome
from hf_efficient.trials.variants import VARIANTS

SCHEDULE = IsolationSchedule(
    steps=1000, log_every=10, evaluate_every=50, save_every=100, micro_batch_rows=2, accumulation=4, processes=1,
    workers=0, cores=4.0, threads=2, device="cpu", evaluation_rows=20,
)  # fmt: skip

SECONDS = {"as_is": 1.0, "quiet": 0.95, "logged": 1.05, "held_batches": 0.75, "forward": 0.25, "forward_no_grad": 0.2}
"""Of each step: recording 0.05, a log 0.1, data 0.2, backward and optimizer 0.5, forward 0.25."""

OWN: dict[str, dict[str, Any]] = {
    "as_is": {"schedule": SCHEDULE, "micro_batch_seconds": [0.2] * 6, "micro_batch_tokens": [100.0] * 6},
    "micro_batch_halved": {"micro_batch_seconds": [0.15] * 6, "micro_batch_tokens": [50.0] * 6},
    "micro_batch_doubled": {"micro_batch_seconds": [0.3] * 6, "micro_batch_tokens": [200.0] * 6},
    "pauses": {"evaluation_seconds": [4.0, 6.0], "save_seconds": [1.0, 3.0]},
    "tokenisation": {"examples": 100, "tokens": 5000, "read_seconds": 0.1, "prepare_seconds": 2.0},
    "loader": {"cpu_seconds": 0.3},
}


def measured(name: str, **changes: Any) -> VariantMeasurement:
    """Six equal steps of 400 tokens, or what the variant measures in their place."""
    each = {**SECONDS, "loader": 0.2}.get(name)
    steps: dict[str, Any] = {"step_tokens": [400] * 6, "step_micro_batches": [4] * 6, "step_logged": [False] * 6}
    held = {} if each is None else {"step_seconds": [each] * 6, **steps}
    return VariantMeasurement(**{**held, **OWN.get(name, {}), **changes})


def outcomes(**failures: str) -> dict[str, VariantOutcome]:
    """All variants of a recipe of one process, each run once; those that are named failed."""
    found = {}
    for one in VARIANTS:
        left_out = "the recipe trains in one process" if one.name == "one_process" else ""
        failure = failures.get(one.name, "")
        runs = [] if left_out or failure else [measured(one.name)]
        found[one.name] = VariantOutcome(one.name, one.what, runs, failure, left_out)
    return found
