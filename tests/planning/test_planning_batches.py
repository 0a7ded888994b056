"""The shapes of a run's batches, its evaluations and its saves."""

from types import SimpleNamespace

import datasets
import numpy as np
import pytest
from transformers import DefaultFlowCallback, TrainerControl, TrainerState
from trl import SFTConfig

from hf_efficient.planning.batches import (
    Batching,
    BatchShapes,
    RunRows,
    batch_shapes,
    batchings,
    evaluations_of,
    packs,
    rows_as_prepared,
    run_shapes,
    saves_of,
)
from hf_efficient.planning.run_data import rows_of


def test_shapes_by_hand():
    lengths = [8, 2, 4, 2]
    assert batch_shapes(lengths, Batching(2, shuffled=False)) == BatchShapes(8, 12.0, 2, 2, 8.0, padded=True)
    assert batch_shapes(lengths, Batching(2, padding_free=True)) == BatchShapes(6, 8.0, 2, 2, 8.0, padded=False)
    assert batch_shapes([4, 4, 4, 4], Batching(2)) == BatchShapes(4, 8.0, 2, 2, 8.0, padded=False)
    assert batch_shapes([8, 2, 4, 2], Batching(1)) == BatchShapes(8, 4.0, 4, 4, 4.0, padded=False)
    assert batch_shapes([9, 2], Batching(1, multiple_of=8)) == BatchShapes(16, 12.0, 2, 2, 5.5, padded=False)
    # Pairs (8, 2), (4, 2): four answers of 8, of which 16 hold a token.
    found = batch_shapes(np.array([[8, 2], [4, 2]]), Batching(2))
    assert found == BatchShapes(8, 32.0, 1, 1, 16.0, padded=True)
    assert batch_shapes(np.array([[8, 2], [4, 2]]), Batching(1, by_length=True)).step_tokens == 12.0  # 16 and 8
    assert batch_shapes(np.array([[4, 4]]), Batching(1)) == BatchShapes(4, 8.0, 1, 1, 8.0, padded=False)


def test_random_orders():
    """64 rows in pairs: stretches of 16 are sorted, so that of each one pair may be of 8 and 2; by chance half are."""
    lengths = [8] * 32 + [2] * 32
    grouped = batch_shapes(lengths, Batching(2, by_length=True))
    assert 320 <= 32 * grouped.step_tokens <= 320 + 4 * 6
    assert 32 * batch_shapes(lengths, Batching(2)).step_tokens > 320 + 8 * 6
    assert 32 * grouped.step_content == 320
    # Pairs of 1 and 3, half and half: the longer is 3 in three of four pairs.
    found = batch_shapes(np.tile([1, 3], 20_000), Batching(2))
    assert found.step_tokens == pytest.approx(2 * (3 * 0.75 + 1 * 0.25), rel=0.01)
    assert found.padded


@pytest.mark.parametrize(
    ("how", "steps", "step_tokens"),
    [
        (Batching(2, micro_batches=2), 3, 20 * 2 * 5 / 3),  # ten rows: five micro-batches in three steps
        (Batching(2, micro_batches=2, max_steps=2), 2, 80.0),  # the last step of the epoch does not come
        (Batching(2, micro_batches=2, epochs=1.5), 5, 20 * 2 * 5 / 3),
        (Batching(4, drop_last=True), 2, 200 / 3),
        (Batching(2, processes=2), 3, 20 * 2 * 2.0),
    ],
)
def test_the_steps_of_ten_rows_of_twenty(how, steps, step_tokens):
    found = batch_shapes([20] * 10, how)
    assert (found.steps, found.row_tokens) == (steps, 20)
    assert found.step_tokens == found.step_content == pytest.approx(step_tokens)


def told(found):
    return [(one.name, one.epoch_positions, round(one.padding_share, 4), one.epoch_steps, one.chosen) for one in found]


def test_three_ways_to_batch():
    """Eight of 6 and eight of 2, in pairs: 8 steps, sorted in stretches of four. Packs of 8: eight, in four steps."""
    documents = np.array([6] * 8 + [2] * 8)
    found = batchings(documents, Batching(2), packed=False, max_length=8, seed=0)
    assert told(found)[2] == ("packed", 64, 0.0, 4, False)
    assert [one.epoch_steps for one in found] == [8, 8, 4]
    assert [one.chosen for one in found] == [True, False, False]
    for one, most_mixed in zip(found[:2], (8, 4), strict=True):  # of each stretch one pair at most
        assert one.epoch_positions in range(64, 64 + 4 * most_mixed + 1, 4)
        assert one.padding_share == pytest.approx(1 - 64 / one.epoch_positions)
    documents = np.array([6, 2, 6, 2])
    grouped = batchings(documents, Batching(2, by_length=True), packed=False, max_length=8, seed=0)
    assert [one.chosen for one in grouped] == [False, True, False]
    packed = batchings(documents, Batching(2, padding_free=True), packed=True, max_length=8, seed=0)
    assert [one.chosen for one in packed] == [False, False, True]
    assert packed[1].overrides == {"train.packing": False, "train.train_sampling_strategy": "group_by_length"}
    assert sorted(packs(np.array([5, 3, 4, 4, 2]), 8).tolist()) == [2, 8, 8]


@pytest.fixture
def arguments(tmp_path):
    def build(**fields):
        return SFTConfig(**{"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": [], **fields})

    return build


