"""The trainer of ``method: sft`` for a rehearsal: the recipe's own, on rows of one length."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_efficient.data.prepare import is_packed, is_padding_free
from hf_efficient.metrics.for_trainer import make_compute_metrics
from hf_efficient.model.loss import apply_sft_fields, objective
from hf_efficient.model.recipe_trainer import RecipeTrainer
from hf_efficient.planning.fused_kernels import fused_kernels_of_a_gpu
from hf_efficient.planning.optimizers import stand_in
from hf_efficient.planning.rehearsed_evaluation import is_evaluated
from hf_efficient.planning.rehearsing import Rehearsing
from hf_efficient.planning.rows import PaddedBatches, longest_rows
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from trl import SFTConfig


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
