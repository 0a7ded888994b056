"""The trainers of recipes: ``EfficientTrainer`` and what a recipe asks for beyond the plain Trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from transformers.trainer_pt_utils import LengthGroupedSampler, get_length_grouped_indices
from trl.models import get_act_offloading_ctx_manager

from hf_efficient.metrics.for_trainer import reduce_logits, reduce_scores
from hf_efficient.model.loss import CHUNKED_NLL, fuse_head, small_tiles
from hf_efficient.model.work import has_fused_kernels
from hf_efficient.trainer import EfficientTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FUSED = {"fused_lm_head": True}
_NO_SCORES = ["label_mask", "aux_loss"]
"""What the fused head's output holds beside the label's log-probabilities and whether it is the most likely token."""


class EpochSeededLengthSampler(LengthGroupedSampler):
    """Groups of like length whose order depends on the seed and the epoch alone.

    transformers' own sampler draws from the global generator: a run resumed in the middle of a later epoch would see
    another order than the run that went through, and the processes of a parallel run would not agree on one.
    """

    def __init__(self, lengths: list[int], batch_size: int, seed: int, epoch: Callable[[], int]) -> None:
        super().__init__(batch_size=batch_size, lengths=lengths)
        self._seed = seed
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed + self._epoch())
        return iter(get_length_grouped_indices(self.lengths, self.batch_size, generator=generator))


class RecipeTrainer(EfficientTrainer):
    """Resumes ``group_by_length`` exactly; keeps activations in host memory for ``activation_offloading``; computes the
    loss tile by tile for ``loss_type: chunked_nll``, evaluations and their metrics included.

    Attributes:
        chunked_loss: whether it does the last.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """The trainer below, its model's head fused where the recipe says so.

        Raises:
            ModelError: a head that cannot be fused.
        """
        super().__init__(*args, **kwargs)
        self.chunked_loss = getattr(self.args, "loss_type", None) == CHUNKED_NLL
        if self.chunked_loss:
            fuse_head(cast("PreTrainedModel", self._module), with_top1=self.compute_metrics is not None)
        self._offloading: AbstractContextManager[Any] = nullcontext()
        if getattr(self.args, "activation_offloading", False):
            self._offloading = get_act_offloading_ctx_manager(self._module)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The step of the trainer below, its activations offloaded where the recipe says so."""
        with self._offloading, self._fused_kernels():
            return super().training_step(*args, **kwargs)

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss of the trainer below; in training through the fused head, where there is one."""
        if self.chunked_loss and model.training:
            inputs = {**inputs, **_FUSED}
        return super().compute_loss(model, inputs, *args, **kwargs)

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """The prediction of the trainer below; through the fused head where nothing but a recipe's metrics is asked.

        Those get what ``reduce_logits`` would make of the logits. Whoever asks for more is given the logits.
        """
        reduced = self.preprocess_logits_for_metrics is reduce_logits
        if not self.chunked_loss or not (prediction_loss_only or reduced):
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        fused = {**inputs, **_FUSED}
        with self._fused_kernels():
            if prediction_loss_only:
                return super().prediction_step(model, fused, True, ignore_keys)
            loss, scores, labels = super().prediction_step(model, fused, False, _NO_SCORES)
        assert isinstance(scores, tuple)  # what is left of the output
        assert isinstance(labels, torch.Tensor)
        log_probs, is_top1 = scores
        return loss, reduce_scores(log_probs, is_top1, labels), labels

    def _fused_kernels(self) -> AbstractContextManager[None]:
        """What a fused head computes by."""
        return nullcontext() if not self.chunked_loss or has_fused_kernels(self.args.device) else small_tiles()

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        sampler = super()._get_train_sampler(*args, **kwargs)
        if type(sampler) is not LengthGroupedSampler:
            return sampler
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return EpochSeededLengthSampler(sampler.lengths, sampler.batch_size, seed, lambda: int(self.state.epoch or 0))
