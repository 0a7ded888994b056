"""The recipe to DeepSpeed's own configuration."""

from __future__ import annotations

from typing import Any

from hf_efficient.launch.engines.layout import Engine
from hf_efficient.recipe.schema import OffloadSection, Recipe

__all__ = ["BUFFER_ELEMENTS", "ZERO_STAGES", "deepspeed_config", "is_zero"]

ZERO_STAGES: dict[Engine, int] = {"zero1": 1, "zero2": 2, "zero3": 3}

BUFFER_ELEMENTS = 100_000_000
"""DeepSpeed's ``offload_param.buffer_size``: a parameter's share on a rank that has more cannot be read from NVMe."""


def is_zero(engine: Engine) -> bool:
    """Whether DeepSpeed runs it."""
    return engine in ZERO_STAGES


def deepspeed_config(recipe: Recipe, engine: Engine, largest_share: int = 0) -> dict[str, Any]:
    """What ``deepspeed.initialize`` is told (https://www.deepspeed.ai/docs/config-json/).

    ``auto`` is filled in from the training arguments by transformers: batch, accumulation, clipping, precision, and
    the buckets by the model's width. The optimizer is the Trainer's own, but where its state lies in the
    host: there DeepSpeed takes its own AdamW for the CPU.

    Args:
        recipe: of the run.
        engine: of DeepSpeed's.
        largest_share: elements of the model's largest parameter on one rank, for the buffers that parameters pass
            through on their way from NVMe; 0 where that is not known.

    Raises:
        KeyError: no engine of DeepSpeed's.
    """
    offload = recipe.distributed.offload
    zero: dict[str, Any] = {
        "stage": ZERO_STAGES[engine],
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": "auto",
        "allgather_bucket_size": 2e8,
    }
    if offload.optimizer:
        zero["offload_optimizer"] = _place(offload)
    if engine == "zero3":
        del zero["allgather_bucket_size"]
        zero |= {
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
        }
        if offload.parameters:
            zero["offload_param"] = _place(offload)
            if offload.nvme_path is not None and largest_share > BUFFER_ELEMENTS:
                zero["offload_param"]["buffer_size"] = largest_share
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "wall_clock_breakdown": False,
        "steps_per_print": 10**9,  # the Trainer logs
    }


def _place(offload: OffloadSection) -> dict[str, Any]:
    if offload.nvme_path is not None:
        return {"device": "nvme", "nvme_path": offload.nvme_path, "pin_memory": True}
    return {"device": "cpu", "pin_memory": True}
