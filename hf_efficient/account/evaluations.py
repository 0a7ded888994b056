"""What a run noted of its evaluations: their figures, and answers that the model gave."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hf_efficient.account.processes import ProcessSpans
from hf_efficient.records import Evaluation

__all__ = ["answers_to_note", "evaluations_of", "metrics_to_note"]

_SPEED = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
_LONGEST_TEXT = 1000
_MOST_BYTES = 32_000


def metrics_to_note(metrics: Mapping[str, Any], prefix: str = "eval") -> dict[str, float | None]:
    """The numbers of an evaluation without their prefix and without its speed; None for what is not finite."""
    found: dict[str, float | None] = {}
    for name, value in metrics.items():
        short = name.removeprefix(f"{prefix}_")
        if isinstance(value, numbers.Real) and short != "epoch" and not short.endswith(_SPEED):
            found[short] = float(value) if math.isfinite(value) else None
    return found


def answers_to_note(answers: Sequence[tuple[str, str, str]]) -> list[dict[str, str]]:
    """Question, reference and answer of as many as fit into one line of the records, each text at most 1000 characters.

    A line is bounded so that the end of a file can be read without the rest.
    """
    noted: list[dict[str, str]] = []
    taken = 0
    for texts in answers:
        question, expected, generated = (_cut(text.strip()) for text in texts)
        one = {"question": question, "expected": expected, "generated": generated}
        taken += len(json.dumps(one))
        if taken > _MOST_BYTES:
            break
        noted.append(one)
    return noted


def evaluations_of(processes: Iterable[ProcessSpans]) -> list[Evaluation]:
    """The evaluations of a run in the order in which they were done; a resumed run may have done one again."""
    return [
        Evaluation(int(note["step"]), dict(note["metrics"]), note.get("seconds"))
        for process in processes
        for note in process.notes.get("evaluation", ())
        if isinstance(note.get("metrics"), dict) and isinstance(note.get("step"), int)
    ]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 4] + " ..."
