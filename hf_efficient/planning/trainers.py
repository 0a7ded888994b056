"""The trainers of a recipe's simulation: its own, on rows of one length."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Trainer
from trl import DPOConfig, SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_efficient.metrics.for_trainer import make_compute_metrics
from hf_efficient.model import recipe_trainer
from hf_efficient.model.distill import TOKENS, VALUES, DistillTrainerMixin
from hf_efficient.model.recipe_trainer import RecipeTrainerMixin
from hf_efficient.planning.arguments import stand_in
from hf_efficient.planning.simulated_trainer import HeadOfAGpu, SimulatedTrainer, fused_kernels_of_a_gpu, is_evaluated
from hf_efficient.recipe.objectives import ObjectiveName
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import is_packed, is_padding_free
from hf_efficient.simulate.blank import make_blank
from hf_efficient.simulate.liger import OffloadedActivations, keep_the_heads


def longest_rows(args: SFTConfig, length: int, count: int, *, packed: bool) -> list[dict[str, Any]]:
    """Rows of ``length`` target tokens. A pack holds two documents, so that the attention needs its mask."""
    row: dict[str, Any] = {"input_ids": [1] * length, "labels": [1] * length}
    if packed and args.packing_strategy != "wrapped" and length > 1:
        row["seq_lengths"] = [length // 2, length - length // 2]
    return [row] * count


def _padded(batch: dict[str, Any]) -> dict[str, Any]:
    batch["attention_mask"][0, -1], batch["labels"][0, -1] = 0, -100
    return batch


class SimulationTrainer(SimulatedTrainer, RecipeTrainerMixin, Trainer):
    offloads = False
    """Saved tensors go to the host, on a GPU."""

    def train(self, *args: Any, **kwargs: Any) -> Any:
        if self.offloads and self.on_gpu:
            model: Any = self.model
            self._offloading = OffloadedActivations(model)
            keep_the_heads(model.get_output_embeddings())
        return super().train(*args, **kwargs)

    def evaluation_rows(self, length: int, count: int) -> list[dict[str, Any]]:
        args = cast(SFTConfig, self.args)
        return longest_rows(args, length, count, packed=is_packed(args, "eval"))

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self.tensors is not None and self.state.global_step == 0 and not self.accelerator.sync_gradients:
            return torch.zeros(())  # left out: the second step does the same with the optimizer's state besides
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


class _DistillSimulation(SimulationTrainer, DistillTrainerMixin):
    """With a teacher that has no values either; its likeliest tokens come with the batch, as from their cache."""

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self.teacher_model is None:
            shape = len(self._target_positions(inputs["labels"])), self._distill.top_k or 1
            given = {VALUES: torch.zeros(shape, dtype=torch.float16), TOKENS: torch.zeros(shape, dtype=torch.int32)}
            inputs = {**inputs, **given}
        return super().training_step(model, inputs, *args, **kwargs)


def simulation_trainer(
    recipe: Recipe, model: Any, args: SFTConfig, length: int, *, padded: bool = False, teacher: Any = None
) -> SimulationTrainer:
    """The recipe's trainer for two steps on rows of one length, with its ``teacher`` if any; for a real model too."""
    recipe_trainer.apply_sft_fields(model, args)
    args.remove_unused_columns = False
    collator = DataCollatorForLanguageModeling(
        pad_token_id=0,
        padding_free=is_padding_free(args),
        pad_to_multiple_of=args.pad_to_multiple_of,  # type: ignore[arg-type]
    )
    rows = 2 * args.gradient_accumulation_steps * args.per_device_train_batch_size
    compute_metrics, reduce = make_compute_metrics(recipe.evaluate.metrics if is_evaluated(recipe) else ())
    kind: Any = SimulationTrainer if recipe.distill is None else _DistillSimulation
    own = {} if recipe.distill is None else {"distill": recipe.distill, "teacher_model": teacher}
    trainer: SimulationTrainer = kind(
        **own,
        model=model,
        args=args,
        data_collator=(lambda rows: _padded(collator(rows))) if padded else collator,
        train_dataset=longest_rows(args, length, rows, packed=args.packing),
        compute_loss_func=recipe_trainer.objective(args),
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=reduce,
        optimizers=(stand_in(recipe, model), None),
    )
    trainer.offloads = bool(recipe.train.get("activation_offloading"))
    return trainer


class _PreferenceSimulation(HeadOfAGpu):
    objective: ObjectiveName

    def evaluation_rows(self, length: int, count: int) -> list[dict[str, Any]]:
        return _preferences(self.objective, length, count)


def preference_trainer(recipe: Recipe, model: Any, reference: Any, args: DPOConfig, length: int) -> SimulatedTrainer:
    """The recipe's trainer for two optimizer steps on answers of one length; ``reference`` is None for an adapter."""
    rows = 2 * args.gradient_accumulation_steps * args.per_device_train_batch_size
    bases = (_PreferenceSimulation, recipe_trainer.preference_trainer_class(recipe.objective))
    kind: Any = type("PreferenceSimulationTrainer", bases, {"objective": recipe.objective})
    trainer: SimulatedTrainer = kind(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(_preferences(recipe.objective, length, rows)),
        processing_class=any_tokenizer(),
        optimizers=(stand_in(recipe, model), None),
        **({} if reference is None else {"ref_model": reference}),
    )
    adapt_as_in_the_run(recipe, model)
    return trainer


def adapt_as_in_the_run(recipe: Recipe, model: Any) -> None:
    """Once TRL has added its own copy of an adapter."""
    make_blank(model)
    if recipe.adapter.method == "qlora":
        recipe_trainer.train_in_float32(model)


def _preferences(objective: ObjectiveName, length: int, count: int) -> list[dict[str, Any]]:
    """A token of prompt, which is no target, before answers of target tokens; in the columns of ``data.objectives``."""
    prompt, answer = [1], [1] * (length - 1)
    sides = ("chosen", "rejected")
    if objective == "dpo":
        return [{"prompt_ids": prompt, "chosen_ids": answer, "rejected_ids": answer}] * count
    if objective == "reward":
        return [{f"{side}_ids": prompt + answer for side in sides}] * count
    if objective == "kto":
        row = {"prompt_ids": prompt, "completion_ids": answer, "KL_completion_ids": answer}
        return [{**row, "label": index % 2 == 0} for index in range(count)]
    columns = {"input_ids": prompt + answer, "attention_mask": [1] * length, "labels": [-100, *answer]}
    row = {f"{side}_{name}": held for side in sides for name, held in columns.items()}
    return [{"prompt_input_ids": prompt, "prompt_attention_mask": [1], **row}] * count


def any_tokenizer() -> PreTrainedTokenizerBase:
    """TRL wants one for its padding token; the rows are tokenised already."""
    words = Tokenizer(WordLevel({"<pad>": 0, "a": 1}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>")
