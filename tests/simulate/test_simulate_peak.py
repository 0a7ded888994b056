"""The peak of hand-worked logs, and what its tensors are used for."""

from __future__ import annotations

import pytest
import torch

from hf_efficient.simulate.tensor_log import StorageLife, TensorLog, category_of, find_peak, phase_peaks


def life(size, phase="forward", shape=(4, 8), born_at=0, freed_at=None, category=""):
    return StorageLife(size, shape, torch.float32, "aten.mul.Tensor", phase, "layer", born_at, freed_at, category)


def log_of(*events, phases=None):
    """Events by (index, bytes); a storage is born where its bytes are positive."""
    log = TensorLog()
    for place, (index, size) in enumerate(events):
        if size > 0:
            log.lives.append(life(size, (phases or {}).get(index, "forward"), born_at=place))
        else:
            log.lives[index].freed_at = place + 1
        log.events.append((index, size))
    return log


EVENTS = ((0, 100), (1, 50), (1, -50), (2, 70), (3, 20), (2, -70), (0, -100), (4, 160), (4, -160), (5, 10))
# live:   100       150      100       170      190      120       20         180       20         30


def test_the_peak_its_moment_and_the_storage_that_made_it():
    log = log_of(*EVENTS)
    peak = find_peak(log)
    assert (peak.bytes, peak.event) == (190, 5)
    assert peak.life is log.lives[3]
    assert sum(one.bytes for one in log.lives if one.lives_at(peak.event)) == 190


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [(0, 3, (150, 2)), (3, None, (190, 5)), (5, None, (180, 8)), (8, None, (30, 10)), (5, 7, None), (10, None, None)],
)
def test_the_peak_within_some_events(start, end, found):
    peak = find_peak(log_of(*EVENTS), start, end)
    assert (None if peak is None else (peak.bytes, peak.event)) == found


def test_the_first_of_equal_peaks_counts():
    peak = find_peak(log_of((0, 10), (0, -10), (1, 10)))
    assert (peak.bytes, peak.event) == (10, 1)


def test_nothing_logged_has_no_peak():
    assert find_peak(TensorLog()) is None
    assert phase_peaks(TensorLog()) == {}


def test_each_phase_has_its_own_peak():
    phases = {0: "setup", 1: "setup", 2: "forward", 3: "backward", 4: "optimizer", 5: "optimizer"}
    assert phase_peaks(log_of(*EVENTS, phases=phases)) == {
        "setup": 150,
        "forward": 170,
        "backward": 190,
        "optimizer": 180,
    }


@pytest.mark.parametrize(
    ("one", "category"),
    [
        (life(1, category="gradients", shape=(4, 96)), "gradients"),  # said counts first
        (life(1, shape=(2, 5, 96)), "logits"),
        (life(1, "backward", shape=(2, 5, 96)), "logits"),
        (life(1, "recompute", shape=(10, 96)), "logits"),
        (life(1, shape=(96,)), "rest"),  # one dimension: a norm, a table
        (life(1, "recompute"), "activations"),
        (life(1, "forward", born_at=3, freed_at=30), "activations"),  # kept for the backward at 20
        (life(1, "forward", born_at=3, freed_at=20), "rest"),  # freed before it
        (life(1, "forward", born_at=3), "activations"),
        (life(1, "forward", born_at=25, freed_at=30), "rest"),  # freed before its own backward at 40
        (life(1, "forward", born_at=25, freed_at=41), "activations"),
        (life(1, "forward", born_at=50), "rest"),  # no backward comes
        (life(1, "backward"), "rest"),
        (life(1, "optimizer"), "rest"),
    ],
)
def test_what_a_storage_is_used_for(one, category):
    starts = () if one.shape == (96,) else (20, 40)
    assert category_of(one, starts, vocabulary=96) == category
