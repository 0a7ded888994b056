"""The recipe's training arguments on a machine that is not the run's: nothing written, nothing logged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from hf_efficient.errors import Problem, RecipeError, SetupError
from hf_efficient.model.loss import sft_arguments
from hf_efficient.planning.optimizers import is_bitsandbytes
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from trl import SFTConfig

MOST_MICRO_BATCHES = 2
"""Of an optimizer step that are rehearsed: from the second on gradients are there, and nothing changes any more."""

_SHORT: dict[str, Any] = {
    "max_steps": 2,
    "logging_strategy": "no",
    "save_strategy": "no",
    "eval_strategy": "no",
    "eval_on_start": False,
    "load_best_model_at_end": False,
    "warmup_steps": 0,
}
_ELSEWHERE: dict[str, Any] = {
    "use_cpu": True,
    "report_to": [],
    "disable_tqdm": True,
    "push_to_hub": False,
    "torch_compile": False,
    "dataloader_pin_memory": False,
    "dataloader_num_workers": 0,
    "dataloader_persistent_workers": False,
    "dataloader_prefetch_factor": None,
    "use_liger_kernel": False,
    "activation_offloading": False,
    "tf32": None,
    "full_determinism": False,
}
_LEFT_OUT = ("deepspeed", "fsdp", "fsdp_config", "neftune_noise_alpha", "resume_from_checkpoint", "hub_model_id")


def rehearsal_arguments(recipe: Recipe, directory: str) -> SFTConfig:
    """``SFTConfig`` (``DPOConfig`` for ``method: dpo``) of the recipe's fields, for two steps.

    Args:
        recipe: the recipe.
        directory: stands for the output directory; nothing is written there.

    Raises:
        RecipeError: TRL or transformers refuse the values.
        SetupError: a package that a value needs is not installed.
    """
    steps = min(int(recipe.train.get("gradient_accumulation_steps", 1)), MOST_MICRO_BATCHES)
    return _arguments(recipe, directory, {**_SHORT, "gradient_accumulation_steps": steps})


def run_arguments(recipe: Recipe, directory: str) -> SFTConfig:
    """``SFTConfig`` of the recipe's fields, for reading how its run trains and evaluates; it trains nothing.

    Args:
        recipe: ``method: sft``.
        directory: stands for the output directory; nothing is written there.

    Raises:
        RecipeError: TRL or transformers refuse the values.
        SetupError: a package that a value needs is not installed.
    """
    return _arguments(recipe, directory, {})


def _arguments(recipe: Recipe, directory: str, other: dict[str, Any]) -> SFTConfig:
    from trl import DPOConfig

    fields = {name: value for name, value in recipe.train.items() if name not in _LEFT_OUT}
    if fields.pop("fp16", False):
        fields["bf16"] = True  # a CPU has no float16 training; the tensors are as large
    options = {**fields, **_ELSEWHERE, **other, "output_dir": directory}
    if is_bitsandbytes(str(options.get("optim", ""))):
        options["optim"] = "adamw_torch"  # never built: the rehearsal's own stands for it
    try:
        if recipe.method == "dpo":
            return cast("SFTConfig", DPOConfig(**{**options, "precompute_ref_log_probs": False}))
        return sft_arguments(**options)
    except ImportError as error:
        raise SetupError(f"train: {error}") from error
    except (ValueError, TypeError) as error:
        raise RecipeError([Problem(str(recipe.path or recipe.name), "train", str(error))]) from error
