"""The recipe's own training loop, run on a model without values: what it allocates, and when."""

from __future__ import annotations

import copy
import tempfile
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from hf_efficient.model.adapter import check_wrap_classes
from hf_efficient.planning.arguments import rehearsal_arguments
from hf_efficient.planning.blank_model import blank_model
from hf_efficient.planning.collector import collector_paused
from hf_efficient.planning.eight_bit import is_eight_bit, kernels_of_a_gpu, row_constants
from hf_efficient.planning.four_bit import quantization_constants, values_of
from hf_efficient.planning.isolation import process_kept
from hf_efficient.planning.ranks.units import units_of
from hf_efficient.planning.rehearsed import Rehearsal
from hf_efficient.planning.rehearsed_evaluation import is_evaluated, rehearse_evaluation
from hf_efficient.planning.rehearsing import Rehearsing
from hf_efficient.planning.supervised_trainer import rehearsal_trainer
from hf_efficient.recipe.schema import Recipe
from hf_efficient.simulate.blank_module import compute_in
from hf_efficient.simulate.decompositions import decompositions
from hf_efficient.simulate.module_names import ModuleNames
from hf_efficient.simulate.operator_count import OperatorCount
from hf_efficient.simulate.tensor_log import TensorLog

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from trl import SFTConfig


def rehearse(
    recipe: Recipe,
    config: PretrainedConfig,
    length: int | None = None,
    *,
    padded: bool = False,
    evaluation_length: int | None = None,
    on_gpu: bool = True,
    computes_in: torch.dtype | None = None,
) -> Rehearsal:
    """Build model and trainer of a recipe, train two steps, and evaluate where the run would.

    Args:
        recipe: the recipe.
        config: of its model.
        length: tokens of every row; default: the most that the recipe allows.
        padded: whether a row of each micro-batch is shorter, so that the attention needs a mask.
        evaluation_length: tokens of every row that is evaluated on; default: ``length``.
        on_gpu: whether the run is on a GPU, whose fused LM head (``loss_type: chunked_nll``) takes less memory, and
            whose sums of two dtypes take none.
        computes_in: what float32 weights are cast to before the step, by whoever spreads the model over ranks.

    Raises:
        HfEfficientError: what the recipe's own run would refuse.
    """
    with process_kept(), collector_paused(), tempfile.TemporaryDirectory() as directory:
        args = rehearsal_arguments(recipe, directory)
        model = blank_model(recipe, config, seed=args.seed, checkpointing=args.gradient_checkpointing)
        check_wrap_classes(model, recipe.distributed.wrap_classes)
        loaded = {name: one.dtype.itemsize for name, one in model.named_parameters()}
        if computes_in is not None:
            compute_in(model, computes_in)
        length = _longest(args, config) if length is None else length
        trainer = _trainer(recipe, config, model, args, length, padded=padded)
        names = ModuleNames(model)
        trainer.follow(names)
        trainer.tensors = log = TensorLog(trainer.where, decompositions=decompositions(on_gpu=on_gpu))
        _note_model(log, model)
        reference = getattr(trainer, "ref_model", None)
        if reference is not None:
            _note_model(log, reference)
        trainer.operators = OperatorCount()
        trainer.on_gpu = on_gpu
        wanted = int(recipe.train.get("gradient_accumulation_steps", 1))
        trainer.micro_batch_factor = wanted / args.gradient_accumulation_steps
        forward_ends: list[int] = []
        hook = model.register_forward_hook(lambda *_: _note_end(forward_ends, log))
        try:
            with log, kernels_of_a_gpu() if is_eight_bit(recipe) else nullcontext():
                trainer.train()
                evaluation = None
                if is_evaluated(recipe):
                    evaluation = rehearse_evaluation(trainer, evaluation_length or length)
        finally:
            hook.remove()
            names.close()
    return Rehearsal(
        log=log,
        backward_starts=tuple(trainer.backward_starts),
        second_step=trainer.step_starts[1],
        vocabulary=config.get_text_config().vocab_size,
        first_step=trainer.step_starts[0],
        rows=args.per_device_train_batch_size * (2 if recipe.method == "dpo" else 1),
        length=length,
        micro_batches=wanted,
        operators=trainer.operators.works(),
        parameters=sum(values_of(one) for one in model.parameters()),
        trained_parameters=sum(one.numel() for one in model.parameters() if one.requires_grad),
        paged_bytes=getattr(trainer.stand_in, "paged_bytes", 0),
        forward_ends=tuple(forward_ends),
        evaluation=evaluation,
        units=units_of(model, loaded, recipe.distributed.wrap_classes),
    )


def _note_end(ends: list[int], log: TensorLog) -> None:
    """Of a forward that trains; a reference model's, and an evaluation's, do not."""
    if torch.is_grad_enabled():
        ends.append(len(log.events))


def _trainer(
    recipe: Recipe, config: PretrainedConfig, model: Any, args: Any, length: int, *, padded: bool
) -> Rehearsing:
    if recipe.method == "sft":
        return rehearsal_trainer(recipe, model, args, length, padded=padded)
    from hf_efficient.planning.preference_trainer import preference_trainer

    reference = None
    if recipe.adapter.method == "full":
        reference = blank_model(recipe, copy.deepcopy(config), seed=args.seed, checkpointing=False)
    return preference_trainer(recipe, model, reference, args, length)


def _longest(args: SFTConfig, config: PretrainedConfig) -> int:
    """``train.max_length``; without one, the positions that the model was made for."""
    if args.max_length is not None:
        return args.max_length
    return int(config.get_text_config().max_position_embeddings)


def _note_model(log: TensorLog, model: torch.nn.Module) -> None:
    """Weights and adapter are there from the start."""
    for name, parameter in model.named_parameters():
        log.add(parameter, name, "adapter" if parameter.requires_grad and _is_adapter(name) else "weights")
    for name, module in model.named_modules():
        for constant in (*quantization_constants(module), *row_constants(module)):
            log.add(constant, f"{name}.weight", "weights")
        for buffer in module.buffers(recurse=False):
            log.add(buffer, name, "weights")


def _is_adapter(name: str) -> bool:
    return "lora_" in name or "modules_to_save" in name
