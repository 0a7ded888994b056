"""Settings that would be accepted and do nothing, or nothing good."""

from __future__ import annotations

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = [
    "best_perplexity_is_the_lowest",
    "dpo_has_no_length_policy",
    "dpo_shows_no_answers",
    "full_weights_are_not_float16",
    "metrics_need_predictions",
    "recipe_decides_the_columns",
    "recipe_decides_what_is_done",
]


@reads("evaluate.metrics", "train.prediction_loss_only")
def metrics_need_predictions(settings: Settings) -> list[Contradiction]:
    """Perplexity and accuracy are computed from predictions."""
    if not settings.train("prediction_loss_only") or not settings.recipe.evaluate.metrics:
        return []
    message = "is true, but `evaluate.metrics` are computed from predictions."
    return [("train.prediction_loss_only", message, "Remove it, or the metrics.")]


@reads("method", "train.remove_unused_columns")
def recipe_decides_the_columns(settings: Settings) -> list[Contradiction]:
    """Prepared rows hold what the collator reads, and the Trainer would drop some of it."""
    if settings.recipe.method != "sft" or settings.recipe.train.get("remove_unused_columns") is not True:
        return []
    return [("train.remove_unused_columns", "has no effect: prepared rows hold what is needed.", "Remove it.")]


@reads("train.do_train", "train.do_eval", "train.do_predict")
def recipe_decides_what_is_done(settings: Settings) -> list[Contradiction]:
    """These fields belong to example scripts; the Trainer does not read them."""
    return [
        (f"train.{name}", "has no effect: it is read by example scripts only.", "Remove it.")
        for name in ("do_train", "do_eval", "do_predict")
        if settings.recipe.train.get(name)
    ]


@reads("train.metric_for_best_model", "train.greater_is_better")
def best_perplexity_is_the_lowest(settings: Settings) -> list[Contradiction]:
    """A greater perplexity is a worse model."""
    metric = str(settings.recipe.train.get("metric_for_best_model", "")).removeprefix("eval_")
    if metric not in ("perplexity", "loss") or settings.recipe.train.get("greater_is_better") is not True:
        return []
    message = f"is true, but the best {metric} is the lowest."
    return [("train.greater_is_better", message, "Remove it.")]


@reads("adapter.method", "model.dtype")
def full_weights_are_not_float16(settings: Settings) -> list[Contradiction]:
    """float16 weights overflow and underflow as they are updated; mixed precision keeps a float32 copy."""
    if settings.recipe.adapter.method != "full" or settings.recipe.model.dtype != "float16":
        return []
    message = "is float16, whose range is too small for weights that are trained."
    return [("model.dtype", message, "Write bfloat16, or float32 with `train.fp16: true`.")]


@reads("method", "data.overlong")
def dpo_has_no_length_policy(settings: Settings) -> list[Contradiction]:
    """TRL tokenises preference pairs itself and decides what to do with long ones."""
    if settings.recipe.method != "dpo" or settings.recipe.data.overlong == "truncate":
        return []
    message = f"is {settings.recipe.data.overlong}, but TRL's DPOTrainer truncates to `train.max_length`."
    return [("data.overlong", message, "Write truncate, or shorten the pairs beforehand.")]


@reads("method", "evaluate.generate")
def dpo_shows_no_answers(settings: Settings) -> list[Contradiction]:
    """Answers are generated for supervised data."""
    if settings.recipe.method != "dpo" or not settings.recipe.evaluate.generate.show:
        return []
    message = "is set, but an evaluation of `method: dpo` generates no answers."
    return [("evaluate.generate.show", message, "Write 0.")]
