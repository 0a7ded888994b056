"""What a run noted of its evaluations: their figures, and answers that the model gave."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hf_efficient.accounting.run_records import ProcessSpans
from hf_efficient.records.amounts import Evaluation

_LONGEST_TEXT = 1000
_MOST_BYTES = 32_000


def answers_to_note(answers: Sequence[tuple[str, str, str]]) -> list[dict[str, str]]:
    """Question, reference and answer of as many as fit into one bounded line, each text at most 1000 characters."""
    noted: list[dict[str, str]] = []
    taken = 0
    for texts in answers:
        whole, most = map(str.strip, texts), _LONGEST_TEXT
        question, expected, generated = (one if len(one) <= most else f"{one[: most - 4]} ..." for one in whole)
        one = {"question": question, "expected": expected, "generated": generated}
        taken += len(json.dumps(one))
        if taken > _MOST_BYTES:
            break
        noted.append(one)
    return noted


def evaluations_of(processes: Iterable[ProcessSpans]) -> list[Evaluation]:
    """The evaluations of a run in the order in which they were done; a resumed run may have done one again."""
    return [
        Evaluation(int(note["step"]), dict(note["metrics"]), note.get("seconds"), note.get("rows"))
        for process in processes
        for note in process.notes.get("evaluation", ())
    ]


@dataclass(frozen=True)
class SampleAnswers:
    """One question, and the model's answers by optimizer steps done."""

    question: str
    expected: str
    generated: dict[int, str]


def sample_answers(processes: Sequence[ProcessSpans]) -> list[SampleAnswers]:
    """From the notes of kind ``answers``, by question; a later answer after the same step replaces it."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for process in processes:
        for note in process.notes.get("answers", ()):
            for answer in note["answers"]:
                asked = (answer["question"], answer["expected"])
                found.setdefault(asked, {})[note["step"]] = answer["generated"]
    return [SampleAnswers(*asked, dict(sorted(generated.items()))) for asked, generated in found.items()]
