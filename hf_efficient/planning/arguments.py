"""The recipe's training arguments on a machine that is not the run's, and what keeps a simulation apart from it."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn
from transformers import TrainingArguments
from transformers.integrations import deepspeed

from hf_efficient.errors import Problem, RecipeError, SetupError
from hf_efficient.facts.environment import replaced
from hf_efficient.facts.tables import key_table
from hf_efficient.model.fast_step import settled_options
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules.distributed import planned_processes
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.recording.activations import kept_random_state

if TYPE_CHECKING:
    from trl import SFTConfig

_LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


@contextmanager
def process_kept() -> Iterator[None]:
    """Keeps random generators, environment variables, and what accelerate shares: building a trainer changes them all.
    Inside, there is one process without a group and without DeepSpeed, so that nothing waits for other processes."""
    shared = [one._shared_state for one in (PartialState, AcceleratorState, GradientState)]
    held, variables = [dict(one) for one in shared], dict(os.environ)
    try:
        for name in variables:
            if name in _LAUNCHED or name.startswith(("ACCELERATE_", "FSDP_", "TORCHELASTIC_")):
                del os.environ[name]
        for own in shared:
            own.clear()
        with (
            replaced(torch.distributed, "is_initialized", lambda: False),
            replaced(deepspeed, "_hf_deepspeed_config_weak_ref", None),
            kept_random_state("cuda" if torch.cuda.is_initialized() else "cpu"),
        ):
            yield
    finally:
        for added in set(os.environ) - set(variables):
            del os.environ[added]
        os.environ.update(variables)
        for own, before in zip(shared, held, strict=True):
            own.clear()
            own.update(before)


@contextmanager
def collector_paused() -> Iterator[None]:
    """A simulation makes a hundred thousand objects that stay; searching them takes a third of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_SMALL = 4096
_BLOCK = 256
_PAGED_FROM = 100_000
_FIELDS = key_table("train_fields")
_MOMENTS: dict[str, tuple[int, ...]] = {name: tuple(held) for name, held in _FIELDS["moments"].items()}


def is_bitsandbytes(name: str) -> bool:
    return name in _MOMENTS


def stand_in(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer | None:
    """In place of the recipe's optimizer; None where that itself can run."""
    name = str(recipe.train.get("optim", ""))
    if not is_bitsandbytes(name):
        return None
    return BitsAndBytesState(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        moments=_MOMENTS[name],
        eight_bit="8bit" in name,
        paged="paged" in name,
        in_float32=frozenset(id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)),
    )


class BitsAndBytesState(torch.optim.Optimizer):
    """bitsandbytes' optimizers, whose kernels a machine may lack: allocates the state in the first step, and no more.

    An 8-bit one keeps, for a parameter of 4,096 values or more, each moment in one byte per value and a float32
    constant per block of 256. Smaller ones and every embedding are in float32. AdEMAMix keeps its two averages in one
    tensor. Paged ones keep moments of 100,000 values or more outside torch's allocator (``paged_bytes``). Source:
    Dettmers et al. 2021 (8-bit optimizers via block-wise quantization), ``Optimizer2State.init_state``,
    ``Optimizer8bit.get_state_buffer``, and ``bitsandbytes.optim.ademamix.AdEMAMix`` (0.50).
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        *,
        moments: tuple[int, ...],
        eight_bit: bool,
        paged: bool,
        in_float32: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(parameters, {"lr": 0.0})
        self._moments, self._eight_bit, self._paged, self._in_float32 = moments, eight_bit, paged, in_float32
        self.paged_bytes = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter not in self.state:
                    self.state[parameter] = self._state_of(parameter)

    def _state_of(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        values = parameter.numel()
        eight_bit = self._eight_bit and values >= _SMALL and id(parameter) not in self._in_float32
        dtype = torch.uint8 if eight_bit else torch.float32
        state = {}
        for place, moments in enumerate(self._moments, 1):
            if self._paged and values >= _PAGED_FROM:
                self.paged_bytes += moments * values * dtype.itemsize
            else:
                state[f"state{place}"] = parameter.new_zeros((moments, *parameter.shape), dtype=dtype)
            if eight_bit:
                blocks = math.ceil(values / _BLOCK)
                state[f"absmax{place}"] = parameter.new_zeros((moments, blocks), dtype=torch.float32)
        return state


MOST_MICRO_BATCHES = 2
"""Of an optimizer step that are simulated: from the second on gradients are there, and nothing changes any more."""

PROMPT_TOKENS = 256
"""Of a prompt whose data are not known, an assumption."""
_SHORT: dict[str, Any] = _FIELDS["two_steps"]
_ELSEWHERE: dict[str, Any] = _FIELDS["simulated"]
_LEFT_OUT = ("deepspeed", "fsdp", "fsdp_config", "neftune_noise_alpha", "resume_from_checkpoint", "hub_model_id")


def simulation_arguments(recipe: Recipe, directory: str) -> SFTConfig:
    """``SFTConfig``, or the class of the objective, of the recipe's fields, for two steps."""
    steps = min(int(recipe.train.get("gradient_accumulation_steps", 1)), MOST_MICRO_BATCHES)
    return _arguments(
        recipe, directory, {**_SHORT, "gradient_accumulation_steps": steps, **_generated(recipe, simulated=True)}
    )


