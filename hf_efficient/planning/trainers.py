"""The trainers of a simulation: the recipe's own, on rows of one length, noting the phase of every moment."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
from datasets import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.kernels import chunked_logprob
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_efficient.data.prepare import is_packed, is_padding_free
from hf_efficient.data.sources import replaced
from hf_efficient.errors import SetupError
from hf_efficient.metrics.for_trainer import make_compute_metrics
from hf_efficient.model.dpo_trainer import RecipeDPOTrainer, train_in_float32
from hf_efficient.model.recipe_trainer import RecipeTrainerMixin, apply_sft_fields, objective
from hf_efficient.planning.arguments import stand_in
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.device import OperatorWork
from hf_efficient.simulate.operator_count import OperatorCount
from hf_efficient.simulate.tensor_log import ModuleNames, TensorLog

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import DPOConfig, SFTConfig


class SimulatedTrainer(Trainer):
    """Leftmost of a trainer's bases: reports what happens.

    Attributes:
        tensors: logs what a tensor is used for; None: nothing is logged.
        stand_in: takes the place of the recipe's optimizer; None where that itself runs.
        micro_batch_factor: micro-batches of the run for each simulated one.
    """

    tensors: TensorLog | None = None
    operators: OperatorCount | None = None
    stand_in: torch.optim.Optimizer | None = None
    micro_batch_factor = 1.0
    on_gpu = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.backward_starts: list[int] = []
        self.step_starts: list[int] = []
        self.phase = "setup"
        self.names: ModuleNames | None = None
        super().__init__(*args, **kwargs)
        self.add_callback(_Marks(self))
        self.remove_callback(PrinterCallback)
        self.data_collator = self._collated_as_it_is(self.data_collator)

    def evaluation_rows(self, length: int, count: int) -> list[dict[str, Any]]:
        raise NotImplementedError

    def _collated_as_it_is(self, collator: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
        """A collator looks at token ids, which have values whatever their number; its batch is there afterwards."""

        def collate(rows: Any) -> dict[str, Any]:
            if self.tensors is None:
                return collator(rows)
            with self.tensors.paused():
                batch = collator(rows)
            for name, tensor in batch.items():
                if isinstance(tensor, torch.Tensor):
                    self.tensors.add(tensor, name, "")
            return batch

        return collate

    def where(self) -> tuple[str, str]:
        """Phase and module; a forward inside the backward is ``recompute``."""
        assert self.names is not None
        phase = "recompute" if self.phase == "backward" and self.names.in_forward else self.phase
        return phase, self.names.current()

    def mark(self, tensor: torch.Tensor, category: str, name: str | None) -> None:
        if self.tensors is not None:
            self.tensors.mark(tensor, category, name)

    def mark_logits(self, tensor: torch.Tensor) -> None:
        """A tensor holds logits, whatever its shape."""
        self.mark(tensor, "logits", "lm_head")

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

    def __init__(self, trainer: SimulatedTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._trainer.phase = "optimizer"
        if self._trainer.operators is not None:
            self._trainer.operators.factor = 1.0
        for name, parameter in kwargs["model"].named_parameters():
            if parameter.grad is not None:
                self._trainer.mark(parameter.grad, "gradients", name)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        optimizer = getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"])
        names = {id(parameter): name for name, parameter in kwargs["model"].named_parameters()}
        for parameter, held in optimizer.state.items():
            for value in held.values():
                if isinstance(value, torch.Tensor):
                    self._trainer.mark(value, "optimizer_state", names.get(id(parameter)))


@dataclass(frozen=True)
class SimulatedEvaluation:
    """What one batch did."""

    start: int
    rows: int
    length: int
    operators: Sequence[OperatorWork]

    @property
    def positions(self) -> int:
        return self.rows * self.length


def is_evaluated(recipe: Recipe) -> bool:
    has_data = bool(recipe.data.eval) or recipe.data.eval_fraction is not None
    in_training = str(recipe.train.get("eval_strategy", "no")) != "no" or bool(recipe.train.get("eval_on_start"))
    return has_data and (in_training or recipe.evaluate.at_end)


def simulate_evaluation(trainer: SimulatedTrainer, length: int) -> SimulatedEvaluation:
    """Evaluate one batch of ``train.per_device_eval_batch_size`` rows with a trainer that has trained. The evaluation
    loop itself needs NumPy values; prediction step and reduction of the logits are the run's own."""
    log = trainer.tensors
    assert log is not None
    log.on_operator = None  # what training does is counted
    rows = trainer.args.per_device_eval_batch_size
    batch = trainer.data_collator(trainer.evaluation_rows(length, rows))
    trainer.phase = "evaluation"
    start = len(log.events)
    log.on_operator = count = OperatorCount()
    model = trainer.model_wrapped
    was_training = model.training
    model.eval()
    try:
        reduce: Any = trainer.preprocess_logits_for_metrics
        _, logits, labels = trainer.prediction_step(model, batch, prediction_loss_only=reduce is None)
        if reduce is not None:
            reduce(logits, labels)
    finally:
        model.train(was_training)
        log.on_operator = None
    return SimulatedEvaluation(start, rows, length, count.works())


