"""What the variants took, made into the parts of an optimizer step."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hf_efficient.diagnosis.isolated.engine import diagnose_isolation
from hf_efficient.estimate.attribution import StepAttribution, attribute
from hf_efficient.estimate.batch_time import batch_time
from hf_efficient.isolate.experiment import chain_times
from hf_efficient.isolate.parts import pause_parts, step_parts
from hf_efficient.isolate.remarks import remarks
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.isolation import (
    ISOLATION_SCHEMA_VERSION,
    Isolation,
    IsolationSchedule,
    LoaderAlone,
    MicroBatchLine,
    PauseTimes,
    StepPart,
    TokenisationAlone,
    VariantMeasurement,
    VariantOutcome,
)
from hf_efficient.version import __version__

__all__ = ["isolation_of"]

_SIZES = ("as_is", "micro_batch_halved", "micro_batch_doubled")


def isolation_of(recipe: Recipe, outcomes: Sequence[VariantOutcome], steps: int, warm_up: int) -> Isolation:
    """The attribution, what was measured by itself, and the findings.

    Args:
        recipe: the user's.
        outcomes: of all variants; that of the recipe as it is has a run with its schedule.
        steps: measured of each run.
        warm_up: steps before them.
    """
    held = {one.name: one for one in outcomes}
    schedule = next(run.schedule for run in held["as_is"].runs if run.schedule is not None)
    attribution = attribute(chain_times(outcomes))
    pauses = _pauses(held, attribution)
    loader = _loader(held)
    parts = [
        *step_parts(attribution, held, schedule, loader),
        *pause_parts(held.get("pauses"), pauses, schedule),
    ]
    whole = attribution.plain_seconds + _between(parts)
    found = Isolation(
        schema_version=ISOLATION_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        recipe=recipe.name,
        steps=steps,
        warm_up=warm_up,
        schedule=schedule,
        variants=list(outcomes),
        step_seconds=whole,
        parts=parts,
        unexplained_seconds=whole - sum(part.seconds or 0.0 for part in parts),
        tokens_per_second=_rate(held["as_is"].runs, whole, schedule),
        pauses=pauses,
        loader=loader,
        tokenisation=_tokenisation(held),
        micro_batch=_line(held),
        forward_without_graph_seconds=_median(_seconds(held, "forward_no_grad")),
        price_usd_per_hour=recipe.efficiency.price_usd_per_hour,
        notes=remarks(recipe, held, schedule),
    )
    return dataclasses.replace(found, diagnosis=diagnose_isolation(found))


def _between(parts: Iterable[StepPart]) -> float:
    """What falls between the steps, of each step."""
    return sum(part.seconds or 0.0 for part in parts if part.name in ("logging", "evaluation", "checkpointing"))


def _pauses(held: Mapping[str, VariantOutcome], attribution: StepAttribution) -> PauseTimes:
    log = attribution.differences.get("logging")
    runs = held["pauses"].runs if "pauses" in held else []
    return PauseTimes(
        log_seconds=max(0.0, log.seconds) if log is not None and log.is_clear else None,
        evaluation_seconds=_median([one for run in runs for one in run.evaluation_seconds]),
        save_seconds=_median([one for run in runs for one in run.save_seconds]),
    )


def _rate(runs: Sequence[VariantMeasurement], whole: float, schedule: IsolationSchedule) -> float | None:
    """Positions of all processes."""
    tokens = [one for run in runs for one in run.step_tokens]
    middle = statistics.mean(tokens) if tokens else 0.0
    return middle * schedule.processes / whole if middle else None


def _loader(held: Mapping[str, VariantOutcome]) -> LoaderAlone | None:
    runs = held["loader"].runs if "loader" in held else []
    seconds = [one for run in runs for one in run.step_seconds]
    if not seconds:
        return None
    tokens = sum(sum(run.step_tokens) for run in runs)
    cpu = [run.cpu_seconds for run in runs if run.cpu_seconds is not None]
    return LoaderAlone(
        step_seconds=statistics.median(seconds),
        tokens_per_second=tokens / sum(seconds) if tokens else None,
        model_step_seconds=_median(_seconds(held, "held_batches")),
        cpu_seconds=sum(cpu) / len(seconds) if len(cpu) == len(runs) else None,
    )


def _tokenisation(held: Mapping[str, VariantOutcome]) -> TokenisationAlone | None:
    run = next(iter(held["tokenisation"].runs), None) if "tokenisation" in held else None
    if run is None or run.examples is None or run.tokens is None or not run.prepare_seconds:
        return None
    return TokenisationAlone(
        examples=run.examples,
        tokens=run.tokens,
        seconds=run.prepare_seconds,
        read_seconds=run.read_seconds or 0.0,
        examples_per_second=run.examples / run.prepare_seconds,
        tokens_per_second=run.tokens / run.prepare_seconds,
    )


def _line(held: Mapping[str, VariantOutcome]) -> MicroBatchLine | None:
    names = [name for name in _SIZES if name in held and any(run.micro_batch_seconds for run in held[name].runs)]
    runs = [run for name in names for run in held[name].runs]
    seconds = np.array([one for run in runs for one in run.micro_batch_seconds])
    tokens = np.array([one for run in runs for one in run.micro_batch_tokens])
    line = batch_time(seconds, tokens) if len(names) > 1 else None
    if line is None or "as_is" not in names:
        return None
    own = held["as_is"].runs
    mean = {name: statistics.mean(one for run in held[name].runs for one in run.micro_batch_tokens) for name in names}
    doubled = mean.get("micro_batch_doubled")
    return MicroBatchLine(
        fixed_seconds=line.fixed_seconds,
        token_seconds=line.token_seconds,
        seconds=statistics.median(one for run in own for one in run.micro_batch_seconds),
        tokens=statistics.median(one for run in own for one in run.micro_batch_tokens),
        points=len(seconds),
        variants=names,
        doubled_positions=None if doubled is None else doubled / (2 * mean["as_is"]),
    )


def _seconds(held: Mapping[str, VariantOutcome], name: str) -> list[float]:
    return [one for run in held[name].runs for one in run.step_seconds] if name in held else []


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
