"""The trainer of ``method: dpo`` for a rehearsal: TRL's own, on pairs of one length."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from datasets import Dataset

from hf_efficient.model.dpo_trainer import RecipeDPOTrainer, train_in_float32
from hf_efficient.planning.fused_kernels import fused_kernels_of_a_gpu
from hf_efficient.planning.optimizers import stand_in
from hf_efficient.planning.rehearsing import Rehearsing
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import DPOConfig


class PreferenceRehearsalTrainer(Rehearsing, RecipeDPOTrainer):
    """The trainer of ``method: dpo``, without its instruments."""

    def evaluation_rows(self, length: int, count: int) -> list[dict[str, Any]]:
        """Pairs to evaluate on."""
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
) -> PreferenceRehearsalTrainer:
    """The recipe's trainer for two optimizer steps on pairs of one length; for a real model as well.

    Args:
        recipe: ``method: dpo``.
        model: what it trains.
        reference: the model that it is compared with; None for an adapter, which is switched off for that.
        args: from ``rehearsal_arguments``.
        length: tokens of prompt and answer, of both answers.
    """
    rows = 2 * args.gradient_accumulation_steps * args.per_device_train_batch_size
    optimizer = stand_in(recipe, model)
    trainer = PreferenceRehearsalTrainer(
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
    """A token of prompt, which bears no loss, before answers that do."""
    answer = [1] * (length - 1)
    return [{"prompt_ids": [1], "chosen_ids": answer, "rejected_ids": answer}] * count


def _any_tokenizer() -> PreTrainedTokenizerBase:
    """TRL wants one for its padding token; the rows are tokenised already."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<pad>": 0, "a": 1}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>")
