"""Evaluation, and what depends on it: the best checkpoint, early stopping, schedulers."""

from collections.abc import Iterator

from hf_efficient.recipe.rules.settings import Contradiction, Settings, rule
from hf_efficient.recipe.schema import METRICS

_ADD_DATA = "Add `data.eval`, or `data.eval_fraction: 0.05`."
_ADD_STRATEGY = "Write `train.eval_strategy: steps` or epoch."


@rule("data.eval", "data.eval_fraction")
def one_source_of_examples(settings: Settings) -> Iterator[Contradiction]:
    data = settings.recipe.data
    if data.eval and data.eval_fraction is not None:
        message = "is set, and so is `data.eval`."
        yield "data.eval_fraction", message, "Keep one of the two; null takes an inherited fraction back."


@rule("data.eval", "data.eval_fraction", "train.eval_strategy", "train.eval_on_start", "evaluate.metrics")
def evaluating_needs_examples(settings: Settings) -> Iterator[Contradiction]:
    if settings.has_evaluation_data:
        return
    message = "but there is no evaluation data."
    if settings.evaluates:
        yield "train.eval_strategy", f"is {settings.train('eval_strategy')}, {message}", _ADD_DATA
    if settings.train("eval_on_start"):
        yield "train.eval_on_start", f"is true, {message}", _ADD_DATA
    if settings.recipe.evaluate.metrics:
        yield "evaluate.metrics", f"is set, {message}", _ADD_DATA


@rule("train")
def best_model_is_saved(settings: Settings) -> Iterator[Contradiction]:
    """transformers wants every evaluation that may turn out the best saved, or ``save_strategy: best``."""
    evaluated, saved = settings.train("eval_strategy"), settings.train("save_strategy")
    if not settings.train("load_best_model_at_end") or not settings.evaluates or saved == "best":
        return
    every_eval = settings.train("eval_steps") or settings.train("logging_steps")
    every_save = settings.train("save_steps")
    if saved != evaluated:
        message = f"is {saved} and `train.eval_strategy` is {evaluated}, so the best model may not be saved."
        yield "train.save_strategy", message, f"Write `train.save_strategy: {evaluated}`, or best."
    # Below 1, both are shares of the run, which transformers compares itself.
    elif evaluated == "steps" and every_eval >= 1 and every_save >= 1 and every_save % every_eval:
        message = f"is {every_save:g}, no multiple of the {every_eval:g} steps between evaluations, "
        remedy = f"Write `train.save_steps: {every_eval:g}`, or `train.save_strategy: best`."
        yield "train.save_steps", f"{message}so the best model may not be saved.", remedy


@rule("evaluate.early_stopping", "train", "data.eval", "data.eval_fraction")
def the_best_is_known_from_evaluations(settings: Settings) -> Iterator[Contradiction]:
    loads_best, stops_early = settings.train("load_best_model_at_end"), settings.recipe.evaluate.early_stopping
    wanted = {"train.load_best_model_at_end": loads_best, "evaluate.early_stopping": stops_early is not None}
    for key in (key for key, is_wanted in wanted.items() if is_wanted):
        if not settings.has_evaluation_data:
            yield key, "is set, but there is no evaluation data.", _ADD_DATA
        elif not settings.evaluates:
            yield key, "is set, but `train.eval_strategy` is no.", _ADD_STRATEGY
    if stops_early is not None and not loads_best and settings.train("metric_for_best_model") is None:
        remedy = "Write `train.load_best_model_at_end: true`, or `train.metric_for_best_model: loss`."
        yield "evaluate.early_stopping", "is set, but no metric is watched.", remedy


@rule("objective", "train.metric_for_best_model", "evaluate.metrics")
def best_metric_is_computed(settings: Settings) -> Iterator[Contradiction]:
    """The metric that chooses the best checkpoint is one that an evaluation computes; trainers of preferences have
    their own too."""
    metric, objective = settings.train("metric_for_best_model"), settings.recipe.objective
    name = str(metric).removeprefix("eval_")
    computed = ("loss", *settings.recipe.evaluate.metrics)
    if metric is None or name in computed or (objective != "sft" and name not in METRICS):
        return
    remedy = f"Write one of {', '.join(computed)}." if len(computed) > 1 else "Write loss."
    if name in METRICS and objective == "sft":
        remedy = f"Add {name} to `evaluate.metrics`."
    yield "train.metric_for_best_model", f"is {metric}, which no evaluation computes.", remedy
