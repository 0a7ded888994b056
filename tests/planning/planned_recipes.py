"""A tiny local model without weights, recipes on it, and accelerators of any size."""

import json
from pathlib import Path
from typing import Any

from hf_efficient.facts.tables import Accelerator
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.plan import PlannedMemory

MIB = 2**20
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "dtype": "bfloat16",
}
RECIPE = """\
name: tiny
model: {id: model}
data: {train: [{path: chats.jsonl}]}
train: {max_length: 256, per_device_train_batch_size: 4, gradient_accumulation_steps: 2}
output_dir: out
"""


def write_model(folder: Path, **changes: Any) -> Path:
    """A folder with a ``config.json`` alone."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}), encoding="utf-8")
    return folder


def tiny_recipe(folder: Path, *overrides: str) -> Recipe:
    """A recipe on a tiny model in ``folder``, which must be the current one when the model is read."""
    write_model(folder / "model")
    (folder / "r.yaml").write_text(RECIPE, encoding="utf-8")
    return load_recipe(folder / "r.yaml", overrides)


def device(mebibytes: float, **changes: Any) -> Accelerator:
    """1e14 FLOP/s in 16 bits, 1e12 bytes/s, 360 W, and so much memory, all of which can be used."""
    size = int(mebibytes * MIB)
    peaks, sourced = {"bf16": 1e14, "fp32": 1e13}, {"source": "here", "date": "2026-11-20"}
    named = {"name": "Toy", "vendor": "NVIDIA", "device_names": (), "compute_capability": (8, 0)}
    rates = {"bandwidth_bytes_per_second": 1e12, "tdp_watts": 360.0, "peak_flops_per_second": peaks}
    held = {"memory_bytes": size, "usable_memory_bytes": size}
    return Accelerator(**{**named, **held, **rates, **sourced, **changes})


def memory(**categories: int) -> PlannedMemory:
    """Of these categories at the peak."""
    return PlannedMemory(
        peak_allocated_bytes=sum(categories.values()),
        peak_phase="backward",
        peak_module="",
        peak_step=2,
        categories=categories,
        category_peak_bytes=categories,
        largest=[],
        phase_peak_allocated_bytes={},
        model_bytes=0,
    )
