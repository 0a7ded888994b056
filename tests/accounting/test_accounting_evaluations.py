"""Notes of evaluations and answers."""

import json

import pytest

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


def evaluation(step, loss, **more):
    return Evaluation(step, {"loss": loss, **more})


def steps(found):
    return [one.step for one in found]


def test_first_last_best_and_worst_are_kept():
    """Of ten the first, the last, step 4 (least) and step 7 (most); of 2, 3, 5, 6, 8, 9 one per third."""
    losses = [5.0, 4.0, 4.0, 1.0, 4.0, 4.0, 9.0, 4.0, 4.0, 3.0]
    some = [evaluation(step, loss) for step, loss in enumerate(losses, start=1)]
    assert steps(evaluations.few_evaluations(some, 4)) == [1, 4, 7, 10]
    assert steps(evaluations.few_evaluations(some, 7)) == [1, 3, 4, 6, 7, 9, 10]
    assert evaluations.few_evaluations(some, 7)[2] == evaluation(4, 1.0)


@pytest.mark.parametrize("most", [2, 3, 5, 50, 99])
def test_never_more_than_asked_for_and_none_twice(most):
    some = [evaluation(step, float(step % 7), accuracy=float(step % 11)) for step in range(1, 101)]
    found = steps(evaluations.few_evaluations(some, most))
    assert found == sorted(set(found))
    assert (len(found), found[0], found[-1]) == (most, 1, 100)


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
