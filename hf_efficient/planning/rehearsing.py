"""What a trainer tells while it rehearses: the phase of every moment, and what its tensors are used for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.simulate.module_names import ModuleNames
from hf_efficient.simulate.operator_count import OperatorCount
from hf_efficient.simulate.tensor_log import TensorLog


class Rehearsing(Trainer):
    """Leftmost of a trainer's bases: tells what goes on.

    Attributes:
        tensors: is told what a tensor is used for; None: nobody is.
        operators: counts the second step's.
        stand_in: the optimizer that takes the place of the recipe's; None where that itself runs.
        on_gpu: whether the run is on a GPU.
        micro_batch_factor: micro-batches of the run for each one that is rehearsed.
        phase: what runs now.
        backward_starts: events before each backward.
        step_starts: events before each step.
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
        self._names: ModuleNames | None = None
        super().__init__(*args, **kwargs)
        self.add_callback(_Marks(self))
        self.remove_callback(PrinterCallback)
        self.data_collator = self._collated_as_it_is(self.data_collator)

    def evaluation_rows(self, length: int, count: int) -> list[dict[str, Any]]:
        """Rows to evaluate on, for the trainer's collator.

        Args:
            length: tokens of each.
            count: how many.
        """
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

    def __init__(self, trainer: Rehearsing) -> None:
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
