"""A Trainer that reports the phase and use of what a simulated training does, and evaluates one batch."""

import functools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback

from hf_efficient.errors import SetupError, first_line
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.device import OperatorWork
from hf_efficient.simulate.operator_count import OperatorCount
from hf_efficient.simulate.tensor_log import ModuleNames, TensorLog


class SimulatedTrainer(Trainer):
    """Leftmost of a trainer's bases: reports what happens. ``tensors``: logs what a tensor is used for; None: nothing
    is logged. ``micro_batch_factor``: micro-batches of the run for each simulated one."""

    tensors: TensorLog | None = None
    operators: OperatorCount | None = None
    micro_batch_factor = 1.0
    on_gpu = False
    evaluation_rows: Callable[[int, int], list[dict[str, Any]]]
    """Of so many tokens, so many."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.expect_steps()
        super().__init__(*args, **kwargs)
        self.watch()

    def expect_steps(self) -> None:
        self.backward_starts: list[int] = []
        self.step_starts: list[int] = []
        self.phase = "setup"
        self.names: ModuleNames | None = None

    def watch(self) -> None:
        self.add_callback(_Marks(self))
        self.remove_callback(PrinterCallback)
        self.data_collator = self._collated_as_it_is(self.data_collator)

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
        self.mark(tensor, "logits", "lm_head")

    def _events(self) -> int:
        return 0 if self.tensors is None else len(self.tensors.events)

    def create_accelerator_and_postprocess(self) -> None:
        Trainer.create_accelerator_and_postprocess(self)  # not one that instruments a run
        backward = self.accelerator.backward

        @functools.wraps(backward)
        def noted_backward(*args: Any, **kwargs: Any) -> None:
            self.phase = "backward"
            self.backward_starts.append(self._events())
            backward(*args, **kwargs)

        self.accelerator.backward = noted_backward

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """On a GPU torch's own optimizers step on all parameters of a dtype at once where nothing else is asked for
        (``torch.optim.optimizer._default_to_fused_or_foreach``), and hold temporaries of all of them together."""
        try:
            optimizer = super().create_optimizer(*args, **kwargs)
        except ImportError as error:
            raise SetupError(f"train.optim: {first_line(error)}") from error
        for group in optimizer.param_groups if self.on_gpu else ():
            if "foreach" in group and group["foreach"] is None and group.get("fused") is None:
                group["foreach"] = True
        return optimizer

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


class HeadOfAGpu(SimulatedTrainer):
    """TRL's fused head computes as on a GPU where the plan is for one."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        with self._as_on_a_gpu():
            return super().training_step(*args, **kwargs)

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        with self._as_on_a_gpu():
            return super().prediction_step(*args, **kwargs)

    def _as_on_a_gpu(self) -> AbstractContextManager[None]:
        return self._kernels() if self.on_gpu and sys.modules.get("trl") else nullcontext()  # else it has no such head

    def _kernels(self) -> AbstractContextManager[None]:
        return fused_kernels_of_a_gpu(self.mark_logits)


class _Marks(TrainerCallback):
    def __init__(self, trainer: SimulatedTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, *_: Any, **kwargs: Any) -> None:
        self._trainer.phase = "optimizer"
        if self._trainer.operators is not None:
            self._trainer.operators.factor = 1.0
        for name, parameter in kwargs["model"].named_parameters():
            if parameter.grad is not None:
                self._trainer.mark(parameter.grad, "gradients", name)

    def on_optimizer_step(self, *_: Any, **kwargs: Any) -> None:
        optimizer = getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"])
        names = {id(parameter): name for name, parameter in kwargs["model"].named_parameters()}
        for parameter, held in optimizer.state.items():
            for value in held.values():
                if isinstance(value, torch.Tensor):
                    self._trainer.mark(value, "optimizer_state", names.get(id(parameter)))


@dataclass(frozen=True)
class SimulatedEvaluation:
    start: int
    rows: int
    length: int
    operators: Sequence[OperatorWork]


def is_evaluated(recipe: Recipe) -> bool:
    has_data = bool(recipe.data.eval) or recipe.data.eval_fraction is not None
    in_training = str(recipe.train.get("eval_strategy", "no")) != "no" or bool(recipe.train.get("eval_on_start"))
    return has_data and (in_training or recipe.evaluate.at_end)


