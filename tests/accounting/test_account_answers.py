"""Sample answers from the notes of a run."""

from __future__ import annotations

from hf_efficient.accounting.evaluations import SampleAnswers, sample_answers
from hf_efficient.accounting.processes import ProcessSpans


def note(step, *answers):
    return {"kind": "answers", "step": step, "answers": list(answers)}


def answer(generated, question="2 + 2?", expected="4"):
    return {"question": question, "expected": expected, "generated": generated}


def test_by_question_over_two_processes():
    first = ProcessSpans(0, notes={"answers": [note(0, answer("5"), answer("a", "b?", "b"))]})
    second = ProcessSpans(1, notes={"answers": [note(8, answer("22")), note(8, answer("4")), note(4, answer("3"))]})
    assert sample_answers([first, second]) == [
        SampleAnswers("2 + 2?", "4", {0: "5", 4: "3", 8: "4"}),
        SampleAnswers("b?", "b", {0: "a"}),
    ]


def test_what_is_no_note_of_answers_is_passed_over():
    broken = [{}, note("0", answer("x")), {"step": 1, "answers": "none"}, note(1, "text")]
    assert sample_answers([ProcessSpans(0, notes={"answers": broken})]) == []
