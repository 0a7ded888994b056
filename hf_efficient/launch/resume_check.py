"""A run goes on only with the recipe that it began with, as far as the coming steps depend on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hf_efficient.errors import OutputError
from hf_efficient.launch.run_files import EFFICIENCY, RESOLVED
from hf_efficient.recipe.rules.batch import ACCUMULATION, GLOBAL_BATCH
from hf_efficient.recipe.schema import QuantizationSection, Recipe

__all__ = ["check_same_run"]

# What may change between two parts of a run: how long it is, what is saved, logged and evaluated, and how.
_FREE = {
    "train": (
        "max_steps", "num_train_epochs", "save_", "logging_", "log_", "eval_", "report_to", "run_name", "project",
        "trackio_", "disable_tqdm", "per_device_eval_batch_size", "metric_for_best_model", "greater_is_better",
        "load_best_model_at_end", "hub_", "push_to_hub", "resume_from_checkpoint", "dataloader_num_workers",
        "dataloader_prefetch_factor", "dataloader_persistent_workers", "dataloader_pin_memory", "ddp_",
        "prediction_loss_only", "skip_memory_metrics", "use_cpu",
    ),
    "data": ("cache_dir", "eval", "max_eval_examples"),
    "adapter": ("merge",),
    "model": (),
}  # fmt: skip
_NO_FREE_PREFIX = {"eval_fraction"}  # it decides which examples are trained on


def check_same_run(directory: Path, recipe: Recipe) -> None:
    """Compare the recipe with the one that lies in a run directory.

    Raises:
        OutputError: it differs in what the coming steps depend on; names every key with both values.
    """
    try:
        stored = yaml.safe_load((directory / EFFICIENCY / RESOLVED).read_text(encoding="utf-8"))["recipe"]
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return  # not written by us: transformers' own checks remain
    now = recipe.resolved()
    now["adapter"] = _as_settled(now["adapter"], stored.get("adapter") or {})
    differing = [
        f"{key} (was {was!r}, is {value!r})"
        for section, free in _FREE.items()
        for key, was, value in _differences(section, stored.get(section) or {}, now[section], free)
    ]
    before, after = ((one.get("distributed") or {}).get("global_batch_size") for one in (stored, now))
    if before is not None and after is not None:  # the accumulation follows from it
        differing = [one for one in differing if not one.startswith(f"{ACCUMULATION} ")]
        if before != after:
            differing.append(f"{GLOBAL_BATCH} (was {before}, is {after})")
    if stored.get("method") != now["method"]:
        differing.append(f"method (was {stored.get('method')!r}, is {now['method']!r})")
    if differing:
        raise OutputError(
            f"output_dir: the run in {directory} cannot go on with another {'; '.join(differing)}. "
            "Put the values back, or write another output_dir."
        )


def _as_settled(adapter: dict[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """What the machine of a run chose for ``compute_dtype: auto`` stands for it, until a machine chooses again."""
    kept = stored.get("quantization")
    if adapter["method"] != "qlora" or not isinstance(kept, Mapping):
        return adapter
    section = dict(adapter["quantization"] or QuantizationSection().model_dump(mode="json"))
    if section["compute_dtype"] == "auto":
        section["compute_dtype"] = kept.get("compute_dtype")
    return {**adapter, "quantization": section}


def _differences(
    section: str, stored: Mapping[str, Any], now: Mapping[str, Any], free: tuple[str, ...]
) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted(stored.keys() | now.keys()):
        is_free = any(key == name or (name.endswith("_") and key.startswith(name)) for name in free)
        if is_free and key not in _NO_FREE_PREFIX:
            continue
        if stored.get(key) != now.get(key):
            yield f"{section}.{key}", stored.get(key), now.get(key)
