"""Notes of evaluations and answers."""

import json

from hf_efficient.accounting import evaluations
from hf_efficient.accounting.run_records import ProcessSpans
from hf_efficient.records.amounts import Evaluation
from hf_efficient.run_dir.jsonl import TAIL_BYTES


def test_the_evaluations_of_all_processes_in_their_order():
    def told(step, loss, **more):
        return {"kind": "evaluation", "process": 0, "step": step, "metrics": {"loss": loss}, **more}

    first = ProcessSpans(0, notes={"evaluation": [told(0, 3.0, seconds=2.0), told(5, None, seconds=2.5)]})
    second = ProcessSpans(1, notes={"evaluation": [told(5, 2.5)]})
    assert evaluations.evaluations_of([first, second]) == [
        Evaluation(0, {"loss": 3.0}, 2.0),
        Evaluation(5, {"loss": None}, 2.5),
        Evaluation(5, {"loss": 2.5}, None),
    ]


def test_answers_are_cut_and_fit_into_a_line():
    noted = evaluations.answers_to_note([(" q ", "e", "x" * 1001)])
    assert noted == [{"question": "q", "expected": "e", "generated": "x" * 996 + " ..."}]
    many = evaluations.answers_to_note([("\N{GRINNING FACE}" * 1000, "e", "g")] * 8)  # of 12 bytes each in JSON
    assert len(many) == 2
    assert len(json.dumps(many)) < TAIL_BYTES / 2
    assert evaluations.answers_to_note([]) == []


def note(step, *answers):
    return {"kind": "answers", "step": step, "answers": list(answers)}


def answer(generated, question="2 + 2?", expected="4"):
    return {"question": question, "expected": expected, "generated": generated}


def test_by_question_over_two_processes():
    first = ProcessSpans(0, notes={"answers": [note(0, answer("5"), answer("a", "b?", "b"))]})
    second = ProcessSpans(1, notes={"answers": [note(8, answer("22")), note(8, answer("4")), note(4, answer("3"))]})
    assert evaluations.sample_answers([first, second]) == [
        evaluations.SampleAnswers("2 + 2?", "4", {0: "5", 4: "3", 8: "4"}),
        evaluations.SampleAnswers("b?", "b", {0: "a"}),
    ]
