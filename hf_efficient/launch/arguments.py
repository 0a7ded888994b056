"""The recipe's ``train`` section to TRL's training arguments, for the device that is here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hf_efficient.errors import Problem, RecipeError, SetupError
from hf_efficient.hardware.devices import cpu_emulates_bf16
from hf_efficient.launch.engines.checks import check_use_cpu
from hf_efficient.launch.engines.deepspeed_config import deepspeed_config, is_zero
from hf_efficient.launch.engines.largest_share import largest_share
from hf_efficient.launch.engines.started import started_engine
from hf_efficient.launch.one_device import keep_to_one_device
from hf_efficient.launch.precision import leave_bf16_off
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from trl import DPOConfig, SFTConfig

__all__ = ["training_arguments"]


def training_arguments(recipe: Recipe) -> SFTConfig | DPOConfig:
    """``SFTConfig`` or ``DPOConfig`` with the recipe's fields and, where it is silent, what the device needs.

    Without an accelerator ``use_cpu`` is set and pinned host memory switched off; ``eos_token`` and the like stay as
    the recipe has them.

    Raises:
        RecipeError: the values contradict each other (TRL's or transformers' own check).
        ModelError: parameters are to be offloaded to NVMe, and the model's architecture is not known.
        SetupError: the device cannot do what the recipe asks for (bf16, for instance).
    """
    import torch
    from trl import DPOConfig

    from hf_efficient.assembly.deepspeed_on_cpu import choose_deepspeed_device, join_deepspeed
    from hf_efficient.assembly.fused_head import sft_arguments

    options: dict[str, Any] = {"output_dir": recipe.output_dir, **recipe.train}
    has_accelerator = torch.accelerator.is_available()
    if not has_accelerator:
        options.setdefault("use_cpu", True)
        options.setdefault("dataloader_pin_memory", False)
    engine = started_engine(os.environ)
    if has_accelerator:
        check_use_cpu(recipe, engine)
    if is_zero(engine):
        options["deepspeed"] = deepspeed_config(
            recipe, engine, largest_share(recipe, int(os.environ.get("WORLD_SIZE", "1")))
        )
        choose_deepspeed_device()
    if engine == "fsdp2":
        from hf_efficient.assembly.fsdp2_on_cpu import open_fsdp2_on_cpu

        open_fsdp2_on_cpu()
    _check_device(options, recipe.model.attn_implementation, has_accelerator and not options.get("use_cpu", False))
    if recipe.evaluate.early_stopping is not None:
        options.setdefault("metric_for_best_model", "loss")
        # How often nothing has improved so far is part of the run that is resumed.
        options.setdefault("restore_callback_states_from_checkpoint", True)
    if str(options.get("metric_for_best_model", "")).removeprefix("eval_") == "perplexity":
        options.setdefault("greater_is_better", False)  # transformers takes every metric not named loss for a gain
    try:
        args = DPOConfig(**options) if recipe.method == "dpo" else sft_arguments(**options)
    except (ValueError, TypeError, ImportError) as error:
        message = str(error).strip() or type(error).__name__
        if isinstance(error, ImportError):
            raise SetupError(f"train: {message}") from error
        raise RecipeError([Problem(str(recipe.path or recipe.name), "train", message)]) from error
    if is_zero(engine):
        join_deepspeed()
    keep_to_one_device(args)
    return args


def _check_device(options: dict[str, Any], attention: str | None, on_accelerator: bool) -> None:
    """What the device here lacks for the precision and the kernels asked for."""
    import torch

    on_cuda = on_accelerator and torch.cuda.is_available()
    if on_cuda and not options.get("fp16") and not torch.cuda.is_bf16_supported(including_emulation=False):
        if options.get("bf16"):
            raise SetupError(
                f"train.bf16: {torch.cuda.get_device_name()} has no bfloat16; "
                "write `train.fp16: true` and `train.bf16: false`, or both false for float32."
            )
        leave_bf16_off(options)
    if not on_accelerator and "bf16" not in options and cpu_emulates_bf16():
        leave_bf16_off(options)
    if not on_accelerator and options.get("fp16"):
        raise SetupError(
            "train.fp16: a CPU trains in float32 or bfloat16; write `train.fp16: false`, `train.bf16: true`."
        )
    if not on_accelerator and options.get("use_liger_kernel"):
        raise SetupError("train.use_liger_kernel: Liger's kernels need a GPU; write `train.use_liger_kernel: false`.")
    if not on_accelerator and options.get("activation_offloading"):
        raise SetupError(
            "train.activation_offloading: on a CPU the activations are in host memory already; leave it out."
        )
    if not on_accelerator and attention == "flex_attention":
        raise SetupError("model.attn_implementation: flex_attention has no backward on a CPU; write sdpa or eager.")
    if not on_accelerator and options.get("tf32"):
        raise SetupError("train.tf32: TF32 is a number format of NVIDIA GPUs from Ampere on; leave it out.")
