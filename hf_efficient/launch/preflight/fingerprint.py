"""What a proof holds for, in a word: another recipe, data, package or number of processes needs its own."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from hf_efficient.data.build import PreferenceData, SftData
from hf_efficient.data.stats import pair_lengths
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from trl import DPOConfig, SFTConfig

__all__ = ["fingerprint_of"]

_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "deepspeed", "hf_efficient")
_SECTIONS = ("method", "model", "adapter", "data", "distributed", "evaluate")
# What neither changes a batch, nor a checkpoint, nor how many of them there are.
_FREE = {
    "data": ("cache_dir",),
    "train": (
        "learning_rate", "weight_decay", "seed", "logging_steps", "logging_strategy", "logging_first_step", "report_to",
        "run_name", "project", "disable_tqdm", "resume_from_checkpoint", "hub_model_id",
    ),
}  # fmt: skip


def fingerprint_of(recipe: Recipe, args: SFTConfig | DPOConfig, data: SftData | PreferenceData) -> str:
    """The same for two runs of which the first one's proof holds for the second.

    Args:
        recipe: of the run.
        args: of the run.
        data: of the run, prepared: longer rows are another batch.
    """
    resolved = recipe.resolved()
    held: dict[str, Any] = {name: resolved[name] for name in (*_SECTIONS, "train")}
    for section, free in _FREE.items():
        held[section] = {key: value for key, value in held[section].items() if key not in free}
    on_gpu = args.device.type == "cuda"
    held |= {
        "versions": {name: _version(name) for name in _PACKAGES},
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(args.device) if on_gpu else args.device.type,
        "processes": args.world_size,
        "rows": _rows(data, args),
    }
    text = json.dumps(held, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _rows(data: SftData | PreferenceData, args: SFTConfig | DPOConfig) -> Any:
    if isinstance(data, PreferenceData):
        pairs = (pair_lengths(held, args.max_length) for held in (data.train, data.eval) if held is not None)
        return [[len(held), int(held.sum()), int(held.max())] for held in pairs]
    return [None if stats is None else asdict(stats) for stats in (data.stats, data.eval_stats)]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
