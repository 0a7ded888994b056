"""How long DeepSpeed lets a whole gradient live, in a log made by hand."""

from __future__ import annotations

import pytest
import torch

from hf_efficient.estimate.sharding import Sharding
from hf_efficient.planning.ranks.log import Score
from hf_efficient.planning.ranks.shares import Sizes
from hf_efficient.planning.ranks.zero import spread_gradients
from hf_efficient.planning.simulation import HeldWeight, Simulation, Unit
from hf_efficient.simulate.tensor_log import StorageLife, TensorLog

ELEMENTS = {"small": 10, "large": 20, "huge": 30}
BYTES = {name: 4 * elements for name, elements in ELEMENTS.items()}


def simulation(*made: str) -> Simulation:
    """A backward that allocates these, ``-`` an activation of 1 byte that stays, and a step that allocates 7 bytes."""
    log = TensorLog()
    for name in (*made, "step"):
        size = BYTES.get(name, 7 if name == "step" else 1)
        category = "gradients" if name in ELEMENTS else ""
        phase = "optimizer" if name == "step" else "backward"
        place = len(log.events)
        log.lives.append(StorageLife(size, (size,), torch.uint8, "op", phase, name, place, category=category))
        log.events.append((len(log.lives) - 1, size))
    weights = tuple(HeldWeight(name, (count,), count, 4, 4, trained=True) for name, count in ELEMENTS.items())
    return Simulation(
        log=log,
        backward_starts=(0, 0),
        second_step=0,
        vocabulary=30,
        first_step=0,
        rows=1,
        length=5,
        micro_batches=1,
        operators=[],
        parameters=60,
        trained_parameters=60,
        paged_bytes=0,
        units=(Unit("layer", weights, ("layer",), is_layer=True),),
    )


@pytest.mark.parametrize(
    ("made", "bucket", "expected"),
    [
        # Each goes into the bucket at once; the step comes last.
        (["large", "-", "small"], 20, [80, -80, 1, 40, -40, 7]),
        # One element more than the bucket has: it is there until after the next has come.
        (["large", "-", "small"], 19, [80, 1, 40, -80, -40, 7]),
        # Two that are too large in a row are there together, three are not; the end of the backward sends the last.
        (["huge", "large", "small", "-"], 5, [120, 80, -120, 40, -80, 1, -40, 7]),
    ],
)
@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_a_gradient_larger_than_a_bucket_waits_for_the_next(strategy, made, bucket, expected):
    """With the optimizer on the host, so that no share of a gradient is added."""
    found = simulation(*made)
    score = Score(found)
    sharding = Sharding(strategy, 2, bucket_elements=bucket, offload_optimizer=True)
    spread_gradients(found, score, Sizes(sharding, mixed=False, packed=False))
    assert [size for _, size in score.written().log.events] == expected


def test_zero_1_keeps_them_all():
    found = simulation("huge", "small")
    score = Score(found)
    spread_gradients(found, score, Sizes(Sharding("zero1", 2, bucket_elements=5), mixed=False, packed=False))
    assert [size for _, size in score.written().log.events] == [120, 40, 7]
