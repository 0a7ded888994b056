from __future__ import annotations

import json

import numpy as np

from hf_efficient.accounting.evaluations import answers_to_note, evaluations_of, metrics_to_note
from hf_efficient.accounting.processes import ProcessSpans
from hf_efficient.records.amounts import Evaluation
from hf_efficient.run_dir.reading import TAIL_BYTES


def test_metrics_are_numbers_without_prefix_and_speed():
    metrics = {
        "eval_loss": np.float32(0.5),
        "eval_accuracy": 1,
        "eval_perplexity": float("inf"),
        "eval_runtime": 2.0,
        "eval_samples_per_second": 3.0,
        "eval_steps_per_second": 3.0,
        "eval_other_runtime": 1.0,
        "eval_model_preparation_time": 0.1,
        "eval_report": "text",
        "epoch": 1.0,
    }
    assert metrics_to_note(metrics) == {"loss": 0.5, "accuracy": 1.0, "perplexity": None}
    assert metrics_to_note({"test_loss": 1.0, "eval_loss": 2.0}, "test") == {"loss": 1.0, "eval_loss": 2.0}


def test_the_evaluations_of_all_processes_in_their_order():
    first, second = ProcessSpans(0), ProcessSpans(1)
    first.notes["evaluation"] = [
        {"kind": "evaluation", "process": 0, "step": 0, "seconds": 2.0, "metrics": {"loss": 3.0}},
        {"kind": "evaluation", "process": 0, "step": 5, "seconds": 2.5, "metrics": {"loss": None}},
    ]
    second.notes["evaluation"] = [{"kind": "evaluation", "process": 1, "step": 5, "metrics": {"loss": 2.5}}]
    assert evaluations_of([first, second]) == [
        Evaluation(0, {"loss": 3.0}, 2.0),
        Evaluation(5, {"loss": None}, 2.5),
        Evaluation(5, {"loss": 2.5}, None),
    ]


def test_answers_are_cut_and_fit_into_a_line():
    noted = answers_to_note([(" q ", "e", "x" * 1001)])
    assert noted == [{"question": "q", "expected": "e", "generated": "x" * 996 + " ..."}]
    many = answers_to_note([("\N{GRINNING FACE}" * 1000, "e", "g")] * 8)  # 12 bytes each, as JSON escapes it
    assert len(many) == 2
    assert len(json.dumps(many)) < TAIL_BYTES / 2
    assert answers_to_note([]) == []
