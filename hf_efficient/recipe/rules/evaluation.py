"""Evaluation, and what depends on it: the best checkpoint, early stopping, schedulers."""

from __future__ import annotations

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads
from hf_efficient.recipe.schema import METRICS

_ADD_DATA = "Add `data.eval`, or `data.eval_fraction: 0.05`."
_ADD_STRATEGY = "Write `train.eval_strategy: steps` or epoch."


@reads("data.eval", "data.eval_fraction")
def one_source_of_examples(settings: Settings) -> list[Contradiction]:
    """Either files of their own or a share of the training examples."""
    data = settings.recipe.data
    if not data.eval or data.eval_fraction is None:
        return []
    message = "is set, and so is `data.eval`."
    return [("data.eval_fraction", message, "Keep one of the two; null takes an inherited fraction back.")]


@reads("data.eval", "data.eval_fraction", "train.eval_strategy", "train.eval_on_start", "evaluate.metrics")
def evaluating_needs_examples(settings: Settings) -> list[Contradiction]:
    """Nothing can be evaluated without evaluation data."""
    if settings.has_evaluation_data:
        return []
    found: list[Contradiction] = []
    message = "but there is no evaluation data."
    if settings.evaluates:
        found.append(("train.eval_strategy", f"is {settings.train('eval_strategy')}, {message}", _ADD_DATA))
    if settings.train("eval_on_start"):
        found.append(("train.eval_on_start", f"is true, {message}", _ADD_DATA))
    if settings.recipe.evaluate.metrics:
        found.append(("evaluate.metrics", f"is set, {message}", _ADD_DATA))
    return found


@reads("train.eval_strategy", "train.lr_scheduler_type")
def scheduler_needs_evaluations(settings: Settings) -> list[Contradiction]:
    """Schedulers that watch the evaluation."""
    scheduler = settings.train("lr_scheduler_type")
    if scheduler not in ("reduce_lr_on_plateau", "greedy") or settings.evaluates:
        return []
    message = f"is {scheduler}, which needs evaluations during training, but `train.eval_strategy` is no."
    return [("train.lr_scheduler_type", message, _ADD_STRATEGY)]


@reads("train.load_best_model_at_end", "train.eval_strategy", "data.eval", "data.eval_fraction")
def best_model_needs_evaluations(settings: Settings) -> list[Contradiction]:
    """The best checkpoint is known from evaluations only."""
    if not settings.train("load_best_model_at_end"):
        return []
    return _needs_evaluations(settings, "train.load_best_model_at_end", "is true")


@reads(
    "train.load_best_model_at_end",
    "train.eval_strategy",
    "train.eval_steps",
    "train.logging_steps",
    "train.save_strategy",
    "train.save_steps",
)
def best_model_is_saved(settings: Settings) -> list[Contradiction]:
    """transformers wants every evaluation that may turn out the best saved, or ``save_strategy: best``."""
    evaluated, saved = settings.train("eval_strategy"), settings.train("save_strategy")
    if not settings.train("load_best_model_at_end") or not settings.evaluates or saved == "best":
        return []
    if saved != evaluated:
        message = f"is {saved} and `train.eval_strategy` is {evaluated}, so the best model may not be saved."
        return [("train.save_strategy", message, f"Write `train.save_strategy: {evaluated}`, or best.")]
    every_eval = settings.train("eval_steps") or settings.train("logging_steps")
    every_save = settings.train("save_steps")
    # Below 1, both are shares of the run, which transformers compares itself.
    if evaluated != "steps" or every_eval < 1 or every_save < 1 or every_save % every_eval == 0:
        return []
    message = f"is {every_save:g}, no multiple of the {every_eval:g} steps between evaluations, "
    message += "so the best model may not be saved."
    remedy = f"Write `train.save_steps: {every_eval:g}`, or `train.save_strategy: best`."
    return [("train.save_steps", message, remedy)]


@reads(
    "evaluate.early_stopping",
    "train.load_best_model_at_end",
    "train.metric_for_best_model",
    "train.eval_strategy",
    "data.eval",
    "data.eval_fraction",
)
def early_stopping_needs_evaluations(settings: Settings) -> list[Contradiction]:
    """transformers' EarlyStoppingCallback needs evaluations and a metric to watch."""
    if settings.recipe.evaluate.early_stopping is None:
        return []
    found = _needs_evaluations(settings, "evaluate.early_stopping", "is set")
    if not settings.train("load_best_model_at_end") and settings.train("metric_for_best_model") is None:
        message = "is set, but no metric is watched."
        remedy = "Write `train.load_best_model_at_end: true`, or `train.metric_for_best_model: loss`."
        found.append(("evaluate.early_stopping", message, remedy))
    return found


@reads("method", "train.metric_for_best_model", "evaluate.metrics")
def best_metric_is_computed(settings: Settings) -> list[Contradiction]:
    """The metric that chooses the best checkpoint is one that an evaluation computes.

    TRL's DPOTrainer has metrics of its own (rewards/accuracies and others), so only ours are checked there.
    """
    metric = settings.train("metric_for_best_model")
    if metric is None:
        return []
    name = metric.removeprefix("eval_")
    computed = ("loss", *settings.recipe.evaluate.metrics)
    if name in computed or (settings.recipe.method == "dpo" and name not in METRICS):
        return []
    remedy = f"Write one of {', '.join(computed)}." if len(computed) > 1 else "Write loss."
    if name in METRICS and settings.recipe.method == "sft":
        remedy = f"Add {name} to `evaluate.metrics`."
    return [("train.metric_for_best_model", f"is {metric}, which no evaluation computes.", remedy)]


def _needs_evaluations(settings: Settings, key: str, said: str) -> list[Contradiction]:
    if not settings.has_evaluation_data:
        return [(key, f"{said}, but there is no evaluation data.", _ADD_DATA)]
    if not settings.evaluates:
        return [(key, f"{said}, but `train.eval_strategy` is no.", _ADD_STRATEGY)]
    return []
