"""The train dataloader read to the end of the measured steps, without a training."""

from __future__ import annotations

import dataclasses
import time

import psutil

from hf_efficient.isolate.held_batches import step_batches
from hf_efficient.isolate.stamps import positions, synchronise
from hf_efficient.isolate.training import built_trainer
from hf_efficient.isolate.variant import Setup
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["loader_alone"]


def loader_alone(setup: Setup) -> VariantMeasurement:
    """Time the batches of each step, on their way to the device.

    Raises:
        HfEfficientError: as for a run.
    """
    trainer = built_trainer(setup)
    found = VariantMeasurement()
    cpu_began = _cpu_seconds()
    ended = time.perf_counter()
    loader = trainer.get_train_dataloader()
    for step, batches in enumerate(step_batches(trainer, loader, setup.warm_up + setup.steps)):
        synchronise(trainer.args.device)
        now = time.perf_counter()
        if step == setup.warm_up - 1:
            cpu_began = _cpu_seconds()
        if step >= setup.warm_up:
            found.step_seconds.append(now - ended)
            found.step_tokens.append(sum(positions(batch) for batch in batches))
            found.step_micro_batches.append(len(batches))
            found.step_logged.append(False)
        ended = time.perf_counter()
    return dataclasses.replace(found, cpu_seconds=_cpu_seconds() - cpu_began)


def _cpu_seconds() -> float:
    """Of this process and its workers, so far."""
    own = psutil.Process()
    times = [one.cpu_times() for one in (own, *own.children(recursive=True))]
    return sum(one.user + one.system for one in times)
