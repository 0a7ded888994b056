"""The sample answers that a run has written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_efficient.account.processes import ProcessSpans

__all__ = ["SampleAnswers", "sample_answers"]


@dataclass(frozen=True)
class SampleAnswers:
    """One question, and what the model made of it at different times.

    Attributes:
        question: the chat before the answer.
        expected: the answer of the data.
        generated: optimizer steps done to the model's answer, in the order of the run.
    """

    question: str
    expected: str
    generated: dict[int, str]


def sample_answers(processes: Sequence[ProcessSpans]) -> list[SampleAnswers]:
    """From the notes of kind ``answers``, by question; a later answer after the same step replaces it."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for process in processes:
        for note in process.notes.get("answers", ()):
            step, answers = note.get("step"), note.get("answers")
            if not isinstance(step, int) or not isinstance(answers, list):
                continue
            for answer in answers:
                if isinstance(answer, dict):
                    question, expected = str(answer.get("question", "")), str(answer.get("expected", ""))
                    found.setdefault((question, expected), {})[step] = str(answer.get("generated", ""))
    return [SampleAnswers(*asked, dict(sorted(generated.items()))) for asked, generated in found.items()]
