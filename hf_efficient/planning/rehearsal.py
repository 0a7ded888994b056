"""The recipe's own training loop, run on a model without values: what it allocates, and when."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_efficient.assembly.recipe_trainer import RecipeTrainer
from hf_efficient.assembly.sft_fields import apply_sft_fields, objective
from hf_efficient.data.prepare import is_packed, is_padding_free
from hf_efficient.metrics.for_trainer import make_compute_metrics
from hf_efficient.planning.arguments import rehearsal_arguments
from hf_efficient.planning.blank_model import blank_model
from hf_efficient.planning.collector import collector_paused
from hf_efficient.planning.eight_bit import is_eight_bit, kernels_of_a_gpu, row_constants
from hf_efficient.planning.four_bit import quantization_constants, values_of
from hf_efficient.planning.fused_kernels import fused_kernels_of_a_gpu
from hf_efficient.planning.isolation import process_kept
from hf_efficient.planning.optimizers import stand_in
from hf_efficient.planning.ranks.units import Unit, units_of
from hf_efficient.planning.rehearsed_evaluation import RehearsedEvaluation, is_evaluated, rehearse_evaluation
from hf_efficient.planning.rehearsing import Rehearsing
from hf_efficient.planning.rows import PaddedBatches, longest_rows
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records import OperatorWork
from hf_efficient.simulate.blank_module import compute_in
from hf_efficient.simulate.decompositions import decompositions
from hf_efficient.simulate.module_names import ModuleNames
from hf_efficient.simulate.operator_count import OperatorCount
from hf_efficient.simulate.tensor_log import TensorLog

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from trl import SFTConfig

    from hf_efficient.estimate.parallelism import Sharding
    from hf_efficient.estimate.sharding import ModelStates

__all__ = ["Rank", "Rehearsal", "RehearsalTrainer", "rehearsal_trainer", "rehearse"]


@dataclass(frozen=True)
class Rank:
    """One of several ranks.

    Attributes:
        sharding: how the model is spread over them.
        states: the whole of what is spread.
        layers: that are gathered one by one.
    """

    sharding: Sharding
    states: ModelStates
    layers: int


@dataclass(frozen=True)
class Rehearsal:
    """What two optimizer steps did, and an evaluation after them.

    Attributes:
        log: every storage.
        backward_starts: events before each backward.
        second_step: events before the second optimizer step.
        vocabulary: tokens that the model knows; the last dimension of its logits.
        first_step: events before the first optimizer step.
        rows, length: of a micro-batch; a pair of ``method: dpo`` is two rows.
        micro_batches: of an optimizer step of the run; more than were rehearsed, perhaps.
        operators: of such a step.
        parameters, trained_parameters: of the model, a 4-bit weight counted as the values that it stands for.
        paged_bytes: optimizer state outside of torch's allocator.
        forward_ends: events up to the end of each of the training's forwards, when the model's output is still there.
        evaluation: a batch of it, after the two steps; None where the run evaluates nothing.
        units: parameters of the whole model, in the units that several ranks would gather.
        rank: that this is the rehearsal of; None of a process that trains alone.
    """

    log: TensorLog
    backward_starts: tuple[int, ...]
    second_step: int
    vocabulary: int
    first_step: int
    rows: int
    length: int
    micro_batches: int
    operators: Sequence[OperatorWork]
    parameters: int
    trained_parameters: int
    paged_bytes: int
    forward_ends: tuple[int, ...] = ()
    evaluation: RehearsedEvaluation | None = None
    units: tuple[Unit, ...] = ()
    rank: Rank | None = None


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
        units=units_of(model, loaded),
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


def rehearsal_trainer(
    recipe: Recipe, model: Any, args: SFTConfig, length: int, *, padded: bool = False
) -> RehearsalTrainer:
    """The recipe's trainer for two optimizer steps on rows of one length; for a real model as well.

    Args:
        recipe: the recipe.
        model: what it trains.
        args: from ``rehearsal_arguments``.
        length: tokens of a row.
        padded: whether one row of a micro-batch is a token shorter.
    """
    apply_sft_fields(model, args)
    args.remove_unused_columns = False
    collator = DataCollatorForLanguageModeling(
        pad_token_id=0,
        padding_free=is_padding_free(args),
        pad_to_multiple_of=args.pad_to_multiple_of,  # type: ignore[arg-type]
    )
    rows = 2 * args.gradient_accumulation_steps * args.per_device_train_batch_size
    optimizer = stand_in(recipe, model)
    compute_metrics, reduce = make_compute_metrics(recipe.evaluate.metrics if is_evaluated(recipe) else ())
    trainer = RehearsalTrainer(
        model=model,
        args=args,
        data_collator=PaddedBatches(collator) if padded else collator,
        train_dataset=longest_rows(args, length, rows, packed=args.packing),
        compute_loss_func=objective(args),
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=reduce,
        optimizers=(optimizer, None),
    )
    trainer.stand_in = optimizer
    return trainer


def _longest(args: SFTConfig, config: PretrainedConfig) -> int:
    """``train.max_length``; without one, the positions that the model was made for."""
    if args.max_length is not None:
        return args.max_length
    return int(config.get_text_config().max_position_embeddings)


class RehearsalTrainer(Rehearsing, RecipeTrainer):
    """The trainer of ``method: sft``, without its instruments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, record_steps=False, check_gradients=False, log_metrics=False, **kwargs)

    def evaluation_rows(self, length: int, count: int) -> list[dict[str, Any]]:
        """Rows to evaluate on, packed where the run packs them."""
        args = cast("SFTConfig", self.args)
        return longest_rows(args, length, count, packed=is_packed(args, "eval"))

    def _fused_kernels(self) -> AbstractContextManager[None]:
        if self.on_gpu and self.chunked_loss:
            return fused_kernels_of_a_gpu(self.mark_logits)
        return super()._fused_kernels()


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
