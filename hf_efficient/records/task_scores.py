"""Scores of benchmark tasks of a trained model, and of the same model before its training."""

from dataclasses import dataclass

EVALUATION_JSON = "evaluation.json"
"""Inside ``efficiency``."""
EVALUATION_VERSION = 1


@dataclass(frozen=True)
class PairedTest:
    """The same examples before and after. ``difference`` is after - before; ``low`` to ``high`` its 95% interval, by
    bootstrap; ``p_value`` that of ``method`` for no difference."""

    difference: float
    low: float
    high: float
    p_value: float
    method: str


@dataclass(frozen=True)
class TaskScore:
    """One metric of one task under one filter; ``before`` of the model without its training, where it was asked for."""

    task: str
    metric: str
    filter: str
    few_shot: int
    samples: int
    higher_is_better: bool
    after: float
    after_error: float | None
    before: float | None = None
    before_error: float | None = None
    paired: PairedTest | None = None


@dataclass(frozen=True)
class TaskScores:
    """One call of ``hf-efficient eval``. ``limit``: examples per task, where not all; ``template``: whether prompts
    went through the chat template; ``seconds`` of the evaluation, without the loading of the model."""

    schema_version: int
    model: str
    base: str | None
    lm_eval: str
    template: bool
    limit: int | None
    batch_size: int
    device: str
    seconds: float
    scores: list[TaskScore]
