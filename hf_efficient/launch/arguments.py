"""The recipe's ``train`` section to TRL's training arguments, for the device and the processes that are here.

Sharding without a GPU: DeepSpeed on the CPU, and FSDP2, which accelerate (1.15) refuses there. Its own code and the
Trainer's then run with torch's ``fully_shard`` on gloo.
"""

import functools
import os
from typing import Any, Literal

import torch
from transformers import TrainingArguments
from trl import DPOConfig, SFTConfig

from hf_efficient.errors import Problem, RecipeError, SetupError
from hf_efficient.facts.tables import key_table
from hf_efficient.launch.command import deepspeed_config, is_zero, largest_share
from hf_efficient.launch.machine import check_use_cpu
from hf_efficient.launch.started import started_engine, started_recipe
from hf_efficient.model.fast_step import settle_fast_step, settled_options
from hf_efficient.model.recipe_trainer import preference_arguments, sft_arguments
from hf_efficient.profilers.calibration import cpu_is_faster_in_float32
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import QuantizationSection, Recipe, compute_dtype


def keep_to_one_device(args: TrainingArguments) -> None:
    """Leave torch's DataParallel off, which transformers turns on for a lone process that sees several GPUs: it would
    train on as many times the recipe's rows. ``Trainer.__init__`` turns it off by the same attribute."""
    if args.n_gpu > 1:
        args._n_gpu = 1


def one_device_remark(args: TrainingArguments, device_count: int) -> str | None:
    if args.world_size > 1 or device_count < 2 or args.device.type == "cpu":
        return None
    return (
        f"one process trains on the first of {device_count} GPUs; `hf-efficient train` with `distributed.processes: "
        "auto`, which is the default, starts one on each"
    )


def settle_compute_dtype(recipe: Recipe, device: torch.device) -> Recipe:
    """The recipe with what its 4-bit layers multiply in on this device, for ``compute_dtype: auto``."""
    distill = recipe.distill
    if distill and (held := distill.teacher.quantization) and held.compute_dtype == "auto":
        held = held.model_copy(update={"compute_dtype": _multiplies_in(device)})
        teacher = distill.teacher.model_copy(update={"quantization": held})
        recipe = recipe.model_copy(update={"distill": distill.model_copy(update={"teacher": teacher})})
    adapter = recipe.adapter
    section = adapter.quantization or QuantizationSection()
    if adapter.method != "qlora" or section.bits != 4 or section.compute_dtype != "auto":
        return recipe
    settled = section.model_copy(update={"compute_dtype": _multiplies_in(device)})
    return recipe.model_copy(update={"adapter": adapter.model_copy(update={"quantization": settled})})


def leave_bf16_off(options: dict[str, Any]) -> None:
    """For a device no faster in it, where the recipe is silent: TRL and the launcher's mixed precision would use it."""
    if not options.get("fp16") and not options.get("bf16"):
        options["bf16"] = False
        os.environ["ACCELERATE_MIXED_PRECISION"] = "no"


def float32_remark(recipe: Recipe, device: torch.device) -> str:
    if device.type != "cpu" or not cpu_is_faster_in_float32():
        return ""
    half = compute_dtype(recipe.adapter.quantization or QuantizationSection()) == "bfloat16"
    asked = {
        "train.bf16: false": recipe.train.get("bf16") is True,
        "model.dtype: float32": recipe.model.dtype == "bfloat16",
        "adapter.quantization.compute_dtype: auto": recipe.adapter.method == "qlora" and half,
    }
    remedies = ", ".join(key for key, is_asked in asked.items() if is_asked)
    return remedies and f"this CPU multiplies float32 faster than bfloat16: write {remedies}"


def _multiplies_in(device: torch.device) -> Literal["bfloat16", "float16", "float32"]:
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    return "float32" if device.type == "cpu" and cpu_is_faster_in_float32() else "bfloat16"


def settle(recipe: Recipe) -> tuple[Recipe, SFTConfig | DPOConfig]:
    recipe = started_recipe(recipe, os.environ)
    args = training_arguments(recipe)
    return settle_choices(recipe, args), args


def settle_choices(recipe: Recipe, args: SFTConfig | DPOConfig) -> Recipe:
    return settle_fast_step(settle_compute_dtype(recipe, args.device), args.device.type)


