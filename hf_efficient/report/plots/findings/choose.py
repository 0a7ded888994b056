"""Which plot shows the evidence of which rule."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from hf_efficient.records.findings import Finding
from hf_efficient.report.plots.figure import Figure
from hf_efficient.report.plots.findings.batches import batch_evidence
from hf_efficient.report.plots.findings.cost_bar import cost_bar
from hf_efficient.report.plots.findings.learning import learning_evidence
from hf_efficient.report.plots.findings.lengths import length_evidence
from hf_efficient.report.plots.findings.memory import memory_evidence
from hf_efficient.report.plots.findings.phases import phase_evidence
from hf_efficient.report.plots.findings.ranks import rank_evidence
from hf_efficient.report.plots.findings.system import cores_evidence, gpu_evidence
from hf_efficient.report.plots.findings.tokens import token_evidence
from hf_efficient.report.run_data import RunData

__all__ = ["KINDS", "finding_figure"]

_Kind = Callable[[Finding, RunData, str], Figure | None]


def _phases(*names: str) -> _Kind:
    return partial(phase_evidence, phases=names)


_LOADING = _phases("data_wait", "between_steps")
_COMPUTING = _phases("forward", "backward", "device_wait", "forward_backward")
_LOSS_TOKENS = partial(token_evidence, kinds=("non_padding", "loss_bearing"))

KINDS: Final[dict[str, _Kind]] = {
    **dict.fromkeys(("data_storage", "data_transform", "data_collation"), _LOADING),
    **dict.fromkeys(("few_workers", "worker_start", "epoch_boundary"), _LOADING),
    "host_to_device_copy": _phases("host_to_device"),
    "hidden_synchronisation": _phases("device_wait", "bookkeeping"),
    "logging_cost": _phases("logging", "between_steps"),
    "evaluations_cost": _phases("evaluation"),
    "saves_cost": _phases("checkpointing"),
    "optimizer_kernel": _phases("optimizer"),
    "recompilation": _phases("compilation", "forward", "backward"),
    "exposed_communication": _phases("communication", "backward"),
    "sharding": _phases("communication", "forward", "backward"),
    **dict.fromkeys(("small_micro_batch", "accumulation"), batch_evidence),
    **dict.fromkeys(("large_micro_batch", "launch_bound"), _COMPUTING),
    **dict.fromkeys(("float32_products", "emulated_bfloat16", "attention_kernel", "silent_upcasts"), _COMPUTING),
    **dict.fromkeys(("checkpointing_unneeded", "checkpointing_missing"), _COMPUTING),
    "padding_waste": partial(token_evidence, kinds=("processed", "non_padding")),
    "truncated_examples": length_evidence,
    **dict.fromkeys(("masked_labels", "few_loss_tokens"), _LOSS_TOKENS),
    **dict.fromkeys(("memory_growth", "fragmentation", "logits_spike"), memory_evidence),
    "out_of_memory": memory_evidence,
    **dict.fromkeys(("near_out_of_memory", "optimizer_state", "unused_memory"), memory_evidence),
    **dict.fromkeys(("cpu_contention", "cpu_oversubscription"), cores_evidence),
    "throttling": gpu_evidence,
    "straggler": rank_evidence,
    **dict.fromkeys(("learning_rate_idle", "learning_rate_diverges", "no_gradient"), learning_evidence),
    **dict.fromkeys(("not_finite_steps", "scaler_skips"), learning_evidence),
}
"""By rule; one that is not here is shown by what it costs of the loop's time."""


def finding_figure(number: int, finding: Finding, run: RunData) -> Figure | None:
    """The evidence of a finding, plotted; where its own kind of plot has no data, what it costs of the loop's time.

    Args:
        number: its rank among the findings, from 1.
        finding: of the run.
        run: whose diagnosis it is.

    Returns:
        None where neither is known.
    """
    name = f"finding-{number}-evidence"
    kind = KINDS.get(finding.rule)
    found = kind(finding, run, name) if kind is not None else None
    if found is None and run.diagnosis is not None:
        return cost_bar(finding, run.diagnosis.loop_seconds, name)
    return found