def simulate_evaluation(trainer: SimulatedTrainer, length: int) -> SimulatedEvaluation:
    """Evaluate one batch of ``train.per_device_eval_batch_size`` rows with a trainer that has trained. The evaluation
    loop itself needs NumPy values; prediction step and reduction of the logits are the run's own."""
    log = trainer.tensors
    assert log is not None
    log.on_operator = count = OperatorCount()  # what training does is counted
    rows = trainer.args.per_device_eval_batch_size
    batch = trainer.data_collator(trainer.evaluation_rows(length, rows))
    trainer.phase = "evaluation"
    start = len(log.events)
    model = trainer.model_wrapped
    model.eval()
    reduce: Any = trainer.preprocess_logits_for_metrics
    _, logits, labels = trainer.prediction_step(model, batch, prediction_loss_only=reduce is None)
    if reduce is not None:
        reduce(logits, labels)
    return SimulatedEvaluation(start, rows, length, count.works())


def fused_kernels_of_a_gpu(on_logits: Callable[[torch.Tensor], None]) -> AbstractContextManager[None]:
    """TRL's fused head computes as on a GPU, where two kernels score each tile of logits in place. On a CPU torch's
    operators copy each tile in float32, more memory than all the rest of the head."""
    from trl.kernels import chunked_logprob

    own = {
        "_forward_kernel": _launched(lambda tile: tile.amax(-1), on_logits),
        "_backward_kernel": _launched(lambda tile: tile.neg_(), on_logits),
    }
    instead = "Plan `train.loss_type=nll` as an upper bound."
    return _stood_in(chunked_logprob, own, "`train.loss_type: chunked_nll`", instead)


def divergence_kernels_of_a_gpu(on_logits: Callable[[torch.Tensor], None]) -> AbstractContextManager[None]:
    """The same of TRL's divergence between a student's and a teacher's tiles of logits."""
    from trl.kernels import chunked_divergence

    own = {
        "_stats_kernel": _launched(lambda tile: tile.amax(-1), on_logits),
        "_jsd_kernel": _launched(lambda tile: tile.amax(-1), on_logits),
        "_backward_kernel": _launched(lambda tile: tile.neg_(), on_logits),
        "_project": _project_fp32,
    }
    return _stood_in(chunked_divergence, own, "`objective: distill_on_policy`", "Train a few steps instead.")


@contextmanager
def _stood_in(kernels: ModuleType, own: Mapping[str, Any], what: str, instead: str) -> Iterator[None]:
    stood_in = {"_use_triton": lambda device: True, "_addmm_fp32": _addmm_fp32, **own}
    missing = [name for name in stood_in if not hasattr(kernels, name)]
    if missing:
        why = f"this version of TRL, whose kernels are others ({missing[0]} is gone)"
        raise SetupError(f"plan: {what} cannot be planned with {why}. {instead}")
    module = vars(kernels)
    before = dict(module)
    module.update(stood_in)
    module.setdefault("triton", SimpleNamespace(cdiv=lambda total, size: -(-total // size)))
    try:
        yield
    finally:
        module.update(before)
        if "triton" not in before:
            del module["triton"]


def _launched(touch: Callable[[torch.Tensor], Any], on_logits: Callable[[torch.Tensor], None]) -> Mapping[Any, Any]:
    """By any grid of programs a kernel, its first argument the tile."""

    def run(tile: torch.Tensor, *args: Any, **settings: Any) -> None:
        on_logits(tile)
        touch(tile)

    return defaultdict(lambda: run)


def _project_fp32(
    tile: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, bias: Any, start: int, end: int, dtype: torch.dtype
) -> None:
    """Logits in float32 without a copy of what is multiplied; only weights of another dtype are cast."""
    rows = weight[start:end].to(dtype).t()
    if dtype in (torch.float16, torch.bfloat16):
        torch.mm(hidden, rows, out_dtype=torch.float32, out=tile)
    else:
        torch.mm(hidden, rows, out=tile)
    if bias is not None:
        tile.add_(bias[start:end].float())


def _addmm_fp32(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """``total += left @ right`` in float32, without a copy of either: the product that torch has for GPUs since 2.8."""
    if left.dtype in (torch.float16, torch.bfloat16):
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(left, right)
