"""Model, data and arguments to the trainer that runs the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hf_efficient.assembly.fused_head import CHUNKED_NLL
from hf_efficient.assembly.model import load_base
from hf_efficient.assembly.recipe_trainer import RecipeTrainer
from hf_efficient.assembly.sft_fields import apply_sft_fields, objective
from hf_efficient.callbacks.fused_head_check import FusedHeadCheck
from hf_efficient.callbacks.packing_check import PackingCheck
from hf_efficient.launch.budget import recipe_budget
from hf_efficient.launch.evaluation import AnswersInEvaluation, early_stopping
from hf_efficient.launch.listener import RunListener
from hf_efficient.launch.profile import instrument_callbacks
from hf_efficient.metrics.for_trainer import make_compute_metrics
from hf_efficient.recipe.schema import Recipe
from hf_efficient.trainer import EfficientTrainerMixin

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerCallback
    from trl import DPOConfig, SFTConfig

    from hf_efficient.data.build import PreferenceData, SftData

__all__ = ["dpo_trainer", "sft_trainer"]


def sft_trainer(
    recipe: Recipe,
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    args: SFTConfig,
    data: SftData,
    answers: Sequence[AnswersInEvaluation],
    listener: RunListener,
) -> Trainer:
    """``EfficientTrainer`` on TRL's prepared rows: the plain Trainer's step, without ``SFTTrainer``'s metrics loop."""
    # The rows hold exactly what the collator reads; the Trainer would drop `seq_lengths`, which no model takes.
    args.remove_unused_columns = False
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    if args.eos_token is not None:
        _stop_at(model, tokenizer.eos_token_id)
    names = [name for name in recipe.evaluate.metrics if name != "exact_match"]
    compute_metrics, preprocess = make_compute_metrics(names) if names and data.eval is not None else (None, None)
    if compute_metrics is None:
        args.prediction_loss_only = True
    apply_sft_fields(model, args)
    checks: list[TrainerCallback] = []
    if args.packing and args.packing_strategy != "wrapped":
        checks.append(PackingCheck())
    if args.loss_type == CHUNKED_NLL:
        checks.append(FusedHeadCheck())
    return RecipeTrainer(
        model=model,
        args=args,
        data_collator=data.collator,
        train_dataset=data.train,
        eval_dataset=data.eval,
        processing_class=tokenizer,
        compute_loss_func=objective(args),
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=preprocess,
        callbacks=[*early_stopping(recipe.evaluate), *checks, *instrument_callbacks(recipe.efficiency.profile)],
        extra_evaluators=answers,
        **_instrumentation(recipe, listener),
    )


def _stop_at(model: PreTrainedModel | PeftModel, token: int) -> None:
    """Make a token end a generation, beside those that do already, as ``SFTTrainer`` does."""
    model.config.get_text_config().eos_token_id = token
    known = model.generation_config.eos_token_id
    others = [] if known is None else [known] if isinstance(known, int) else list(known)
    if token not in others:
        model.generation_config.eos_token_id = [token, *others]


def dpo_trainer(
    recipe: Recipe,
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    args: DPOConfig,
    data: PreferenceData,
    listener: RunListener,
) -> Trainer:
    """TRL's ``DPOTrainer`` under the mixin.

    With an adapter the base, its adapter off, is the reference model; for a full fine-tune it is the model as the
    recipe loads it, its revision included.
    """
    from hf_efficient.assembly.dpo_trainer import RecipeDPOTrainer, train_in_float32

    class EfficientDPOTrainer(EfficientTrainerMixin, RecipeDPOTrainer):
        pass

    trainer = EfficientDPOTrainer(
        model=model,
        ref_model=load_base(recipe) if recipe.adapter.method == "full" else None,
        args=args,
        train_dataset=data.train,
        eval_dataset=data.eval,
        processing_class=tokenizer,
        callbacks=[*early_stopping(recipe.evaluate), *instrument_callbacks(recipe.efficiency.profile)],
        **_instrumentation(recipe, listener),
    )
    if recipe.adapter.method == "qlora":
        train_in_float32(model)
    return trainer


def _instrumentation(recipe: Recipe, listener: RunListener) -> dict[str, Any]:
    return {
        "record_steps": recipe.efficiency.record_steps,
        "check_gradients": recipe.efficiency.check_gradients,
        "log_metrics": recipe.efficiency.log_metrics,
        "budget": recipe_budget(recipe, listener),
    }
