"""A log of allocations rewritten, event by event."""

from __future__ import annotations

import torch

from hf_efficient.planning.ranks.log import Score
from hf_efficient.planning.simulation import Simulation
from hf_efficient.planning.trainers import SimulatedEvaluation
from hf_efficient.simulate.tensor_log import StorageLife, TensorLog


def simulation(*events):
    """Each event: the index of a storage of 100 bytes that begins, or its complement, which ends."""
    log = TensorLog()
    for place, what in enumerate(events):
        index = what if what >= 0 else ~what
        if what >= 0:
            log.lives.append(StorageLife(100, (25,), torch.float32, "op", "forward", f"m{index}", place))
        else:
            log.lives[index].freed_at = place + 1
        log.events.append((index, 100 if what >= 0 else -100))
    return Simulation(
        log=log,
        backward_starts=(3,),
        second_step=5,
        vocabulary=30,
        first_step=1,
        rows=1,
        length=5,
        micro_batches=1,
        operators=[],
        parameters=260,
        trained_parameters=10,
        paged_bytes=0,
        evaluation=SimulatedEvaluation(5, 1, 5, []),
    )


OLD = (0, 1, ~1, 2, ~0, ~2)


def sizes(written):
    return [size for _, size in written.log.events]


def test_nothing_changes_by_itself():
    written = Score(simulation(*OLD)).written()
    assert sizes(written) == [100, 100, -100, 100, -100, -100]
    assert [life.module for life in written.log.lives] == ["m0", "m1", "m2"]
    assert [(life.born_at, life.freed_at) for life in written.log.lives] == [(0, 5), (1, 3), (3, 6)]
    assert (written.first_step, written.backward_starts, written.second_step) == (1, (3,), 5)


def test_a_storage_of_another_size_and_one_that_is_not_there():
    score = Score(simulation(*OLD))
    score.resize(0, 40)
    score.resize(1, 0)
    written = score.written()
    assert sizes(written) == [40, 100, -40, -100]
    assert [life.module for life in written.log.lives] == ["m0", "m2"]
    assert (written.first_step, written.backward_starts, written.second_step) == (1, (1,), 3)
    assert written.evaluation.start == 3


def test_a_boundary_after_what_is_not_there():
    score = Score(simulation(*OLD))
    score.resize(0, 0)
    assert score.written().first_step == 0


def test_a_storage_that_ends_early_ends_once():
    score = Score(simulation(*OLD))
    score.cut(0, 3)
    assert sizes(score.written()) == [100, 100, -100, -100, 100, -100]


def test_new_ones_come_before_their_event_in_the_order_asked_for():
    score = Score(simulation(*OLD))
    first = score.add(3, 7, "communication", "bucket", "backward")
    second = score.add(3, 8, "communication", "bucket", "backward", 4)
    score.end(first, 3)
    score.end(second, 6)  # after the last event
    nothing = score.add(1, 0, "communication", "nothing", "backward")
    score.end(nothing, 2)
    written = score.written()
    assert sizes(written) == [100, 100, -100, 7, 8, -7, 100, -100, -100, -8]
    assert (written.first_step, written.backward_starts, written.second_step) == (1, (3,), 8)
    lives = {life.bytes: life for life in written.log.lives}
    assert (lives[7].category, lives[7].module, lives[7].born_at, lives[7].freed_at) == (
        "communication",
        "bucket",
        3,
        6,
    )
    assert (lives[8].shape, lives[8].dtype) == ((2,), torch.float32)
