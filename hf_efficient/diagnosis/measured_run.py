"""What a run took, and what it was made of: the figures that two runs are compared by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hf_efficient.diagnosis.case import Case, StepColumns
from hf_efficient.estimate.gain_check import rate_spread, seconds_per_token

__all__ = ["SETUP_KEYS", "MeasuredRun", "bears_on_time", "measured_run"]

SETUP_KEYS: Mapping[str, tuple[str, ...]] = {
    "method": ("method",),
    "model": ("model.id", "model.revision", "model.gguf_file"),
    "adapter": ("adapter.method",),
    "data": ("data.train",),
    "processes": ("distributed.processes", "distributed.nodes"),
    "device": (),
}
"""Parts of a setup, and the keys of the recipe that say them."""

_NO_TIME = (
    "max_steps", "num_train_epochs", "seed", "data_seed", "learning_rate", "lr_scheduler_", "warmup_", "weight_decay",
    "adam_", "max_grad_norm", "run_name", "project", "hub_", "push_to_hub", "resume_from_checkpoint", "disable_tqdm",
    "save_total_limit", "load_best_model_at_end", "metric_for_best_model", "greater_is_better", "logging_dir",
)  # fmt: skip
"""Fields of ``train:`` that say nothing of the time for a token; with ``_`` at their end all that begin so."""


@dataclass(frozen=True)
class MeasuredRun:
    """One run; None: not known.

    Attributes:
        seconds_per_token: of the training loop, per token of all ranks that is no padding.
        spread: half of the interval in which that lies, as a share of it; by the steps past the warm-up.
        peak_bytes: of the CUDA device's tensors; of the process on a CPU.
        setup: what must be alike to compare, with the fields of ``train:`` that bear on the time by their dotted keys;
            what is not known is left out.
    """

    seconds_per_token: float | None
    spread: float | None
    peak_bytes: int | None
    setup: Mapping[str, str]


def measured_run(case: Case) -> MeasuredRun:
    """The figures of a run."""
    tokens, first = case.account.tokens.non_padding, case.first
    memory = case.account.memory
    return MeasuredRun(
        seconds_per_token(case.loop_seconds, tokens) if tokens and case.loop_seconds > 0 else None,
        None if first is None else _spread(first),
        (memory.device_peak_allocated_bytes if case.on_cuda else memory.peak_rss_bytes) or None,
        _setup(case),
    )


def _spread(steps: StepColumns) -> float | None:
    """Of the steps past the warm-up; an epoch that starts or ends is a pause like an evaluation or a save."""
    steady = steps.steady
    turns = {name: steps.loader.get(name, np.zeros(len(steps))) for name in ("start_seconds", "first_wait_seconds")}
    kinds = [
        steps.phase("evaluation"),
        steps.phase("checkpointing"),
        np.nan_to_num(turns["start_seconds"]) + np.nan_to_num(turns["first_wait_seconds"]),
        np.nan_to_num(steps.loader.get("end_seconds", np.zeros(len(steps)))),
    ]
    if not np.isfinite(steps.non_padding[steady]).all():
        return None
    own = steps.wall_seconds - np.sum(kinds, axis=0)
    pauses = [kind[steady & (kind > 0)].tolist() for kind in kinds]
    return rate_spread(own[steady].tolist(), steps.non_padding[steady].tolist(), pauses)


def _setup(case: Case) -> dict[str, str]:
    recipe = case.recipe or {}
    model = [str(recipe[key]) for key in SETUP_KEYS["model"] if recipe.get(key)]
    held = {
        "method": recipe.get("method"),
        "model": " ".join(model),
        "adapter": recipe.get("adapter.method"),
        "data": ", ".join(_sources(recipe)),
        "processes": len(case.account.ranks),
        "device": _device(case),
    }
    train = {key: value for key, value in recipe.items() if bears_on_time(key)}
    return {name: str(value) for name, value in held.items() if value} | {key: str(train[key]) for key in train}


def bears_on_time(key: str) -> bool:
    """Whether a dotted key of the recipe is a field of ``train:`` that the time for a token may depend on."""
    section, _, name = key.partition(".")
    free = any(name == one or (one.endswith("_") and name.startswith(one)) for one in _NO_TIME)
    return section == "train" and not free


def _sources(recipe: Mapping[str, object]) -> list[str]:
    told: list[str] = []
    while f"data.train.{len(told)}.path" in recipe:
        one = [recipe.get(f"data.train.{len(told)}.{part}") for part in ("path", "name", "split")]
        told.append(" ".join(str(part) for part in one if part))
    return told


def _device(case: Case) -> str:
    device = case.settings("device")
    if device.get("type") != "cpu":
        return str(device.get("name") or device.get("type") or "")
    cores = case.settings("host").get("cores")
    return f"cpu, {cores} cores" if cores else "cpu"
