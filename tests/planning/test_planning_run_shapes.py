"""The steps and the evaluations of a run, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import datasets
import numpy as np
import pytest
from trl import SFTConfig

from hf_efficient.planning.batches import Batching, BatchShapes
from hf_efficient.planning.run_data import RunRows, RunShapes, batching_of, rows_as_prepared, rows_of, run_shapes


@pytest.fixture
def arguments(tmp_path):
    def build(**fields):
        return SFTConfig(**{"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": [], **fields})

    return build


def test_the_arguments_as_batching(arguments):
    args = arguments(
        per_device_train_batch_size=3,
        gradient_accumulation_steps=5,
        num_train_epochs=2.5,
        max_steps=7,
        train_sampling_strategy="group_by_length",
        pad_to_multiple_of=8,
        dataloader_drop_last=True,
    )
    assert batching_of(args, 4) == Batching(
        3, 5, 4, 2.5, 7, padding_free=False, by_length=True, multiple_of=8, drop_last=True
    )
    assert batching_of(arguments(packing=True), 1).padding_free
    assert not batching_of(arguments(packing=True, packing_strategy="wrapped"), 1).padding_free


def test_training_and_evaluation(arguments):
    args = arguments(per_device_train_batch_size=2, per_device_eval_batch_size=2, num_train_epochs=2, max_length=16)
    rows = RunRows(np.array([4, 4, 4, 4]), np.array([8, 2, 4]))
    found = run_shapes(args, rows, 1, at_end=True)
    assert found.train == BatchShapes(4, 8.0, 4, 2, 8.0, padded=False)
    # two batches in their own order: 8 and 2 take 16 positions, 4 takes 4
    assert found.evaluation == BatchShapes(8, 10.0, 2, 2, 7.0, padded=True)
    assert (found.evaluations, found.saves) == (1, 1)
    assert found.evaluated_positions == 20


def test_without_data_to_evaluate_on(arguments):
    found = run_shapes(arguments(eval_strategy="no"), RunRows(np.array([4, 4])), 1, at_end=True)
    assert (found.evaluation, found.evaluations, found.evaluated_positions, found.saves) == (None, 0, 0.0, 1)


def test_documents_as_a_run_prepares_them(arguments):
    documents = RunRows(np.array([10, 3, 5, 2]), np.array([4, 4]))
    found = rows_as_prepared(documents, arguments(max_length=6))
    assert (found.train.tolist(), found.evaluation.tolist()) == ([6, 3, 5, 2], [4, 4])
    assert rows_as_prepared(documents, arguments(max_length=None)).train.tolist() == [10, 3, 5, 2]
    packed = rows_as_prepared(documents, arguments(max_length=8, packing=True, eval_packing=False))
    assert sorted(packed.train.tolist()) == [2, 8, 8]  # 10 is cut to 8; 3 and 5 fill one; 2
    assert packed.evaluation.tolist() == [4, 4]
    wrapped = rows_as_prepared(documents, arguments(max_length=8, packing=True, packing_strategy="wrapped"))
    assert (wrapped.train.tolist(), wrapped.evaluation.tolist()) == ([8, 8], [8])


def test_the_rows_of_prepared_data():
    rows = datasets.Dataset.from_list([{"input_ids": [1] * length} for length in (3, 1)])
    found = rows_of(SimpleNamespace(train=rows, eval=None), SimpleNamespace())
    assert (found.train.tolist(), found.evaluation) == ([3, 1], None)
    assert rows_of(SimpleNamespace(train=rows, eval=rows), SimpleNamespace()).evaluation.tolist() == [3, 1]


def test_nothing_is_evaluated_by_default():
    assert RunShapes(BatchShapes(1, 1.0, steps=10, epoch_steps=4, step_content=1.0)).evaluated_positions == 0.0
