"""From a hand-made log to what the plan tells of its peak."""

from __future__ import annotations

import torch

from hf_efficient.planning.simulation import Simulation, planned_memory
from hf_efficient.simulate.tensor_log import StorageLife, TensorLog

# index, bytes, shape, phase, module, category
STORAGES = [
    (1000, (10, 25), "setup", "head.weight", "weights"),
    (40, (10,), "setup", "layer.lora_A.weight", "adapter"),
    (300, (5, 15), "forward", "layer", ""),  # kept for the backward
    (600, (5, 30), "forward", "", ""),  # as wide as the vocabulary
    (80, (20,), "forward", "norm", ""),  # gone before the backward
    (500, (5, 25), "backward", "layer.up", ""),
    (40, (10,), "backward", "layer.lora_A", "gradients"),
    (80, (20,), "optimizer", "layer.lora_A", "optimizer_state"),
]
EVENTS = [0, 1, 2, 3, 4, ~4, 5, ~3, ~2, 6, ~5, 7]
# live: 1000 1040 1340 1940 2020 1940 2440 1840 1540 1580 1080 1160


def simulation(second_step):
    log = TensorLog()
    for place, what in enumerate(EVENTS):
        index = what if what >= 0 else ~what
        size, shape, phase, module, category = STORAGES[index]
        if what >= 0:
            life = StorageLife(size, shape, torch.float32, f"aten.op{index}", phase, module, place, None, category)
            log.lives.append(life)
            log.events.append((index, size))
        else:
            log.lives[index].freed_at = place + 1
            log.events.append((index, -size))
    return Simulation(
        log=log,
        backward_starts=(6,),
        second_step=second_step,
        vocabulary=30,
        first_step=2,
        rows=1,
        length=5,
        micro_batches=1,
        operators=[],
        parameters=260,
        trained_parameters=10,
        paged_bytes=123,
    )


def test_the_peak_and_what_it_is_made_of():
    memory = planned_memory(simulation(second_step=12))
    assert memory.peak_allocated_bytes == 2440
    assert (memory.peak_phase, memory.peak_module, memory.peak_step) == ("backward", "layer.up", 1)
    assert memory.categories == {"weights": 1000, "adapter": 40, "activations": 300, "logits": 600, "rest": 500}
    assert memory.phase_peak_allocated_bytes == {"forward": 2020, "backward": 2440, "optimizer": 1160}
    assert memory.model_bytes == 1040
    assert memory.paged_bytes == 123


def test_the_largest_come_first_with_their_names():
    largest = planned_memory(simulation(second_step=12)).largest
    assert [one.bytes for one in largest] == [1000, 600, 500, 300, 40]
    second = largest[1]
    assert (second.category, second.operator, second.shape, second.dtype) == ("logits", "aten.op3", (5, 30), "float32")


def test_a_peak_after_the_second_step_began_is_of_the_second():
    assert planned_memory(simulation(second_step=6)).peak_step == 2
    assert planned_memory(simulation(second_step=7)).peak_step == 1


def test_the_most_of_a_category_need_not_be_at_the_peak():
    most = planned_memory(simulation(second_step=12)).category_peak_bytes
    assert (most["gradients"], most["optimizer_state"], most["rest"]) == (40, 80, 500)
    assert (most["weights"], most["logits"], most["activations"]) == (1000, 600, 300)