def run_arguments(recipe: Recipe, directory: str) -> SFTConfig:
    return _arguments(recipe, directory, _generated(recipe, simulated=False))


def _generated(recipe: Recipe, *, simulated: bool) -> dict[str, Any]:
    """What is generated together, for one process: that of all ranks, or, ``simulated``, of one as a single group."""
    if not OBJECTIVES[recipe.objective].is_rewarded:
        return {"use_vllm": False} if simulated and OBJECTIVES[recipe.objective].generates else {}
    train, ranks = recipe.train, planned_processes(recipe)
    rows = int(train.get("per_device_train_batch_size", 8))
    times = int(train.get("steps_per_generation") or train.get("gradient_accumulation_steps", 1))
    if all_ranks := train.get("generation_batch_size"):
        times = max(1, int(all_ranks) // (rows * ranks))
    if not simulated:
        return {"generation_batch_size": rows * times * ranks, "steps_per_generation": None}
    times = max(times, 2 if rows == 1 else 1)
    together = {"generation_batch_size": None, "steps_per_generation": times, "num_generations": rows * times}
    return {**together, "use_vllm": False}  # it would be started


def own_arguments(args: TrainingArguments, directory: str, **fields: Any) -> TrainingArguments:
    """A trainer's own arguments for two steps on a CPU, ``fields`` changed."""
    changes = {**_ELSEWHERE, **dict.fromkeys(_LEFT_OUT), **fields, "precompute_ref_log_probs": False}
    changes |= {"bf16": args.bf16 or args.fp16, "fp16": False}
    if is_bitsandbytes(str(getattr(args.optim, "value", args.optim))):
        changes["optim"] = "adamw_torch"
    return two_steps(args, output_dir=directory, **changes)


def two_steps(args: TrainingArguments, **fields: Any) -> TrainingArguments:
    """A trainer's own arguments for two short steps, ``fields`` changed; its class and other fields stay."""
    micro_batches = min(args.gradient_accumulation_steps, MOST_MICRO_BATCHES)
    changes = {**_SHORT, "gradient_accumulation_steps": micro_batches, **fields}
    known = {field.name for field in dataclasses.fields(args) if field.init}
    return dataclasses.replace(args, **{name: value for name, value in changes.items() if name in known})


def _arguments(recipe: Recipe, directory: str, other: dict[str, Any]) -> SFTConfig:
    from hf_efficient.model.recipe_trainer import preference_arguments, sft_arguments

    fields = {name: value for name, value in settled_options(recipe).items() if name not in _LEFT_OUT}
    if fields.pop("fp16", False):
        fields["bf16"] = True  # a CPU has no float16 training; the tensors are as large
    known = train_fields(recipe.objective)
    elsewhere = {name: value for name, value in _ELSEWHERE.items() if name in known}
    options = {**fields, **elsewhere, **other, "output_dir": directory}
    if is_bitsandbytes(str(options.get("optim", ""))):
        options["optim"] = "adamw_torch"  # never built: the simulation's own stands for it
    try:
        if not OBJECTIVES[recipe.objective].imitates:
            options.pop("precompute_ref_log_probs", None)
            return cast("SFTConfig", preference_arguments(recipe, options))
        return sft_arguments(**options)
    except ImportError as error:
        raise SetupError(f"train: {error}") from error
    except (ValueError, TypeError) as error:
        raise RecipeError([Problem(str(recipe.path or recipe.name), "train", str(error))]) from error