def longest_rows(args: SFTConfig, length: int, count: int, *, packed: bool) -> list[dict[str, Any]]:
    """Rows of ``length`` target tokens. A pack holds two documents, so that the attention needs its mask."""
    row: dict[str, Any] = {"input_ids": [1] * length, "labels": [1] * length}
    if packed and args.packing_strategy != "wrapped" and length > 1:
        row["seq_lengths"] = [length // 2, length - length // 2]
    return [row] * count


def _padded(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch that says that the last token of its first row is padding; its shapes stay the same."""
    batch["attention_mask"][0, -1] = 0
    batch["labels"][0, -1] = -100
    return batch


@contextmanager
def fused_kernels_of_a_gpu(on_logits: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """TRL's fused head computes as on a GPU, where two kernels score each tile of logits in place. On a CPU torch's
    operators copy each tile in float32, more memory than all the rest of the head."""
    stood_in: dict[str, Any] = {
        "_use_triton": lambda device: True,
        "_forward_kernel": _Launched(lambda tile: tile.amax(-1), on_logits),
        "_backward_kernel": _Launched(lambda tile: tile.neg_(), on_logits),
        "_addmm_fp32": _addmm_fp32,
    }
    missing = [name for name in stood_in if not hasattr(chunked_logprob, name)]
    if missing:
        raise SetupError(
            "train.loss_type: chunked_nll cannot be planned with this version of TRL, whose kernels are others "
            f"({missing[0]} is gone). Plan `train.loss_type=nll` as an upper bound."
        )
    with ExitStack() as stack:
        stack.enter_context(_triton())
        for name, value in stood_in.items():
            stack.enter_context(replaced(chunked_logprob, name, value))
        yield


@contextmanager
def _triton() -> Iterator[None]:
    if hasattr(chunked_logprob, "triton"):
        yield
        return
    vars(chunked_logprob)["triton"] = SimpleNamespace(cdiv=lambda total, size: -(-total // size))
    try:
        yield
    finally:
        del vars(chunked_logprob)["triton"]


class _Launched:
    """A kernel on a grid of programs, its first argument the tile."""

    def __init__(self, touch: Callable[[torch.Tensor], Any], on_logits: Callable[[torch.Tensor], None]) -> None:
        self._touch, self._on_logits = touch, on_logits

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._run

    def _run(self, tile: torch.Tensor, *args: Any, **settings: Any) -> None:
        self._on_logits(tile)
        self._touch(tile)


def _addmm_fp32(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """``total += left @ right`` in float32, without a copy of either: the product that torch has for GPUs since 2.8."""
    if left.dtype in (torch.float16, torch.bfloat16):
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(left, right)


class SimulationTrainer(SimulatedTrainer, RecipeTrainerMixin, Trainer):
    def evaluation_rows(self, length: int, count: int) -> list[dict[str, Any]]:
        args = cast("SFTConfig", self.args)
        return longest_rows(args, length, count, packed=is_packed(args, "eval"))

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        with fused_kernels_of_a_gpu(self.mark_logits) if self.on_gpu and self.chunked_loss else nullcontext():
            return super().training_step(*args, **kwargs)

    def _fused_kernels(self, labels: torch.Tensor) -> AbstractContextManager[None]:
        if self.on_gpu:
            return fused_kernels_of_a_gpu(self.mark_logits)
        return super()._fused_kernels(labels)

    def _target_positions(self, labels: torch.Tensor) -> torch.Tensor:
        """All of them where labels have no values."""
        if self.tensors is None:
            return super()._target_positions(labels)
        return torch.arange(labels.shape[0] * (labels.shape[1] - 1))


def simulation_trainer(
    recipe: Recipe, model: Any, args: SFTConfig, length: int, *, padded: bool = False
) -> SimulationTrainer:
    """The recipe's trainer for two optimizer steps on rows of one length; for a real model as well."""
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
    trainer = SimulationTrainer(
        model=model,
        args=args,
        data_collator=(lambda rows: _padded(collator(rows))) if padded else collator,
        train_dataset=longest_rows(args, length, rows, packed=args.packing),
        compute_loss_func=objective(args),
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=reduce,
        optimizers=(optimizer, None),
    )
    trainer.stand_in = optimizer
    return trainer


class PreferenceSimulationTrainer(SimulatedTrainer, RecipeDPOTrainer):
    def evaluation_rows(self, length: int, count: int) -> list[dict[str, Any]]:
        return _pairs(length, count)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        with self._fused_kernels():
            return super().training_step(*args, **kwargs)

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        with self._fused_kernels():
            return super().prediction_step(*args, **kwargs)

    def _fused_kernels(self) -> AbstractContextManager[None]:
        return fused_kernels_of_a_gpu(self.mark_logits) if self.on_gpu else nullcontext()


def preference_trainer(
    recipe: Recipe, model: Any, reference: Any, args: DPOConfig, length: int
) -> PreferenceSimulationTrainer:
    """The recipe's trainer for two optimizer steps on pairs of one length; ``reference`` is None for an adapter."""
    rows = 2 * args.gradient_accumulation_steps * args.per_device_train_batch_size
    optimizer = stand_in(recipe, model)
    trainer = PreferenceSimulationTrainer(
        model=model,
        ref_model=reference,
        args=args,
        train_dataset=Dataset.from_list(_pairs(length, rows)),
        processing_class=_any_tokenizer(),
        optimizers=(optimizer, None),
    )
    trainer.stand_in = optimizer
    if recipe.adapter.method == "qlora":
        train_in_float32(model)
    return trainer


def _pairs(length: int, count: int) -> list[dict[str, Any]]:
    """A token of prompt, which is no target, before answers of target tokens."""
    answer = [1] * (length - 1)
    return [{"prompt_ids": [1], "chosen_ids": answer, "rejected_ids": answer}] * count


def _any_tokenizer() -> PreTrainedTokenizerBase:
    """TRL wants one for its padding token; the rows are tokenised already."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<pad>": 0, "a": 1}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>")
