"""The recipe's own training loop, run on a model without values: what it allocates, and when."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_efficient.assembly.recipe_trainer import RecipeTrainer
from hf_efficient.assembly.sft_fields import apply_sft_fields, objective
from hf_efficient.data.prepare import is_padding_free
from hf_efficient.planning.arguments import rehearsal_arguments
from hf_efficient.planning.blank_model import blank_model
from hf_efficient.planning.collector import collector_paused
from hf_efficient.planning.eight_bit import is_eight_bit, kernels_of_a_gpu, row_constants
from hf_efficient.planning.four_bit import quantization_constants, values_of
from hf_efficient.planning.isolation import process_kept
from hf_efficient.planning.optimizers import stand_in
from hf_efficient.planning.rehearsed_evaluation import RehearsedEvaluation, is_evaluated, rehearse_evaluation
from hf_efficient.planning.rows import PaddedBatches, longest_rows
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records import OperatorWork
from hf_efficient.simulate.decompositions import decompositions
from hf_efficient.simulate.module_names import ModuleNames
from hf_efficient.simulate.operator_count import OperatorCount
from hf_efficient.simulate.tensor_log import TensorLog

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from trl import SFTConfig

__all__ = ["Rehearsal", "RehearsalTrainer", "rehearsal_trainer", "rehearse"]


@dataclass(frozen=True)
class Rehearsal:
    """What two optimizer steps did, and an evaluation after them.

    Attributes:
        log: every storage.
        backward_starts: events before each backward.
        second_step: events before the second optimizer step.
        vocabulary: tokens that the model knows; the last dimension of its logits.
        first_step: events before the first optimizer step.
        rows, length: of a micro-batch.
        micro_batches: of an optimizer step of the run; more than were rehearsed, perhaps.
        operators: of such a step.
        parameters, trained_parameters: of the model, a 4-bit weight counted as the values that it stands for.
        paged_bytes: optimizer state outside of torch's allocator.
        forward_ends: events up to the end of each of the training's forwards, when the model's output is still there.
        evaluation: a batch of it, after the two steps; None where the run evaluates nothing.
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


