"""The training waits for its loader."""

from __future__ import annotations

from hf_efficient.diagnosis.isolated.rule import (
    SOURCE,
    clear,
    cost,
    gain,
    part_evidence,
    share_of,
    unknown,
)
from hf_efficient.diagnosis.rule import MATTERS
from hf_efficient.estimate.loading import StepLoad, best_workers, loaded_step_seconds
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
        remedies=[] if loader is None else _remedies(found, part, loader),
    )


def _remedies(found: Isolation, part: StepPart, loader: LoaderAlone) -> list[Remedy]:
    """As many workers as are best, where that is more than there are."""
    assert part.seconds is not None
    schedule = found.schedule
    serial = loader.step_seconds * max(1, schedule.workers)
    cpu = serial if loader.cpu_seconds is None else min(serial, loader.cpu_seconds)
    model = loader.model_step_seconds or found.step_seconds - part.seconds
    computes = float(min(schedule.threads, schedule.cores)) if schedule.device == "cpu" else 1.0
    load = StepLoad(model, computes, serial - cpu, cpu)
    workers = best_workers(load, schedule.cores)
    saved = min(part.seconds, model + part.seconds - loaded_step_seconds(load, workers, schedule.cores))
    if workers <= schedule.workers or saved <= 0:
        return []
    basis = (
        f"a step takes the longest of computing, loading over {workers}, and both over {schedule.cores:g} cores "
        f"({computes:g} of them busy with training)"
    )
    what = f"load with {workers} worker{'s' if workers > 1 else ''} beside the training"
    more = workers - schedule.workers
    costs = f"{more} more process{'es' if more > 1 else ''}, with memory of {'their' if more > 1 else 'its'} own"
    return [Remedy(what, {"train.dataloader_num_workers": workers}, costs, gain(found, saved, basis))]