def test_training_and_evaluation(arguments):
    args = arguments(per_device_train_batch_size=2, per_device_eval_batch_size=2, num_train_epochs=2, max_length=16)
    rows = RunRows(np.array([4, 4, 4, 4]), np.array([8, 2, 4]))
    found = run_shapes(args, rows, 1, at_end=True)
    assert found.train == BatchShapes(4, 8.0, 4, 2, 8.0, padded=False)
    # two batches in their own order: 8 and 2 take 16 positions, 4 takes 4
    assert found.evaluation == BatchShapes(8, 10.0, 2, 2, 7.0, padded=True)
    assert (found.evaluations, found.saves) == (1, 1)
    assert found.evaluated_positions == 20
    found = run_shapes(arguments(eval_strategy="no"), RunRows(np.array([4, 4])), 1, at_end=True)
    assert (found.evaluation, found.evaluations, found.evaluated_positions, found.saves) == (None, 0, 0.0, 1)


def test_rows_as_a_run_has_them(arguments):
    documents = RunRows(np.array([10, 3, 5, 2]), np.array([4, 4]))
    found = rows_as_prepared(documents, arguments(max_length=6))
    assert (found.train.tolist(), found.evaluation.tolist()) == ([6, 3, 5, 2], [4, 4])
    assert rows_as_prepared(documents, arguments(max_length=None)).train.tolist() == [10, 3, 5, 2]
    packed = rows_as_prepared(documents, arguments(max_length=8, packing=True, eval_packing=False))
    assert sorted(packed.train.tolist()) == [2, 8, 8]  # 10 is cut to 8; 3 and 5 fill one; 2
    assert packed.evaluation.tolist() == [4, 4]
    wrapped = rows_as_prepared(documents, arguments(max_length=8, packing=True, packing_strategy="wrapped"))
    assert (wrapped.train.tolist(), wrapped.evaluation.tolist()) == ([8, 8], [8])
    rows = datasets.Dataset.from_list([{"input_ids": [1] * length} for length in (3, 1)])
    found = rows_of(SimpleNamespace(train=rows, eval=None), SimpleNamespace())
    assert (found.train.tolist(), found.evaluation) == ([3, 1], None)
    assert rows_of(SimpleNamespace(train=rows, eval=rows), SimpleNamespace()).evaluation.tolist() == [3, 1]


TEN = BatchShapes(1, 1.0, steps=10, epoch_steps=4, step_content=1.0)
"""Ten steps, four an epoch: epochs end after the steps 4, 8 and 10."""


@pytest.mark.parametrize(
    ("fields", "at_end", "expected"),
    [
        ({}, False, 0),
        ({}, True, 1),
        ({"eval_on_start": True}, False, 1),
        ({"eval_strategy": "steps", "eval_steps": 3}, False, 4),  # 3, 6, 9 and the last step
        ({"eval_strategy": "steps", "eval_steps": 3}, True, 4),
        ({"eval_strategy": "steps", "eval_steps": 5}, True, 2),  # the one after step 10 is the last
        ({"eval_strategy": "steps", "eval_steps": 0.25}, False, 4),  # every 3 steps
        ({"eval_strategy": "steps", "logging_steps": 4}, False, 3),
        ({"eval_strategy": "steps", "eval_steps": 3, "eval_delay": 4}, False, 3),
        ({"eval_strategy": "steps", "eval_steps": 3, "eval_delay": 11}, False, 0),
        ({"eval_strategy": "epoch"}, True, 3),
        ({"eval_strategy": "epoch", "eval_delay": 1.5}, True, 2),
        ({"eval_strategy": "steps", "eval_steps": 5, "save_steps": 5, "load_best_model_at_end": True}, True, 3),
    ],
)
def test_how_often_a_run_evaluates(arguments, fields, at_end, expected):
    assert evaluations_of(arguments(**fields), TEN, at_end=at_end) == expected


SAVING = [
    ({"save_strategy": "no"}, 0),
    ({}, 1),  # every 500 steps, and after the last one
    ({"save_steps": 4}, 3),  # 4, 8, 10
    ({"save_steps": 5}, 2),
    ({"save_steps": 0.25}, 4),  # every 3 steps, and after the last one
    ({"save_strategy": "epoch"}, 3),
]


@pytest.mark.parametrize(("fields", "expected"), SAVING)
def test_how_often_a_run_saves(arguments, fields, expected):
    assert saves_of(arguments(**fields), TEN) == expected


@pytest.mark.parametrize(
    "fields", [*(fields for fields, _ in SAVING), {"eval_strategy": "steps", "eval_steps": 3, "eval_delay": 4}]
)
def test_as_the_callback_of_transformers_decides(arguments, fields):
    args, flow, control = arguments(**fields), DefaultFlowCallback(), TrainerControl()
    state, evaluations, saves = TrainerState(max_steps=TEN.steps), 0, 0
    state.compute_steps(args, TEN.steps)
    for step in range(1, TEN.steps + 1):
        state.global_step, state.epoch = step, step / TEN.epoch_steps
        asked = [flow.on_step_end]
        if step % TEN.epoch_steps == 0 or step == TEN.steps:
            asked.append(flow.on_epoch_end)
        for ask in asked:
            control.should_evaluate = control.should_save = False
            ask(args, state, control)
            evaluations, saves = evaluations + control.should_evaluate, saves + control.should_save
    assert (evaluations_of(args, TEN, at_end=False), saves_of(args, TEN)) == (evaluations, saves)


def test_saves_of_the_best(arguments):
    """After 3, 6, 9 and 10; what is evaluated before the first step is not saved."""
    best = {"save_strategy": "best", "metric_for_best_model": "loss", "eval_on_start": True}
    assert saves_of(arguments(**best, eval_strategy="steps", eval_steps=3), TEN) == 4
    assert saves_of(arguments(**best, eval_strategy="epoch"), TEN) == 3