def rehearse(
    recipe: Recipe,
    config: PretrainedConfig,
    length: int | None = None,
    *,
    padded: bool = False,
    evaluation_length: int | None = None,
) -> Rehearsal:
    """Build model and trainer of a recipe of ``method: sft``, train two steps, and evaluate where the run would.

    Args:
        recipe: the recipe.
        config: of its model.
        length: tokens of every row; default: the most that the recipe allows.
        padded: whether a row of each micro-batch is shorter, so that the attention needs a mask.
        evaluation_length: tokens of every row that is evaluated on; default: ``length``.

    Raises:
        HfEfficientError: what the recipe's own run would refuse.
    """
    with process_kept(), collector_paused(), tempfile.TemporaryDirectory() as directory:
        args = rehearsal_arguments(recipe, directory)
        model = blank_model(recipe, config, seed=args.seed, checkpointing=args.gradient_checkpointing)
        length = _longest(args, config) if length is None else length
        trainer = rehearsal_trainer(recipe, model, args, length, padded=padded)
        names = ModuleNames(model)
        trainer.follow(names)
        trainer.tensors = log = TensorLog(trainer.where, decompositions=decompositions())
        _note_model(log, model)
        trainer.operators = OperatorCount()
        wanted = int(recipe.train.get("gradient_accumulation_steps", 1))
        trainer.micro_batch_factor = wanted / args.gradient_accumulation_steps
        forward_ends: list[int] = []
        hook = model.register_forward_hook(lambda *_: forward_ends.append(len(log.events)))
        try:
            with log, kernels_of_a_gpu() if is_eight_bit(recipe) else nullcontext():
                trainer.train()
                evaluation = None
                if is_evaluated(recipe):
                    evaluation = rehearse_evaluation(recipe, trainer, evaluation_length or length)
        finally:
            hook.remove()
            names.close()
    return Rehearsal(
        log=log,
        backward_starts=tuple(trainer.backward_starts),
        second_step=trainer.step_starts[1],
        vocabulary=config.get_text_config().vocab_size,
        first_step=trainer.step_starts[0],
        rows=args.per_device_train_batch_size,
        length=length,
        micro_batches=wanted,
        operators=trainer.operators.works(),
        parameters=sum(values_of(one) for one in model.parameters()),
        trained_parameters=sum(one.numel() for one in model.parameters() if one.requires_grad),
        paged_bytes=getattr(trainer.stand_in, "paged_bytes", 0),
        forward_ends=tuple(forward_ends[: len(trainer.backward_starts)]),
        evaluation=evaluation,
    )


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
    trainer = RehearsalTrainer(
        model=model,
        args=args,
        data_collator=PaddedBatches(collator) if padded else collator,
        train_dataset=longest_rows(args, length, rows, packed=args.packing),
        compute_loss_func=objective(args),
        optimizers=(optimizer, None),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.stand_in = optimizer
    return trainer


def _longest(args: SFTConfig, config: PretrainedConfig) -> int:
    """``train.max_length``; without one, the positions that the model was made for."""
    if args.max_length is not None:
        return args.max_length
    return int(config.get_text_config().max_position_embeddings)


class RehearsalTrainer(RecipeTrainer):
    """Tells what goes on."""

    tensors: TensorLog | None = None
    operators: OperatorCount | None = None
    stand_in: torch.optim.Optimizer | None = None
    micro_batch_factor = 1.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.backward_starts: list[int] = []
        self.step_starts: list[int] = []
        self.phase = "setup"
        self._names: ModuleNames | None = None
        super().__init__(
            *args, record_steps=False, check_gradients=False, log_metrics=False, callbacks=[_Marks(self)], **kwargs
        )

    def follow(self, names: ModuleNames) -> None:
        """The modules that run."""
        self._names = names

    def where(self) -> tuple[str, str]:
        """Phase and module; a forward inside the backward is ``recompute``."""
        assert self._names is not None
        phase = "recompute" if self.phase == "backward" and self._names.in_forward else self.phase
        return phase, self._names.current()

    def mark(self, tensor: torch.Tensor, category: str, name: str | None) -> None:
        """What a tensor is used for."""
        if self.tensors is not None:
            self.tensors.mark(tensor, category, name)

    def _events(self) -> int:
        return 0 if self.tensors is None else len(self.tensors.events)

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        backward = self.accelerator.backward

        @functools.wraps(backward)
        def noted_backward(*args: Any, **kwargs: Any) -> None:
            self.phase = "backward"
            self.backward_starts.append(self._events())
            backward(*args, **kwargs)

        self.accelerator.backward = noted_backward

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        self.phase = "data"
        self.step_starts.append(self._events())
        if self.tensors is not None and self.operators is not None and len(self.step_starts) == 2:
            self.operators.factor = self.micro_batch_factor
            self.tensors.on_operator = self.operators
        return super().get_batch_samples(*args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.phase = "forward"
        return super().training_step(*args, **kwargs)

    def floating_point_ops(self, *args: Any, **kwargs: Any) -> int:
        return 0  # walks through all parameters

    def _clip_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        self.phase = "optimizer"
        return super()._clip_grad_norm(*args, **kwargs)


class _Marks(TrainerCallback):
    """Says which tensors are gradients and optimizer state."""

    def __init__(self, trainer: RehearsalTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Gradients are whole."""
        self._trainer.phase = "optimizer"
        if self._trainer.operators is not None:
            self._trainer.operators.factor = 1.0
        for name, parameter in kwargs["model"].named_parameters():
            if parameter.grad is not None:
                self._trainer.mark(parameter.grad, "gradients", name)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The state is there."""
        optimizer = getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"])
        names = {id(parameter): name for name, parameter in kwargs["model"].named_parameters()}
        for parameter, held in optimizer.state.items():
            for value in held.values():
                if isinstance(value, torch.Tensor):
                    self._trainer.mark(value, "optimizer_state", names.get(id(parameter)))


def _note_model(log: TensorLog, model: torch.nn.Module) -> None:
    """Weights and adapter are there from the start."""
    for name, parameter in model.named_parameters():
        log.add(parameter, name, "adapter" if _is_adapter(name) else "weights")
    for name, module in model.named_modules():
        for constant in (*quantization_constants(module), *row_constants(module)):
            log.add(constant, f"{name}.weight", "weights")
        for buffer in module.buffers(recurse=False):
            log.add(buffer, name, "weights")


def _is_adapter(name: str) -> bool:
    return "lora_" in name or "modules_to_save" in name
