from __future__ import annotations

from types import SimpleNamespace

import torch

from hf_efficient.isolate.measuring import StepStamps, positions


def test_a_step_is_what_lies_between_the_ends_of_two():
    readings = iter([10.0, 11.0, 13.0, 16.0])
    added = []
    batches = [{"input_ids": torch.zeros(2, 5)}, {"input_ids": torch.zeros(2, 7)}]
    trainer = SimpleNamespace(get_batch_samples=lambda *args: (batches, 3), add_callback=added.append)
    stamps = StepStamps(trainer, warm_up=1, now=lambda: next(readings))
    assert added == [stamps]
    args = SimpleNamespace(device=torch.device("cpu"))
    stamps.on_train_begin(args, SimpleNamespace(max_steps=4), None)
    for step in range(1, 5):
        assert trainer.get_batch_samples("iterator", 2) == (batches, 3)
        stamps.on_step_end(args, SimpleNamespace(global_step=step), None)
        if step == 2:
            stamps.on_log(args, SimpleNamespace(global_step=step), None)
    found = stamps.measurement()
    assert found.step_seconds == [1.0, 2.0, 3.0]
    assert found.step_tokens == [24, 24, 24]
    assert found.step_micro_batches == [2, 2, 2]
    assert found.step_logged == [False, True, False]  # the log after step 2 falls into step 3


def test_positions_of_a_batch():
    assert positions({"input_ids": torch.zeros(2, 5), "labels": torch.zeros(9, 9)}) == 10
    assert positions({"pixel_values": torch.zeros(3, 4), "name": "x"}) == 12
    assert positions([1, 2]) == 0
