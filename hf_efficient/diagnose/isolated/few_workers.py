"""The training waits for its loader."""

from __future__ import annotations

import math

from hf_efficient.diagnose.isolated.rule import (
    SOURCE,
    clear,
    cost,
    gain,
    part_evidence,
    share_of,
    unknown,
)
from hf_efficient.diagnose.rule import MATTERS
from hf_efficient.records.findings import Abstention, Evidence, Finding, Remedy
from hf_efficient.records.isolation import Isolation, LoaderAlone, StepPart
from hf_efficient.units import share

__all__ = ["few_workers"]


def few_workers(found: Isolation) -> Finding | Abstention | None:
    """Batches made beforehand save a twentieth of the step or more: workers load while the model computes."""
    part = clear(found, "data")
    if part is None or part.seconds is None or share_of(found, part.seconds) < MATTERS:
        return unknown(found, "few_workers", "data")
    evidence = part_evidence(found, part, "data wait of a step")
    loader = found.loader
    if loader is not None:
        evidence.append(Evidence("the loader alone", loader.step_seconds, "seconds", f"{SOURCE}: loader"))
    if loader is not None and loader.model_step_seconds is not None:
        source = f"{SOURCE}: held_batches"
        evidence.append(Evidence("the model alone", loader.model_step_seconds, "seconds", source))
    workers = found.schedule.workers
    loads = f"of {workers} workers" if workers else "in the process that trains"
    return Finding(
        rule="few_workers",
        title=f"{share(share_of(found, part.seconds))} of a step is waiting for the data loader, which loads {loads}",
        severity="warning",
        confidence="measured",
        evidence=[*evidence, Evidence("workers of the loader", workers, "count", "recipe")],
        cost=cost(found, part.seconds),
        remedies=[] if loader is None else [_remedy(found, part, loader)],
    )


def _remedy(found: Isolation, part: StepPart, loader: LoaderAlone) -> Remedy:
    """Workers enough that together they load as fast as the model computes."""
    assert part.seconds is not None
    now = max(1, found.schedule.workers)
    model = loader.model_step_seconds or found.step_seconds - part.seconds
    wanted = max(2, math.ceil(1.2 * loader.step_seconds * now / model))
    left = max(0.0, loader.step_seconds * now / wanted - model)
    saved = part.seconds - left
    basis = f"{wanted} workers load a step in {wanted / now:g} times less while the model computes"
    busy = loader.cpu_share if found.schedule.device == "cpu" and not found.schedule.workers else None
    if busy is not None:
        saved *= 1 - busy
        basis += f"; of the loading, {share(busy)} computes, which takes cores from a training on the CPU"
    costs = "memory of so many processes, and cores that compute nothing else meanwhile"
    overrides = {"train.dataloader_num_workers": wanted}
    return Remedy(f"load in {wanted} workers", overrides, costs, gain(found, saved, basis))