def training_arguments(recipe: Recipe) -> SFTConfig | DPOConfig:
    """With what the device needs where the recipe is silent: without an accelerator ``use_cpu``, no pinned memory.
    ``RecipeError``: values contradict each other; ``SetupError``: the device cannot do what is asked for (bf16)."""
    options: dict[str, Any] = {"output_dir": recipe.output_dir, **settled_options(recipe)}
    engine = started_engine(os.environ)
    has_accelerator = torch.accelerator.is_available()
    if has_accelerator:
        check_use_cpu(recipe, engine)
    else:
        options.setdefault("use_cpu", True)
        options.setdefault("dataloader_pin_memory", False)
    if is_zero(engine):
        share = largest_share(recipe, int(os.environ.get("WORLD_SIZE", "1")))
        options["deepspeed"] = deepspeed_config(recipe, engine, share)
        if not has_accelerator:
            os.environ.setdefault("DS_ACCELERATOR", "cpu")  # before it is imported: else it guesses, and warns
    if engine == "fsdp2" and not has_accelerator:
        _open_fsdp2_on_cpu()
    if has_accelerator and not options.get("use_cpu", False):
        _check_gpu(options)
        _copy_without_waiting(options)
    else:
        _check_cpu(options, recipe.model.attn_implementation)
    if recipe.evaluate.early_stopping is not None:
        options.setdefault("metric_for_best_model", "loss")
        # How often nothing has improved so far is part of the run that is resumed.
        options.setdefault("restore_callback_states_from_checkpoint", True)
    if str(options.get("metric_for_best_model", "")).removeprefix("eval_") == "perplexity":
        options.setdefault("greater_is_better", False)  # transformers takes every metric not named loss for a gain
    try:
        imitates = OBJECTIVES[recipe.objective].imitates
        args = sft_arguments(**options) if imitates else preference_arguments(recipe, options)
    except ImportError as error:
        raise SetupError(f"train: {str(error).strip() or 'ImportError'}") from error
    except (ValueError, TypeError) as error:
        message = str(error).strip() or type(error).__name__
        raise RecipeError([Problem(str(recipe.path or recipe.name), "train", message)]) from error
    if is_zero(engine) and not has_accelerator:
        _join_deepspeed()
    keep_to_one_device(args)
    return args


def _join_deepspeed() -> None:
    """Give it torch's process group before ``zero.Init`` loads a model: accelerate (1.15) does so on GPUs alone."""
    from deepspeed import comm

    if not comm.is_initialized():
        comm.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)


def _open_fsdp2_on_cpu() -> None:
    """Let the accelerators that are made from here on shard on a CPU."""
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType
    from torch.distributed.fsdp import CPUOffloadPolicy

    initialise = AcceleratorState.__init__
    if hasattr(initialise, "__wrapped__"):
        return

    @functools.wraps(initialise)
    def with_fsdp2(state: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        initialise(state, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is None or state.distributed_type != DistributedType.MULTI_CPU:
            return
        state.distributed_type = DistributedType.FSDP
        if state._mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(state._mixed_precision)
        if isinstance(fsdp_plugin.cpu_offload, CPUOffloadPolicy):  # nothing to pin memory for
            fsdp_plugin.cpu_offload = CPUOffloadPolicy(pin_memory=False)
        state.fsdp_plugin = fsdp_plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = with_fsdp2


def _check_gpu(options: dict[str, Any]) -> None:
    if not torch.cuda.is_available() or options.get("fp16") or torch.cuda.is_bf16_supported(including_emulation=False):
        return
    if options.get("bf16"):
        raise SetupError(
            f"train.bf16: {torch.cuda.get_device_name()} has no bfloat16; "
            "write `train.fp16: true` and `train.bf16: false`, or both false for float32."
        )
    leave_bf16_off(options)


def _copy_without_waiting(options: dict[str, Any]) -> None:
    """accelerate copies a batch to the device before the one ahead of it is trained on. By default it waits for that
    copy, and so for all work that the device has still to do."""
    own = options.get("accelerator_config") or {}
    if isinstance(own, dict) and options.get("dataloader_pin_memory", True):
        options["accelerator_config"] = {"non_blocking": True, **own}


def _check_cpu(options: dict[str, Any], attention: str | None) -> None:
    if options.get("bf16") is None and cpu_is_faster_in_float32():
        leave_bf16_off(options)
    for key, why in key_table("train_fields")["not_on_a_cpu"].items():
        if options.get(key):
            raise SetupError(f"train.{key}: {why}")
    if attention == "flex_attention":
        raise SetupError("model.attn_implementation: flex_attention has no backward on a CPU; write sdpa or eager.")
