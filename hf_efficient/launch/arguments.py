"""One process trains on one GPU, however many it sees.

What this machine multiplies in, where the recipe leaves it to the machine.

The recipe's ``train`` section to TRL's training arguments, for the device that is here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import TrainingArguments

from hf_efficient.errors import Problem, RecipeError, SetupError
from hf_efficient.facts.environment import cpu_emulates_bf16
from hf_efficient.launch.command import deepspeed_config, is_zero, largest_share
from hf_efficient.launch.machine import check_use_cpu
from hf_efficient.launch.started import started_engine
from hf_efficient.recipe.schema import QuantizationSection, Recipe, compute_dtype

if TYPE_CHECKING:
    from trl import DPOConfig, SFTConfig


def keep_to_one_device(args: TrainingArguments) -> None:
    """Leave torch's DataParallel off, which transformers turns on for a process alone that sees several GPUs.

    It would take as many times the rows of the recipe in a step, cannot shard anything, and is slower than DDP, which
    torch's documentation recommends in its place. transformers itself turns it off by the same attribute
    (``Trainer.__init__``, models that are spread over several devices).
    """
    if args.n_gpu > 1:
        args._n_gpu = 1


def one_device_remark(args: TrainingArguments, device_count: int) -> str | None:
    """What to tell where GPUs are left idle."""
    if args.world_size > 1 or device_count < 2 or args.device.type == "cpu":
        return None
    return (
        f"one process trains on the first of {device_count} GPUs; `hf-efficient train` with `distributed.processes: "
        "auto`, which is the default, starts one on each"
    )


_KEY = "adapter.quantization.compute_dtype"


def settle_compute_dtype(recipe: Recipe, device: torch.device) -> Recipe:
    """The recipe with what its 4-bit layers multiply in on this device, for ``compute_dtype: auto``."""
    adapter = recipe.adapter
    section = adapter.quantization or QuantizationSection()
    if adapter.method != "qlora" or section.bits != 4 or section.compute_dtype != "auto":
        return recipe
    settled = section.model_copy(update={"compute_dtype": _multiplies_in(device)})
    return recipe.model_copy(update={"adapter": adapter.model_copy(update={"quantization": settled})})


def leave_bf16_off(options: dict[str, Any]) -> None:
    """For a device without it, where the recipe is silent: TRL would train in it.

    The launcher's word goes as well: without one of their own, training arguments take its mixed precision.
    """
    if not options.get("fp16") and options.setdefault("bf16", False) is False:
        os.environ["ACCELERATE_MIXED_PRECISION"] = "no"


def emulation_remark(recipe: Recipe, device: torch.device) -> str:
    """What of a recipe this CPU has to emulate, and what to write; empty where it is nothing."""
    if device.type != "cpu" or not cpu_emulates_bf16():
        return ""
    asked = {"train.bf16: false": recipe.train.get("bf16") is True}
    asked["model.dtype: float32"] = recipe.model.dtype == "bfloat16"
    section = recipe.adapter.quantization or QuantizationSection()
    asked[f"{_KEY}: auto"] = recipe.adapter.method == "qlora" and compute_dtype(section) == "bfloat16"
    remedies = [key for key, is_asked in asked.items() if is_asked]
    if not remedies:
        return ""
    return f"this CPU emulates bfloat16, many times slower than float32: write {', '.join(remedies)}"


def _multiplies_in(device: torch.device) -> Literal["bfloat16", "float16", "float32"]:
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    return "float32" if device.type == "cpu" and cpu_emulates_bf16() else "bfloat16"


def training_arguments(recipe: Recipe) -> SFTConfig | DPOConfig:
    """``SFTConfig`` or ``DPOConfig`` with the recipe's fields and, where it is silent, what the device needs.

    Without an accelerator ``use_cpu`` is set and pinned host memory switched off; ``eos_token`` and the like stay as
    the recipe has them.
    """
    import torch
    from trl import DPOConfig

    from hf_efficient.model.loss import sft_arguments
    from hf_efficient.model.on_cpu import choose_deepspeed_device, join_deepspeed

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
        from hf_efficient.model.on_cpu import open_fsdp2_on_cpu

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
