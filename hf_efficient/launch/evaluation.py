"""The recipe's ``evaluate`` section to what the Trainer computes in an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hf_efficient.account.evaluations import answers_to_note
from hf_efficient.launch.listener import RunListener
from hf_efficient.measure.process_timeline import process_timeline
from hf_efficient.metrics.answers import Answer, AnswerEvaluator
from hf_efficient.recipe.schema import EvaluateSection

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Trainer, TrainerCallback

__all__ = ["AnswersInEvaluation", "answer_evaluators", "early_stopping"]

_MOST_NOTED = 8


class AnswersInEvaluation:
    """Generates answers in every evaluation where ``exact_match`` is asked for; else only in the first and the last.

    Answers to show are generated before the first step and after the last one; generating in between would cost time
    that nobody asked for.
    """

    def __init__(self, evaluator: AnswerEvaluator, *, in_every_evaluation: bool) -> None:
        self._evaluator = evaluator
        self._in_every_evaluation = in_every_evaluation
        self.after_training = False

    def __call__(self, trainer: Trainer) -> dict[str, float]:
        at_an_end = self.after_training or trainer.state.global_step in (0, trainer.state.max_steps)
        if not (self._in_every_evaluation or at_an_end):
            return {}
        metrics = self._evaluator(trainer)
        return metrics if self._in_every_evaluation else {}


def answer_evaluators(
    section: EvaluateSection,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Mapping[str, Any]],
    listener: RunListener,
    step: Callable[[], int],
) -> list[AnswersInEvaluation]:
    """The evaluators that generate answers; none where nothing is to be shown or matched, or there is no prompt.

    The first answers of each evaluation are noted in the records of the run.

    Args:
        section: the recipe's ``evaluate``.
        tokenizer: the model's.
        examples: ``{"prompt", "answer"}`` of the evaluation data.
        listener: is given the first ``generate.show`` answers.
        step: the number of optimizer steps done, asked when answers are there.
    """
    matched = "exact_match" in section.metrics
    wanted = list(examples[: section.generate.examples if matched else section.generate.show])
    if not wanted:
        return []

    def show(answers: list[Answer]) -> None:
        timeline = process_timeline()
        if timeline.recording:
            sample = [(one.question, one.expected, one.generated) for one in answers[:_MOST_NOTED]]
            timeline.note("answers", step=step(), answers=answers_to_note(sample))
        if section.generate.show:
            listener.answers(step(), answers[: section.generate.show])

    evaluator = AnswerEvaluator(tokenizer, wanted, max_new_tokens=section.generate.max_new_tokens, on_answers=show)
    return [AnswersInEvaluation(evaluator, in_every_evaluation=matched)]


def early_stopping(section: EvaluateSection) -> list[TrainerCallback]:
    """transformers' early stopping, where the recipe asks for it."""
    from transformers import EarlyStoppingCallback

    if section.early_stopping is None:
        return []
    return [EarlyStoppingCallback(section.early_stopping.patience, section.early_stopping.threshold)]
