"""One batch of an evaluation, as the Trainer's evaluation loop runs it, on a model without values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_efficient.planning.rehearsing import Rehearsing
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.device import OperatorWork
from hf_efficient.simulate.operator_count import OperatorCount


@dataclass(frozen=True)
class RehearsedEvaluation:
    """What one batch did.

    Attributes:
        start: events before it.
        rows, length: of the batch.
        operators: of it.
    """

    start: int
    rows: int
    length: int
    operators: Sequence[OperatorWork]

    @property
    def positions(self) -> int:
        """Of the batch, padding included."""
        return self.rows * self.length


def is_evaluated(recipe: Recipe) -> bool:
    """Whether a run of the recipe evaluates at all."""
    has_data = bool(recipe.data.eval) or recipe.data.eval_fraction is not None
    in_training = str(recipe.train.get("eval_strategy", "no")) != "no" or bool(recipe.train.get("eval_on_start"))
    return has_data and (in_training or recipe.evaluate.at_end)


def rehearse_evaluation(trainer: Rehearsing, length: int) -> RehearsedEvaluation:
    """Evaluate one batch of ``train.per_device_eval_batch_size`` rows with a trainer that has trained.

    The loop itself would bring the results to NumPy, which tensors without values cannot; its prediction step and the
    reduction of the logits to what the recipe's metrics need are those of the run.

    Args:
        trainer: inside of its ``TensorLog``.
        length: tokens of every row.
    """
    log = trainer.tensors
    assert log is not None
    log.on_operator = None  # what training does is counted
    rows = trainer.args.per_device_eval_batch_size
    batch = trainer.data_collator(trainer.evaluation_rows(length, rows))
    trainer.phase = "evaluation"
    start = len(log.events)
    log.on_operator = count = OperatorCount()
    model = trainer.model_wrapped
    was_training = model.training
    model.eval()
    try:
        _predict(trainer, model, batch)
    finally:
        model.train(was_training)
        log.on_operator = None
    return RehearsedEvaluation(start, rows, length, count.works())


def _predict(trainer: Rehearsing, model: Any, batch: Any) -> None:
    reduce: Any = trainer.preprocess_logits_for_metrics
    _, logits, labels = trainer.prediction_step(model, batch, prediction_loss_only=reduce is None)
    if reduce is not None:
        reduce(logits, labels)
